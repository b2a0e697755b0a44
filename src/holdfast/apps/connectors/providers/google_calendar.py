"""Google Calendar: what happened to the events of one calendar, by sync tokens.

The first sync only sets the baseline: it reads to the end of what is there, for the token that stands there.
Google gives tokens up (410) when too much has happened; then there is a new baseline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from urllib.parse import quote, unquote

from holdfast.apps.connectors.http import Answer
from holdfast.apps.connectors.normal import cut, moment, reading, stamp
from holdfast.apps.connectors.protocol import Account, Json, Page, Provider, Signal
from holdfast.apps.connectors.providers.google import Owner, Pushed, forgotten, lived, place
from holdfast.apps.connectors.providers.paging import Cursor, Outdated, begin, foreign, turned, walk
from holdfast.apps.connectors.providers.shape import Thing, part, parts

PAGE = 2500  # the most that Google gives at once
LONG_AGO = "1970-01-01T00:00:00+00:00"


class GoogleCalendar(Pushed):
    provider = Provider(
        slug="google_calendar",
        display_name="Google Calendar",
        auth_type="oauth2",
        scopes=("calendar.readonly",),
    )
    api_url = "https://www.googleapis.com"
    tells_all = False

    async def owner(self, token: str) -> Owner:
        """The primary calendar, whose id is the account's address."""
        answer = await self.ask(token, "/calendar/v3/calendars/primary")
        with reading(answer.unreadable()):
            data = answer.object()
            return Owner(external_id=str(data["id"]), display_name=cut(data.get("summary")))

    async def sync(self, account: Account, cursor: Json) -> Page:
        """Cursor: `sync` is Google's token, `since` when the calendar had changed last.

        Without `sync`, the baseline is still on its way.
        """
        start: Cursor = {}
        if cursor is not None:
            start = begin(cursor, self.provider.slug, sync=str | None, since=str | None)
            with reading(foreign(self.provider.slug)):
                moment(start.get("since", LONG_AGO))
        return await walk(partial(self._step, account), start, self.max_items)

    async def _step(self, account: Account, cursor: Cursor) -> Page:
        token = cursor.get("sync")
        params = {
            "maxResults": PAGE,
            "pageToken": cursor.get("page"),
            "syncToken": token,
            # What is there before the baseline is nobody's business: the tokens are enough.
            "fields": None if token else "nextPageToken,nextSyncToken,updated",
        }
        path = f"/calendar/v3/calendars/{quote(account.external_id, safe='')}/events"
        answer = await self.ask(account.access_token, path, params, expect=(400, 410))
        if answer.status == 410 and token:
            forgotten(account)
            return Page(next_cursor={"since": LONG_AGO}, has_more=True)
        if answer.status in (400, 410):
            raise Outdated(message=str(answer.error())) if "page" in cursor else answer.error()
        with reading(answer.unreadable()):
            signals = self._read(account, answer, cursor) if token else ()
            updated = answer.object().get("updated") or cursor.get("since") or LONG_AGO
            moment(updated)
        if page := place(answer, "nextPageToken"):
            return Page(signals=signals, next_cursor=turned(cursor, page=page), has_more=True)
        following = place(answer, "nextSyncToken")
        if not following:
            raise answer.unreadable()
        return Page(signals=signals, next_cursor={"sync": following, "since": updated})

    def _read(self, account: Account, answer: Answer, cursor: Cursor) -> tuple[Signal, ...]:
        data = answer.object()
        since, now = moment(cursor.get("since", LONG_AGO)), data.get("updated")
        events = answer.each(data.get("items", []))
        calendar = account.external_id
        return tuple(
            signal for event in events for signal in signals_of({"updated": now, **event}, calendar, since)
        )

    def external_ids(self, headers: Mapping[str, str], payload: Json) -> Sequence[str]:
        """Also the calendar that the address of what is watched names."""
        named = re.search(r"/calendars/([^/?#]+)/events", headers.get("x-goog-resource-uri", ""))
        return [*super().external_ids(headers, payload), *([unquote(named[1])] if named else [])]


def signals_of(event: Thing, calendar: str, since: datetime) -> tuple[Signal, ...]:
    """What an event that has changed says has happened since then."""
    if event.get("status") == "cancelled":
        return (_signal("calendar_event_deleted", event, calendar, event["updated"]),)
    created = event.get("created") or event["updated"]
    new, changed = lived(moment(created), moment(event["updated"]), since)
    return (
        *((_signal("calendar_event_created", event, calendar, created),) if new else ()),
        *((_signal("calendar_event_updated", event, calendar, event["updated"]),) if changed else ()),
    )


def _signal(kind: str, event: Thing, calendar: str, time: str) -> Signal:
    # The calendar is named: everybody who is invited has an event of the same id.
    key = f"google_calendar:{kind}:{calendar}:{event['id']}:{stamp(time)}"
    return Signal(kind=kind, occurred_at=moment(time), payload=_payload(event, calendar), dedupe_key=key)


def _payload(event: Thing, calendar: str) -> dict[str, Json]:
    return {
        "id": event["id"],
        "calendar": calendar,
        "title": cut(event.get("summary")),
        "status": event.get("status"),
        "url": event.get("htmlLink"),
        "location": cut(event.get("location")),
        "starts_at": _time(part(event, "start")),
        "ends_at": _time(part(event, "end")),
        "recurring_event_id": event.get("recurringEventId"),
        "organizer": part(event, "organizer").get("email"),
        "attendees": [who.get("email") for who in parts(event, "attendees")],
        "created_at": event.get("created"),
        "updated_at": event.get("updated"),
    }


def _time(value: Thing) -> str | None:
    """A time, or the date of an event that takes whole days."""
    return value.get("dateTime") or value.get("date")
