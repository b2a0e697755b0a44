"""How GitHub is polled: a round over everything that changed since the last one, one request a step.

1. `issues`: all issues that the account can see, oldest change first. Each page begins at the time where the
   last one ended and not at a page number, as what is changed meanwhile moves to the end and would pull the
   rest forward, past us. Pull requests are among them, but under an issue's id; so only their repositories
   are remembered.
2. `repos`: the repositories with new pushes are remembered, too.
3. For each that was remembered: its pull requests, newest change first, and its events (pushes, releases,
   comments, reviews). Both only shift away from us: at worst something is seen twice.

A cursor holds where a round stands; between two rounds it is only {"since": …}. The next round begins a
minute before this one began, and looks for pushes six hours further back, as GitHub lets its events come that
late. Whatever is seen twice has the same dedupe key.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, cast

from holdfast.apps.connectors.http import Answer
from holdfast.apps.connectors.normal import moment, reading, stamp
from holdfast.apps.connectors.protocol import Json, Page, Permanent, Signal
from holdfast.apps.connectors.providers import github_facts as facts
from holdfast.apps.connectors.providers.paging import Cursor, walk

log = logging.getLogger("holdfast.connectors")

OVERLAP = timedelta(seconds=60)
LATE = timedelta(hours=6)
SECOND = timedelta(seconds=1)
QUEUE = 100  # repositories that are remembered before they are looked at
FACTS = 3  # signals that one thing can become
GONE = (403, 404, 409, 410, 422, 451)  # a repository that cannot be read must not hold up the others
NAME = re.compile(r"[\w-]+/(?!\.{1,2}$)[\w.-]+", re.ASCII)

Get = Callable[[str, Mapping[str, str | int | None], tuple[int, ...]], Awaitable[Answer]]


@dataclass(kw_only=True)
class Round:
    """Where a round stands. `since` None: from the beginning of time."""

    since: str | None = None
    until: str | None = None  # when it began, by GitHub's clock
    step: Literal["issues", "repos", "end"] = "issues"
    at: str | None = None  # the time at which the next page of issues begins
    page: int = 1
    # repositories to look at, each with whether it has news of pull requests
    queue: list[list[Any]] = field(default_factory=list[list[Any]])
    draining: bool = False
    part: Literal["pulls", "events"] | None = None  # of the first in the queue
    part_page: int = 1

    @property
    def over(self) -> bool:
        return self.step == "end" and not self.queue

    @property
    def next(self) -> Json:
        """The cursor from which to go on."""
        return {"since": self.until} if self.over else asdict(self)

    def remember(self, repository: str, pulls: bool) -> None:
        for entry in self.queue:
            if entry[0] == repository:
                entry[1] = entry[1] or pulls
                return
        self.queue.append([repository, pulls])


def resume(cursor: Json) -> Round:
    """The round that a cursor stands for; a time alone will do."""
    if cursor is None:
        return Round()
    with reading(Permanent(message="the cursor of this connection cannot be read: reset it")):
        if isinstance(cursor, str):
            cursor = {"since": cursor}
        values = cast("dict[str, Any]", cursor)
        if "step" in values:
            return _checked(Round(**values))
        return Round(since=stamp(values["since"]))


def _checked(place: Round) -> Round:
    """A round that was stored, where anybody may have changed it."""
    times = [time for time in (place.since, place.until, place.at) if time is not None]
    stamps = [stamp(time) for time in times]
    begun = place.until is not None or place.step == "issues"
    names = all(NAME.fullmatch(name) for name, _ in place.queue)
    if (
        stamps != times
        or not (begun and names)
        or place.step not in ("issues", "repos", "end")
        or place.part not in (None, "pulls", "events")
        or min(place.page, place.part_page) < 1
    ):
        raise ValueError("this is no round")
    return place


class Walk:
    """One page of ours: as many steps as fit into it."""

    def __init__(self, get: Get, place: Round, max_items: int) -> None:
        self._get, self.round, self._most = get, place, max_items
        self._size = max(1, min(100, max_items // (3 * FACTS)))  # so that three answers fit, at least

    async def page(self) -> Page:
        return await walk(self._turn, asdict(self.round), self._most - FACTS * self._size + 1)

    async def _turn(self, cursor: Cursor) -> Page:
        """One request, from a copy of where the round stands: a failed one leaves no trace in it."""
        place = self.round = Round(**deepcopy(cursor))
        signals = await self._step()
        return Page(signals=tuple(signals), next_cursor=place.next, has_more=not place.over)

    async def _step(self) -> list[Signal]:
        place = self.round
        if len(place.queue) >= QUEUE or (place.step == "end" and place.queue):
            place.draining = True
        if place.draining:
            return await self._drain()
        return await (self._issues() if place.step == "issues" else self._repos())

    async def _issues(self) -> list[Signal]:
        place = self.round
        begins = place.at or place.since
        answer = await self._get(
            "/issues",
            {
                "filter": "all",
                "state": "all",
                "sort": "updated",
                "direction": "asc",
                "since": begins,
                "per_page": self._size,
                "page": place.page,
            },
            (),
        )
        issues, found = answer.objects(), list[Signal]()
        since = _time(place.since)
        with reading(answer.unreadable()):
            for issue in issues:
                if "pull_request" not in issue:
                    found += facts.polled_issue(issue, since)
                if since is not None:  # else every repository is looked at anyway
                    place.remember(issue["repository"]["full_name"], "pull_request" in issue)
            if _has_next(answer) and issues:
                latest = moment(issues[-1]["updated_at"]) - SECOND
                if begins is None or latest > moment(begins):
                    place.at, place.page = stamp(latest), 1
                else:
                    place.page += 1
            else:
                place.step, place.page, place.at = "repos", 1, None
        if place.until is None:
            place.until = stamp((answer.moment - OVERLAP).replace(microsecond=0))
        return found

    async def _repos(self) -> list[Signal]:
        place = self.round
        answer = await self._get(
            "/user/repos", {"sort": "pushed", "direction": "desc", "per_page": 100, "page": place.page}, ()
        )
        since = _late(place.since)
        with reading(answer.unreadable()):
            repos = answer.objects()
            fresh = [repo for repo in repos if since is None or _pushed(repo, since)]
            for repo in fresh:
                place.remember(repo["full_name"], pulls=since is None)
            if _has_next(answer) and repos and len(fresh) == len(repos):
                place.page += 1
            else:
                place.step, place.page = "end", 1
        return []

    async def _drain(self) -> list[Signal]:
        """A page of the first repository in the queue."""
        place = self.round
        name, pulls = place.queue[0]
        part = place.part or ("pulls" if pulls else "events")
        ordered = {"state": "all", "sort": "updated", "direction": "desc"} if part == "pulls" else {}
        size = self._size if part == "pulls" else min(100, self._most)
        answer = await self._get(
            f"/repos/{name}/{part}", {**ordered, "per_page": size, "page": place.part_page}, GONE
        )
        found, more = list[Signal](), False
        if answer.status in GONE:
            log.warning("github: %s of %s cannot be read (%d): left out", part, name, answer.status)
        else:
            found, more = self._read(part, answer)
        if more:
            place.part, place.part_page = part, place.part_page + 1
        elif part == "pulls":
            place.part, place.part_page = "events", 1
        else:
            place.queue, place.part, place.part_page = place.queue[1:], None, 1
            place.draining = bool(place.queue)
        return found

    def _read(self, part: str, answer: Answer) -> tuple[list[Signal], bool]:
        """The signals of a page of pull requests or events, and whether another one is needed."""
        found, last = list[Signal](), ""
        since = _time(self.round.since) if part == "pulls" else _late(self.round.since)
        with reading(answer.unreadable()):
            for thing in answer.objects():
                last = thing["updated_at" if part == "pulls" else "created_at"]
                if since is None or moment(last) >= since:
                    found += facts.polled_pull(thing) if part == "pulls" else facts.polled_event(thing)
            older = since is not None and bool(last) and moment(last) < since
        return found, _has_next(answer) and bool(last) and not older


def _time(text: str | None) -> datetime | None:
    return None if text is None else moment(text)


def _late(text: str | None) -> datetime | None:
    return None if text is None else moment(text) - LATE


def _pushed(repo: Mapping[str, Any], since: datetime) -> bool:
    return bool(repo.get("pushed_at")) and moment(repo["pushed_at"]) >= since


def _has_next(answer: Answer) -> bool:
    """Whether the Link header names a next page; its address is not used, as it could be anybody's."""
    return re.search(r';\s*rel="?next\b', answer.headers.get("link", "")) is not None
