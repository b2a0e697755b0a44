"""What the tests of routes and pages share: a server, tokens of two users, and days as workers leave them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from api.kit import Served, on, served_app
from holdfast import Holdfast, Settings
from holdfast.api import tokens
from holdfast.api.caller import Scope
from holdfast.db.pool import Connection
from schedules.recorded import DAY, at, entry, observe

ANA, BOB = 42, 43  # users
USERS: dict[str, tuple[Scope, int]] = {
    "ana": ("act", ANA),
    "ana reads": ("read", ANA),
    "bob": ("act", BOB),
}
TEN = entry("10:00", "12:00", "Marie Sjöberg Städservice", address="Valebergsvägen 316 Billdal")
ELEVEN = {**TEN, "start": "11:00"}
SCHOOL = entry("13:00", "15:00", "Kyrkskolan", location="Mölndal", address="Kyrkogatan 3 431 37 Mölndal")
NIGHT = entry("22:00", "06:00", "Kontor Centrum", location="Göteborg")


@contextmanager
def serving(settings: Settings, **more: Any) -> Iterator[Served]:
    """The whole application on a port, with a token for everybody and for both users."""
    settings = dataclasses.replace(settings, api_rate=100_000, **more)
    with served_app(settings, Holdfast(settings).web()) as served:
        served.tokens |= on(settings, _tokens)
        yield served


async def _tokens(conn: Connection) -> dict[str, str]:
    made = {
        who: await tokens.create(conn, who.replace(" ", "-"), scope, tenant=str(user))
        for who, (scope, user) in USERS.items()
    }
    return {who: text for who, (_, text) in made.items()}


@dataclass(frozen=True)
class Story:
    """A day of Ana's that was seen three times, and one of Bob's: who saw them."""

    first: UUID
    second: UUID
    third: UUID
    bobs: UUID


def story(served: Served) -> Story:
    """Two shifts; then one is an hour later, one is gone and one is new; then all is as it was."""

    async def write(conn: Connection) -> Story:
        return Story(
            await observe(conn, ANA, [TEN, SCHOOL], at=at(0), images=2),
            await observe(conn, ANA, [ELEVEN, NIGHT], at=at(10), images=1),
            await observe(conn, ANA, [ELEVEN, NIGHT], at=at(20)),
            await observe(conn, BOB, [SCHOOL], at=at(30)),
        )

    return on(served.settings, write)


def seen(served: Served, entries: Sequence[dict[str, str]], minutes: float, user: int = ANA) -> UUID:
    """One more session that saw the day like this."""
    return on(served.settings, lambda conn: observe(conn, user, entries, at=at(minutes)))


def messages(served: Served, user: int = ANA) -> list[str]:
    """The ids of a user's messages, in their order."""
    found = served.query(
        "select notification_id from schedule_ingest.schedule_notification where user_id = %s"
        " order by created_at, notification_id",
        user,
    )
    return [key for (key,) in found]


def fail(served: Served, id: str, *errors: str) -> str:
    """Lets tries to send a message have gone wrong, the last one for good."""
    for number, error in enumerate(errors, 1):
        last = number == len(errors)
        served.query(
            "insert into schedule_ingest.notification_attempt values (%s, %s, now(), %s, %s)",
            *(id, number, error, None if last else datetime.now().astimezone() + timedelta(seconds=5)),
        )
    served.query(
        "update schedule_ingest.schedule_notification set status = 'failed' where notification_id = %s", id
    )
    return id


def write(served: Served, do: Callable[[Connection], Any]) -> Any:
    """Does something on the database of a server."""
    return on(served.settings, do)


def place(*parts: Any, root: str = "/api/schedules") -> str:
    """An address of ours."""
    return "/".join((root, *map(str, parts)))


DAY_PLACE = place("days", ANA, DAY)
