"""An app: one system with its ledgers, its work, its routes and its pages. Plain, frozen data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, LiteralString, Protocol

from holdfast.db.database import Database
from holdfast.db.settings import Settings
from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store
from holdfast.engine.witness import Witness
from holdfast.runtime.duties import Duty
from holdfast.runtime.handlers import Handler
from holdfast.runtime.share import Pace


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that is no ledger, as maintenance sees it: a declaration, and nothing that is done by itself.

    `kind`: a stream's rows only get older, by `time`, and may be removed where `where` (SQL over the row `t`)
    allows it; a user's table may be dropped; what is kept is none of both. `gate` is the setting that lets
    rows of an append-only table be removed, in one transaction and by its owner. `whole` names columns: rows
    that agree in them go together or not at all. `evict` is a statement that removes some of what is older
    than `%(limit)s` itself, about `%(batch)s` rows, and answers how many: for a record that has to stay true.
    `subjects`: whose rows they are, as a word for the kind of subject and the column that names it. `live`:
    whoever has rows here is not done with, and is erased only if his open work may go as well.

    One that has the name of a ledger's table says more of that: its `where`, and its `subjects`.
    """

    name: str
    kind: Literal["stream", "user", "kept"] = "kept"
    key: tuple[str, ...] = ("id",)
    time: str | None = None
    where: LiteralString | None = None
    gate: str | None = None
    whole: tuple[str, ...] = ()
    evict: LiteralString | None = None
    subjects: Mapping[str, str] = field(default_factory=dict[str, str])
    live: bool = False


@dataclass(frozen=True, kw_only=True)
class App:
    """One system, built in or the user's own.

    Each of these names a module that is imported when it is needed, and not before: `work` has a function
    `work(ground) -> Work`, for whoever works; `web` has a `WEB` (a `holdfast.api.web.Web`) with its routes,
    pages and metrics, for whoever serves. `extra` is what has to be installed for both, beside the core.
    `tables` are those beside its ledgers that maintenance may touch. `erasures`: how all that the app keeps
    of a subject is erased, where deleting rows is not the way; a word for the kind of subject, and a
    statement that takes `%(value)s` and answers with an object of counts by table.
    """

    name: str
    ledgers: tuple[Ledger, ...] = ()
    tables: tuple[Table, ...] = ()
    erasures: Mapping[str, LiteralString] = field(default_factory=dict[str, LiteralString])
    extra: str | None = None
    work: str | None = None
    web: str | None = None

    def witnesses(self, settings: Settings) -> Mapping[str, Witness]:
        """Who hears of its ledgers, by their names: an app whose journal is no table says so."""
        del settings
        return {}

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
    `bells` are channels of the database, and what is called when one rings: also once after each connect.
    """

    handlers: tuple[Handler, ...] = ()
    duties: tuple[Duty, ...] = ()
    longest: float | None = None
    paces: Mapping[str, Pace] = field(default_factory=dict[str, Pace])
    check: Callable[[], object] | None = None
    bells: Mapping[str, Callable[[], None]] = field(default_factory=dict[str, Callable[[], None]])
