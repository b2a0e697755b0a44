"""The composition root: settings and apps become one application that can enqueue and work.

The only module that knows everything below the command line. A sixth app is one line in `APPS`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

from holdfast.api.site import Site
from holdfast.apps.connectors.app import APP as CONNECTORS
from holdfast.apps.jobs import app as jobs
from holdfast.apps.jobs.ledger import JOB
from holdfast.apps.schedules.app import APP as SCHEDULES
from holdfast.apps.system.app import APP as SYSTEM
from holdfast.apps.tasks import app as tasks
from holdfast.client import Client
from holdfast.db.database import open_database, prepare
from holdfast.db.settings import Settings
from holdfast.engine.backoff import Backoff
from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store
from holdfast.errors import InvalidInput, LedgerError, MissingExtra, SettingsError
from holdfast.runtime.app import App, Work
from holdfast.runtime.duties import guarded
from holdfast.runtime.handlers import Handlers, Place, describe
from holdfast.runtime.share import Pace, Share
from holdfast.runtime.worker import Worker, stopping_on_signals

if TYPE_CHECKING:
    from fastapi import FastAPI
    from sqlalchemy import MetaData

log = logging.getLogger("holdfast")
Function = TypeVar("Function", bound=Callable[..., Any])

APPS: tuple[App, ...] = (jobs.APP, tasks.APP, CONNECTORS, SCHEDULES, SYSTEM)


class Holdfast(Client):
    """An application: its ledgers, its handlers, and the database that it is opened on.

    `async with app:` finds the database (starting the embedded one when no URL is set), sees to its schema,
    and closes everything at the end.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        ledgers: Iterable[Ledger] = (),
        apps: Iterable[App] = (),
    ) -> None:
        own = tuple(apps)  # one that has the name of a built-in app takes its place
        self.apps: tuple[App, ...] = (*(app for app in APPS if app.name not in {o.name for o in own}), *own)
        self._own = frozenset(app.name for app in own)
        self._works: dict[str, Work | None] = {}
        super().__init__(
            settings, _stores((*(ledger for app in self.apps for ledger in app.ledgers), *ledgers))
        )
        self._fitted = False
        self._stack = AsyncExitStack()

    @property
    def settings(self) -> Settings:
        """The settings, read once, at first use; then the ledgers of apps are fitted to them."""
        settings = super().settings
        if not self._fitted:
            for ledger in (one for app in self.apps for one in app.fitted(settings)):
                if ledger is not self.stores[ledger.name].ledger:
                    self.stores[ledger.name] = Store(ledger)
            for name, witness in (one for app in self.apps for one in app.witnesses(settings).items()):
                self.stores[name].witness = witness
            self._fitted = True
        return settings

    # -- handlers ------------------------------------------------------------------------------------

    def handler(
        self,
        kind: str,
        *,
        ledger: str | None = None,
        timeout: float | None = None,
        backoff: Backoff | None = None,
        limit: int | None = None,
        place: Place | None = None,
        cancel_when_lost: bool = True,
    ) -> Callable[[Function], Function]:
        """Makes a function the handler of a kind of work, in one ledger or in all.

        The payload is read into the type of its first parameter. Sync functions run in threads, or with
        place="process" in processes. `timeout` is in seconds; `backoff` is how long bad runs wait, else the
        ledger's own way; `limit` is what a row gets at enqueue when the caller says nothing. When the worker
        loses its lease another may run the row: the run is cancelled then, unless `cancel_when_lost=False`.
        """
        if ledger is not None:
            self.store(ledger)
        if limit is not None and limit < 0:
            raise InvalidInput(field="limit", message=f"must be 0 or more, not {limit}")
        if timeout is not None and not timeout > 0:
            raise InvalidInput(field="timeout", message=f"must be more than 0 seconds, not {timeout}")

        def register(function: Function) -> Function:
            self.handlers.add(
                describe(
                    function,
                    kind,
                    place=place,
                    ledger=ledger,
                    timeout=timeout,
                    backoff=backoff,
                    limit=limit,
                    cancel_when_lost=cancel_when_lost,
                )
            )
            return function

        return register

    # -- opening and closing -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._database is not None:
            raise InvalidInput(field="app", message="is open already: use it inside its `async with`")
        database = await self._stack.enter_async_context(open_database(self.settings))
        try:
            await prepare(database)
        except BaseException:
            await self._stack.aclose()
            raise
        self._database = database
        return self

    async def __aexit__(self, *_: object) -> None:
        self._database = None
        await self._stack.aclose()

    # -- the face ------------------------------------------------------------------------------------

    @property
    def site(self) -> Site:
        """What the API and the dashboard serve."""
        return Site(
            settings=self.settings,
            stores=self.stores,
            handlers=self.handlers,
            apps=self.apps,
            open=lambda: self.database,
        )

    def web(self) -> FastAPI:
        """The API and the dashboard as one ASGI application, to serve or to mount in one's own.

        Served, it opens this application and closes it at the end, unless it is open already. Mounted, its
        owner does that: frameworks run the lifespan of the outermost application only.
        """
        try:
            from holdfast.api.app import build
            from holdfast.dashboard.app import add
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] == "holdfast":
                raise
            raise MissingExtra(what="the API", extra="server") from error
        for app in self.apps:  # what a worker would refuse at its start is refused here as well
            self._work(app)
        parts = {app.name: self._part(app, app.web) for app in self.apps if app.web}
        site = replace(self.site, apps=tuple(app for app in self.apps if parts.get(app.name, True)))
        webs = [part.WEB for part in parts.values() if part]
        served = build(site, webs, lifespan=self._lifespan)
        add(served, site, webs)
        return served

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncGenerator[None]:
        async with nullcontext() if self._database is not None else self:
            yield

    # -- work ----------------------------------------------------------------------------------------

    def worker(
        self,
        *,
        ledgers: Sequence[str] | None = None,
        concurrency: Mapping[str, int] | int | None = None,
        kinds: Sequence[str] | None = None,
        queues: Sequence[str] = ("default",),
        most: int | None = None,
        stores: Mapping[str, Store] | None = None,
    ) -> Worker:
        """A worker for these ledgers, with a concurrency for each or one for all.

        Default: the ledgers that there are handlers for, those of the apps that are enabled included. In a
        ledger with `unknown_kind="reject"` it rejects what it has no handler for if the ledger is named here
        or by a handler; everywhere else it leaves such rows.
        `most`: it claims no more rows than this from each. `stores`: what it takes a ledger's rows by,
        instead of the application's own.
        """
        if isinstance(concurrency, Mapping):
            for name in concurrency:
                self.store(name)
        for app in self.apps:
            self._work(app)
        for app in self.apps:
            if self._works[app.name] is None and any(one.name in (ledgers or ()) for one in app.ledgers):
                raise MissingExtra(what=f"the app {app.name}", extra=app.extra)
        paces = {name: pace for work in self._works.values() if work for name, pace in work.paces.items()}
        enabled = self.enabled(ledgers or ())
        disabled = [app for app in self.apps if app not in enabled or self._works[app.name] is None]
        handlers = self.handlers.without(
            one for app in disabled if (work := self._works[app.name]) for one in work.handlers
        )
        closed = {one.name for app in disabled for one in app.ledgers}  # but for handlers that name them
        for name in ledgers or ():
            if not self._handled(name, handlers) and self.store(name).ledger.unknown_kind == "leave":
                why = self.store(name).ledger.unserved or "nothing would be done"
                raise InvalidInput(field="ledgers", message=f"{name} has no handler here: {why}")
        names = ledgers or [
            name
            for name in self.stores
            if (handlers.names(name) if name in closed else self._handled(name, handlers))
        ]
        shares = [
            Share(
                store=(stores or {}).get(name) or self.store(name),
                concurrency=self._concurrency(name, concurrency, paces.get(name, Pace())),
                pace=paces.get(name, Pace()),
                most=most,
                kinds=None if kinds is None else tuple(kinds),
                queues=tuple(queues),
                backoff=self._backoff(name),
                rejects=self.store(name).ledger.unknown_kind == "reject"
                and name not in closed
                and (bool(ledgers) or handlers.names(name)),
            )
            for name in dict.fromkeys(names)  # named twice, it is served once
        ]
        for ledger in (self.store(one.name).ledger for app in enabled for one in app.ledgers):
            if ledger.unserved and ledger.name not in names:
                log.info("%s is left alone: %s", ledger.name, ledger.unserved)
        works = [(app, work) for app in self.apps if (work := self._works[app.name])]
        served = {share.store.ledger.name for share in shares}
        for app, work in works:
            if work.check and any(one.name in served for one in app.ledgers):
                work.check()
        return Worker(
            self.database,
            shares,
            handlers,
            duties=[guarded(duty) for _, work in works for duty in work.duties],
            stores=list(self.stores.values()),
            longest={one.name: work.longest for app, work in works if work.longest for one in app.ledgers},
            bells=[bell for _, work in works for bell in work.bells.items()],
        )

    def _work(self, app: App) -> Work | None:
        """What an app does by itself, made once; None where something is not installed that it needs."""
        if app.name not in self._works:
            self._works[app.name] = found = self._make_work(app)
            for handler in found.handlers if found else ():
                self.handlers.add(handler)
        return self._works[app.name]

    def _make_work(self, app: App) -> Work | None:
        if app.work is None:
            return Work()
        return found.work(self) if (found := self._part(app, app.work)) else None

    def _part(self, app: App, module: str) -> Any:
        """A module of an app; None where something is not installed that it needs."""
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            if app.extra is None or str(error.name).partition(".")[0] == "holdfast":
                raise
            log.info("the app %s rests: pip install 'holdfast[%s]' wakes it", app.name, app.extra)
            return None

    def enabled(self, ledgers: Sequence[str] = ()) -> tuple[App, ...]:
        """The apps whose handlers a worker runs that serves these ledgers by name.

        Those that `HOLDFAST_APPS` names, those that this application was given, and those of the ledgers.
        """
        wanted, known = self.settings.apps, [app.name for app in self.apps]
        if unknown := [name for name in wanted if name not in (*known, "all")]:
            problem = f"HOLDFAST_APPS: there is no app {unknown[0]!r}: there are {', '.join(sorted(known))}"
            raise SettingsError(title="some settings are wrong:", problems=[problem])
        return tuple(
            app
            for app in self.apps
            if app.work is None
            or app.name in (*self._own, *wanted)
            or "all" in wanted
            or any(ledger.name in ledgers for ledger in app.ledgers)
        )

    def _handled(self, name: str, handlers: Handlers) -> bool:
        """Whether there is a handler for rows of a ledger. Without kinds, one handler decides."""
        return bool(handlers.kinds(name) if self.store(name).ledger.kind else handlers.find(name, name))

    def _backoff(self, ledger: str) -> Backoff | None:
        """How long bad runs wait, where a setting decides; None leaves it to the ledger."""
        if ledger != JOB.name:
            return None
        settings = self.settings
        return Backoff(
            base=settings.job_backoff_base, cap=settings.job_backoff_cap, jitter=settings.job_backoff_jitter
        )

    def _concurrency(self, ledger: str, given: Mapping[str, int] | int | None, pace: Pace) -> int:
        number = given.get(ledger) if isinstance(given, Mapping) else given
        number = (pace.concurrency or self.settings.concurrency) if number is None else number
        if number < 1:
            raise InvalidInput(field="concurrency", message=f"must be at least 1, not {number}")
        return number

    async def work(self, *, until_idle: bool = False, **options: Any) -> int:
        """Runs a worker until SIGTERM or SIGINT, or until there is nothing to do.

        Answers how many handlers had to be abandoned at the end. Options are those of `worker`.
        """
        worker = self.worker(**options)
        worker.exit = os._exit
        with stopping_on_signals(worker.stop):
            return await worker.run(until_idle=until_idle)


def metadata() -> MetaData:
    """The tables of all apps, as SQLAlchemy describes them. Imported here: it takes long, and few ask."""
    from holdfast.apps.connectors.tables import sync_jobs
    from holdfast.apps.jobs.tables import job
    from holdfast.apps.schedules.tables import capture_session
    from holdfast.apps.system.tables import jobs as system_jobs
    from holdfast.apps.tasks.tables import tasks

    known = (job, tasks, sync_jobs, capture_session, system_jobs)
    return known[0].metadata


def _stores(ledgers: Iterable[Ledger]) -> dict[str, Store]:
    stores: dict[str, Store] = {}
    for ledger in ledgers:
        problems: list[str] = []
        if ledger.name in stores:
            problems.append(f"there is a ledger {ledger.name!r} already: give it another name")
        if ledger.table in {store.ledger.table for store in stores.values()}:
            problems.append(
                f"the table {ledger.table!r} belongs to another ledger: a row needs one lifecycle"
            )
        if problems:
            raise LedgerError(title=f"the ledger {ledger.name!r} is declared wrongly:", problems=problems)
        stores[ledger.name] = Store(ledger)
    return stores
