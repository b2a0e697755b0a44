"""The app `schedules`: captures of work schedules, kept as versioned days, events and messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.apps.schedules import process_queries, queries
from holdfast.apps.schedules.ledger import (
    CAPTURE_SESSIONS,
    NOTICES,
    NOTIFICATIONS,
    SCHEMA,
    SESSIONS,
    notices,
    sessions,
)
from holdfast.apps.schedules.senders import Sender
from holdfast.apps.schedules.values import Extractor
from holdfast.db.settings import Settings
from holdfast.engine.ledger import Ledger
from holdfast.runtime.app import App, Table

Making = Callable[[Settings], Extractor]
OF_USER = {"user_id": "user_id"}
OF_DAY = ("user_id", "schedule_date")

TABLES = (
    Table(name=f"{SCHEMA}.{SESSIONS}", where=process_queries.NOT_THE_LAST),
    Table(name=f"{SCHEMA}.capture_image"),
    Table(name=f"{SCHEMA}.day_schedule", key=OF_DAY, subjects=OF_USER),
    Table(name=f"{SCHEMA}.schedule_version", key=(*OF_DAY, "version"), subjects=OF_USER),
    Table(name=f"{SCHEMA}.day_snapshot", key=OF_DAY, subjects=OF_USER),
    Table(name=f"{SCHEMA}.day_origin", key=OF_DAY, subjects=OF_USER),
    Table(
        name=f"{SCHEMA}.schedule_event",
        kind="stream",
        key=("event_id",),
        time="detected_at",
        evict=queries.EVICT,
        subjects=OF_USER,
    ),
    Table(name=f"{SCHEMA}.{NOTICES}", where=queries.UNTOLD),
    Table(name=f"{SCHEMA}.capture_attempt", key=("session_id", "attempt")),
    Table(name=f"{SCHEMA}.notification_attempt", key=("notification_id", "attempt")),
)


@dataclass(frozen=True, kw_only=True)
class SchedulesApp(App):
    """The app with extractors of one's own by their names, and with a way of one's own to send messages."""

    own: Mapping[str, Making] = field(default_factory=dict[str, Making])
    sender: Sender | None = None

    def fitted(self, settings: Settings) -> tuple[Ledger, ...]:
        """Its ledgers under these settings. Without pictures there may be nothing to read."""
        found = sessions(settings, alone=not self.needs_images(settings))
        return replace(found, unserved=self.left_alone(settings)), notices(settings)

    def left_alone(self, settings: Settings) -> str | None:
        """Why no session is read under these settings; None: they are."""
        name = settings.schedules_extractor
        if name in self.own:
            return None
        if name in ("fixture", "noise") and settings.schedules_fixture_path is None:
            return f"HOLDFAST_SCHEDULES_EXTRACTOR is {name}, and HOLDFAST_SCHEDULES_FIXTURE_PATH is not set"
        if name == "sample" and settings.profile == "prod":
            return "HOLDFAST_SCHEDULES_EXTRACTOR is sample, which is for trials, and HOLDFAST_PROFILE is prod"
        return None

    def needs_images(self, settings: Settings) -> bool:
        """Whether a session without pictures is left alone: told by the extractor's class."""
        name = settings.schedules_extractor
        return bool(getattr(self.own[name], "needs_images", False)) if name in self.own else name == "ocr"


def app(*, extractors: Mapping[str, Making] | None = None, sender: Sender | None = None) -> SchedulesApp:
    """The app with these too: `Holdfast(apps=[schedules.app(sender=BySms())])`."""
    return SchedulesApp(
        name="schedules",
        ledgers=(CAPTURE_SESSIONS, NOTIFICATIONS),
        tables=TABLES,
        erasures={"user_id": queries.ERASE},
        work="holdfast.apps.schedules.work",
        web="holdfast.apps.schedules.web",
        own=extractors or {},
        sender=sender,
    )


APP = app()
