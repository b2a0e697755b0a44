"""An app: one system with its ledgers, its work, its routes and its pages. Plain, frozen data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.db.database import Database
from holdfast.db.settings import Settings
from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store
from holdfast.runtime.duties import Duty
from holdfast.runtime.handlers import Handler
from holdfast.runtime.share import Pace


@dataclass(frozen=True, kw_only=True)
class App:
    """One system, built in or the user's own.

    Each of these names a module that is imported when it is needed, and not before: `work` has a function
    `work(ground) -> Work`, for whoever works; `web` has a `WEB` (a `holdfast.api.web.Web`) with its routes,
    pages and metrics, for whoever serves. `extra` is what has to be installed for both, beside the core.
    """

    name: str
    ledgers: tuple[Ledger, ...] = ()
    extra: str | None = None
    work: str | None = None
    web: str | None = None

    def fitted(self, settings: Settings) -> tuple[Ledger, ...]:
        """Its ledgers under these settings: an app whose leases or waits can be set says how."""
        del settings
        return self.ledgers


class Ground(Protocol):
    """What an app's parts stand on: the application, open."""

    @property
    def settings(self) -> Settings: ...
    @property
    def stores(self) -> Mapping[str, Store]: ...
    @property
    def database(self) -> Database: ...
    @property
    def apps(self) -> tuple[App, ...]: ...


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an app does by itself: the handlers of its ledgers, and its duties.

    `longest`: where nobody else has handlers for its ledgers, the longest run there, in seconds. `paces`
    are by the names of its ledgers. `check` refuses, by raising, a worker that lacks what its handlers need.
    """

    handlers: tuple[Handler, ...] = ()
    duties: tuple[Duty, ...] = ()
    longest: float | None = None
    paces: Mapping[str, Pace] = field(default_factory=dict[str, Pace])
    check: Callable[[], object] | None = None
