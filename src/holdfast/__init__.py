"""Durable work on PostgreSQL: your table is the queue.

The public names are loaded when they are first asked for, so that `holdfast --help` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "holdfast.db.settings": ("Settings",),
    "holdfast.engine.decide": ("Backoff",),
    "holdfast.engine.ledger": ("Lane", "Ledger"),
    "holdfast.engine.lifecycle": ("Edge",),
    "holdfast.engine.outcomes": ("Cancel", "Done", "Fail", "Retry", "Snooze"),
    "holdfast.engine.values": ("Item",),
    "holdfast.errors": ("HoldfastError",),
    "holdfast.platform": ("Holdfast",),
    "holdfast.runtime.context": ("Context", "SyncContext"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"holdfast has no public name {name!r}")
