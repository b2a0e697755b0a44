"""Gmail on loopback: profile, messages and history, as documented for v1; and pushes of Pub/Sub."""

from __future__ import annotations

import base64
import json
from typing import Any

from connectors.servers.base import Asked, Reply, route
from connectors.servers.google import T0, GoogleServer, refused

MAILBOX = "ada@example.com"


def message(id: str, *labels: str, seconds: int = 0, **headers: str) -> dict[str, Any]:
    """A message as `format=metadata` gives it."""
    sent = {"From": "Ben <ben@example.com>", "To": MAILBOX, "Subject": f"About {id}", **headers}
    return {
        "id": id,
        "threadId": f"t-{id}",
        "labelIds": list(labels or ("INBOX", "UNREAD")),
        "snippet": "Hello Ada",
        "historyId": "1",
        "internalDate": str(int(T0.timestamp() * 1000) + seconds * 1000),
        "sizeEstimate": 2048,
        "payload": {"headers": [{"name": name, "value": value} for name, value in sent.items()]},
    }


class GmailServer(GoogleServer):
    """`records` is the history; what is older than `kept_from` is not known any more."""

    scope = "gmail.readonly"

    def __init__(self) -> None:
        super().__init__()
        self.newest = 1000
        self.kept_from = 1000
        self.records: list[dict[str, Any]] = []
        self.messages: dict[str, dict[str, Any]] = {}
        self.stale: set[str] = set()  # page tokens that are not known any more

    def record(self, **changes: Any) -> None:
        """Something happens in the mailbox."""
        self.newest += 7  # with gaps, as Gmail's own
        self.records.append({"id": str(self.newest), **changes})

    def arrive(self, one: dict[str, Any]) -> None:
        self.messages[one["id"]] = one
        self.record(messagesAdded=[{"message": _short(one)}])

    def label(self, one: dict[str, Any], added: tuple[str, ...] = (), removed: tuple[str, ...] = ()) -> None:
        one["labelIds"] = [*(set(one["labelIds"]) - set(removed)), *added]
        changes: dict[str, Any] = {}
        if added:
            changes["labelsAdded"] = [{"message": _short(one), "labelIds": list(added)}]
        if removed:
            changes["labelsRemoved"] = [{"message": _short(one), "labelIds": list(removed)}]
        self.record(**changes)

    def delete(self, one: dict[str, Any]) -> None:
        self.messages.pop(one["id"], None)
        self.record(messagesDeleted=[{"message": _short(one)}])

    @route("GET", "/gmail/v1/users/me/profile")
    def profile(self, request: Asked) -> Reply:
        return Reply({"emailAddress": MAILBOX, "messagesTotal": 2, "historyId": str(self.newest)})

    @route("GET", "/gmail/v1/users/me/messages/{id}")
    def get_message(self, request: Asked, id: str) -> Reply:
        assert request.query["format"] == "metadata"
        if id not in self.messages:
            return Reply(refused(404, "notFound", "global"), 404)
        return Reply(self.messages[id])

    @route("GET", "/gmail/v1/users/me/history")
    def history(self, request: Asked) -> Reply:
        start = int(request.query["startHistoryId"])
        if start < self.kept_from:
            return Reply(refused(404, "notFound", "global"), 404)
        if request.query.get("pageToken") in self.stale:
            return Reply(refused(400, "invalidArgument", "global"), 400)
        found = [record for record in self.records if int(record["id"]) > start]
        shown, following = self.page(request, found, "maxResults")
        data: dict[str, Any] = {"historyId": str(self.newest)}
        if shown:
            data["history"] = shown
        if following:
            data["nextPageToken"] = following
        return Reply(data)


def _short(one: dict[str, Any]) -> dict[str, Any]:
    return {name: one[name] for name in ("id", "threadId", "labelIds")}


def push(mailbox: str = MAILBOX, history: int = 9876543210, id: str = "136969346945") -> dict[str, Any]:
    """A push as Pub/Sub sends it."""
    data = json.dumps({"emailAddress": mailbox, "historyId": history}).encode()
    return {
        "message": {
            "data": base64.urlsafe_b64encode(data).decode(),
            "messageId": id,
            "message_id": id,
            "publishTime": "2026-03-01T12:00:00.123Z",
        },
        "subscription": "projects/example/subscriptions/mail",
    }
