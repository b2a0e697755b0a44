"""What the jobs do: one module a type, imported when it is needed.

Each has `target(params)`, what it keeps to itself; `check(params, bench)`, which refuses by raising and
writes nothing, called when a job is made and again when it runs; and `run(params, run)`, which does the work
and answers with a sentence that has counts, or with `Snooze` where something else that it needs is taken.
Each may be run again from the start, wherever it was stopped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from holdfast.apps.system.bench import Bench, Run
from holdfast.apps.system.types import JobType
from holdfast.engine.outcomes import Snooze

MODULES: Mapping[JobType, str] = {
    JobType.FLUSH: "flush",
    JobType.CLEANUP: "cleanup",
    JobType.RETENTION: "retention",
    JobType.STREAM_EVICTION: "eviction",
    JobType.USER_CLEANUP: "erase",
    JobType.COMPACT: "compact",
    JobType.BACKUP: "backup",
    JobType.RESTORE: "restore",
}

# The jobs whose target is the name of a table; that of the others is a schema or a subject.
OF_TABLES = (JobType.FLUSH, JobType.CLEANUP, JobType.RETENTION, JobType.STREAM_EVICTION, JobType.COMPACT)


class Executor(Protocol):
    """What such a module has."""

    def target(self, params: Any) -> str: ...
    def check(self, params: Any, bench: Bench) -> Awaitable[None]: ...
    def run(self, params: Any, run: Run) -> Awaitable[str | Snooze]: ...


def executor_of(kind: JobType) -> Executor:
    """The executor of a type."""
    return cast("Executor", import_module(f"{__name__}.{MODULES[kind]}"))


async def check(kind: JobType, params: Any, bench: Bench) -> None:
    """Refuses what a job may not do, by raising, and writes nothing: for whoever makes a job or runs it.

    Besides what its type says: a table that is called by a schema in which ours is not is another's.
    """
    executor = executor_of(kind)
    if kind in OF_TABLES:
        name, field = executor.target(params), "ledger" if getattr(params, "ledger", None) else "table"
        async with bench.database.connection() as conn:
            await bench.registry.must_be_meant(conn, name, field)
    await executor.check(params, bench)
