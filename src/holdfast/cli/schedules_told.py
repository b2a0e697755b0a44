"""How days, events, captures and messages are told: as the API's JSON, and as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from holdfast.cli import output

if TYPE_CHECKING:
    from rich.text import Text

    from holdfast.apps.schedules import record
    from holdfast.apps.schedules.values import Change, Entry, Event, Image, Shift

COLOURS = {
    **dict.fromkeys(("done", "sent", "added"), "green"),
    **dict.fromkeys(("failed", "removed", "lost"), "red"),
    **dict.fromkeys(("processing", "changed"), "cyan"),
}


# -- JSON ------------------------------------------------------------------------------------------------


def day(found: record.Day) -> dict[str, Any]:
    """A day."""
    return {**vars(found), "shifts": [_shift(one) for one in found.shifts]}


def version(found: record.Version) -> dict[str, Any]:
    """A version; whose and of which day is told around it."""
    return {name: value for name, value in vars(found).items() if name not in ("user_id", "schedule_date")}


def event(found: Event) -> dict[str, Any]:
    """An event with the names that its table has for its hashes."""
    told = {name: value for name, value in vars(found).items() if name not in ("user_id", "schedule_date")}
    hashes = {"old_value_hash": told.pop("old_hash"), "new_value_hash": told.pop("new_hash")}
    return {**told, **hashes, "old": _shift(found.old), "new": _shift(found.new)}


def comparison(found: record.Comparison) -> dict[str, Any]:
    """Two versions side by side."""
    lines = [{"mark": line.mark, **vars(line)} for line in found.lines]
    changes = [{"type": one.type, "old": _shift(one.old), "new": _shift(one.new)} for one in found.changes]
    return {"one": version(found.one), "other": version(found.other), "lines": lines, "changes": changes}


def history(found: record.History) -> dict[str, Any]:
    """What has happened to a day."""
    return {
        **vars(found),
        "versions": [version(one) for one in found.versions],
        "events": [event(one) for one in found.events],
    }


def capture(found: record.Capture) -> dict[str, Any]:
    """A session and all that came of it."""
    return {
        **vars(found.summary),
        "pictures": found.images,
        "claims": found.attempts,
        "version": found.version and version(found.version),
        "events": [event(one) for one in found.events],
        "notifications": found.notifications,
    }


def notification(found: record.Notification) -> dict[str, Any]:
    """A message with all its tries."""
    return {**vars(found.summary), "tries": found.tries}


def _shift(shift: Shift | None) -> dict[str, str] | None:
    from holdfast.apps.schedules.shifts import to_json

    return None if shift is None else to_json(shift)


# -- tables ----------------------------------------------------------------------------------------------


def show_shifts(shifts: Iterable[Shift]) -> None:
    """The shifts of a day, as the day goes."""
    rows = [(one.start, one.end, one.customer_name, one.shift_type, _place(one)) for one in shifts]
    output.table(("START", "END", "CUSTOMER", "TYPE", "PLACE"), rows)


def show_versions(versions: Iterable[record.Version]) -> None:
    """The versions of a day, the first one first."""
    rows = [(one.version, one.created_at, _entries(one), one.session_id) for one in versions]
    section("versions", ("VERSION", "KEPT", "ENTRIES", "SESSION"), rows)


def show_events(events: Iterable[Event], *, sessions: bool) -> None:
    """What has changed, the first thing first; with the session that noticed it, or without."""
    by = ("SESSION",) if sessions else ()
    rows = [
        (one.detected_at, _kind(one), *((one.session_id,) if sessions else ()), meaning(one))
        for one in events
    ]
    section("events", ("NOTICED", "EVENT", *by, "WHAT"), rows)


def show_notices(notices: Iterable[record.NotificationSummary]) -> None:
    """What users were told."""
    rows = [(one.created_at, shaded(one.status), one.attempts, one.message) for one in notices]
    section("messages", ("MADE", "STATUS", "TRIES", "MESSAGE"), rows)


def show_captures(captures: Iterable[record.CaptureSummary]) -> None:
    """The sessions behind a day."""
    rows = [(one.id, one.created_at, shaded(one.state), one.images, one.attempts) for one in captures]
    section("captures", ("ID", "MADE", "STATE", "IMAGES", "CLAIMS"), rows)


def show_images(images: Iterable[Image]) -> None:
    """The pictures of a session."""
    rows = [(one.sequence, one.created_at, one.telegram_message_id, one.r2_key) for one in images]
    section("images", ("NUMBER", "CAME", "MESSAGE", "KEY"), rows)


def show_attempts(attempts: Iterable[record.Attempt]) -> None:
    """The claims of a session."""
    rows = [
        (one.attempt, one.claimed_at, one.ended_at, shaded(one.outcome or "under way"), one.worker)
        for one in attempts
    ]
    section("claims", ("NUMBER", "CLAIMED", "ENDED", "OUTCOME", "WORKER"), rows)


def show_tries(tries: Iterable[record.Try]) -> None:
    """The tries to send a message."""
    rows = [(one.attempt, one.tried_at, one.next_at, one.error or shaded("sent")) for one in tries]
    section("tries", ("NUMBER", "TRIED", "AGAIN", "ANSWER"), rows)


def show_comparison(found: record.Comparison) -> None:
    """Two versions side by side, and what the difference means."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD if output.terminal() else None, pad_edge=False)
    grid.add_column("", no_wrap=True)
    for side in (found.one, found.other):  # both may break their lines
        grid.add_column(f"VERSION {side.version}")
    grid.add_column("DIFFERS", overflow="fold")
    for line in found.lines:
        sides = (_entry(line.one), _entry(line.other), ", ".join(line.differs))
        grid.add_row(shaded(line.mark), *map(output.cell, sides))
    output.show(grid)
    section("what it means", ("CHANGE", "WHAT"), [(_kind(one), meaning(one)) for one in found.changes])


def section(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table below its title; nothing where there is nothing to tell."""
    if rows:
        output.line(f"\n{title}")
        output.table(headings, rows)


def meaning(change: Change | Event) -> str:
    """What has become of a shift, as people read it."""
    match change.old, change.new:
        case None, None:
            return ""
        case None, new:
            return _said(new)
        case old, None:
            return _said(old)
        case old, new:
            return f"{_said(old)} → {_said(new)}"


def shaded(word: str) -> Text:
    """A word in the colour of what it means."""
    from rich.text import Text

    return Text(word, style=COLOURS.get(word, ""))


def _said(shift: Shift | None) -> str:
    return f"{shift.start} to {shift.end} {shift.customer_name}, {_place(shift)}" if shift else ""


def _place(shift: Shift) -> str:
    street = f"{shift.street} {shift.street_number}".strip()
    return ", ".join(part for part in (street, shift.city) if part)


def _kind(change: Change | Event) -> str:
    return change.type.removeprefix("shift_").replace("_", " ")


def _entry(entry: Entry | None) -> str:
    if entry is None:
        return ""
    place = ", ".join(part for part in (entry["location"], entry.get("address")) if part)
    return f"{entry['start']} to {entry['end']} {entry['title']}, {place}"


def _entries(version: record.Version) -> int | None:
    """How many entries a payload has; another program's may have none that can be counted."""
    entries: Any = version.payload.get("entries")
    return len(cast("list[Any]", entries)) if isinstance(entries, list) else None
