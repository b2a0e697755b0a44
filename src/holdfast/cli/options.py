"""The options that several commands share, and the values that are read from their texts."""

from __future__ import annotations

import getpass
import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import completion
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.engine.ledger import Ledger
    from holdfast.engine.values import Filter

LedgerName = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER", help="The ledger; `holdfast ledger list`.", autocompletion=completion.ledgers
    ),
]
SomeLedger = Annotated[
    str | None,
    typer.Argument(
        metavar="[LEDGER]", help="The ledger; default: all of them.", autocompletion=completion.ledgers
    ),
]
RowId = Annotated[str, typer.Argument(metavar="ID", help="The row's id.")]
App = Annotated[
    str | None,
    typer.Option(
        "--app",
        envvar="HOLDFAST_APP",
        metavar="MODULE:NAME",
        help="Your application, with its ledgers and handlers.",
    ),
]
Reason = Annotated[str | None, typer.Option("--reason", help="Why, for the record.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
By = Annotated[str | None, typer.Option("--by", help="Who does this, for the record; default: you.")]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state", help="Only rows in this state; may be repeated.", autocompletion=completion.states
    ),
]
Kind = Annotated[str | None, typer.Option("--kind", help="Only rows of this kind.")]
Owner = Annotated[str | None, typer.Option("--owner", help="Only rows of this worker.")]
Queue = Annotated[str | None, typer.Option("--queue", help="Only rows of this queue.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only rows of this tenant.")]
Code = Annotated[str | None, typer.Option("--code", help="Only rows whose last error is of this class.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where", metavar="COLUMN=VALUE", help="Only rows with this in a further column; may be repeated."
    ),
]
After = Annotated[
    str | None, typer.Option("--created-after", metavar="TIME", help="Only rows made after this time.")
]
Before = Annotated[
    str | None, typer.Option("--created-before", metavar="TIME", help="Only rows made before this time.")
]

UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def which(
    states: list[str] | None,
    kind: str | None,
    owner: str | None,
    queue: str | None,
    tenant: str | None,
    code: str | None,
    where: list[str] | None,
    after: str | None,
    before: str | None,
) -> Filter:
    """The rows that the options mean."""
    from holdfast.engine.values import Filter

    return Filter(
        states=tuple(states or ()),
        kind=kind,
        owner=owner,
        queue=queue,
        tenant=tenant,
        code=code,
        extras=dict(map(_equal, where or ())),
        created_after=time_of("--created-after", after),
        created_before=time_of("--created-before", before),
    )


def _equal(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise InvalidInput(field="--where", message=f"must be COLUMN=VALUE, not {text!r}")
    return name, value


# The option that fills a column, by the column's role.
OPTIONS = {
    "idempotency key": "--key",
    "kind": "--kind",
    "limit": "--limit",
    "owner": "--owner",
    "policy": "--backoff",
    "priority": "--priority",
    "queue": "--queue",
    "tenant": "--tenant",
}


@contextmanager
def naming(ledger: Ledger, **others: str) -> Generator[None]:
    """What is wrong with a column is told of the option that fills it; `others` are options by their role."""
    try:
        yield
    except InvalidInput as error:
        names = {column: (OPTIONS | others).get(role) for role, column in ledger.columns()}
        line, colon, column = error.field.rpartition(": ")
        if (option := names.get(column)) is None:
            raise
        raise InvalidInput(field=f"{line}{colon}{option}", message=error.fields["message"]) from None


def time_of(field: str, text: str | None) -> datetime | None:
    """A time in ISO 8601, of the option `field`; whether it has a zone is the engine's question."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            field=field, message=f"must be a time like 2030-01-31T12:00:00Z, not {text!r}"
        ) from None


def seconds_of(field: str, text: str | None) -> float | None:
    """A duration in seconds, or with a unit; whether it may be negative is the engine's question.

    >>> seconds_of("delay", "2m")
    120.0
    """
    if text is None:
        return None
    match = re.fullmatch(r"(-?[0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d|)", text.strip())
    if match is None:
        raise InvalidInput(
            field=field, message=f"must be a duration like 10, 2.5, 500ms, 10s, 2m, 1h or 7d, not {text!r}"
        )
    return float(match[1]) * UNITS[match[2]]


def doer(by: str | None) -> str | None:
    """Who does it: the name that was given, or that of the user."""
    try:
        return by or getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return None
