"""An app: one system with its ledgers, its routes and its pages. Plain, frozen data."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.engine.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class App:
    """One system, built in or the user's own.

    `web` names a module whose `WEB` (a `holdfast.api.web.Web`) has its routes, pages and metrics. It is
    imported when somebody serves, and not before.
    """

    name: str
    ledgers: tuple[Ledger, ...] = ()
    web: str | None = None
