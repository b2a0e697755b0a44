"""Small pure pieces of the store: keys, filters, cursors, details, and what a refused insert means."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from typing import Any

from psycopg import Error

from holdfast.engine import intake
from holdfast.engine.ledger import Ledger
from holdfast.engine.values import Filter, Move, Row
from holdfast.engine.words import DELAY, PAYLOAD, RUN_AT
from holdfast.errors import InvalidInput


def key_of(ledger: Ledger, id: Any) -> Any:
    """The id as the key's own type, or `InvalidInput`."""
    return intake.typed(ledger.key.column, ledger.key.type, id)


def conditions(ledger: Ledger, which: Filter) -> tuple[tuple[str, ...], dict[str, Any]]:
    """A filter as the names of its conditions and their parameters."""
    params: dict[str, Any] = {}
    for state in which.states:
        if state not in ledger.states:
            known = ", ".join(ledger.states)
            raise InvalidInput(
                field="state", message=f"{ledger.name} has no state {state!r}: states are {known}"
            )
    if which.states:
        params["states"] = list(which.states)
    for name in ("kind", "owner", "queue"):
        if (value := getattr(which, name)) is not None:
            params[name] = intake.clean_text(name, value)
    if which.queue is not None and ledger.queue is None:
        raise InvalidInput(field="queue", message=f"{ledger.name} has no queues")
    if which.tenant is not None:
        if ledger.tenant is None:
            raise InvalidInput(field="tenant", message=f"{ledger.name} has no tenants")
        params["tenant"] = intake.typed(ledger.tenant.name, ledger.tenant.type, which.tenant)
    for name in ("created_after", "created_before"):
        if (moment := getattr(which, name)) is not None:
            params[name] = intake.aware(name, moment)
    return tuple(params), params


def encode_cursor(row: Row) -> str:
    """Where a page ended."""
    text = json.dumps([row.created.isoformat(), str(row.id)])
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_cursor(ledger: Ledger, cursor: str) -> dict[str, Any]:
    """The parameters that go on after `cursor`, or `InvalidInput`."""
    try:
        created, key = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        before = intake.aware("cursor", datetime.fromisoformat(created))
        return {"before": before, "before_key": key_of(ledger, key)}
    except (ValueError, TypeError, binascii.Error, InvalidInput):
        raise InvalidInput(field="cursor", message="is not one that a page gave out") from None


def detail(move: Move, worker: str | None) -> dict[str, Any]:
    """What the event of a move tells beside verb, attempt and fence."""
    told: dict[str, Any] = {"worker": worker} if worker else {}
    if move.fault:
        told["error"] = {
            "code": intake.absorb(move.fault.code),
            "message": intake.absorb(move.fault.message, 2048),
        }
    if move.verb == "finish" and move.result is not None:
        told["result"] = move.result
    return told


def must_be_plain(ledger: Ledger, shape: tuple[str, ...]) -> None:
    """COPY writes columns as they are: no keys, no waits, no spread payload."""
    rule = ledger.idempotency
    if rule and rule.column in shape:
        raise InvalidInput(field=rule.column, message="cannot be checked by COPY: use enqueue_many")
    if DELAY in shape or RUN_AT in shape:
        raise InvalidInput(field="delay", message="cannot be computed by COPY: use enqueue_many")
    if PAYLOAD in shape and not isinstance(ledger.payload, str):
        raise InvalidInput(field="payload", message="is spread over columns here: use enqueue_many")


def refused(error: Error) -> InvalidInput:
    """What the database said of a row that it would not take."""
    field = error.diag.column_name or error.diag.constraint_name or "item"
    return InvalidInput(field=field, message=error.diag.message_primary or str(error))
