"""The app `connectors`: outside accounts of many tenants, kept in step."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.connectors.protocol import Connector
from holdfast.runtime.app import App, Table

EXTRA = "connectors"
OF_TENANT = {"tenant_id": "tenant_id"}

TABLES = (
    Table(name="tenants", subjects={"tenant_id": "id"}),
    Table(name="providers", key=("slug",)),
    Table(name="connections", subjects=OF_TENANT, live=True),
    Table(name="oauth_states", subjects=OF_TENANT),
    Table(name="signals", kind="stream", time="received_at", subjects=OF_TENANT),
    Table(
        name="webhook_delivery",
        kind="stream",
        key=("provider_slug", "tenant_id", "delivery_id"),
        time="received_at",
        where="t.processed_at is not null",
        subjects=OF_TENANT,
    ),
)


@dataclass(frozen=True, kw_only=True)
class ConnectorsApp(App):
    """The app with connectors of one's own beside the built-in ones."""

    own: tuple[type[Connector], ...] = ()


def app(*own: type[Connector]) -> ConnectorsApp:
    """The app with these connectors too: `Holdfast(apps=[connectors.app(Trello)])`."""
    return ConnectorsApp(
        name="connectors",
        ledgers=(SYNC_JOBS,),
        tables=TABLES,
        extra=EXTRA,
        work="holdfast.apps.connectors.work",
        web="holdfast.apps.connectors.web",
        own=own,
    )


APP = app()
