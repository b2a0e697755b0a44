"""An app: one system with its ledgers, its work, its routes and its pages. Plain, frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.db.database import Database
from holdfast.db.settings import Settings
from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store
from holdfast.runtime.duties import Duty
from holdfast.runtime.handlers import Handler


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

    `longest`: where nobody else has handlers for its ledgers, the longest run there, in seconds.
    """

    handlers: tuple[Handler, ...] = ()
    duties: tuple[Duty, ...] = ()
    longest: float | None = None
