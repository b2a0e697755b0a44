"""Zoho Mail: the messages of a mailbox, by its list, newest first. It has no webhooks and no feed of changes.

The first sync only sets the baseline: the time of the newest message. After that the list is read down to
five minutes before the newest message of the last time, as some come late. What is met there again is told
again only when it was changed meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from holdfast.apps.connectors.http import granted
from holdfast.apps.connectors.normal import cut, reading
from holdfast.apps.connectors.protocol import (
    Account,
    AuthRequest,
    Grant,
    Json,
    Page,
    Permanent,
    Provider,
    Signal,
)
from holdfast.apps.connectors.providers.paging import Cursor, begin, turned, walk
from holdfast.apps.connectors.providers.shape import Thing, parts, words
from holdfast.apps.connectors.providers.zoho import Zoho, milliseconds

OVERLAP = 300_000  # milliseconds
PAGE = 200  # the most that Zoho gives at once
STRIDE = 190  # some are read twice, as what is deleted meanwhile pulls the rest forward, past us


class ZohoMail(Zoho):
    """Messages that are received and sent, and those of the last minutes that change."""

    provider = Provider(
        slug="zoho_mail",
        display_name="Zoho Mail",
        auth_type="oauth2",
        scopes=("ZohoMail.messages.READ",),
        webhooks=False,
    )
    api_url = "https://mail.zoho.com"
    tells_all = False
    service = "mail"
    extra_scopes = ("ZohoMail.accounts.READ",)

    async def exchange(self, code: str, request: AuthRequest) -> Grant:
        data = await self.grant(
            grant_type="authorization_code",
            code=code,
            redirect_uri=request.redirect_uri,
            code_verifier=request.code_verifier,
        )
        answer = await self.ask(data["access_token"], "/api/accounts")
        with reading(answer.unreadable()):
            mailboxes = [one for one in parts(answer.object(), "data") if one.get("enabled", True)]
            if not mailboxes:
                raise Permanent(message="zoho_mail: this account has no mailbox")
            name, main = str(mailboxes[0]["accountId"]), cut(mailboxes[0].get("primaryEmailAddress"))
            others = [cut(one.get("mailId")) for one in parts(mailboxes[0], "emailAddress")]
        own = sorted({address.lower() for address in (main, *others) if address})
        return granted(data, external_id=name, display_name=main, metadata={"addresses": own})

    async def sync(self, account: Account, cursor: Json) -> Page:
        """Cursor: `since` the newest message's time, `floor` that of the baseline, `seen` the last messages.

        Until the end is reached: `start` where the list goes on, `newest` and `met` (so far) as they grow.
        """
        if cursor is None:
            return await self._baseline(account)
        needed = {"since": int, "floor": int, "seen": dict}
        grown = {"start": int | None, "newest": int | None, "met": (dict, type(None))}
        start = begin(cursor, self.provider.slug, **needed, **grown)
        return await walk(partial(self._step, account), start, self.max_items)

    async def _baseline(self, account: Account) -> Page:
        """An empty mailbox is a baseline, too: everything that comes is new."""
        newest = max((one.received for one in await self._list(account, 1, 1)), default=0)
        return Page(next_cursor={"since": newest, "floor": newest, "seen": {}})

    async def _step(self, account: Account, cursor: Cursor) -> Page:
        start, since, floor = cursor.get("start", 1), cursor["since"], cursor["floor"]
        seen, met = cursor["seen"], cursor.get("met", {})
        known = {**seen, **met}
        found = await self._list(account, start, PAGE)
        fresh = [one for one in found if one.received > floor and one.received >= since - OVERLAP]
        with reading(Permanent(message="zoho_mail: the connection's metadata.addresses is no list of texts")):
            own = words(account.metadata, "addresses")
        signals = tuple(one.signal(own, seen) for one in fresh if known.get(one.name) != one.changed)
        newest = max([cursor.get("newest", since), *(one.received for one in fresh)])
        recent = {one.name: one.changed for one in fresh if one.received >= newest - OVERLAP}
        if len(found) == PAGE and found[-1] in fresh:
            following = turned(cursor, start=start + STRIDE, newest=newest, met={**met, **recent})
            return Page(signals=signals, next_cursor=following, has_more=True)
        return Page(signals=signals, next_cursor={"since": newest, "floor": floor, "seen": {**met, **recent}})

    async def _list(self, account: Account, start: int, limit: int) -> list[Message]:
        """Messages from the `start`th on, newest first."""
        params = {
            "start": start,
            "limit": limit,
            "sortBy": "date",
            "sortorder": "false",
            "includeto": "true",
            "includesent": "true",
            "includearchive": "true",
        }
        path = f"/api/accounts/{quote(account.external_id, safe='')}/messages/view"
        answer = await self.ask(account.access_token, path, params)
        with reading(answer.unreadable()):
            return [Message.of(one) for one in parts(answer.object(), "data")]


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message in the list. Times are in milliseconds since 1970; `changed` is as Zoho writes it."""

    name: str
    received: int
    changed: str
    payload: Mapping[str, Json]

    @classmethod
    def of(cls, message: Thing) -> Message:
        received = message.get("receivedTime", message.get("receivedtime"))  # Zoho spells it in two ways
        changed = message.get("lastModifiedTime") or received
        milliseconds(changed)
        return cls(
            name=str(message["messageId"]),
            received=int(milliseconds(received).timestamp() * 1000),
            changed=str(changed),
            payload=_payload(message),
        )

    def signal(self, own: Collection[str], seen: Mapping[str, str]) -> Signal:
        """What it says; `own`: the mailbox's addresses, `seen`: the messages that were told of before."""
        again = self.name in seen
        sent = str(self.payload["from"]).lower() in own
        return Signal(
            kind="email_updated" if again else "email_sent" if sent else "email_received",
            occurred_at=milliseconds(self.changed if again else self.received),
            payload=self.payload,
            dedupe_key=hashlib.sha256(f"{self.name}:{self.changed}".encode()).hexdigest(),
        )


def _payload(message: Thing) -> dict[str, Json]:
    return {
        "id": str(message["messageId"]),
        "thread_id": str(message["threadId"]) if message.get("threadId") else None,
        "folder_id": str(message["folderId"]) if message.get("folderId") else None,
        "from": cut(message.get("fromAddress")),
        "sender": cut(message.get("sender")),
        "to": cut(message.get("toAddress")),
        "cc": cut(message.get("ccAddress")),
        "subject": cut(message.get("subject")),
        "snippet": cut(message.get("summary")),
        "unread": str(message.get("status", "1")) in ("0", "unread"),
        "has_attachment": str(message.get("hasAttachment", "0")) in ("1", "True", "true"),
    }
