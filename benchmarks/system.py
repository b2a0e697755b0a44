"""Measures flush, backup and restore of a full table against the least that could do the same.

usage: python -m benchmarks.system [--short] [--rounds N]    (make bench-system)

Each side has the same rows in a fresh database of one embedded PostgreSQL with fsync on. The limit of a flush
is one COPY of a DELETE … RETURNING into a file: rows leave the table, unread, and nobody who is killed knows
where they are. That of a backup is a bare pg_dump of the same format, and that of a restore a bare pg_restore
into an empty database: neither counts rows, takes sums or swaps anything. Holdfast runs each as a job, from
its claim to its end. Machines are noisy, so only the ratio means something.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from benchmarks.limit import connect
from benchmarks.run import target
from holdfast import Holdfast, Settings
from holdfast.apps.system import actions
from holdfast.apps.system.bench import bench_of
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.programs import find_programs
from holdfast.db import embedded

FILL = """
insert into tasks (type, payload, status, priority, created_at, completed_at, attempts)
select 'email:send', jsonb_build_object('to', md5(n::text), 'subject', repeat('x', n %% 80)), 'completed',
    n %% 5, now() - interval '9 days', now() - interval '8 days' + n * interval '1 ms', 1
from generate_series(1, %s) as n
"""
MOVE = """
copy (delete from tasks where status = 'completed' and completed_at < now() - interval '1 day' returning *)
to stdout
"""
LOCATION = "bench"


@dataclass(frozen=True)
class Place:
    """A database with its rows, and a folder for what comes out of it."""

    url: str
    folder: Path
    rows: int


# -- the limit ---------------------------------------------------------------------------------------------


async def flush_by_hand(at: Place) -> float:
    async with await connect(at.url) as conn, conn.cursor() as cursor:
        began = time.perf_counter()
        with (at.folder / "rows").open("wb") as out:
            async with cursor.copy(MOVE) as copy:
                async for part in copy:
                    out.write(part)
        took = time.perf_counter() - began
        assert cursor.rowcount == at.rows
    return took


async def backup_by_hand(at: Place) -> float:
    return await program(
        at, "pg_dump", "--format=custom", "--compress=none", "--schema=public", "--file=dump"
    )


async def restore_by_hand(at: Place) -> float:
    await backup_by_hand(at)
    async with await connect(at.url) as conn:
        await conn.execute("drop schema public cascade")
    return await program(at, "pg_restore", "--dbname=bench", "--exit-on-error", "dump")


async def program(at: Place, name: str, *words: str) -> float:
    """Seconds that one of PostgreSQL's programs takes."""
    told = conninfo_to_dict(at.url)
    names = {"PGHOST": "host", "PGUSER": "user", "PGPASSWORD": "password", "PGDATABASE": "dbname"}
    environment = {variable: str(told[key]) for variable, key in names.items()}
    async with await connect(at.url) as conn:
        folder = find_programs(conn.info.server_version).folder
    began = time.perf_counter()
    await asyncio.to_thread(
        subprocess.run, [folder / name, *words], env=environment, cwd=at.folder, check=True
    )
    return time.perf_counter() - began


# -- Holdfast ----------------------------------------------------------------------------------------------


async def run(at: Place, *jobs: tuple[str, Mapping[str, Any]]) -> float:
    """Seconds that a worker takes for the last of some jobs, which come one after the other."""
    settings = Settings(database_url=at.url, profile="test", log_level="ERROR", home=at.folder)
    took = 0.0
    async with Holdfast(settings) as app:
        bench = bench_of(app)
        for kind, parameters in jobs:
            made = await actions.create(bench, kind, parameters)
            began = time.perf_counter()
            await app.worker(ledgers=[NAME]).run(until_idle=True)
            took = time.perf_counter() - began
            row = await actions.show(bench, made.id)
            assert row.state == "completed", row.columns
            assert kind != "flush" or f"{at.rows} rows" in row.columns["message"]
    return took


BACKUP = ("backup", {"schema": "public", "backup_location": LOCATION, "compression": "none"})
RESTORE = ("restore", {"backup_location": LOCATION, "target_schema": "public", "overwrite": True})
FLUSH = ("flush", {"ledger": "tasks"})

Side = Callable[[Place], Awaitable[float]]
MEASURES: dict[str, tuple[Side, Side]] = {
    "flush": (flush_by_hand, lambda at: run(at, FLUSH)),
    "backup": (backup_by_hand, lambda at: run(at, BACKUP)),
    "restore": (restore_by_hand, lambda at: run(at, BACKUP, RESTORE)),
}

# -- the run -----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--short", action="store_true", help="small numbers, one round: does it still run?")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = 20_000 if options.short else 500_000
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as home:
        Path(home).chmod(0o755)  # the server of root runs as somebody else, who must get here
        with embedded.acquire(Path(home)) as lease:
            rounds = [one_round(lease.url, rows) for _ in range(1 if options.short else options.rounds)]
    report(rounds)


def one_round(url: str, rows: int) -> dict[str, list[float]]:
    """Rows a second of each measure: the limit's, and ours."""
    found = {
        name: [rows / asyncio.run(measured(url, rows, side)) for side in sides]
        for name, sides in MEASURES.items()
    }
    print(json.dumps(found), flush=True)
    return found


async def measured(url: str, rows: int, side: Side) -> float:
    at = await target(url)
    async with await connect(at) as conn:
        await conn.execute(FILL, (rows,))
        await conn.execute("vacuum analyze")
        await conn.execute("checkpoint")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        return await side(Place(at, Path(folder), rows))


def report(rounds: Sequence[Mapping[str, Sequence[float]]]) -> None:
    print(f"\n{'measure':<10}{'limit':>16}{'holdfast':>16}{'ratio':>8}")
    for name in MEASURES:
        hand, ours = (statistics.median(found[name][side] for found in rounds) for side in (0, 1))
        print(f"{name:<10}{f'{hand:,.0f} rows/s':>16}{f'{ours:,.0f} rows/s':>16}{ours / hand:>8.2f}")


if __name__ == "__main__":
    main()
