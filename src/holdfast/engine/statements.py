"""Fills the holes of `sql` for one ledger. Pure: a declaration goes in, bytes to send come out."""

from __future__ import annotations

from holdfast.engine.inserts import Inserts
from holdfast.engine.leases import Leases
from holdfast.engine.moves import Moves
from holdfast.engine.selects import Selects


class Statements(Inserts, Moves, Leases, Selects):
    """The SQL of one ledger, ready to be sent. Values are always parameters."""
