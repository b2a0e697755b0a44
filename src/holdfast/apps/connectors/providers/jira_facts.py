"""What Jira says, as signals. Webhooks and searches both come through here.

An issue's `updated` is the time of its last change, and the same by both ways. A search also has the history
of an issue, so that it tells of an end which was followed by another change before anybody looked. The
entries of a history are some milliseconds off `updated`; so what moves an issue from one state to another,
which nobody does twice in a second, counts by the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.apps.connectors.normal import cut, ignored, moment, stamp
from holdfast.apps.connectors.protocol import Json, Signal
from holdfast.apps.connectors.providers.shape import Thing, part, parts, words

FIELDS = [
    "summary", "status", "issuetype", "project", "priority", "labels", "assignee", "reporter",
    "created", "updated", "resolution", "comment",
]  # fmt: skip
TOGETHER = timedelta(seconds=1)  # entries of one change are not further apart
RESOLVED = ("done", "resolved")
OVER = (*RESOLVED, "closed")


def webhook(event: str, told: Thing) -> tuple[Signal, ...]:
    """What a delivery means; nothing, for the many that are no fact of ours."""
    issue, comment = part(told, "issue"), part(told, "comment")
    match event:
        case "jira:issue_created":
            return (_made(issue),)
        case "jira:issue_updated" if told.get("issue_event_type_name") != "issue_comment_deleted":
            items = parts(part(told, "changelog"), "items")
            said = (_comment(issue, comment),) if comment else ()
            return said if said and not items else (*said, _change(items, issue))
        case "comment_created" | "comment_updated":
            return (_comment(issue, comment),)
        case _:
            ignored("a delivery of Jira", event)
            return ()


def polled(issue: Thing, since: datetime) -> tuple[Signal, ...]:
    """The facts that a found issue tells, as far as they are not older than `since`."""
    histories = parts(part(issue, "changelog"), "histories")
    moves = [
        (kind, moment(entry["created"]))
        for entry in histories
        if (kind := _move(parts(entry, "items"), issue)) is not None
    ]
    comments = parts(part(issue, "fields", "comment"), "comments")
    found = [_made(issue), *(_moved(kind, issue, at) for kind, at in moves)]
    found += [_comment(issue, comment) for comment in comments]
    # The last change has no name of its own. It is told as such when it is none of the others.
    told = [signal.occurred_at for signal in found]
    if not any(abs(updated(issue) - time) <= TOGETHER for time in told):
        found.append(_change((), issue))
    return tuple(signal for signal in found if signal.occurred_at >= since)


def updated(issue: Thing) -> datetime:
    """When an issue was changed last."""
    return moment(part(issue, "fields")["updated"])


def _change(items: Sequence[Thing], issue: Thing) -> Signal:
    """What the last change of an issue was, by what it has changed."""
    kind = _move(items, issue)
    if kind is not None:
        return _moved(kind, issue, updated(issue))
    time = part(issue, "fields")["updated"]
    return _signal("issue_updated", issue, moment(time), stamp(time), _payload(issue))


def _move(items: Sequence[Thing], issue: Thing) -> str | None:
    """The kind of a change that moves an issue to its end, or back from there; None for any other."""
    for item in items:
        if item.get("field") != "status":
            continue
        if (after := _name(item.get("toString"))) in OVER or _is_done(item, issue):
            return "issue_closed" if after == "closed" else "issue_resolved"
        if _name(item.get("fromString")) in OVER:
            return "issue_reopened"
    # A state may have any name in any language: that an issue has no resolution any more says the same.
    lost = [item for item in items if item.get("field") == "resolution" and not item.get("to")]
    return "issue_reopened" if any(item.get("from") for item in lost) else None


def _is_done(item: Thing, issue: Thing) -> bool:
    """Whether the state that an item leads to is the present one, and is one of those at the end."""
    status = part(issue, "fields", "status")
    same = item.get("to") is not None and str(item["to"]) == str(status.get("id"))
    return same and part(status, "statusCategory").get("key") == "done"


def _name(value: object) -> str:
    return value.lower() if isinstance(value, str) else ""


def _made(issue: Thing) -> Signal:
    return _moved("issue_created", issue, moment(part(issue, "fields")["created"]))


def _moved(kind: str, issue: Thing, at: datetime) -> Signal:
    second = at.replace(microsecond=0).isoformat()
    return _signal(kind, issue, at, stamp(second), _payload(issue))


def _comment(issue: Thing, comment: Thing) -> Signal:
    time = comment.get("updated") or comment["created"]
    payload = {
        "id": comment["id"],
        "issue_id": issue["id"],
        "issue_key": issue.get("key"),
        "issue_title": cut(part(issue, "fields").get("summary")),
        "author": _person(part(comment, "author")),
        "body": _text(comment.get("body")),
        "created_at": comment.get("created"),
        "updated_at": time,
    }
    return _signal("issue_comment", issue, moment(time), stamp(time), payload)


def _signal(kind: str, issue: Thing, at: datetime, time: str, payload: Json) -> Signal:
    key = f"jira:{kind}:{issue['id']}:{time}"
    return Signal(kind=kind, occurred_at=at, payload=payload, dedupe_key=key)


def _payload(issue: Thing) -> dict[str, Json]:
    fields = part(issue, "fields")
    return {
        "id": issue["id"],
        "key": issue.get("key"),
        "title": cut(fields.get("summary")),
        "status": part(fields, "status").get("name"),
        "type": part(fields, "issuetype").get("name"),
        "project": part(fields, "project").get("key"),
        "priority": part(fields, "priority").get("name"),
        "resolution": part(fields, "resolution").get("name"),
        "labels": words(fields, "labels"),
        "assignee": _person(part(fields, "assignee")),
        "reporter": _person(part(fields, "reporter")),
        "url": issue.get("self"),
        "created_at": fields["created"],
        "updated_at": fields["updated"],
    }


def _person(user: Thing) -> dict[str, Json] | None:
    return {"id": user.get("accountId"), "name": cut(user.get("displayName"))} if user else None


def _text(body: Json) -> str | None:
    """The plain text of a comment, which Jira has as text (webhooks) or as a tree of parts (searches)."""
    if body is None or isinstance(body, str):
        return cut(body)
    found: list[str] = []
    ahead: list[Json] = [body]
    while ahead:
        match ahead.pop():
            case {"type": "text", "text": str(text)}:
                found.append(text)
            case {"type": "hardBreak"}:
                found.append("\n")
            case {"type": "paragraph", "content": [*inside]}:
                ahead += ["\n", *reversed(inside)]
            case {"content": [*inside]}:
                ahead += reversed(inside)
            case str(text):
                found.append(text)
            case _:
                pass
    return cut("".join(found).strip())
