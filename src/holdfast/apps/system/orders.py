"""What a caller may do about system jobs: allowed, done and audited in one place, for routes and pages.

One order and its entry in the audit are one transaction. A statement of the console may be several orders:
its entry is committed before it begins, and gets what came of it at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast.api import actions as of_any_ledger
from holdfast.api import audit
from holdfast.api.actions import must_operate
from holdfast.api.caller import Caller, Scope
from holdfast.api.site import Site
from holdfast.apps.system import actions, executors, parameters
from holdfast.apps.system.bench import Connection, bench_of
from holdfast.apps.system.console import Answer, Session, context_of, parse
from holdfast.apps.system.console.run import READS, perform
from holdfast.apps.system.fields import FINAL
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.types import JobType, read_id, read_type, stored_type
from holdfast.engine.values import Json, Row
from holdfast.errors import NotAllowed


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A job that somebody wants. `parameters` are checked by its type, whatever they are."""

    type: str
    parameters: Any = field(default_factory=dict[str, Any])
    key: str | None = None
    max_retries: int | None = None
    queue: str | None = None
    priority: int | None = None


# -- who -------------------------------------------------------------------------------------------------


def must_maintain(caller: Caller, scope: Scope) -> None:
    """Refuses whoever is not an operator with that scope, and whoever means one tenant only."""
    must_operate(caller, scope)
    if caller.tenant is not None:
        raise NotAllowed(message="maintenance is everybody's: leave X-Tenant-Id out")


def scope_of(kind: JobType) -> Scope:
    """What somebody must be to have such a job done: what cannot be taken back is for administrators."""
    return "admin" if kind in FINAL else "act"


def _allowed(caller: Caller, kind: str) -> JobType:
    must_maintain(caller, "act")
    found = read_type(kind)
    must_maintain(caller, scope_of(found))
    return found


# -- what ------------------------------------------------------------------------------------------------


async def check(site: Site, caller: Caller, kind: str, given: Any) -> None:
    """Refuses a job that could not be made, as `create` would; nothing is written."""
    found = _allowed(caller, kind)
    await executors.check(found, parameters.read(found, given), bench_of(site))


async def create(site: Site, caller: Caller, wish: Wish) -> Row:
    """Makes a job, and answers with it."""
    kind = _allowed(caller, wish.type)
    detail: dict[str, Json] = {"type": str(kind), "parameters": _told(wish.parameters), "key": wish.key}

    async def noted(conn: Connection, id: str) -> None:
        await audit.note(conn, caller, "system run", ledger=NAME, row_id=id, rows=1, detail=detail)

    bench = bench_of(site)
    made = await actions.create(
        bench,
        kind,
        wish.parameters,
        by=caller.who,
        key=wish.key,
        max_retries=wish.max_retries,
        queue=wish.queue,
        priority=wish.priority,
        noted=noted,
    )
    return await actions.show(bench, made.id)


async def cancel(site: Site, caller: Caller, id: str, *, reason: str | None = None) -> Row:
    """Calls a job off, and answers with it as it is then."""
    must_maintain(caller, "act")
    return await of_any_ledger.cancel(site, caller, NAME, read_id(id), reason=reason)


async def retry(site: Site, caller: Caller, id: str) -> Row:
    """Makes a new job like one that has ended, and answers with the new one."""
    must_maintain(caller, "act")
    bench = bench_of(site)
    old = await actions.show(bench, id)
    if (kind := stored_type(old.kind)) is not JobType.UNKNOWN:
        must_maintain(caller, scope_of(kind))
    detail: dict[str, Json] = {"type": old.kind, "of": str(old.id)}

    async def noted(conn: Connection, id: str) -> None:
        await audit.note(conn, caller, "system retry", ledger=NAME, row_id=id, rows=1, detail=detail)

    made = await actions.retry(bench, id, by=caller.who, noted=noted)
    return await actions.show(bench, made.id)


async def say(site: Site, caller: Caller, text: str) -> Answer:
    """Does what a statement of the console says. Who is no administrator learns nothing."""
    must_maintain(caller, "admin")
    statement = parse(text)
    session = Session(who=caller.who, administrator=True)
    context = await context_of(bench_of(site))
    if isinstance(statement, READS):
        return await perform(session, statement, context)
    async with site.connection() as conn:
        entry = await audit.note(conn, caller, "system sql", ledger=NAME, detail={"statement": text})
    try:
        answer = await perform(session, statement, context)
    except Exception as error:
        async with site.connection() as conn:
            await audit.settle(conn, entry, None, error=type(error).__name__)
        raise
    async with site.connection() as conn:
        await audit.settle(conn, entry, len(answer.rows), answer=answer.message)
    return answer


def _told(given: Any) -> Json:
    return cast("Json", dict(cast("Mapping[str, Any]", given))) if isinstance(given, Mapping) else None
