"""What every part of the app stands on: settings, keys, ledger, database, and the known connectors."""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, cast

from psycopg.rows import tuple_row

from holdfast.apps.connectors import work_queries
from holdfast.apps.connectors.app import ConnectorsApp
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.crypto import Keyring
from holdfast.apps.connectors.http import opened
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.connectors.protocol import Connector, Provider, Unsupported
from holdfast.apps.connectors.providers import CONNECTORS
from holdfast.db.database import Database
from holdfast.db.settings import Settings
from holdfast.engine.store import Connection, Store
from holdfast.errors import NotFound
from holdfast.runtime.app import Ground

log = logging.getLogger("holdfast.connectors")


class NoConnector(Unsupported):
    """there is no connector for {slug!r}

    The provider stands in the catalogue, and nobody here can talk to it.
    """

    code = "NO_CONNECTOR"


@dataclass(frozen=True, kw_only=True)
class Connectors:
    """The app at work. `known` has the connectors by slug: the user's own, and the built-in ones."""

    ground: Ground
    keyring: Keyring
    known: Mapping[str, type[Connector]]

    @classmethod
    def of(cls, ground: Ground) -> Connectors:
        """The service of an application."""
        own = [one for app in ground.apps if isinstance(app, ConnectorsApp) for one in app.own]
        # A chain: a built-in connector is imported when it is first asked for.
        known = ChainMap({one.provider.slug: one for one in own}, cast("Any", CONNECTORS))
        _tell_of_unknown(tuple(sorted(set(ground.settings.providers) - set(known))))
        return cls(ground=ground, keyring=Keyring.of(ground.settings, ground.settings.home), known=known)

    @property
    def settings(self) -> Settings:
        return self.ground.settings

    @property
    def database(self) -> Database:
        return self.ground.database

    @property
    def store(self) -> Store:
        """The ledger `sync_jobs`."""
        return self.ground.stores[SYNC_JOBS.name]

    def kind(self, slug: str) -> type[Connector]:
        """The connector's class, or `NoConnector`."""
        try:
            return self.known[slug]
        except KeyError:
            raise NoConnector(slug=slug) from None

    def provider(self, slug: str) -> Provider:
        """The provider's line: its connector's own, or the catalogue's; or `NotFound`."""
        if slug in self.known:
            return self.known[slug].provider
        for one in PROVIDERS:
            if one.slug == slug:
                return one
        raise NotFound(what="provider", id=slug)

    @asynccontextmanager
    async def connector(self, slug: str) -> AsyncGenerator[Connector]:
        """The provider's connector, ready to be asked; `NoConnector` where there is none.

        Each use has its own HTTP, since it belongs to the event loop that it was opened in.
        """
        kind = self.kind(slug)
        async with opened(slug) as http:
            yield kind(http, self.settings.provider(slug), self.settings.sync_max_items)


@cache
def _tell_of_unknown(slugs: tuple[str, ...]) -> None:
    """Once in a process: what is set for a provider that has no connector is set for nobody."""
    for slug in slugs:
        log.warning("there are settings for %s, which no connector has: is the name misspelt?", slug)


async def clock(conn: Connection) -> datetime:
    """What time it is, by the database."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(work_queries.CLOCK)
        ((now,),) = await cursor.fetchall()
        return now
