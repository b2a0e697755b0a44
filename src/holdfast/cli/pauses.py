"""`holdfast pause` and `holdfast resume`: whether workers take rows of a ledger, or of one of its queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import application, options, output, record

if TYPE_CHECKING:
    from holdfast.platform import Holdfast
    from holdfast.runtime.pauses import Pause

QueueName = Annotated[
    str | None, typer.Argument(metavar="[QUEUE]", help="One queue; default: the whole ledger.")
]


def pause(
    ledger: options.LedgerName,
    queue: QueueName = None,
    by: options.By = None,
    reason: options.Reason = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Let workers take no more rows of a ledger, or of one of its queues; what runs goes on."""
    found = application.load(app)
    found.store(ledger)
    application.settle(found)
    changed, now = application.run(_pause(found, ledger, queue, options.doer(by), reason))
    if json:
        output.data(
            {"ledger": ledger, "queue": queue, "paused": True, "changed": changed, "since": now.since}
        )
    elif changed:
        output.line(f"{_place(ledger, queue)} is paused: what runs goes on, and nothing more is taken")
    else:
        output.line(f"{_place(ledger, queue)} was paused already, {_since(now)}")


def resume(
    ledger: options.LedgerName,
    queue: QueueName = None,
    by: options.By = None,
    reason: options.Reason = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Let workers take rows again."""
    found = application.load(app)
    found.store(ledger)
    application.settle(found)
    before, left = application.run(_resume(found, ledger, queue, options.doer(by), reason))
    since = before and before.since
    if json:
        told = {"paused": bool(left), "changed": before is not None, "since": since}
        output.data({"ledger": ledger, "queue": queue, **told})
        return
    if before is None:
        output.line(f"{_place(ledger, queue)} was not paused")
    else:
        output.line(f"{_place(ledger, queue)} goes on; it was paused {_since(before)}")
    for one in left:
        output.line(f"{_place(ledger, one.queue)} is still paused, {_since(one)}")


async def _pause(
    app: Holdfast, ledger: str, queue: str | None, by: str | None, reason: str | None
) -> tuple[bool, Pause]:
    from holdfast.runtime import pauses

    declared = app.store(ledger).ledger
    async with app, app.database.connection() as conn:
        async with conn.transaction():
            changed = await pauses.pause(conn, declared, queue, by=record.who(by), reason=reason)
            now = {one.queue: one for one in await pauses.paused(conn) if one.ledger == ledger}
            detail = {"queue": queue, "reason": reason, "changed": changed}
            await record.note(conn, by, "pause", ledger=ledger, detail=detail)
        return changed, now[queue]


async def _resume(
    app: Holdfast, ledger: str, queue: str | None, by: str | None, reason: str | None
) -> tuple[Pause | None, list[Pause]]:
    """The pause that has ended, if there was one, and those that still keep rows back."""
    from holdfast.runtime import pauses

    declared = app.store(ledger).ledger
    async with app, app.database.connection() as conn:
        async with conn.transaction():
            before = {one.queue: one for one in await pauses.paused(conn) if one.ledger == ledger}
            changed = await pauses.resume(conn, declared, queue)
            detail = {"queue": queue, "reason": reason, "changed": changed}
            await record.note(conn, by, "resume", ledger=ledger, detail=detail)
        left = [one for name, one in before.items() if name != queue and (queue is None or name is None)]
        return before.get(queue) if changed else None, left


def _place(ledger: str, queue: str | None) -> str:
    return f"{ledger}, queue {queue}" if queue else ledger


def _since(pause: Pause) -> str:
    told = f"since {output.moment(pause.since, 'seconds')}"
    told += f" by {pause.by}" if pause.by else ""
    return output.readable(f"{told}: {pause.reason}" if pause.reason else told)
