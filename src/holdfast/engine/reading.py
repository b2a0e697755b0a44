"""Small pure pieces of the store: keys, filters, cursors, details, and what a refused insert means."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from holdfast.engine import effects, intake
from holdfast.engine.ledger import Ledger
from holdfast.engine.roles import CodeError, JsonError
from holdfast.engine.values import Fault, Filter, Move, Row
from holdfast.engine.words import DELAY, PAYLOAD, RUN_AT
from holdfast.errors import InvalidInput, NotAllowed

MESSAGE_LENGTH = 2048  # characters of an error that an event tells, where the ledger sets no other limit


def key_of(ledger: Ledger, id: Any) -> Any:
    """The id as the key's own type, or `InvalidInput`."""
    return intake.typed(ledger.key.column, ledger.key.type, id)


def tenant_of(ledger: Ledger, tenant: Any) -> Any:
    """The tenant as its column's own type, None for all of them, or `InvalidInput`."""
    if tenant is None:
        return None
    if ledger.tenant is None:
        raise InvalidInput(field="tenant", message=f"{ledger.name} has no tenants")
    return intake.typed(ledger.tenant.name, ledger.tenant.type, tenant)


def within(ledger: Ledger, which: Filter, tenant: Any) -> Filter:
    """The filter within one tenant's rows, where one is given: it decides, whatever the filter says."""
    whose, asked = tenant_of(ledger, tenant), tenant_of(ledger, which.tenant)
    if whose is None:
        return which
    if asked not in (None, whose):
        raise NotAllowed(message=f"the filter names another {ledger.tenant and ledger.tenant.name}")
    return replace(which, tenant=whose)


def one(ledger: Ledger, id: Any, tenant: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The conditions that mean one row, of one tenant where it is given, and their parameters."""
    params: dict[str, Any] = {"id": key_of(ledger, id)}
    if (whose := tenant_of(ledger, tenant)) is not None:
        params["tenant"] = whose
    return tuple(params), params


def must_lie(limit: int, most: int) -> None:
    """Refuses a number of rows that no page has."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(field="limit", message=f"must lie between 1 and {most}, not {limit}")


def conditions(ledger: Ledger, which: Filter) -> tuple[tuple[str, ...], dict[str, Any]]:
    """A filter as the names of its conditions and their parameters."""
    params: dict[str, Any] = {}
    for state in which.states:
        if state not in ledger.states:
            known = ", ".join(ledger.states)
            raise InvalidInput(
                field="state", message=f"{ledger.name} has no state {state!r}: states are {known}"
            )
    if len(which.states) == 1:
        (params["state"],) = which.states
    elif which.states:
        params["states"] = list(which.states)
    if which.code is not None:
        if not (isinstance(ledger.errors, CodeError | JsonError) or getattr(ledger.errors, "coded", False)):
            raise InvalidInput(field="code", message=f"{ledger.name} has no column for the class of an error")
        params["code"] = intake.clean_text("code", which.code)
    for name in ("kind", "owner", "queue"):
        if (value := getattr(which, name)) is not None:
            params[name] = intake.clean_text(name, value)
    if which.key is not None:
        if ledger.idempotency is None:
            raise InvalidInput(field="key", message=f"{ledger.name} has no keys")
        params["key"] = intake.clean_text("key", which.key)
    known = {extra.name: extra for extra in ledger.extras}
    for name, value in which.extras.items():
        if name not in known:
            raise InvalidInput(field=name, message=f"is not a column that {ledger.name} can be asked by")
        params[f"extra_{name}"] = intake.asked(known[name], value)
    if which.queue is not None and ledger.queue is None:
        raise InvalidInput(field="queue", message=f"{ledger.name} has no queues")
    if which.tenant is not None:
        params["tenant"] = tenant_of(ledger, which.tenant)
    if ledger.times.finished is None and (which.finished_after or which.finished_before):
        raise InvalidInput(field="finished", message=f"{ledger.name} does not note when a row ends")
    for name in ("created_after", "created_before", "finished_after", "finished_before"):
        if (moment := getattr(which, name)) is not None:
            params[name] = intake.aware(name, moment)
    return tuple(params), params


def told_filter(which: Filter) -> dict[str, Any]:
    """A filter as the record tells it: what it says, and nothing else."""
    said = {field.name: getattr(which, field.name) for field in fields(which)}
    said["extras"] = {name: str(value) for name, value in which.extras.items()}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in said.items()
        if value not in (None, (), {})
    }


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


def detail(ledger: Ledger, move: Move, by: str | None = None) -> dict[str, Any]:
    """What the event of a move tells beside verb, attempt and fence. An error as its columns have it."""
    told: dict[str, Any] = {"worker": move.claim.owner} if move.claim.owner else {}
    if by:
        told["by"] = intake.absorb(by)
    if move.fault and (ledger.errors is None or effects.writes_error(ledger, move.verb)):
        told["error"] = told_error(ledger, move.fault)
    elif move.fault:
        told["reason"] = intake.absorb(move.fault.message, MESSAGE_LENGTH)
    if move.verb == "finish" and move.result is not None:
        told["result"] = move.result
    return told


def told_error(ledger: Ledger, fault: Fault) -> dict[str, str]:
    """A fault as an event tells it, cut where its columns are."""
    errors = ledger.errors
    length = getattr(errors, "message_length", None) or getattr(errors, "length", None) or MESSAGE_LENGTH
    code = intake.absorb(fault.code, getattr(errors, "code_length", None))
    return {"code": code, "message": intake.absorb(fault.message, length)}


def told_reason(fault: Fault) -> str:
    """A fault as one text, for what a ledger writes beside."""
    return intake.absorb(f"{fault.code.lower()}: {fault.message}", MESSAGE_LENGTH)


def must_be_plain(ledger: Ledger, shape: tuple[str, ...]) -> None:
    """COPY writes columns as they are: no keys, no waits, no spread payload."""
    rule = ledger.idempotency
    if rule and rule.column in shape:
        raise InvalidInput(field=rule.column, message="cannot be checked by COPY: use enqueue_many")
    if DELAY in shape or RUN_AT in shape:
        raise InvalidInput(field="delay", message="cannot be computed by COPY: use enqueue_many")
    if PAYLOAD in shape and not isinstance(ledger.payload, str):
        raise InvalidInput(field="payload", message="is spread over columns here: use enqueue_many")
