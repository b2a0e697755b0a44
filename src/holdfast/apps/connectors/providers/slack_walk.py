"""How Slack is polled: a round over the channels that the app is a member of, one request a step.

A page of channels, and for each its messages since the last round and up to the time at which this one began;
then the replies to those of them that have some. Replies to older messages come by events only: nothing tells
of them but the thread itself.

A cursor holds where a round stands; between two rounds it is only {"since": …}, in Slack's own kind of time.
A round begins a minute before the last one began. What is seen twice has the same dedupe key.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from holdfast.apps.connectors.http import Answer, as_object
from holdfast.apps.connectors.normal import moment, reading
from holdfast.apps.connectors.protocol import Json, Page, Permanent, Signal
from holdfast.apps.connectors.providers import slack_facts as facts
from holdfast.apps.connectors.providers.paging import Cursor, walk

log = logging.getLogger("holdfast.connectors")

OVERLAP = 60.0  # seconds
FACTS = 2  # signals that one message can become
CHANNELS = 200  # in one list, as Slack advises
# A channel that cannot be read must not hold up the others.
GONE = ("channel_not_found", "is_archived", "no_permission", "not_in_channel", "thread_not_found")

# method, arguments, and the errors that are given back and not raised
Call = Callable[[str, Mapping[str, str | int | None], tuple[str, ...]], Awaitable[Answer]]


@dataclass(kw_only=True)
class Round:
    """Where a round stands. `since` None: from the beginning of time. `…_at` is one of Slack's cursors."""

    since: str | None = None
    until: str | None = None  # when it began, by Slack's clock
    list_at: str | None = None
    listed: bool = False  # all channels are
    channels: list[str] = field(default_factory=list[str])
    history_at: str | None = None  # of the first channel
    threads: list[list[str]] = field(default_factory=list[list[str]])  # channel, and the first message's ts
    thread_at: str | None = None  # of the first thread
    again: list[str] = field(default_factory=list[str])  # what was begun anew: Slack had forgotten a cursor

    @property
    def over(self) -> bool:
        return self.listed and not self.channels and not self.threads

    @property
    def next(self) -> Json:
        """The cursor from which to go on."""
        if not self.over:
            return asdict(self)
        return {"since": f"{max(float(self.until or 0) - OVERLAP, 0):.6f}"}


def resume(cursor: Json) -> Round:
    """The round that a cursor stands for; a time alone will do."""
    if cursor is None:
        return Round()
    with reading(Permanent(message="the cursor of this connection cannot be read: reset it")):
        if isinstance(cursor, str):
            cursor = {"since": cursor}
        place = Round(**cast("dict[str, Any]", cursor))
        times = [time for time in (place.since, place.until) if time is not None]
        channels = [*place.channels, *(channel for channel, _ in place.threads)]
        stamps = [*times, *(ts for _, ts in place.threads)]
        if not all(re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", ts) for ts in stamps):
            raise ValueError("these are no times")
        if not all(re.fullmatch(r"[A-Z0-9]{1,32}", channel) for channel in channels):
            raise ValueError("these are no channels")
        if place.until is None and (place.since is None or place.listed or channels):
            raise ValueError("this is no round")
        return place


class Walk:
    """One page of ours: as many steps as fit into it."""

    def __init__(self, call: Call, place: Round, types: str, max_items: int) -> None:
        self._call, self.round, self._types, self._most = call, place, types, max_items
        self._size = max(1, min(200, max_items // (3 * FACTS)))  # so that three answers fit, at least

    async def page(self) -> Page:
        return await walk(self._turn, asdict(self.round), self._most - FACTS * self._size + 1)

    async def _turn(self, cursor: Cursor) -> Page:
        """One request, from a copy of where the round stands: a failed one leaves no trace in it."""
        place = self.round = Round(**deepcopy(cursor))
        signals = await self._step()
        return Page(signals=tuple(signals), next_cursor=place.next, has_more=not place.over)

    async def _step(self) -> list[Signal]:
        if self.round.threads:
            return await self._replies()
        if self.round.channels:
            return await self._history()
        return await self._list()

    async def _list(self) -> list[Signal]:
        place = self.round
        answer = await self._ask(
            "conversations.list",
            {"types": self._types, "exclude_archived": "true", "limit": CHANNELS},
            place.list_at,
        )
        if place.until is None:
            place.until = f"{answer.moment.timestamp():.6f}"
        if (data := _good(answer)) is None:
            if not self._forgotten("list", answer):
                raise answer.unreadable()
            place.list_at = None
            return []
        with reading(answer.unreadable()):
            channels = [str(one["id"]) for one in answer.each(data["channels"]) if one.get("is_member")]
        place.channels, place.list_at = channels, _more(data)
        place.listed = place.list_at is None
        return []

    async def _history(self) -> list[Signal]:
        place = self.round
        channel = place.channels[0]
        answer = await self._ask("conversations.history", self._span(channel), place.history_at)
        if (data := _good(answer)) is None:
            if not self._again("history", answer, channel):
                self._leave_channel()
            place.history_at = None
            return []
        found: list[Signal] = []
        with reading(answer.unreadable()):
            for message in answer.each(data["messages"]):
                found += facts.posted(channel, message)
                if message.get("reply_count") and self._replied(message):
                    place.threads.append([channel, message["ts"]])
        place.history_at = _more(data)
        if place.history_at is None:
            self._leave_channel()
        return found

    async def _replies(self) -> list[Signal]:
        place = self.round
        channel, ts = place.threads[0]
        answer = await self._ask("conversations.replies", {**self._span(channel), "ts": ts}, place.thread_at)
        if (data := _good(answer)) is None:
            if not self._again("thread", answer, channel):
                self._leave_thread()
            place.thread_at = None
            return []
        with reading(answer.unreadable()):
            found = [one for reply in answer.each(data["messages"]) for one in facts.posted(channel, reply)]
        place.thread_at = _more(data)
        if place.thread_at is None:
            self._leave_thread()
        return found

    async def _ask(self, method: str, arguments: Mapping[str, str | int | None], at: str | None) -> Answer:
        lost = ("invalid_cursor",) if at else ()
        gone = () if method == "conversations.list" else GONE
        return await self._call(method, {**arguments, "cursor": at}, gone + lost)

    def _span(self, channel: str) -> dict[str, str | int | None]:
        place = self.round
        return {
            "channel": channel,
            "oldest": place.since,
            "latest": place.until,
            "inclusive": "true",
            "limit": self._size,
        }

    def _replied(self, message: Mapping[str, Any]) -> bool:
        since, latest = self.round.since, message.get("latest_reply")
        return since is None or latest is None or moment(float(latest)) >= moment(float(since))

    def _leave_channel(self) -> None:
        place = self.round
        place.channels = place.channels[1:]
        place.again = [what for what in place.again if what != "history"]

    def _leave_thread(self) -> None:
        place = self.round
        place.threads = place.threads[1:]
        place.again = [what for what in place.again if what != "thread"]

    def _forgotten(self, what: str, answer: Answer) -> bool:
        """Whether to ask for it from its beginning, once: Slack's cursors do not live for ever."""
        if answer.object()["error"] != "invalid_cursor" or what in self.round.again:
            return False
        self.round.again.append(what)
        return True

    def _again(self, what: str, answer: Answer, channel: str) -> bool:
        """The same of a channel; without it the round goes on."""
        error = answer.object()["error"]
        if self._forgotten(what, answer):
            return True
        log.warning("slack: the channel %s cannot be read (%s): left out", channel, error)
        return False


def _good(answer: Answer) -> dict[str, Any] | None:
    """The data of an answer; None when it is one of the errors that were expected."""
    data = answer.object()
    return data if data.get("ok") else None


def _more(data: Mapping[str, Any]) -> str | None:
    """Slack's cursor for the next page; None, or an empty text, after the last."""
    return (as_object(data.get("response_metadata")) or {}).get("next_cursor") or None
