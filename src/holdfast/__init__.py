"""Durable work on PostgreSQL: your table is the queue."""

from holdfast.db.settings import Settings
from holdfast.engine.decide import Backoff
from holdfast.engine.ledger import Lane, Ledger
from holdfast.engine.lifecycle import Edge
from holdfast.engine.outcomes import Cancel, Done, Fail, Retry, Snooze
from holdfast.engine.values import Item
from holdfast.errors import HoldfastError
from holdfast.platform import Holdfast
from holdfast.runtime.context import Context, SyncContext

__all__ = [
    "Backoff",
    "Cancel",
    "Context",
    "Done",
    "Edge",
    "Fail",
    "Holdfast",
    "HoldfastError",
    "Item",
    "Lane",
    "Ledger",
    "Retry",
    "Settings",
    "Snooze",
    "SyncContext",
]
