"""Durable work on PostgreSQL: your table is the queue.

The public names are loaded when they are first asked for, so that `holdfast --help` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.db.settings import Settings
    from holdfast.engine.backoff import Backoff
    from holdfast.engine.ledger import Ledger
    from holdfast.engine.lifecycle import Edge
    from holdfast.engine.outcomes import Cancel, Done, Fail, Retry, Snooze
    from holdfast.engine.roles import (
        Attempts,
        CodeError,
        Column,
        Due,
        Idempotency,
        Journal,
        JsonError,
        Key,
        Lane,
        RowLease,
        Tenant,
        TextError,
        Times,
        TraceError,
        Tries,
    )
    from holdfast.engine.values import Count, Event, Filter, Item, Page, Receipt, Row, Stat
    from holdfast.errors import HoldfastError
    from holdfast.platform import Holdfast
    from holdfast.runtime.app import App
    from holdfast.runtime.context import Context, SyncContext
    from holdfast.runtime.explain import Explanation
    from holdfast.runtime.overview import Overview

__all__ = [
    "App",
    "Attempts",
    "Backoff",
    "Cancel",
    "CodeError",
    "Column",
    "Context",
    "Count",
    "Done",
    "Due",
    "Edge",
    "Event",
    "Explanation",
    "Fail",
    "Filter",
    "Holdfast",
    "HoldfastError",
    "Idempotency",
    "Item",
    "Journal",
    "JsonError",
    "Key",
    "Lane",
    "Ledger",
    "Overview",
    "Page",
    "Receipt",
    "Retry",
    "Row",
    "RowLease",
    "Settings",
    "Snooze",
    "Stat",
    "SyncContext",
    "Tenant",
    "TextError",
    "Times",
    "TraceError",
    "Tries",
]

_HOMES = {
    "holdfast.db.settings": ("Settings",),
    "holdfast.engine.backoff": ("Backoff",),
    "holdfast.engine.ledger": ("Ledger",),
    "holdfast.engine.lifecycle": ("Edge",),
    "holdfast.engine.outcomes": ("Cancel", "Done", "Fail", "Retry", "Snooze"),
    "holdfast.engine.roles": (
        "Attempts",
        "CodeError",
        "Column",
        "Due",
        "Idempotency",
        "Journal",
        "JsonError",
        "Key",
        "Lane",
        "RowLease",
        "Tenant",
        "TextError",
        "Times",
        "TraceError",
        "Tries",
    ),
    "holdfast.engine.values": ("Count", "Event", "Filter", "Item", "Page", "Receipt", "Row", "Stat"),
    "holdfast.errors": ("HoldfastError",),
    "holdfast.platform": ("Holdfast",),
    "holdfast.runtime.app": ("App",),
    "holdfast.runtime.context": ("Context", "SyncContext"),
    "holdfast.runtime.explain": ("Explanation",),
    "holdfast.runtime.overview": ("Overview",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"holdfast has no public name {name!r}")
