"""A worker of system jobs as a real process whose flushes wait for a lock: `python program.py QUEUE`."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

from holdfast import Holdfast
from holdfast.apps.system import executors
from holdfast.apps.system.bench import Run, own_connection
from holdfast.apps.system.ledger import NAME

GATE = 4711  # whoever holds this lock keeps the jobs from ending


async def nothing(_: Any, __: Any) -> None:
    """There is nothing to refuse."""


async def waits(params: Any, run: Run) -> str:
    async with await own_connection(run.bench, "gate") as conn:
        await conn.execute("select pg_advisory_lock(%s)", (GATE,))
    return f"1 of {params.ledger}"


async def main() -> None:
    executors.executor_of = lambda _: SimpleNamespace(  # type: ignore[assignment]
        target=lambda params: params.ledger, check=nothing, run=waits
    )
    app = Holdfast()
    async with app:
        await app.work(ledgers=[NAME], queues=sys.argv[1:] or ["default"])


if __name__ == "__main__":
    asyncio.run(main())
