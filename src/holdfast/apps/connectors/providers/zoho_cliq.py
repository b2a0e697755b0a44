# ruff: noqa: ARG002 (the protocol hands over more than Cliq needs)
"""Zoho Cliq: messages of its chats, by webhooks alone.

A bot in Cliq hands them on: a webhook bot by itself, any other by a line in its handlers. What they are given
(`operation`, `data`, `message`, `user`, `chat`) comes here, either as it is or inside `params`. Messages that
are edited or deleted are told by the participation handler of a bot in a channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import ClassVar

from holdfast.apps.connectors.http import as_object
from holdfast.apps.connectors.normal import cut, ignored, reading, stamp
from holdfast.apps.connectors.protocol import (
    Account,
    AuthRequest,
    Connector,
    Delivery,
    Grant,
    Json,
    Page,
    Permanent,
    Provider,
    Signal,
    Unsupported,
    WebhookResult,
)
from holdfast.apps.connectors.providers.shape import Thing, part
from holdfast.apps.connectors.providers.zoho import milliseconds
from holdfast.apps.connectors.signatures import Scheme
from holdfast.errors import InvalidInput

# what a handler was called for → the kind
KINDS = {
    "message_sent": "message_posted",
    "message_handler": "message_posted",
    "mention_handler": "message_posted",
    "message_edited": "message_updated",
    "message_deleted": "message_deleted",
}
HOW = (
    "Zoho Cliq has nothing to authorise: make its connection with the id of your organisation, channel or"
    " chat in Cliq, and let a bot send its messages to /api/connectors/webhooks/zoho_cliq/<your tenant's id>,"
    " with the tenant's secret as the bearer token"
)


class ZohoCliq(Connector):
    """Messages that are posted, edited and deleted where a bot can see them."""

    provider = Provider(slug="zoho_cliq", display_name="Zoho Cliq", auth_type="webhook-only")
    scheme: ClassVar[Scheme | None] = "bearer"

    async def authorize_url(self, request: AuthRequest) -> str:
        raise Unsupported(message=HOW)

    async def exchange(self, code: str, request: AuthRequest) -> Grant:
        raise Unsupported(message=HOW)

    async def sync(self, account: Account, cursor: Json) -> Page:
        """Nothing, ever: a connection that only listens is not broken, and must not look so at each tick."""
        return Page(next_cursor=cursor)

    def external_ids(self, headers: Mapping[str, str], payload: Json) -> Sequence[str]:
        """The organisation, the chat and its channel: a connection may be for any of them."""
        try:
            told = _told(payload)
            access, chat, user = part(told, "access"), part(told, "chat"), part(told, "user")
            ids = (
                part(access, "organization").get("id"),
                user.get("organization_id"),
                access.get("chat_id"),
                chat.get("id"),
                chat.get("channel_id"),
                chat.get("channel_unique_name"),
            )
        except ValueError:
            return []
        return list(dict.fromkeys(str(one) for one in ids if isinstance(one, int | str) and one != ""))

    def check_webhook(self, payload: Json) -> None:
        check(payload)

    async def handle_webhook(self, account: Account, delivery: Delivery) -> WebhookResult:
        try:
            check(delivery.payload)
        except InvalidInput as error:
            raise Permanent(message=f"zoho_cliq: {error}") from None
        with reading(Permanent(message="zoho_cliq: a delivery is not as documented")):
            return WebhookResult(signals=signals_of(delivery.payload, delivery.received_at))


def check(payload: Json) -> None:
    """Raise `InvalidInput` with the field's name for a body that is not as docs/connectors.md has it.

    What is no JSON at all is stored all the same, as for every provider. Messages quote nothing of the body.
    """
    if payload is None:
        return
    body = as_object(payload)
    if body is None:
        raise InvalidInput(field="body", message="must be a JSON object")
    told = {**body, **_object(body, "params")}
    data, handler = _object(told, "data"), _object(told, "handler")
    for name in ("user", "chat", "access"):
        _object(told, name)
    _object(_object(told, "access"), "organization", "access.organization")
    if _event(told, handler) not in KINDS:
        return
    field = "data.message" if "operation" in told else "message"
    message = data.get("message", told.get("message"))
    if not isinstance(message, str):
        inner = {} if message is None else as_object(message)
        if inner is None:
            raise InvalidInput(field=field, message="must be a text, or an object with the text")
        for name in ("sender", "content"):
            _object(inner, name, f"{field}.{name}")
        _time(inner.get("time"), f"{field}.time")
    if not message:
        raise InvalidInput(field=field, message="is missing: a text, or an object with the text")
    _time(data.get("time"), "data.time")
    _time(told.get("timestamp"), "timestamp")


def _object(thing: Thing, name: str, field: str | None = None) -> Thing:
    try:
        return part(thing, name)
    except ValueError:
        raise InvalidInput(field=field or name, message="must be an object") from None


def _time(value: Json, field: str) -> None:
    try:
        if value:
            milliseconds(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(field=field, message="must be a time in milliseconds since 1970") from None


def _event(told: Thing, handler: Thing) -> str:
    """What the bot's handler was called for; a body that does not say so is a message."""
    return str(told.get("operation") or handler.get("type") or "message_handler")


def _told(payload: Json) -> Thing:
    """What the handler was given."""
    told = as_object(payload) or {}
    return {**told, **part(told, "params")}


def signals_of(payload: Json, received_at: datetime) -> tuple[Signal, ...]:
    """What a delivery means; a message without a time of its own was sent when it came."""
    told = _told(payload)
    data = part(told, "data")
    event = _event(told, part(told, "handler"))
    message = _message(data.get("message", told.get("message")))
    kind = KINDS.get(event)
    if kind is None or message is None:
        ignored("a delivery of Zoho Cliq", event)
        return ()
    chat, sender = part(told, "chat"), part(message, "sender") or part(told, "user")
    place = chat.get("id") or part(told, "access").get("chat_id")
    time = message.get("time") or data.get("time") or told.get("timestamp")
    at = milliseconds(time) if time else received_at
    return (
        Signal(
            kind=kind,
            occurred_at=at,
            payload={
                "id": message.get("id"),
                "chat_id": place,
                "chat_title": cut(chat.get("title")),
                "channel_id": chat.get("channel_id"),
                "author": _person(sender),
                "text": cut(message.get("text") or part(message, "content").get("text")),
            },
            dedupe_key=_key(kind, place, message, sender, at if time else None),
        ),
    )


def _message(value: Json) -> Thing | None:
    """A message, which a bot's own chat gives as its text alone."""
    return {"text": value} if isinstance(value, str) and value else as_object(value)


def _key(kind: str, place: Json, message: Thing, sender: Thing, at: datetime | None) -> str | None:
    """A message is posted and deleted once; each edit has its time. None: nothing tells it from another."""
    if message.get("id") and kind != "message_updated":
        return f"zoho_cliq:{kind}:{place}:{message['id']}"
    if at is None:
        return None
    who = message.get("id") or sender.get("id")
    return f"zoho_cliq:{kind}:{place}:{who}:{stamp(at.isoformat())}"


def _person(user: Thing) -> dict[str, Json] | None:
    if not user:
        return None
    whole = " ".join(str(user[name]) for name in ("first_name", "last_name") if user.get(name))
    return {"id": user.get("id"), "name": cut(user.get("name")) or whole or None, "email": user.get("email")}
