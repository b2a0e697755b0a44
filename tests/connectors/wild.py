"""Providers as they are at their worst, and a record of what truly happened there.

One server has many accounts. Its answers are limits, refusals and garbage as chance will have it. A refresh
token works once: whoever brings one a second time has lost the grant, and is noted in `doubles`. The clock of
a provider runs quickly, so that a run of seconds has many minutes of events in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from random import Random
from typing import Any, ClassVar

from connectors.servers import github, google, google_drive, slack
from connectors.servers.base import Asked, Reply, Server
from connectors.servers.github import GitHubServer
from connectors.servers.google_drive import DriveServer
from connectors.servers.slack import SlackServer
from holdfast.apps.connectors.normal import stamp

SECRET = "a secret of all webhooks"
SPEED = 30.0  # seconds of a provider in one of ours
FAULTS = 0.12  # the share of calls that are not answered as they should be
Sent = tuple[Mapping[str, str], bytes]  # a webhook: its headers and its body


class Clock:
    """The providers' time; no two moments are the same."""

    def __init__(self) -> None:
        self._began, self._zero = datetime.now(UTC), time.monotonic()
        self._last = self._began
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self._began + timedelta(seconds=(time.monotonic() - self._zero) * SPEED)

    def moment(self) -> datetime:
        """When something happens: whole milliseconds, and later than anything before."""
        with self._lock:
            now = self.now()
            now = now.replace(microsecond=now.microsecond // 1000 * 1000)
            self._last = max(now, self._last + timedelta(milliseconds=1))
            return self._last


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Something that happened: the key of its signal, and its webhook, by the id of the delivery.

    `untold`: no poll finds it, so its webhook must come.
    """

    key: str
    webhook: Callable[[str], Sent]
    untold: bool = False
    channel: str | None = None

    def delivery_id(self, id: str) -> str:
        """What the inbox is to call it."""
        return id if self.channel is None else f"{self.channel}:{id}"


@dataclass
class Grant:
    """What one connection may do: its tokens, and for how many seconds each new one says that it lasts."""

    account: Account
    lasts: int
    access: str
    refresh: str


class Account:
    """An account at a provider: what the server shows of it, and what may happen there."""

    def __init__(self, number: int, clock: Clock) -> None:
        self.number, self.clock = number, clock
        self.view: dict[str, Any] = {}

    @property
    def external_id(self) -> str:
        raise NotImplementedError

    def happen(self, chance: Random) -> Fact:
        """Lets something happen; the caller holds the server's lock."""
        raise NotImplementedError


class Wild(Server):
    """The part that all these servers have: grants, accounts and faults."""

    token_path: ClassVar[str]

    def __init__(self, clock: Clock, seed: str) -> None:
        super().__init__()
        self.clock, self.chance = clock, Random(seed)
        self.lock = threading.RLock()
        self.tokens = set[str]()
        self.accesses: dict[str, Grant] = {}
        self.refreshes: dict[str, Grant] = {}
        self.doubles: list[str] = []
        self.wild = self.closed = False  # `closed`: nobody gets a new token now
        self.faulty = self.refreshed = 0

    def grant(self, account: Account, lasts: int) -> Grant:
        grant = Grant(account, lasts, "", "")
        self._renew(grant)
        return grant

    def end_tokens(self, grant: Grant) -> None:
        """The tokens that a grant has had so far are good no more; its refresh token is."""
        with self.lock:
            self.tokens -= {token for token, whose in self.accesses.items() if whose is grant}

    def _renew(self, grant: Grant) -> None:
        number = len(self.refreshes)
        grant.access, grant.refresh = f"access-{number}", f"refresh-{number}"
        self.tokens.add(grant.access)
        self.accesses[grant.access] = self.refreshes[grant.refresh] = grant

    def answer(self, request: Asked) -> Reply:
        with self.lock:
            reply = self._reply(request)
            date = format_datetime(self.clock.now(), usegmt=True)
            return Reply(reply.body, reply.status, {"Date": date, **reply.headers})

    def _reply(self, request: Asked) -> Reply:
        if request.headers.get("content-length", "0") != str(len(request.body)):
            return Reply(None, 400)  # whoever asked was killed in the middle of it
        if self.wild and self.chance.random() < FAULTS:
            self.faulty += 1
            return self.chance.choice([*self._faults(), *self.own_faults()])
        if request.path == self.token_path:
            return self._refresh(request)
        if grant := self.accesses.get(request.token or ""):
            self.__dict__.update(grant.account.view)
        return super().answer(request)

    def _refresh(self, request: Asked) -> Reply:
        if self.closed:
            return Reply({"message": "come back later"}, 429, {"Retry-After": "1"})
        token = request.form["refresh_token"]
        grant = self.refreshes[token]
        if token != grant.refresh:
            self.doubles.append(token)
            return Reply({"error": "invalid_grant"}, 400)
        self._renew(grant)
        self.refreshed += 1
        tokens = {"access_token": grant.access, "refresh_token": grant.refresh, "expires_in": grant.lasts}
        return Reply({"ok": True, "token_type": "bearer", **tokens})

    def _faults(self) -> Sequence[Reply]:
        soon = format_datetime(self.clock.now() + timedelta(seconds=1), usegmt=True)
        return (
            *(Reply({"message": "enough"}, 429, {"Retry-After": text}) for text in ("0", "0.2", soon)),
            Reply({"message": "oops"}, 500),
            Reply(b"<html>Bad Gateway</html>", 502, {"Content-Type": "text/html"}),
            Reply(b'{"oops'),
            Reply([1]),
        )

    def own_faults(self) -> Sequence[Reply]:
        """How this provider says that something is wrong."""
        return ()


# -- GitHub ----------------------------------------------------------------------------------------------


class Hub(Wild, GitHubServer):
    token_path = "/login/oauth/access_token"

    def own_faults(self) -> Sequence[Reply]:
        reset = str(int(self.clock.now().timestamp()) + 1)
        headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}
        return (Reply({"message": "API rate limit exceeded"}, 403, headers),)


class Repository(Account):
    """A person with a repository: issues, pull requests and pushes."""

    def __init__(self, number: int, clock: Clock) -> None:
        super().__init__(number, clock)
        self.name, self.made = f"octo{number}/hello", 100_000 * number
        self.issues: dict[int, Any] = {}
        self.pulls: dict[int, Any] = {}
        self.events: list[Any] = []
        self.open: list[int] = []
        self.unmerged: list[int] = []
        self.pushed = self._stamp()
        self._show()

    @property
    def external_id(self) -> str:
        return str(5000 + self.number)

    @property
    def repository(self) -> dict[str, Any]:
        owner = {"id": 5000 + self.number, "login": f"octo{self.number}"}
        return {"id": self.number, "full_name": self.name, "owner": owner, "pushed_at": self.pushed}

    def happen(self, chance: Random) -> Fact:
        ways = [self._open, self._push, self._propose]
        ways += [self._close, self._edit] if self.open else []
        ways += [self._merge] if self.unmerged else []
        return chance.choice(ways)(chance)

    def _stamp(self) -> str:
        return self.clock.moment().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _show(self) -> None:
        pulls = list(self.pulls.values())
        as_issues = [github.as_issue(pull, pull["id"] + 50_000) for pull in pulls]
        self.view = {
            "issues": [*self.issues.values(), *as_issues],
            "pulls": {self.name: pulls},
            "events": {self.name: list(self.events)},
            "repositories": [self.repository],
        }

    def _told(self, key: str, event: str, *, untold: bool = False, **payload: Any) -> Fact:
        self._show()
        told = {**payload, "repository": self.repository}
        return Fact(key=key, untold=untold, webhook=partial(github.signed, told, SECRET, event))

    def _open(self, _: Random) -> Fact:
        self.made += 1
        now = self._stamp()
        issue = github.issue(self.made, created_at=now, updated_at=now, repository=self.repository)
        self.issues[self.made] = issue
        self.open.append(self.made)
        return self._told(f"github:issue_created:{self.made}:{now}", "issues", action="opened", issue=issue)

    def _edit(self, chance: Random) -> Fact:
        which, now = chance.choice(self.open), self._stamp()
        issue = self.issues[which] = {**self.issues[which], "title": "Edited", "updated_at": now}
        key = f"github:issue_updated:{which}:{now}"  # another change may come before the next poll
        return self._told(key, "issues", untold=True, action="edited", issue=issue)

    def _close(self, chance: Random) -> Fact:
        which, now = chance.choice(self.open), self._stamp()
        self.open.remove(which)
        ended = {"state": "closed", "updated_at": now, "closed_at": now}
        issue = self.issues[which] = {**self.issues[which], **ended}
        return self._told(f"github:issue_closed:{which}:{now}", "issues", action="closed", issue=issue)

    def _propose(self, _: Random) -> Fact:
        self.made += 1
        now = self._stamp()
        base = {"ref": "main", "sha": "b" * 40, "repo": self.repository}
        pull = self.pulls[self.made] = github.pull(self.made, created_at=now, updated_at=now, base=base)
        self.unmerged.append(self.made)
        key = f"github:pr_opened:{self.made}:{now}"
        return self._told(key, "pull_request", action="opened", pull_request=pull)

    def _merge(self, chance: Random) -> Fact:
        which, now = chance.choice(self.unmerged), self._stamp()
        self.unmerged.remove(which)
        ended = {"state": "closed", "updated_at": now, "closed_at": now, "merged_at": now}
        pull = self.pulls[which] = {**self.pulls[which], **ended}
        key = f"github:pr_merged:{which}:{now}"
        return self._told(key, "pull_request", action="closed", pull_request=pull)

    def _push(self, _: Random) -> Fact:
        self.made += 1
        self.pushed, head = self._stamp(), f"{self.made:040x}"
        where = {"id": self.number, "name": self.name}
        event = {**github.push_event(0, head), "id": str(self.made), "repo": where, "created_at": self.pushed}
        self.events.append(event)
        ref = "refs/heads/main"
        key = f"github:code_pushed:{self.name}:{ref}:{head}"
        return self._told(key, "push", ref=ref, before="b" * 40, after=head)


# -- Slack -----------------------------------------------------------------------------------------------


class Chat(Wild, SlackServer):
    token_path = "/oauth.v2.access"

    def own_faults(self) -> Sequence[Reply]:
        limit = Reply({"ok": False, "error": "ratelimited"}, 200, {"Retry-After": "0.3"})
        return (limit, Reply({"ok": False, "error": "internal_error"}))


class Team(Account):
    """A workspace with two channels: messages, and reactions, which no history tells."""

    def __init__(self, number: int, clock: Clock) -> None:
        super().__init__(number, clock)
        self.channels = [f"C{number}A", f"C{number}B"]
        named = [{"id": one, "name": one, "is_member": True, "is_private": False} for one in self.channels]
        self.history: dict[str, list[Any]] = {one: [] for one in self.channels}
        self.view = {"channels": named, "history": self.history}

    @property
    def external_id(self) -> str:
        return f"T{self.number}"

    def happen(self, chance: Random) -> Fact:
        channel = chance.choice(self.channels)
        ts = slack.ts(self.clock.moment().timestamp() - slack.T0)
        if self.history[channel] and chance.random() < 0.25:
            return self._react(channel, chance.choice(self.history[channel])["ts"], ts)
        message = {**slack.message(0), "ts": ts, "team": self.external_id}
        self.history[channel].append(message)
        event = {**message, "channel": channel, "event_ts": ts}
        return self._told(f"slack:message_posted:{channel}:{ts}", event)

    def _react(self, channel: str, ts: str, at: str) -> Fact:
        item = {"type": "message", "channel": channel, "ts": ts}
        event = {"type": "reaction_added", "user": "U1", "reaction": "eyes", "item": item, "event_ts": at}
        return self._told(f"slack:reaction_added:{channel}:{ts}:eyes:U1:{at}", event, untold=True)

    def _told(self, key: str, event: Mapping[str, Any], untold: bool = False) -> Fact:
        team = {"team_id": self.external_id, "authorizations": [{"team_id": self.external_id}]}

        def webhook(id: str) -> Sent:
            return slack.signed(slack.callback(dict(event), id, **team), SECRET, int(time.time()))

        return Fact(key=key, webhook=webhook, untold=untold)


# -- Google Drive ----------------------------------------------------------------------------------------


class Drive(Wild, DriveServer):
    """Its pushes carry no data: each only says that there is something to be fetched."""

    token_path = "/token"
    most = 4  # on a page, so that there are many

    def own_faults(self) -> Sequence[Reply]:
        # The limit of all accounts, and that of one.
        return tuple(
            Reply(google.refused(403, reason), 403)
            for reason in ("rateLimitExceeded", "userRateLimitExceeded")
        )


class Folder(Account):
    """Files that are made. Each of them must be fetched because of its push: nobody polls for it."""

    def __init__(self, number: int, clock: Clock) -> None:
        super().__init__(number, clock)
        self.files: list[Any] = []
        self.changes: list[Any] = []
        self.view = {"files": self.files, "changes": self.changes}

    @property
    def external_id(self) -> str:
        return f"drive-{self.number}"

    @property
    def channel(self) -> str:
        return f"channel-{self.number}"

    def happen(self, chance: Random) -> Fact:
        seconds = (self.clock.moment() - google.T0).total_seconds()
        file = google_drive.file(f"f{self.number}x{len(self.files)}", seconds)
        self.files.append(file)
        change = {"changeType": "file", "fileId": file["id"], "time": file["createdTime"], "removed": False}
        self.changes.append({**change, "file": file})
        key = f"google_drive:file_created:{file['id']}:{stamp(file['createdTime'])}"
        return Fact(key=key, webhook=self._push, untold=True, channel=self.channel)

    def _push(self, id: str) -> Sent:
        headers = google.pushed("change", self.channel, int(id))
        return {**headers, "x-goog-channel-token": SECRET}, b""
