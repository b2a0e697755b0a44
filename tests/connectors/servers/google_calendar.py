"""Google Calendar on loopback: calendars and events with sync tokens, as documented for v3."""

from __future__ import annotations

from typing import Any

from connectors.servers.base import Asked, Reply, route
from connectors.servers.google import GoogleServer, at, refused

NOT_WITH_A_TOKEN = {
    "iCalUID", "orderBy", "privateExtendedProperty", "q", "sharedExtendedProperty", "timeMin", "timeMax",
    "updatedMin",
}  # fmt: skip


def event(id: str, created: float = 0, updated: float | None = None, **more: Any) -> dict[str, Any]:
    """An event as the API has it; times are seconds after the beginning."""
    return {
        "id": id,
        "status": "confirmed",
        "htmlLink": f"https://www.google.com/calendar/event?eid={id}",
        "created": at(created),
        "updated": at(created if updated is None else updated),
        "summary": f"Meeting {id}",
        "location": "Room 1",
        "organizer": {"email": "ada@example.com"},
        "start": {"dateTime": "2026-03-02T10:00:00+01:00"},
        "end": {"dateTime": "2026-03-02T11:00:00+01:00"},
        "attendees": [{"email": "ben@example.com", "responseStatus": "accepted"}],
        **more,
    }


class CalendarServer(GoogleServer):
    """Each change has a number; a sync token is one, and gives what has changed after it."""

    scope = "calendar.readonly"

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[str, tuple[int, dict[str, Any]]] = {}
        self.number = 0
        self.kept_from = 0  # sync tokens below are not known any more
        self.stale: set[str] = set()  # page tokens, likewise
        self.updated = at(-3600)

    def put(self, one: dict[str, Any]) -> None:
        """An event is made, changed or cancelled."""
        self.number += 1
        self.events[one["id"]] = self.number, one
        self.updated = max(self.updated, one.get("updated", self.updated))

    @route("GET", "/calendar/v3/calendars/primary")
    def calendar(self, request: Asked) -> Reply:
        return Reply({"kind": "calendar#calendar", "id": "ada@example.com", "summary": "Ada"})

    @route("GET", "/calendar/v3/calendars/{calendar}/events")
    def list_events(self, request: Asked, calendar: str) -> Reply:
        assert calendar == "ada@example.com"
        query = request.query
        if query.get("pageToken") in self.stale:
            return Reply(refused(400, "invalid", "global"), 400)
        after = -1
        if "syncToken" in query:
            assert not NOT_WITH_A_TOKEN & set(query)
            after = int(query["syncToken"].removeprefix("sync-"))
            if after < self.kept_from:
                return Reply(refused(410, "fullSyncRequired", "calendar"), 410)
        found = [one for n, one in sorted(self.events.values(), key=lambda each: each[0]) if n > after]
        if "syncToken" not in query:
            found = [one for one in found if one["status"] != "cancelled"]
        shown, following = self.page(request, found, "maxResults")
        token = {"nextPageToken": following} if following else {"nextSyncToken": f"sync-{self.number}"}
        data = {"kind": "calendar#events", "updated": self.updated, "items": shown, **token}
        if "fields" in query:
            data = {name: value for name, value in data.items() if name in query["fields"].split(",")}
        return Reply(data)
