"""What a connection and a delivery mean to somebody who looks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from holdfast.apps.connectors.actions import Health
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.inbox import Stored
from holdfast.apps.connectors.sync_state import SyncState
from holdfast.dashboard.phrases import ago
from holdfast.dashboard.tones import Mood
from holdfast.engine.values import Json

HEALTHY = Mood("healthy", "good", "its last sync ended well")
NEW = Mood("new", "waiting", "it has not been synced yet")
FAILING = Mood("failing", "again", "its last runs ended badly, and it is tried again")
COOLING = Mood("cooling down", "again", "the provider asked to be left alone for a while")
PAUSED = Mood("paused", "waiting", "it is not synced until somebody resumes it; its webhooks wait")
IN_ERROR = Mood("error", "bad", "its token is no good any more, or cannot be read: a person must act")
REVOKED = Mood("disconnected", "off", "its tokens are gone; what it has brought is still here")
RESTING: Mapping[str, Mood] = {"paused": PAUSED, "error": IN_ERROR, "revoked": REVOKED}

DELIVERIES: Mapping[str, Mood] = {
    "pending": Mood("pending", "waiting", "it waits to be processed"),
    "processed": Mood("processed", "good", "it was processed"),
    "failed": Mood("failed", "bad", "it could not be processed, and is not tried again by itself"),
    "unmatched": Mood("unmatched", "again", "no connection, or more than one, fits it: a replay looks again"),
}

# What a person may say about a connection, by its status.
ORDERS: Mapping[str, tuple[str, ...]] = {
    "active": ("sync", "full", "pause", "disconnect"),
    "paused": ("resume", "disconnect"),
    "error": ("resume", "disconnect"),
    "revoked": (),
}


@dataclass(frozen=True, kw_only=True)
class View:
    """A connection, and all that a list tells of it. `wait`: until when it, or its provider, cools down."""

    link: Link
    state: SyncState
    health: Health
    tenant: str | None
    wait: datetime | None
    mood: Mood

    @property
    def name(self) -> str:
        return self.link.display_name or self.link.external_id

    @property
    def orders(self) -> tuple[str, ...]:
        return ORDERS[self.link.status]


def view(
    link: Link,
    state: SyncState,
    health: Health,
    *,
    tenant: str | None,
    now: datetime,
    cooling: datetime | None,
) -> View:
    """A connection as it is seen at a moment; `cooling`: until when its provider wants no calls at all."""
    ends = [one for one in (health.cooldown_until, cooling) if one is not None and one > now]
    wait = max(ends, default=None)
    mood = _mood(link, health, wait)
    return View(link=link, state=state, health=health, tenant=tenant, wait=wait, mood=mood)


def _mood(link: Link, health: Health, wait: datetime | None) -> Mood:
    if link.status in RESTING:
        return RESTING[link.status]
    if wait is not None:
        return COOLING
    if health.failures:
        return FAILING
    return NEW if health.last_success is None else HEALTHY


def sentence(seen: View, now: datetime) -> str:
    """How a connection does, in a sentence or two."""
    health, link = seen.health, seen.link
    last = f"the last sync ended well {ago(health.last_success, now)}" if health.last_success else ""
    match link.status:
        case "paused":
            return f"{PAUSED.meaning}" + (f"; {last}" if last else "")
        case "error":
            return "it is not synced: its token is no good any more. Connect the account anew, or resume it"
        case "revoked":
            return "it is disconnected: its tokens are gone. Connecting the same account again revives it"
        case _:
            pass
    if seen.wait is not None:
        return f"the provider asked to be left alone: it goes on {ago(seen.wait, now)}"
    due = "it is due with the next tick"
    if health.next_run is not None:
        due = f"it is due {ago(health.next_run, now)}" if health.next_run > now else "it is due now"
    if health.failures:
        many = "its last run" if health.failures == 1 else f"its last {health.failures} runs"
        return f"{many} ended badly" + (f"; {last}" if last else "") + f"; {due}"
    return f"{last}; {due}" if last else f"it has not been synced yet; {due}"


def delivery_state(stored: Stored) -> str:
    """What has become of a delivery."""
    if stored.processed_at is None:
        return "unmatched" if stored.connection_id is None else "pending"
    return "processed" if stored.error is None else "failed"


def fault(error: Json) -> tuple[str | None, str] | None:
    """The code and the message of an error as it is stored; others may have written anything there."""
    if error is None:
        return None
    if not isinstance(error, Mapping):
        return None, str(error)
    told = cast("Mapping[str, Json]", error)
    code, message = told.get("code"), told.get("message")
    return (str(code) if code else None), str(message or code or "it did not say why")
