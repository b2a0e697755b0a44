"""The stage of the tests of `system`: an open application whose log, archive and backups are in a folder."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from psycopg.rows import dict_row

from holdfast import Holdfast, Settings
from holdfast.apps.system import actions
from holdfast.apps.system.bench import Bench, bench_of
from holdfast.apps.system.ledger import NAME
from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store
from holdfast.engine.values import Row
from holdfast.runtime.app import App
from holdfast.runtime.worker import Worker


@dataclass
class Stage:
    """An application, and what tests ask of it."""

    app: Holdfast
    bench: Bench
    folder: Path

    @property
    def jobs(self) -> Store:
        return self.app.stores[NAME]

    async def create(self, kind: str, parameters: Any, **options: Any) -> str:
        """Makes a job and answers with its id."""
        return (await actions.create(self.bench, kind, parameters, by="ana", **options)).id

    def worker(self, **options: Any) -> Worker:
        return self.app.worker(**{"ledgers": [NAME], **options})

    async def drain(self, **options: Any) -> None:
        """Runs a worker until nothing is left to do."""
        await self.worker(**options).run(until_idle=True)

    async def job(self, id: str) -> Row:
        return await actions.show(self.bench, id)

    async def run(self, kind: str, parameters: Any, **options: Any) -> Row:
        """Makes a job, works until it is done, and answers with its row."""
        made = await self.create(kind, parameters, **options)
        await self.drain()
        return await self.job(made)

    def lines(self, id: str | None = None) -> list[str]:
        """What the log tells, each line as level and text."""
        return [f"{line.level} {line.text}" for line in self.bench.log.lines(id)]

    async def rows(self, query: str, *params: Any) -> list[dict[str, Any]]:
        async with self.app.database.connection() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(query.encode(), params or None)
            return await cursor.fetchall()

    async def one(self, query: str, *params: Any) -> Any:
        """The one value that a query answers with."""
        ((value,),) = [tuple(row.values()) for row in await self.rows(query, *params)]
        return value

    async def do(self, query: str, *params: Any) -> int:
        async with self.app.database.connection() as conn:
            return (await conn.execute(query.encode(), params or None)).rowcount


def fitted(settings: Settings, folder: Path, **changes: Any) -> Settings:
    """Settings whose files are in a folder. A worker may be silent for long on a busy machine."""
    kept = {"home": folder, "worker_timeout": 60.0, "system_archive": (folder / "archive").as_uri()}
    return replace(settings, **(kept | changes))


@asynccontextmanager
async def stage(
    settings: Settings,
    folder: Path | None = None,
    *,
    apps: Iterable[App] = (),
    ledgers: Iterable[Ledger] = (),
    **changes: Any,
) -> AsyncIterator[Stage]:
    """An open application; its files are in the folder, or in one that goes at the end."""
    with tempfile.TemporaryDirectory(prefix="holdfast-system-") as own:
        place = folder or Path(own)
        app = Holdfast(fitted(settings, place, **changes), apps=apps, ledgers=ledgers)
        async with app:
            yield Stage(app, bench_of(app), place)
