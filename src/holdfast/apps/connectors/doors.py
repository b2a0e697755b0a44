"""The door of webhooks: what a delivery must pass before it comes into the inbox, and in which order.

The cheap and harmless checks come first, and how often one may come is counted before anything is computed.
The signature is looked at over the raw bytes, which nobody has read before. Neither a secret, nor a
signature, nor an address is logged, stored or counted by; an address is known by a salted hash alone.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qs
from uuid import UUID

from fastapi import HTTPException
from starlette.requests import ClientDisconnect, Request

from holdfast.api import auth
from holdfast.api.caller import Caller
from holdfast.api.limits import Limits
from holdfast.api.problems import TooMany, Unavailable
from holdfast.apps.connectors import actions, connections, inbox, signatures
from holdfast.apps.connectors.catalogue import slug_of
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.inbox import Verification
from holdfast.apps.connectors.metrics import METERS
from holdfast.apps.connectors.protocol import Connector, Transient
from holdfast.apps.connectors.service import Connectors
from holdfast.apps.connectors.signatures import InvalidSignature, Scheme
from holdfast.db.settings import ProviderSettings, Settings
from holdfast.engine import intake
from holdfast.engine.store import Connection
from holdfast.engine.values import Json
from holdfast.errors import InvalidInput, NotAllowed, NotFound, NotSupported

if TYPE_CHECKING:  # httpx is an extra, and nobody is asked anything here
    from holdfast.apps.connectors.http import Http

log = logging.getLogger("holdfast.connectors")

KNOWN = 10_000  # windows that are remembered; the one that was begun first is forgotten first
UNPROVED = 10  # times the rate of one tenant: what one address may send altogether that proves nothing
MINUTE = 60.0
LARGEST = {"gmail": 262_144}  # bytes, where the provider itself sends less than others
PLAIN = re.compile(r"[!#-\[\]-~]{1,200}")  # ASCII that is printed, without blanks, quotes and backslashes
HOPS = 20  # entries of X-Forwarded-For that are looked at, from our side


class WebhooksNotSupported(NotSupported):
    """{message}

    The provider sends webhooks, and there is no connector yet that could read them.
    """

    code = "WEBHOOKS_NOT_SUPPORTED"


# -- how often -------------------------------------------------------------------------------------------


class Windows:
    """Counts by the fixed minute, for every key: so many, and no more until the next one begins.

    Anybody can invent keys. So the windows of those that have proved themselves are remembered apart.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.time) -> None:
        self._most, self._clock = most, clock
        self._counts: OrderedDict[tuple[str, ...], tuple[int, int]] = OrderedDict()  # the minute, how many
        self._proved: OrderedDict[tuple[str, ...], tuple[int, int]] = OrderedDict()

    def count(self, *key: str) -> None:
        """Counts one; `TooMany` when there were too many in this minute."""
        minute, into = divmod(self._clock(), MINUTE)
        counts = self._proved if key in self._proved else self._counts
        begun, count = counts.get(key, (-1, 0))
        if begun != minute:
            counts.pop(key, None)  # it is begun anew, at the end of the line
            count = 0
        if count >= self._most:
            raise TooMany(message="too many webhooks in a minute", wait=MINUTE - into)
        _remember(counts, key, (int(minute), count + 1))

    def prove(self, *key: str) -> None:
        """Nobody has invented this key: no invented one pushes it out."""
        if (window := self._counts.pop(key, None)) is not None:
            _remember(self._proved, key, window)

    def forgive(self, *key: str) -> None:
        """Takes back what was counted last."""
        begun, count = self._counts.get(key, (-1, 0))
        if count:
            self._counts[key] = (begun, count - 1)


def _remember(
    counts: OrderedDict[tuple[str, ...], tuple[int, int]], key: tuple[str, ...], window: tuple[int, int]
) -> None:
    counts[key] = window
    if len(counts) > KNOWN:
        counts.popitem(last=False)


def came_from(request: Request, trusted: Sequence[str]) -> str:
    """The address of whoever sent it: what a proxy says counts only if the proxy is one of ours.

    The list is read from our side: the last entry that is no proxy of ours is whom our proxies saw.
    """
    address = request.client.host if request.client else ""
    networks = [ipaddress.ip_network(one, strict=False) for one in trusted]
    told = [hop.strip() for text in request.headers.getlist("x-forwarded-for") for hop in text.split(",")]
    for hop in reversed(told[-HOPS:]):
        if not _within(address, networks):
            break
        address = hop
    return address


def _within(address: str, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    found = _read(address)
    return found is not None and any(found in network for network in networks)


def _household(address: str) -> str:
    """The address, or of IPv6 the network that one house has: it can take any address in there."""
    found = _read(address)
    if found is None:
        return address[:64]
    return str(found if found.version == 4 else ipaddress.ip_network((found, 64), strict=False))


def _read(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address; one of IPv4 that is written as one of IPv6 is one of IPv4."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


# -- the desk --------------------------------------------------------------------------------------------


@dataclass
class Desk:
    """The service of one served application, and what it remembers between two requests."""

    service: Connectors
    salt: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)
    _bare: dict[str, Connector] = field(default_factory=dict[str, Connector])
    _enlisted: set[str] = field(default_factory=set[str])

    @cached_property
    def windows(self) -> Windows:
        return Windows(self.service.settings.webhook_rate_per_minute)

    @cached_property
    def addresses(self) -> Windows:
        """By address alone: who invents a tenant for each attempt is counted all the same."""
        return Windows(UNPROVED * self.service.settings.webhook_rate_per_minute)

    def bare(self, slug: str) -> Connector:
        """A connector without HTTP, for what it can tell of a delivery by itself."""
        if slug not in self._bare:
            kind, own = self.service.known[slug], self.service.settings.provider(slug)
            self._bare[slug] = kind(cast("Http", None), own)
        return self._bare[slug]

    async def enlist(self, conn: Connection, slug: str) -> None:
        """Sees once that a provider of one's own stands in the catalogue."""
        if slug not in self._enlisted:
            await actions.enlist(conn, self.service.provider(slug))
            self._enlisted.add(slug)

    def hashed(self, address: str) -> str:
        """An address as it is remembered; another process hashes it otherwise."""
        return hashlib.blake2b(_household(address).encode(), key=self.salt, digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """A delivery that has proved itself, and what came with it."""

    slug: str
    tenant_id: UUID
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    verification: Verification


# -- the checks, in their order --------------------------------------------------------------------------


async def public(request: Request, desk: Desk, provider: str, tenant: str) -> Arrived:
    """What a webhook must pass that comes from outside: each check before the next one is looked at."""
    service = desk.service
    tenant_id = uuid_of("tenant_id", tenant)
    slug = _taking(service, provider)
    scheme, own = service.known[slug].scheme, service.settings.provider(slug)
    if await _operator(request, scheme) is not None:
        return await _arrived(request, desk, slug, tenant_id, "operator")
    if scheme is None or not (own.webhook_audience if scheme == "oidc" else own.webhook_secret):
        raise NotAllowed(message=f"no secret is set for the webhooks of {slug}", status=401)
    address = desk.hashed(came_from(request, service.settings.trusted_proxies))
    desk.addresses.count(address)
    body = await read_body(request, largest(service.settings, slug))
    desk.windows.count(slug, str(tenant_id), address)
    headers = dict(request.headers)
    way = await _verify(desk.bare(slug), own, service.settings, headers, body, tenant_id)
    desk.windows.prove(slug, str(tenant_id), address)
    desk.addresses.forgive(address)  # a provider sends for many tenants
    return Arrived(slug=slug, tenant_id=tenant_id, headers=headers, body=body, verification=way)


async def by_operator(request: Request, desk: Desk, provider: str, tenant_id: UUID) -> Arrived:
    """A webhook that an operator passes on: the route has seen to who it is."""
    slug = _taking(desk.service, provider)
    return await _arrived(request, desk, slug, tenant_id, "operator")


async def _arrived(
    request: Request, desk: Desk, slug: str, tenant_id: UUID, verification: Verification
) -> Arrived:
    body = await read_body(request, largest(desk.service.settings, slug))
    headers = dict(request.headers)
    return Arrived(slug=slug, tenant_id=tenant_id, headers=headers, body=body, verification=verification)


def uuid_of(field: str, text: str) -> UUID:
    """The UUID that a text means, or `InvalidInput`."""
    return intake.typed(field, "uuid", text)


def _taking(service: Connectors, provider: str) -> str:
    """A provider that sends webhooks, and whose connector is in."""
    known = service.provider(slug_of(provider))
    if not known.webhooks:
        raise NotFound(what="provider with webhooks", id=known.slug)
    if known.slug not in service.known:
        raise WebhooksNotSupported(message=f"there is no connector for {known.slug} yet")
    return known.slug


async def _operator(request: Request, scheme: Scheme | None) -> Caller | None:
    """The operator whose token it brings. What is no token of ours may be the provider's own proof.

    A wrong one is a guess, and is counted. Where providers bring tokens themselves, a JWT is theirs: then an
    operator takes the other door.
    """
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    theirs = scheme in ("bearer", "oidc")
    ours = text.strip().startswith("hf_") or (text.count(".") == 2 and not theirs)
    if kind.lower() != "bearer" or not ours:
        return None
    found = await auth.identify(request)
    if found is None or found.bound or not found.may("act"):
        return None
    limits: Limits = request.app.state.limits
    limits.call(found.token_id or found.who)
    return found


def largest(settings: Settings, slug: str) -> int:
    """How many bytes a webhook of a provider may have."""
    own = settings.provider(slug).webhook_max_bytes
    return own or min(settings.webhook_max_bytes, LARGEST.get(slug, settings.webhook_max_bytes))


async def read_body(request: Request, most: int) -> bytes:
    """The raw body, read once; 413 as soon as it is clear that it is too large."""
    told = request.headers.get("content-length", "0")
    if told.isdigit() and int(told[:20]) > most:
        raise HTTPException(413, f"the body has more than {most} bytes")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise HTTPException(413, f"the body has more than {most} bytes")
    except ClientDisconnect:
        raise HTTPException(400, "body: has not come to its end") from None
    return bytes(body)


async def _verify(
    connector: Connector,
    own: ProviderSettings,
    settings: Settings,
    headers: Mapping[str, str],
    body: bytes,
    tenant_id: UUID,
) -> Verification:
    """How it has proved itself; `InvalidSignature` when it has not. Both are counted."""
    slug, scheme = connector.provider.slug, connector.scheme
    assert scheme is not None
    begun = time.perf_counter()
    try:
        if scheme == "oidc":
            way = await signatures.verify_oidc(headers, audience=own.webhook_audience)
        else:
            given = [own.webhook_secret or "", *own.webhook_old_secrets]
            accepted = signatures.accepted(given, tenant_id, slug)
            way = signatures.verify(
                scheme,
                headers,
                body,
                accepted,
                now=datetime.now(UTC),
                tolerance=settings.webhook_tolerance_seconds,
            )
    except InvalidSignature as error:
        METERS.refused(slug, error.reason)
        log.info("a webhook of %s was refused: its signature is %s", slug, error.reason)
        raise
    except Transient as error:
        raise Unavailable(message=str(error)) from None
    finally:
        METERS.verified_in(slug, time.perf_counter() - begun)
    METERS.accepted(slug, way)
    return way


# -- into the inbox --------------------------------------------------------------------------------------


async def take_in(
    desk: Desk, conn: Connection, arrived: Arrived, *, connection_id: UUID | None = None
) -> Json | None:
    """Stores what has arrived; answers with what a provider wants to hear that only asks if we are there.

    `connection_id` is the connection that an operator names.
    """
    service, slug, tenant_id = desk.service, arrived.slug, arrived.tenant_id
    connector = desk.bare(slug)
    payload = parsed(arrived.headers, arrived.body)
    digest = hashlib.sha256(arrived.body).hexdigest()
    with _stumbling(slug):
        if (answer := connector.challenge(payload)) is not None:
            json.dumps(answer, allow_nan=False, ensure_ascii=False).encode()  # whether it can be said
            return answer
    with _stumbling(slug):
        connector.check_webhook(payload)
    if connection_id is not None:
        link = await _named(conn, tenant_id, slug, connection_id)
    else:
        names = inbox.names(slug, connector.external_ids, arrived.headers, payload)
        link = await inbox.matching(conn, tenant_id, slug, names)
    delivery_id = digest
    with _stumbling(slug):
        delivery_id = _fitting(connector.delivery_id(arrived.headers, arrived.body))
    await desk.enlist(conn, slug)
    await inbox.receive(
        conn,
        service.store,
        provider=slug,
        tenant_id=tenant_id,
        link=link,
        delivery_id=delivery_id,
        headers=arrived.headers,
        payload=payload,
        body_sha256=digest,
        verification=arrived.verification,
    )
    return None


@contextmanager
def _stumbling(slug: str) -> Generator[None]:
    """What has proved itself is stored, whatever its connector makes of it, unless it refuses the body."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:
        inbox.stumbled(slug, error)


async def _named(conn: Connection, tenant_id: UUID, slug: str, connection_id: UUID) -> Link:
    link = await connections.of_tenant(conn, connection_id, tenant_id)
    if link.provider != slug:
        raise NotFound(what="connection", id=connection_id)
    return link


def _fitting(delivery_id: str) -> str:
    """A delivery's id that an index and a cursor can hold: whoever sends it may write what they like."""
    if PLAIN.fullmatch(delivery_id):
        return delivery_id
    return hashlib.sha256(delivery_id.encode(errors="replace")).hexdigest()


def parsed(headers: Mapping[str, str], body: bytes) -> Json:
    """The JSON of a body, or of the field `payload` of a form, as GitHub can send it; None: it is none."""
    try:
        if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            (text,) = parse_qs(body.decode(), strict_parsing=True, max_num_fields=100)["payload"]
        else:
            text = body.decode()
        return json.loads(text)
    except (ValueError, KeyError, RecursionError):
        return None
