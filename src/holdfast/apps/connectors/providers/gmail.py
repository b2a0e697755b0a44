# ruff: noqa: ARG002 (the protocol hands over more than Gmail needs)
"""Gmail: what happened to the messages of a mailbox, by its history.

The first sync only sets the baseline. Google keeps a mailbox's history for a week or so; when it does not
know our place in it any more (404), there is a new baseline. A push through Pub/Sub names the mailbox, and
says no more.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote

from holdfast.apps.connectors.http import as_object
from holdfast.apps.connectors.normal import cut, moment, reading, stamp
from holdfast.apps.connectors.protocol import (
    Account,
    Delivery,
    Json,
    Page,
    Provider,
    Signal,
    WebhookResult,
)
from holdfast.apps.connectors.providers.google import Google, Owner, forgotten, place
from holdfast.apps.connectors.providers.paging import Cursor, Outdated, begin, turned, walk
from holdfast.apps.connectors.providers.shape import Thing, part, parts, words
from holdfast.apps.connectors.signatures import Scheme

PAGE = 100  # records; each new message among them is one more request
NO_MAIL = frozenset(("DRAFT", "CHAT"))  # every save of a draft makes a message of its own
BINNED = frozenset(("TRASH",))
HEADERS = ("From", "To", "Cc", "Subject", "Message-ID")
DETAILS = "?format=metadata" + "".join(f"&metadataHeaders={name}" for name in HEADERS)


class Gmail(Google):
    """Messages that come, go, change their labels and are deleted."""

    provider = Provider(slug="gmail", display_name="Gmail", auth_type="oauth2", scopes=("gmail.readonly",))
    api_url = "https://gmail.googleapis.com"
    tells_all = False
    scheme: ClassVar[Scheme | None] = "oidc"

    async def owner(self, token: str) -> Owner:
        answer = await self.ask(token, "/gmail/v1/users/me/profile")
        with reading(answer.unreadable()):
            mailbox = str(answer.object()["emailAddress"])
        return Owner(external_id=mailbox, display_name=mailbox)

    async def sync(self, account: Account, cursor: Json) -> Page:
        """Cursor: `history`, the id of the last record that was read."""
        if cursor is None:
            return await self._baseline(account)
        start = begin(cursor, self.provider.slug, history=str)
        return await walk(partial(self._step, account), start, self.max_items)

    async def _baseline(self, account: Account) -> Page:
        answer = await self.ask(account.access_token, "/gmail/v1/users/me/profile")
        with reading(answer.unreadable()):
            return Page(next_cursor={"history": str(int(answer.object()["historyId"]))})

    async def _step(self, account: Account, cursor: Cursor) -> Page:
        token, path = account.access_token, "/gmail/v1/users/me/history"
        params = {"startHistoryId": cursor["history"], "maxResults": PAGE, "pageToken": cursor.get("page")}
        answer = await self.ask(token, path, params, expect=(400, 404))
        if answer.status == 404:
            forgotten(account)
            return await self._baseline(account)
        if answer.status == 400:
            raise Outdated(message=str(answer.error())) if "page" in cursor else answer.error()
        data = answer.object()
        with reading(answer.unreadable()):
            records = [Record.of(record) for record in parts(data, "history")]
            newest = str(int(data.get("historyId") or cursor["history"]))
        messages = await self._messages(token, (name for record in records for name in record.added))
        with reading(answer.unreadable()):
            found = [signal for record in records for signal in signals_of(record, messages, answer.moment)]
        page = place(answer, "nextPageToken")
        following = turned(cursor, page=page) if page else {"history": newest}
        return Page(signals=tuple(found), next_cursor=following, has_more=page is not None)

    async def _messages(self, token: str | None, names: Iterable[str]) -> dict[str, Thing]:
        """The messages of these ids; one that is gone meanwhile is left out."""
        found: dict[str, Thing] = {}
        for name in dict.fromkeys(names):
            path = f"/gmail/v1/users/me/messages/{quote(name, safe='')}{DETAILS}"
            answer = await self.ask(token, path, expect=(404,))
            if answer.status != 404:
                found[name] = answer.object()
        return found

    def delivery_id(self, headers: Mapping[str, str], body: bytes) -> str:
        given = _message(_parsed(body)).get("messageId")
        return given if isinstance(given, str) and given else super().delivery_id(headers, body)

    def external_ids(self, headers: Mapping[str, str], payload: Json) -> Sequence[str]:
        mailbox = notice(payload).get("emailAddress")
        return [mailbox] if isinstance(mailbox, str) and mailbox else []

    async def handle_webhook(self, account: Account, delivery: Delivery) -> WebhookResult:
        """A notice wants a sync; what is none, or has no mailbox, was sent by somebody else."""
        return WebhookResult(wants_sync=bool(notice(delivery.payload).get("emailAddress")))


# -- records ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record of a mailbox's history: messages by their ids, and the labels that they got and lost."""

    id: str
    added: Sequence[str]
    deleted: Sequence[str]
    labelled: Mapping[str, frozenset[str]]
    unlabelled: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, record: Thing) -> Record:
        """Drafts and chats are left out. What is deleted in the bin was told of when it went there."""
        return cls(
            id=str(record["id"]),
            added=list(_changes(record, "messagesAdded", NO_MAIL)),
            deleted=list(_changes(record, "messagesDeleted", NO_MAIL | BINNED)),
            labelled=_changes(record, "labelsAdded", NO_MAIL),
            unlabelled=_changes(record, "labelsRemoved", NO_MAIL),
        )


def _changes(record: Thing, name: str, without: frozenset[str]) -> dict[str, frozenset[str]]:
    """The messages of one kind of change with their changed labels; none that has a label of `without`."""
    found: dict[str, frozenset[str]] = {}
    for change in parts(record, name):
        message = part(change, "message")
        if without.isdisjoint(words(message, "labelIds")):
            found[str(message["id"])] = frozenset(words(change, "labelIds"))
    return found


def signals_of(record: Record, messages: Mapping[str, Thing], now: datetime) -> list[Signal]:
    """What a record says. It has no time of its own, so whatever is no arrival has happened `now`."""
    none = frozenset[str]()
    found = [signal for name in record.added if name in messages for signal in _arrived(messages[name])]
    for name in dict.fromkeys((*record.labelled, *record.unlabelled)):
        more, less = record.labelled.get(name, none), record.unlabelled.get(name, none)
        kind = "email_updated" if BINNED.isdisjoint(more) else "email_deleted"
        found.append(_changed(kind, record, name, now, {"added": sorted(more), "removed": sorted(less)}))
    return found + [_changed("email_deleted", record, name, now, None) for name in record.deleted]


def _arrived(message: Thing) -> list[Signal]:
    """Sent, received, or both when somebody has written to themselves."""
    labels = words(message, "labelIds")
    sent = ["email_sent"] if "SENT" in labels else []
    received = [] if sent and "INBOX" not in labels else ["email_received"]
    time = int(message["internalDate"]) / 1000
    return [
        Signal(
            kind=kind,
            occurred_at=moment(time),
            payload=_payload(message),
            dedupe_key=f"gmail:{kind}:{message['id']}:{stamp(time)}",
        )
        for kind in (*sent, *received)
    ]


def _changed(kind: str, record: Record, name: str, now: datetime, labels: Json) -> Signal:
    return Signal(
        kind=kind,
        occurred_at=now,
        payload={"id": name, "labels": labels, "history_id": record.id},
        dedupe_key=f"gmail:{kind}:{name}:{record.id}",
    )


def _payload(message: Thing) -> dict[str, Json]:
    headers = {str(one["name"]).lower(): one["value"] for one in parts(part(message, "payload"), "headers")}
    return {
        "id": message["id"],
        "thread_id": message.get("threadId"),
        "message_id": cut(headers.get("message-id")),
        "from": cut(headers.get("from")),
        "to": cut(headers.get("to")),
        "cc": cut(headers.get("cc")),
        "subject": cut(headers.get("subject")),
        "snippet": cut(message.get("snippet")),
        "labels": sorted(words(message, "labelIds")),
        "size": message.get("sizeEstimate"),
    }


# -- pushes ----------------------------------------------------------------------------------------------


def notice(payload: Json) -> dict[str, Any]:
    """What a push of Pub/Sub has inside: the mailbox, and the id of its newest record."""
    data = _message(payload).get("data")
    if not isinstance(data, str):
        return {}
    text = data.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        inside = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return {}
    return as_object(_parsed(inside)) or {}


def _message(payload: Json) -> dict[str, Any]:
    return as_object((as_object(payload) or {}).get("message")) or {}


def _parsed(body: bytes) -> Json:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
