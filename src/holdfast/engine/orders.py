"""What a person may say about any row: cancel it, or let it run again. Guarded by its state alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict, Unpack

from psycopg.errors import RaiseException, UniqueViolation
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from holdfast.engine import effects, intake, reading, sql
from holdfast.engine.lifecycle import Verb
from holdfast.engine.looks import BATCH, Connection, Looks
from holdfast.engine.values import Fault, Filter, Row
from holdfast.engine.words import array
from holdfast.errors import IdempotencyConflict, IllegalEdge


class How(TypedDict, total=False):
    """What goes with an order: who gives it and why, for the record; and a clock that tests lend.

    `tell` hears, after each batch of rows, how many have been moved so far.
    """

    by: str | None
    reason: str | None
    tell: Callable[[int], None] | None
    now: datetime | None


class Orders(Looks):
    """A ledger and the orders about its rows. With `tenant`, another's row is not found."""

    async def cancel(self, conn: Connection, id: Any, *, tenant: Any = None, **how: Unpack[How]) -> None:
        """Calls a row off, at once, whoever holds it; a running handler is told."""
        await self._order_one(conn, "cancel", id, tenant, how)

    async def requeue(self, conn: Connection, id: Any, *, tenant: Any = None, **how: Unpack[How]) -> None:
        """Lets a row that ended badly run again, with all its attempts."""
        await self._order_one(conn, "requeue", id, tenant, how)

    async def cancel_where(self, conn: Connection, which: Filter, **how: Unpack[How]) -> int:
        """Calls off every row that the filter means and whose state allows it; answers how many.

        A thousand rows at a time, each batch a commit of its own unless the caller has a transaction.
        """
        return await self._order_where(conn, "cancel", which, how)

    async def requeue_where(self, conn: Connection, which: Filter, **how: Unpack[How]) -> int:
        """Lets every row that the filter means and whose state allows it run again; answers how many."""
        return await self._order_where(conn, "requeue", which, how)

    async def _order_one(self, conn: Connection, verb: Verb, id: Any, tenant: Any, how: How) -> None:
        key, tenant = reading.key_of(self.ledger, id), reading.tenant_of(self.ledger, tenant)
        if not await self._order_each(conn, verb, [key], tenant, how):
            row = await self.get(conn, key, tenant=tenant)
            await self._must_be_alone(conn, verb, row)
            allowed = ", ".join(self.ledger.lifecycle.allowed(verb)) or "no state"
            raise IllegalEdge(verb=verb, what=self.ledger.name, id=row.id, state=row.state, allowed=allowed)

    async def _must_be_alone(self, conn: Connection, verb: Verb, row: Row) -> None:
        """A row that may move, and was not moved: another one stands in its way."""
        if self.sql.twin is None or row.state not in self.ledger.lifecycle.allowed(verb):
            return
        cursor = await conn.cursor(row_factory=dict_row).execute(self.sql.twin, {"id": row.id})
        if twin := await cursor.fetchone():
            detail = f"{twin['kind']}, {twin['state']}"
            raise IdempotencyConflict(what=self.ledger.name, key=row.kind, id=twin["key"], detail=detail)

    async def _order_where(self, conn: Connection, verb: Verb, which: Filter, how: How) -> int:
        reading.conditions(self.ledger, which)
        allowed = self.ledger.lifecycle.allowed(verb)
        states = tuple(state for state in which.states or allowed if state in allowed)
        if not states:
            return 0
        shape, params = reading.conditions(self.ledger, replace(which, states=states))
        done, after = 0, None
        while True:
            more = ("after_key",) if after is not None else ()
            query = self.sql.keys((*shape, *more))
            keys = sorted(await self._keys(conn, query, params | {"after_key": after, "limit": BATCH}))
            if not keys:
                return done
            done += await self._order_each(conn, verb, keys, params.get("tenant"), how)
            if tell := how.get("tell"):
                tell(done)
            after = keys[-1]

    async def _order_each(
        self, conn: Connection, verb: Verb, keys: Sequence[Any], tenant: Any, how: How
    ) -> int:
        try:
            return len(await self._order(conn, verb, keys, tenant, how))
        except UniqueViolation:  # somebody enqueued, just now, what one of these rows is: the others may move
            if self.sql.twin is None and verb not in self.ledger.beside:
                raise
            if len(keys) == 1 and self.sql.twin is None:  # what it writes beside was written just now: again
                return len(await self._order(conn, verb, keys, tenant, how))
            if len(keys) == 1:
                return 0
            return sum([await self._order_each(conn, verb, [key], tenant, how) for key in keys])
        except RaiseException as error:  # a trigger of the table's owner forbids it for one of these rows
            if len(keys) > 1:
                return sum([await self._order_if_let(conn, verb, key, tenant, how) for key in keys])
            row = await self.get(conn, keys[0], tenant=tenant)
            told = f"{', '.join(self.ledger.lifecycle.allowed(verb))}, unless its table forbids it"
            said = f"{told}: {error.diag.message_primary}"
            raise IllegalEdge(
                verb=verb, what=self.ledger.name, id=row.id, state=row.state, allowed=said
            ) from None

    async def _order_if_let(self, conn: Connection, verb: Verb, key: Any, tenant: Any, how: How) -> int:
        try:
            return await self._order_each(conn, verb, [key], tenant, how)
        except IllegalEdge:
            return 0

    async def _order(
        self, conn: Connection, verb: Verb, keys: Sequence[Any], tenant: Any, how: How
    ) -> frozenset[Any]:
        orders = self.sql.orders if tenant is None else self.sql.own_orders
        if verb not in orders:
            return frozenset()
        coded = getattr(self.ledger.errors, "coded", False)  # then the reason is a part of the error
        said = (coded and how.get("reason")) or self._called_off(how)
        fault = Fault(code="CANCELLED", message=said)
        told: dict[str, Any] = {
            name: intake.absorb(text, reading.MESSAGE_LENGTH)
            for name, text in (("by", how.get("by")), ("reason", how.get("reason")))
            if text
        }
        if effects.writes_error(self.ledger, verb):
            told["error"] = reading.told_error(self.ledger, fault)
        values: dict[str, Any] = {"detail": json.dumps(told), "reason": reading.told_reason(fault)}
        if self.ledger.errors:
            errors = intake.error_values(self.ledger.errors, fault)
            values |= {f"error_{place}": value for place, value in enumerate(errors)}
        types = self.sql.move_types(verb, fenced=False)
        params: dict[str, Any] = {
            array(place): list(keys) if name == "key" else [values[name]] * len(keys)
            for place, name in enumerate(types)
        }
        async with conn.transaction():
            moved = await self._keys(conn, orders[verb], params | {"tenant": tenant, "now": how.get("now")})
            if moved:
                await self.ring(conn, self.ledger.cancel_channel if verb == "cancel" else None)
        if conn.info.transaction_status == TransactionStatus.IDLE:
            self.ordered(verb, moved, how.get("by"), how.get("reason"))
        return moved

    def ordered(self, verb: Verb, keys: Collection[Any], by: str | None, reason: str | None) -> None:
        """Tells whoever wants to hear it that an order was committed. For callers with a transaction of their
        own: it has to be said after that.
        """
        if self.witness and keys:
            self.witness.ordered(verb, keys, by, reason)

    def _called_off(self, how: How) -> str:
        """What a cancel writes as the error; it may name who did it."""
        text = self.ledger.cancelled_text or ""
        return text.replace("{by}", intake.absorb(how.get("by") or "somebody", reading.MESSAGE_LENGTH))

    async def ring(self, conn: Connection, channel: str | None = None) -> None:
        """Rings the doorbell; it sounds when the transaction commits, once however often it was rung."""
        await conn.execute(sql.RING, {"channel": channel or self.ledger.channel})
