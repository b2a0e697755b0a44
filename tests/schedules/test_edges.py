"""Every state and every verb of both ledgers: what is legal changes one row, and what is not changes none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from holdfast.apps.schedules.ledger import CAPTURE_SESSIONS, NOTIFICATIONS
from holdfast.db.pool import Connection
from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Fault, Move
from holdfast.errors import ClaimLost, IllegalEdge

ID = UUID(int=7)
SESSION = """\
insert into schedule_ingest.capture_session (id, user_id, state, locked_by, locked_at)
values (%(id)s, 42, %(state)s::text::schedule_ingest.capture_session_state,
    case %(state)s::text when 'processing' then 'w/1' end,
    case %(state)s::text when 'processing' then now() end)
"""
NOTICE = """\
insert into schedule_ingest.schedule_notification (notification_id, user_id, schedule_date,
    source_session_id, status, notification_type, message, event_ids, sent_at)
values (%(id)s::text, 42, '2026-03-02', gen_random_uuid(), %(state)s, 'event', 'm', '[]',
    case %(state)s::text when 'sent' then now() end)
"""
TOLD = {
    "capture_session": {
        ("processing", "finish"): "done",
        ("processing", "exhaust"): "failed",
        ("processing", "reject"): "failed",
        ("processing", "release"): "pending",
        ("pending", "cancel"): "failed",
        ("failed", "requeue"): "pending",
    },
    "schedule_notification": {
        ("pending", "finish"): "sent",
        ("pending", "retry"): "pending",
        ("pending", "exhaust"): "failed",
        ("pending", "reject"): "failed",
        ("pending", "cancel"): "failed",
        ("failed", "requeue"): "pending",
    },
}
LEDGERS = {"capture_session": (CAPTURE_SESSIONS, SESSION), "schedule_notification": (NOTIFICATIONS, NOTICE)}
VERBS = ("start", "finish", "retry", "exhaust", "reject", "snooze", "release", "lose", "cancel", "requeue")
CASES = [(name, state, verb) for name in LEDGERS for state in LEDGERS[name][0].states for verb in VERBS]


async def look(conn: Connection, ledger: Ledger) -> Any:
    cursor = await conn.execute(f"select to_jsonb(t.*) from {ledger.table} as t")  # type: ignore[arg-type]
    ((row,),) = await cursor.fetchall()
    return row


@pytest.mark.parametrize(("name", "state", "verb"), CASES, ids=["-".join(case) for case in CASES])
async def test_a_verb_moves_a_row_from_where_it_may_and_from_nowhere_else(
    conn: Connection, name: str, state: str, verb: Any
) -> None:
    """S-1, S-17, S-50, S-51: by the engine; the triggers say the same of SQL."""
    ledger, insert = LEDGERS[name]
    store, key = Store(ledger), ID if name == "capture_session" else str(ID)
    await conn.execute(insert, {"id": ID, "state": state})
    before = await look(conn, ledger)
    wanted = TOLD[name].get((state, verb))
    if verb in ("cancel", "requeue"):
        order: Callable[..., Any] = store.cancel if verb == "cancel" else store.requeue
        if wanted is None:
            with pytest.raises(IllegalEdge):
                await order(conn, key)
        else:
            await order(conn, key)
    else:
        owner = "w/1" if name == "capture_session" else None
        claim = Claimed(
            id=key, kind=name, payload=None, state=state, owner=owner, fence=1, attempts=0, limit=5, tenant=42
        )
        fault = Fault(code="x", message="y") if verb in ("retry", "exhaust", "reject") else None
        if wanted is None:
            with pytest.raises(ClaimLost):
                await store.move_one(conn, Move(verb=verb, claim=claim, fault=fault))
        else:
            await store.move_one(conn, Move(verb=verb, claim=claim, fault=fault))
    after = await look(conn, ledger)
    if wanted is None:
        assert after == before
    else:
        assert after[ledger.state] == wanted
        assert (after.get("locked_by"), after.get("locked_at")) == (None, None)
        assert (after.get("sent_at") is not None) == (wanted == "sent")
