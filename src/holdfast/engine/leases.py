"""Who still holds what, as SQL: looks at claims, and sweeps for the rows of workers that are gone."""

from __future__ import annotations

from functools import cached_property
from typing import LiteralString

from psycopg.sql import SQL, Composable, Identifier, Literal

from holdfast.engine import effects, sql
from holdfast.engine.words import COMMA, LATER, Words, literals


class Leases(Words):
    """Leases, by the worker's heartbeat or in the row itself."""

    @cached_property
    def still_held(self) -> bytes:
        types = {"key": self.ledger.key.type, **self.guard_types()}
        lease, lifecycle = self.ledger.lease, self.ledger.lifecycle
        return self.render(
            sql.RENEW if lease else sql.STILL_HELD,
            arrays=self.arrays(types),
            names=COMMA.join(Identifier(name) for name in types),
            guard=self.guard(),
            states=literals(lifecycle.held if self.ledger.owner else lifecycle.claimable),
            lease=Identifier(lease.column if lease else ""),
        )

    @cached_property
    def held_by(self) -> bytes:
        return self._sweep(sql.HELD_BY)

    @cached_property
    def orphans(self) -> bytes:
        return self._sweep(sql.ORPHANS)

    @cached_property
    def expired(self) -> bytes:
        return self._sweep(sql.EXPIRED)

    def _sweep(self, template: LiteralString) -> bytes:
        ledger = self.ledger
        times, lease = ledger.times, ledger.lease and ledger.lease.column
        started = None if times.first_start else times.started
        # Whatever tells best since when: SQL of others may hold a row and leave some of these NULL.
        known = (times.claimed, lease, started, times.updated, times.created)
        since = COMMA.join(effects.column_of(name) for name in known if name)
        before = SQL(LATER[ledger.times.kind])
        return self.render(
            template,
            answer=self.answer(),
            states=literals(ledger.lifecycle.held),
            owner=Identifier(ledger.owner or ""),
            holder=self.holder(),
            since=SQL("coalesce({})").format(since),
            lease=Identifier(ledger.lease.column if ledger.lease else ""),
            clock_minus_orphaned=before.format(self._now(), SQL("-%(orphaned)s::float8")),
            clock_minus_nameless=before.format(self._now(), SQL("-%(nameless)s::float8")),
            clock_minus_lease=before.format(
                self._now(), Literal(-float(ledger.lease.seconds if ledger.lease else 0))
            ),
        )

    def _now(self) -> Composable:
        return SQL("(select {})").format(self.clock)
