"""What people fill in: the filter of a list in the ledger's own words, and fields of other forms. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import FormData

from holdfast.engine.ledger import Ledger
from holdfast.engine.roles import CodeError
from holdfast.engine.values import Filter
from holdfast.errors import InvalidInput

Pairs = Sequence[tuple[str, str]]
TEXTS = ("kind", "queue", "tenant", "owner", "code")
TIMES = ("created_after", "created_before", "finished_after", "finished_before")
REASON = 500  # characters of a reason
TRAIL = 8  # pages that a list remembers to go back


@dataclass(frozen=True)
class Field:
    """One field of the filter's form. `name` is the parameter, `label` is what the ledger calls it."""

    name: str
    label: str
    type: str
    value: str
    choices: tuple[str, ...] = ()


def read(pairs: Iterable[tuple[str, str]]) -> Filter:
    """The filter that a query means, or `InvalidInput`. What it does not know is left alone."""
    given = [(name, value.strip()) for name, value in pairs if value.strip()]
    texts: dict[str, Any] = {name: value for name, value in given if name in TEXTS}
    times: dict[str, Any] = {name: _moment(name, value) for name, value in given if name in TIMES}
    states = tuple(dict.fromkeys(value for name, value in given if name == "state"))
    return Filter(states=states, **texts, **times)


def write(which: Filter) -> list[tuple[str, str]]:
    """The query that means a filter."""
    pairs = [("state", state) for state in which.states]
    pairs += [(name, str(getattr(which, name))) for name in TEXTS if getattr(which, name) is not None]
    pairs += [(name, _local(getattr(which, name))) for name in TIMES if getattr(which, name) is not None]
    return pairs


def fields(
    ledger: Ledger, pairs: Pairs, *, tenant: bool, kinds: Sequence[str] = ()
) -> tuple[list[Field], list[Field]]:
    """The fields that this ledger has: those that are always shown, and those that rarely matter."""
    given = dict(pairs)

    def field(name: str, label: str, kind: str = "text", choices: Sequence[str] = ()) -> Field:
        return Field(name, label, kind, given.get(name, ""), tuple(choices))

    first = [field("kind", ledger.kind, choices=kinds)] if ledger.kind else []
    if ledger.queue:
        first.append(field("queue", ledger.queue))
    if isinstance(ledger.errors, CodeError):
        first.append(field("code", ledger.errors.code))
    if ledger.tenant and tenant:
        first.append(field("tenant", ledger.tenant.name))
    times = ledger.times
    rest = [field("owner", ledger.owner)] if ledger.owner else []
    rest += [
        field("created_after", f"{times.created} from", "datetime-local"),
        field("created_before", f"{times.created} before", "datetime-local"),
    ]
    if times.finished:
        rest += [
            field("finished_after", f"{times.finished} from", "datetime-local"),
            field("finished_before", f"{times.finished} before", "datetime-local"),
        ]
    return first, rest


def text(form: FormData, name: str, most: int = REASON) -> str | None:
    """A field of a form: None when it is empty."""
    value = form.get(name)
    if not isinstance(value, str) or not value.strip():
        return None
    if len(value) > most:
        raise InvalidInput(field=name, message=f"must have at most {most} characters")
    return value.strip()


def pairs_of(form: FormData) -> list[tuple[str, str]]:
    """The texts that a form brought."""
    return [(name, value) for name, value in form.multi_items() if isinstance(value, str)]


def moment(form: FormData, name: str) -> datetime | None:
    """A time of a form, in UTC."""
    value = text(form, name)
    return None if value is None else _moment(name, value)


def trail(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """The cursors of the pages before this one, the newest page's left out."""
    return [value for name, value in pairs if name == "before"][-TRAIL:]


def _moment(name: str, value: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidInput(field=name, message=f"is no time: write 2030-01-31T12:00, not {value!r}") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _local(when: datetime) -> str:
    """As a field of type datetime-local has it, in UTC."""
    return (
        when.astimezone(UTC)
        .replace(tzinfo=None)
        .isoformat(timespec="seconds" if not when.microsecond else "milliseconds")
    )
