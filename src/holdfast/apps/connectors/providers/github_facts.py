"""What GitHub says, as signals. Webhooks, lists and the events of a repository all come through here.

A dedupe key has GitHub's id of the thing and the time of the fact itself, so that a fact is the same by
whichever way it came. A pull request has two ids; ours is its own, not that of the issue it also is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.apps.connectors.normal import cut, ignored, moment, stamp
from holdfast.apps.connectors.protocol import Json, Signal

Thing = Mapping[str, Any]

# action → the kind, and which of the thing's times is the fact's own
ISSUES = {
    "opened": ("issue_created", "created_at"),
    "closed": ("issue_closed", "closed_at"),
    "reopened": ("issue_reopened", "updated_at"),
    "edited": ("issue_updated", "updated_at"),
}
PULLS = {
    "opened": ("pr_opened", "created_at"),
    "reopened": ("pr_reopened", "updated_at"),
    "edited": ("pr_updated", "updated_at"),
    "synchronize": ("pr_updated", "updated_at"),
    "ready_for_review": ("pr_updated", "updated_at"),
    "converted_to_draft": ("pr_updated", "updated_at"),
}
# the types of the events API → the webhook that tells the same
EVENTS = {
    "PushEvent": "push",
    "ReleaseEvent": "release",
    "IssuesEvent": "issues",
    "IssueCommentEvent": "issue_comment",
    "PullRequestEvent": "pull_request",
    "PullRequestReviewEvent": "pull_request_review",
}


def webhook(event: str, payload: Thing, received_at: datetime) -> tuple[Signal, ...]:
    """What a delivery means; nothing, for the many that are no fact of ours."""
    action = payload.get("action")
    match event, action:
        case "issues", str() if action in ISSUES:
            return (_issue(*ISSUES[action], payload["issue"], payload["repository"]),)
        case "issue_comment", "created":
            return (_comment(payload),)
        case "pull_request", "closed" | "merged":
            return (_pull(*_end(payload["pull_request"]), payload["pull_request"], payload["repository"]),)
        case "pull_request", str() if action in PULLS:
            return (_pull(*PULLS[action], payload["pull_request"], payload["repository"]),)
        case "pull_request_review", "submitted" | "created":
            return (_review(payload),)
        case "push", _:
            return _push(payload, received_at)
        case "release", "published":
            return (_release(payload),)
        case _:
            ignored("a delivery of GitHub", f"{event}.{action}" if action else event)
            return ()


def polled_event(event: Thing) -> tuple[Signal, ...]:
    """What an entry of a repository's events means."""
    name, payload, repo = EVENTS.get(event["type"]), event["payload"], event["repo"]
    if name is None:
        return ()
    told = {
        **payload,
        "repository": {"id": repo["id"], "full_name": repo["name"]},
        "sender": event.get("actor"),
    }
    if name == "push":
        told |= {"after": payload["head"], "pushed_at": event["created_at"]}
    # GitHub has cut these down to little more than ids; the list of pull requests has the rest.
    if name == "pull_request" and "updated_at" not in payload["pull_request"]:
        return ()
    return webhook(name, told, moment(event["created_at"]))


def polled_issue(issue: Thing, since: datetime | None) -> tuple[Signal, ...]:
    """The facts that an issue's present state tells, as far as they are not older than `since`."""
    kinds = [ISSUES["opened"]]
    if issue.get("closed_at"):
        kinds.append(ISSUES["closed"])
    kinds += _change(ISSUES["edited"], issue)
    return tuple(_issue(*kind, issue, issue["repository"]) for kind in kinds if _new(issue[kind[1]], since))


def polled_pull(pull: Thing) -> tuple[Signal, ...]:
    """All facts that a pull request's present state tells, old ones as well.

    One that changes while its list is read jumps to a page that was read: the last round may have missed it.
    """
    kinds = [PULLS["opened"]]
    if pull.get("closed_at"):
        kinds.append(_end(pull))
    kinds += _change(PULLS["edited"], pull)
    repo = pull["base"]["repo"]
    return tuple(_pull(*kind, pull, repo) for kind in kinds)


def _end(pull: Thing) -> tuple[str, str]:
    return ("pr_merged", "merged_at") if pull.get("merged_at") else ("pr_closed", "closed_at")


def _change(kind: tuple[str, str], thing: Thing) -> Sequence[tuple[str, str]]:
    """The last change, when it is neither the beginning nor the end."""
    told = (thing["created_at"], thing.get("closed_at"), thing.get("merged_at"))
    return () if thing["updated_at"] in told else (kind,)


def _new(time: str, since: datetime | None) -> bool:
    return since is None or moment(time) >= since


def _signal(kind: str, name: object, time: object, payload: Json) -> Signal:
    at = stamp(time)
    return Signal(
        kind=kind, occurred_at=moment(time), payload=payload, dedupe_key=f"github:{kind}:{name}:{at}"
    )


def _issue(kind: str, time: str, issue: Thing, repo: Thing) -> Signal:
    return _signal(
        kind,
        issue["id"],
        issue[time],
        {
            **_common(issue, repo),
            "state_reason": issue.get("state_reason"),
            "labels": [label["name"] if isinstance(label, dict) else label for label in issue["labels"]],
            "assignees": [_login(person) for person in issue.get("assignees") or ()],
        },
    )


def _pull(kind: str, time: str, pull: Thing, repo: Thing) -> Signal:
    return _signal(
        kind,
        pull["id"],
        pull[time],
        {
            **_common(pull, repo),
            "draft": bool(pull.get("draft")),
            "merged": bool(pull.get("merged_at")),
            "merged_at": pull.get("merged_at"),
            "base": pull["base"]["ref"],
            "head": pull["head"]["ref"],
            "head_sha": pull["head"]["sha"],
        },
    )


def _common(thing: Thing, repo: Thing) -> dict[str, Json]:
    return {
        "id": thing["id"],
        "number": thing["number"],
        "repository": repo["full_name"],
        "title": cut(thing.get("title")),
        "body": cut(thing.get("body")),
        "state": thing["state"],
        "author": _login(thing.get("user")),
        "url": thing.get("html_url"),
        "created_at": thing["created_at"],
        "updated_at": thing["updated_at"],
        "closed_at": thing.get("closed_at"),
    }


def _comment(payload: Thing) -> Signal:
    comment, issue = payload["comment"], payload["issue"]
    return _signal(
        "issue_comment",
        comment["id"],
        comment["created_at"],
        {
            "id": comment["id"],
            "repository": payload["repository"]["full_name"],
            "issue_number": issue["number"],
            "issue_title": cut(issue.get("title")),
            "on_pull_request": "pull_request" in issue,
            "author": _login(comment.get("user")),
            "body": cut(comment.get("body")),
            "url": comment.get("html_url"),
            "created_at": comment["created_at"],
        },
    )


def _review(payload: Thing) -> Signal:
    review, pull = payload["review"], payload["pull_request"]
    return _signal(
        "pr_review",
        review["id"],
        review["submitted_at"],
        {
            "id": review["id"],
            "repository": payload["repository"]["full_name"],
            "number": pull["number"],
            "state": str(review["state"]).lower(),  # the one API shouts, the other does not
            "author": _login(review.get("user")),
            "body": cut(review.get("body")),
            "url": review.get("html_url"),
            "submitted_at": review["submitted_at"],
        },
    )


def _push(payload: Thing, received_at: datetime) -> tuple[Signal, ...]:
    repo, ref, after = payload["repository"], payload["ref"], payload["after"]
    if not after.strip("0"):  # the branch is gone
        ignored("a delivery of GitHub", "push of a removed ref")
        return ()
    # Of a webhook it is the repository that has the time; a commit's own time can be years before the push.
    time = payload.get("pushed_at") or repo.get("pushed_at")
    name = repo["full_name"]
    fact = {
        "repository": name,
        "ref": ref,
        "before": payload.get("before"),
        "after": after,
        "pusher": _login(payload.get("sender")),
        "commits": [
            {"id": commit.get("id") or commit.get("sha"), "message": cut(commit.get("message"), 1000)}
            for commit in (payload.get("commits") or ())[:20]
        ],
    }
    return (
        Signal(
            kind="code_pushed",
            occurred_at=moment(time) if time else received_at,
            payload=fact,
            dedupe_key=f"github:code_pushed:{name}:{ref}:{after}",
        ),
    )


def _release(payload: Thing) -> Signal:
    release = payload["release"]
    return _signal(
        "release_published",
        release["id"],
        release["published_at"],
        {
            "id": release["id"],
            "repository": payload["repository"]["full_name"],
            "tag": release["tag_name"],
            "name": cut(release.get("name")),
            "body": cut(release.get("body")),
            "prerelease": bool(release.get("prerelease")),
            "author": _login(release.get("author")),
            "url": release.get("html_url"),
            "published_at": release["published_at"],
        },
    )


def _login(person: Thing | None) -> str | None:
    return person.get("login") if person else None  # None: an account that was deleted
