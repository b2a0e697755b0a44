"""What a request may say: bodies and filters. Strict, and with no field that nobody reads."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict

from holdfast.api.caller import Scope
from holdfast.engine.intake import INT4, LONGEST_WAIT
from holdfast.engine.values import Filter, Item, Json

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:\d\d)")
STORABLE = r"^[^\x00]*$"  # PostgreSQL has no place for U+0000
REASON = 2048


def _moment(given: Any) -> Any:
    """A time as RFC 3339 has it: a bare number might be seconds or milliseconds."""
    if isinstance(given, datetime):
        return given
    if not isinstance(given, str) or not RFC_3339.fullmatch(given):
        raise ValueError("must be a time with a zone, like 2030-01-31T12:00:00Z")
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", given.upper()))


Moment = Annotated[AwareDatetime, BeforeValidator(_moment, json_schema_input_type=AwareDatetime)]
Text = Annotated[str, Field(min_length=1, max_length=1024, pattern=STORABLE)]
Reason = Annotated[str | None, Field(max_length=REASON, pattern=STORABLE, description="Why, for the record.")]


class Body(BaseModel):
    """What a request brings: nothing is guessed, and nothing is overlooked."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Enqueue(Body):
    """One piece of work. What is left out gets the ledger's own default."""

    kind: Text | None = Field(
        default=None,
        description="What is to be done; left out where a ledger has one kind only.",
        examples=["demo"],
    )
    payload: Json = Field(default=None, description="What the handler gets: any JSON.")
    key: Text | None = Field(
        default=None,
        description="Makes two enqueues one: the second answers with the first one's row.",
    )
    priority: int | None = Field(
        default=None, ge=INT4.start, lt=INT4.stop, description="Higher ones are taken first."
    )
    delay: float | None = Field(
        default=None, ge=0, le=LONGEST_WAIT, allow_inf_nan=False, description="Seconds until it is due."
    )
    run_at: Moment | None = Field(default=None, description="When it is due; instead of `delay`.")
    limit: int | None = Field(
        default=None, ge=0, lt=INT4.stop, description="How often it may run, in the ledger's own meaning."
    )
    backoff: Literal["none", "fixed", "exp"] | None = Field(
        default=None, description="How it waits between bad runs, where the ledger has a column for it."
    )
    queue: Text | None = Field(default=None, description="Which queue, where the ledger has queues.")
    tenant: Text | None = Field(
        default=None,
        description="Whose row it is, where the ledger has tenants. A tenant's token needs not say it.",
    )
    extras: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="Further columns that the ledger lets you fill."
    )

    def item(self, key: str | None = None) -> Item:
        """As the engine takes it."""
        given: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        given["key"] = key
        return Item(**given)


class Batch(Body):
    """Many pieces of work: all are added, or none."""

    items: list[Enqueue] = Field(min_length=1, max_length=1000, description="Up to 1000.")


FILTERS = {field.name for field in fields(Filter)}


class Which(BaseModel):
    """Which rows are meant: everything that is given must hold."""

    model_config = ConfigDict(extra="forbid")

    state: list[Text] = Field(
        default_factory=list[str], max_length=100, description="One of these states, in the ledger's words."
    )
    kind: Text | None = Field(default=None, description="Of this kind.")
    owner: Text | None = Field(default=None, description="Held, or last run, by this worker.")
    queue: Text | None = Field(default=None, description="In this queue, where the ledger has queues.")
    tenant: Text | None = Field(default=None, description="Of this tenant, where the ledger has tenants.")
    code: Text | None = Field(default=None, description="Whose last error is of this class.")
    created_after: Moment | None = Field(default=None, description="Made at this time or later.")
    created_before: Moment | None = Field(default=None, description="Made before this time.")
    finished_after: Moment | None = Field(default=None, description="Ended at this time or later.")
    finished_before: Moment | None = Field(default=None, description="Ended before this time.")

    def filter(self) -> Filter:
        """As the engine takes it."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name in FILTERS}
        return Filter(states=tuple(dict.fromkeys(self.state)), **given)


class RowsQuery(Which):
    """Which rows are meant, and how many of them."""

    limit: int = Field(default=50, ge=1, le=100, description="How many rows at most.")
    cursor: Text | None = Field(default=None, description="Goes on where the page before ended.")


class Meant(Which):
    """The same filter, in a body."""

    model_config = ConfigDict(extra="forbid", strict=True)

    extras: dict[Text, Text] = Field(
        default_factory=dict[str, str],
        max_length=20,
        description="With these values in further columns, like a job's `connection_id`.",
    )


class Bulk(Body):
    """An order about all rows that a filter means and whose state allows it."""

    filter: Meant = Field(default_factory=lambda: Meant(), description="Which rows are meant.")
    all: bool = Field(default=False, description="Says that an empty filter is meant: every row.")
    dry_run: bool = Field(default=False, description="Only counts the rows, and changes nothing.")
    reason: Reason = None


class Why(Body):
    """An order about one row."""

    reason: Reason = None


# What a single field cannot say: no tenant's token administers.
NO_TENANT_ADMIN: JsonDict = {
    "not": {
        "required": ["scope", "tenant"],
        "properties": {"scope": {"const": "admin"}, "tenant": {"type": "string"}},
    }
}


class NewToken(Body):
    """A token to be made."""

    model_config = ConfigDict(json_schema_extra=NO_TENANT_ADMIN)

    name: str = Field(
        min_length=1,
        max_length=100,
        pattern=r"^[A-Za-z0-9_.@+-]([A-Za-z0-9_.@+ -]*[A-Za-z0-9_.@+-])?$",
        description="Who or what brings it: the record tells it.",
        examples=["deploy"],
    )
    scope: Scope = Field(
        default="read", description="What it may do; each scope may do what those before it may."
    )
    tenant: Annotated[Text, Field(max_length=255)] | None = Field(
        default=None, description="Confines it to one tenant's rows. Not with the scope admin."
    )
    expires: Moment | None = Field(
        default=None, description="Until when it is good; left out: until it is revoked."
    )
