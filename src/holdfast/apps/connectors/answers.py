"""What the routes of connectors answer and take, as JSON. Times are UTC; a token is never among it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from holdfast.api.answers import Answer
from holdfast.api.models import STORABLE, Body, Moment, Text
from holdfast.apps.connectors import actions, inbox, protocol, signals
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.service import Connectors
from holdfast.engine.intake import INT2
from holdfast.engine.values import Json

JobType = Literal["full", "incremental", "webhook"]
JobStatus = Literal["queued", "running", "succeeded", "failed"]
LinkStatus = Literal["active", "paused", "revoked", "error"]
DeliveryStatus = Literal["pending", "processed", "failed", "unmatched"]
NEXT = "For the next page; null on the last one."


# -- what may be asked -----------------------------------------------------------------------------------


class Pages(BaseModel):
    """Which page, and of whom."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=50, ge=1, le=100, description="How many at most.")
    cursor: str | None = Field(
        default=None, min_length=1, max_length=1000, description="Goes on where the page before ended."
    )
    all_tenants: bool = Field(
        default=False, description="Of every tenant, not only of the one of X-Tenant-Id: for operators."
    )


class ConnectionsQuery(Pages):
    """Which connections are meant."""

    provider: Text | None = Field(default=None, description="Of this provider.")
    status: LinkStatus | None = Field(default=None, description="In this status.")


class JobsQuery(Pages):
    """Which jobs are meant."""

    provider: Text | None = Field(default=None, description="Of this provider.")
    connection_id: UUID | None = Field(default=None, description="Of this connection.")
    job_type: JobType | None = Field(default=None, description="Of this type.")
    status: JobStatus | None = Field(default=None, description="In this status.")
    started_after: Moment | None = Field(default=None, description="Begun at this time or later.")
    finished_after: Moment | None = Field(default=None, description="Ended at this time or later.")


class SignalsQuery(Pages):
    """Which signals are meant."""

    provider: Text | None = Field(default=None, description="Of this provider.")
    connection_id: UUID | None = Field(default=None, description="Of this connection.")
    kind: Text | None = Field(default=None, description="Of this kind, like `issue_created`.")
    occurred_after: Moment | None = Field(default=None, description="Happened at this time or later.")
    occurred_before: Moment | None = Field(default=None, description="Happened at this time or before.")
    include_payload: bool = Field(default=False, description="Tells the payloads as well.")


class DeliveriesQuery(Pages):
    """Which deliveries are meant."""

    provider: Text | None = Field(default=None, description="Of this provider.")
    connection_id: UUID | None = Field(default=None, description="For this connection.")
    status: DeliveryStatus | None = Field(
        default=None, description="Waiting, done, done badly, or without a connection."
    )
    received_after: Moment | None = Field(default=None, description="Came at this time or later.")
    received_before: Moment | None = Field(default=None, description="Came at this time or before.")


class TenantsQuery(BaseModel):
    """Which page of tenants."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=50, ge=1, le=100, description="How many at most.")
    cursor: str | None = Field(
        default=None, min_length=1, max_length=1000, description="Goes on where the page before ended."
    )


# -- what a request brings -------------------------------------------------------------------------------


class NewTenant(Body):
    """A tenant to be made."""

    name: str = Field(
        min_length=1,
        max_length=1024,
        pattern=STORABLE,
        description="1 to 255 characters, without blanks around.",
    )
    id: UUID | None = Field(
        default=None, strict=False, description="Its id, where you have one already; else a random one."
    )


class NewConnection(Body):
    """The account of a provider that only sends webhooks."""

    provider: Text = Field(description="The provider.", examples=["zoho_cliq"])
    external_id: Annotated[Text, Field(max_length=255)] = Field(
        description="What the provider calls the account in its webhooks."
    )
    display_name: Annotated[Text, Field(max_length=255)] | None = Field(
        default=None, description="What people call it."
    )


class Change(Body):
    """What is to be changed of a connection; what is left out stays."""

    interval_seconds: int | None = Field(
        default=None, ge=60, le=604_800, description="Seconds between two syncs."
    )
    external_ids: list[Annotated[Text, Field(max_length=255)]] | None = Field(
        default=None,
        max_length=actions.EXTERNAL_IDS,
        description="Other names of the account in webhooks: `metadata.webhook.external_ids`.",
    )


class Sync(Body):
    """A sync that is asked for by hand."""

    job_type: JobType = Field(default="incremental", description="What is new, everything, or the inbox.")
    priority: int | None = Field(
        default=None, ge=INT2.start, lt=INT2.stop, description="Higher ones are taken first; 10 if left out."
    )


class Cursor(Answer):
    """Where the next incremental sync begins."""

    cursor: Json = Field(description="Whatever the provider's connector has put there; null: the beginning.")


class NewCursor(Body):
    """Where the next incremental sync shall begin."""

    cursor: Json = Field(description="What the provider's connector understands; null: the beginning.")


class Connect(Body):
    """A way to the provider that is asked for."""

    redirect_uri: Annotated[Text, Field(max_length=2048)] | None = Field(
        default=None, description="Where to come back to: one of HOLDFAST_OAUTH_REDIRECT_URIS."
    )


class Replay(Body):
    """Which deliveries shall be processed once more: one, or all that came in a time."""

    provider: Text = Field(description="Of this provider.")
    delivery_id: Text | None = Field(default=None, description="This one.")
    received_after: Moment | None = Field(default=None, description="Those that came at this time or later.")
    received_before: Moment | None = Field(
        default=None, description="Those that came at this time or before."
    )
    all_tenants: bool = Field(default=False, description="Of every tenant: for operators.")


# -- what is answered ------------------------------------------------------------------------------------


class Tenant(Answer):
    """Whose connections they are."""

    id: UUID = Field(description="Its id, as in X-Tenant-Id.")
    name: str | None = Field(description="Its name.")
    created_at: datetime = Field(description="Since when.")


class Tenants(Answer):
    """Some tenants."""

    tenants: list[Tenant] = Field(description="The first ones first.")
    next_cursor: str | None = Field(description=NEXT)


class Provider(Answer):
    """An outside provider."""

    name: str = Field(description="As in addresses and filters.")
    display_name: str = Field(description="As people call it.")
    auth_type: str = Field(description="How it is connected: oauth2 or webhook-only.")
    scopes: list[str] = Field(description="What a person is asked to allow.")
    webhooks: bool = Field(description="Whether it sends webhooks.")
    connectable: bool = Field(description="Whether there is a connector, and what it needs is set.")

    @classmethod
    def of(cls, provider: protocol.Provider, *, connectable: bool) -> Provider:
        return cls(
            name=provider.slug,
            display_name=provider.display_name,
            auth_type=provider.auth_type,
            scopes=list(provider.scopes),
            webhooks=provider.webhooks,
            connectable=connectable,
        )


class Providers(Answer):
    """The providers."""

    providers: list[Provider] = Field(description="By name.")


class Health(Answer):
    """How a connection does."""

    last_success: datetime | None = Field(description="When a job last ended well.")
    last_error: Mapping[str, Json] | None = Field(description="The last error: its code and message.")
    last_error_at: datetime | None = Field(description="When that was.")
    failures: int = Field(description="Bad runs since the last success.")
    next_run: datetime | None = Field(description="When it is due next; null: with the next tick, or never.")
    cooldown_until: datetime | None = Field(description="Until when the provider wants to be left alone.")


class Connection(Answer):
    """A tenant's account at a provider."""

    id: UUID = Field(description="Its id.")
    tenant_id: UUID = Field(description="Whose it is.")
    provider: str = Field(description="At which provider.")
    external_id: str = Field(description="What the provider calls it.")
    display_name: str | None = Field(description="What people call it.")
    status: LinkStatus = Field(description="Whether it is kept in step.")
    scopes: list[str] = Field(description="What was allowed.")
    expires_at: datetime | None = Field(description="When its token ends; null: nobody knows.")
    metadata: Mapping[str, Json] = Field(description="`sync` is the scheduler's; the rest the connector's.")
    has_access_token: bool = Field(description="Whether there is a token.")
    has_refresh_token: bool = Field(description="Whether there is one to renew it with.")
    token_encryption_version: int | None = Field(description="How they are sealed; null: there are none.")
    created_at: datetime = Field(description="Since when.")
    updated_at: datetime = Field(description="Last changed.")
    health: Health = Field(description="How it does.")

    @classmethod
    def of(cls, link: Link, health: actions.Health) -> Connection:
        sealed = link.access or link.refresh
        return cls(
            id=link.id,
            tenant_id=link.tenant_id,
            provider=link.provider,
            external_id=link.external_id,
            display_name=link.display_name,
            status=link.status,  # pyright: ignore[reportArgumentType]
            scopes=list(link.scopes),
            expires_at=link.expires_at,
            metadata=dict(link.metadata),
            has_access_token=link.access is not None,
            has_refresh_token=link.refresh is not None,
            token_encryption_version=sealed[0] if sealed else None,
            created_at=link.created_at,
            updated_at=link.updated_at,
            health=Health.model_validate(health),
        )


class Connections(Answer):
    """Some connections."""

    connections: list[Connection] = Field(description="In the order in which they were made.")
    next_cursor: str | None = Field(description=NEXT)


class Connected(Answer):
    """An account that was just connected."""

    id: UUID = Field(description="The connection's id.")
    provider: str = Field(description="At which provider.")
    expires_at: datetime | None = Field(default=None, description="When its token ends.")
    metadata: Mapping[str, Json] = Field(description="What the connector has noted of it.")


class Called(Answer):
    """What a callback has led to."""

    connection: Connected = Field(description="The connection, new or brought up to date.")


class Way(Answer):
    """The way to a provider."""

    authorize_url: str = Field(description="Where a person goes to allow it.")


class Job(Answer):
    """A sync job."""

    id: UUID = Field(description="Its id, as in /api/ledgers/sync_jobs.")
    tenant_id: UUID = Field(description="Whose it is.")
    provider: str = Field(description="At which provider.")
    connection_id: UUID = Field(description="Of which connection.")
    job_type: str = Field(description="full, incremental or webhook.")
    status: str = Field(description="queued, running, succeeded or failed.")
    priority: int = Field(description="Higher ones are taken first.")
    attempts: int = Field(description="How often it was begun.")
    max_attempts: int = Field(description="How often it may be.")
    scheduled_at: datetime = Field(description="When it is due.")
    retry_after: datetime | None = Field(description="When it is tried again.")
    started_at: datetime | None = Field(description="Last begun.")
    finished_at: datetime | None = Field(description="Ended.")
    cursor: Json = Field(description="Where it begins, if not where the connection's last one ended.")
    error: Json = Field(description="What went wrong last.")
    created_at: datetime = Field(description="Since when.")


class Jobs(Answer):
    """Some jobs."""

    jobs: list[Job] = Field(description="The last scheduled first.")
    next_cursor: str | None = Field(description=NEXT)


class Asked(Answer):
    """A sync that was asked for."""

    job: Job = Field(description="The job.")
    created: bool = Field(description="False: one of its type waited or ran already, and this is it.")

    @classmethod
    def of(cls, asked: actions.Asked) -> Asked:
        return cls(job=Job.model_validate(asked.job), created=asked.created)


class Signal(Answer):
    """A fact that an account has told."""

    id: UUID = Field(description="Its id.")
    tenant_id: UUID = Field(description="Whose it is.")
    provider: str = Field(description="From which provider.")
    connection_id: UUID = Field(description="By which connection.")
    kind: str = Field(description="What has happened.")
    occurred_at: datetime = Field(description="When it happened there.")
    received_at: datetime = Field(description="When it came here.")
    dedupe_key: str | None = Field(description="What tells the fact from any other.")
    payload: Json = Field(default=None, description="The fact itself; null unless it is asked for.")

    @classmethod
    def of(cls, signal: signals.StoredSignal) -> Signal:
        return cls.model_validate(signal)


class Signals(Answer):
    """Some signals."""

    signals: list[Signal] = Field(description="The newest first.")
    next_cursor: str | None = Field(description=NEXT)


class Delivery(Answer):
    """A webhook in the inbox."""

    delivery_id: str = Field(description="What tells it from any other of its provider and tenant.")
    provider: str = Field(description="From which provider.")
    tenant_id: UUID = Field(description="For whom.")
    connection_id: UUID | None = Field(description="For which connection; null: none matched, or several.")
    verification: str = Field(description="How it has proved itself.")
    status: DeliveryStatus = Field(description="What has become of it.")
    received_at: datetime = Field(description="When it came.")
    processed_at: datetime | None = Field(description="When it was done with.")
    attempts: int = Field(description="How often it has failed.")
    error: Json = Field(description="What went wrong last.")

    @classmethod
    def of(cls, stored: inbox.Stored, **more: Any) -> Any:
        """As a list shows it; `WholeDelivery.of` with its headers and its payload."""
        fields = {name: getattr(stored, name) for name in Delivery.model_fields if name != "status"}
        return cls(**fields, status=_status(stored), **more)


class WholeDelivery(Delivery):
    """A webhook with all that came; what proved it is not kept."""

    headers: Mapping[str, str] = Field(description="By lower-case names.")
    payload: Json = Field(description="Its JSON; null: it was none.")


def _status(stored: inbox.Stored) -> DeliveryStatus:
    if stored.processed_at is None:
        return "unmatched" if stored.connection_id is None else "pending"
    return "processed" if stored.error is None else "failed"


class Deliveries(Answer):
    """Some deliveries."""

    deliveries: list[Delivery] = Field(description="The newest first.")
    next_cursor: str | None = Field(description=NEXT)


class Replayed(Answer):
    """What a replay came to."""

    deliveries: int = Field(description="How many wait to be processed again.")
    unmatched: int = Field(description="How many of those that were meant still match no connection.")


class Accepted(Answer):
    """A webhook that was taken in."""

    status: Literal["accepted"] = Field(default="accepted", description="It is stored, or was known already.")


class Secret(Answer):
    """What a tenant gives a provider to sign its webhooks with."""

    provider: str = Field(description="The provider.")
    scheme: str = Field(description="How it is used: github, slack, bearer, channel_token or standard.")
    secret: str = Field(description="Yours alone: it signs for nobody else.")
    path: str = Field(description="Where the provider sends them to, on this server.")


def connectable(service: Connectors, provider: protocol.Provider) -> bool:
    """Whether a provider can be connected here and now."""
    if provider.slug not in service.known:
        return False
    own = service.settings.provider(provider.slug)
    return bool(own.client_id if provider.auth_type == "oauth2" else own.webhook_secret)
