"""What Slack says, as signals. Events and the history of a channel both come through here.

A message is named by its channel and its `ts`, which is its time as well. Reactions come by events only: a
channel's history does not tell when somebody reacted.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.apps.connectors.normal import cut, ignored, moment
from holdfast.apps.connectors.protocol import Json, Signal

Thing = Mapping[str, Any]

# A subtype that still is something that somebody, or some bot, said.
SAID = frozenset({None, "bot_message", "file_share", "me_message", "thread_broadcast"})


def event(told: Thing) -> tuple[Signal, ...]:
    """What an event means; nothing, for the many that are no fact of ours."""
    kind, subtype = told.get("type"), told.get("subtype")
    match kind, subtype:
        case "message", "message_changed":
            return _changed(told["channel"], told["message"], told["event_ts"])
        case "message", "message_deleted":
            return (_deleted(told["channel"], told["deleted_ts"], told["event_ts"]),)
        case "message", _ if subtype in SAID:
            return posted(told["channel"], told)
        case "reaction_added", _ if told["item"].get("type") == "message":
            return (_reaction(told),)
        case _:
            ignored("an event of Slack", f"{kind}.{subtype}" if subtype else kind)
            return ()


def posted(channel: str, message: Thing) -> tuple[Signal, ...]:
    """A message, and that it was edited if it was."""
    if message.get("subtype") not in SAID:
        return ()
    fact = _message(channel, message)
    first = _signal("message_posted", channel, message["ts"], message["ts"], fact)
    return (first, *_edited(channel, message))


def _edited(channel: str, message: Thing) -> tuple[Signal, ...]:
    if not (edited := message.get("edited")):
        return ()
    fact, time = _message(channel, message), edited["ts"]
    return (_signal("message_updated", channel, f"{message['ts']}:{time}", time, fact),)


def _changed(channel: str, message: Thing, at: str) -> tuple[Signal, ...]:
    """What became of a message; without `edited`, Slack has only added a preview of a link to it."""
    if message.get("subtype") == "tombstone":  # it is gone, but its thread is not
        return (_deleted(channel, message["ts"], at),)
    return _edited(channel, message) if message.get("subtype") in SAID else ()


def _deleted(channel: str, ts: str, at: str) -> Signal:
    return _signal("message_deleted", channel, ts, at, {"channel": channel, "ts": ts})


def _reaction(told: Thing) -> Signal:
    item = told["item"]
    channel, ts, name, user = item["channel"], item["ts"], told["reaction"], told["user"]
    fact = {"channel": channel, "ts": ts, "reaction": name, "user": user, "author": told.get("item_user")}
    at = told["event_ts"]
    return _signal("reaction_added", channel, f"{ts}:{name}:{user}:{at}", at, fact)


def _signal(kind: str, channel: str, name: str, at: str, payload: Json) -> Signal:
    return Signal(
        kind=kind, occurred_at=_time(at), payload=payload, dedupe_key=f"slack:{kind}:{channel}:{name}"
    )


def _message(channel: str, message: Thing) -> dict[str, Json]:
    return {
        "channel": channel,
        "ts": message["ts"],
        "thread_ts": message.get("thread_ts"),
        "user": message.get("user"),
        "bot_id": message.get("bot_id"),
        "text": cut(message.get("text")),
        "edited_at": message["edited"]["ts"] if message.get("edited") else None,
        "files": [
            {"id": file.get("id"), "name": cut(file.get("name"), 500), "mimetype": file.get("mimetype")}
            for file in (message.get("files") or ())[:20]
        ],
    }


def _time(ts: str) -> datetime:
    return moment(float(ts))
