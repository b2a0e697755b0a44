"""What the API answers, as JSON: ledgers, rows, and the record. Ids are texts, times are UTC."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.api.caller import Caller, Scope
from holdfast.engine import values
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import MEANING, PERSONAL, Verb, mermaid
from holdfast.engine.values import Json

Order = Literal["cancel", "requeue"]


class Answer(BaseModel):
    """What is answered."""

    model_config = ConfigDict(from_attributes=True)


# -- problems --------------------------------------------------------------------------------------------


class Fault(Answer):
    """One thing that is wrong with a request."""

    field: str = Field(description="Where, like `items[3].delay`.")
    message: str = Field(description="What would be right.")


class Problem(Answer):
    """What went wrong, as RFC 9457 has it."""

    type: str = Field(description="A stable name of the kind of problem.")
    title: str = Field(description="The kind of problem, for people.")
    status: int = Field(description="The status of the response.")
    code: str = Field(description="The kind of problem, for programs.")
    detail: str = Field(description="What happened this time.")
    trace_id: str | None = Field(description="Under which the server's log tells more.")
    field: str | None = Field(default=None, description="Which field is wrong.")
    details: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="What is wrong with it, by field."
    )
    retry_after: int | None = Field(default=None, description="For how many seconds to be quiet.")
    errors: list[Fault] = Field(default_factory=list[Fault], description="Everything that is wrong.")


# -- who -------------------------------------------------------------------------------------------------


class Me(Answer):
    """Who asks, as the record would name them."""

    who: str = Field(description="The name in the record.")
    scope: Scope = Field(description="What they may do.")
    tenant: str | None = Field(description="Whose rows are meant; null: everybody's.")
    operator: bool = Field(description="Whether no token confines them to a tenant.")

    @classmethod
    def of(cls, caller: Caller) -> Me:
        return cls(who=caller.who, scope=caller.scope, tenant=caller.tenant, operator=not caller.bound)


# -- ledgers ---------------------------------------------------------------------------------------------


class State(Answer):
    """A state of a ledger's rows."""

    name: str = Field(description="The ledger's own word.")
    end: bool = Field(description="Whether a row ends there.")
    held: bool = Field(description="Whether a worker has the row.")
    actions: list[Order] = Field(description="What a person may order.")


class Edge(Answer):
    """One allowed change of state."""

    verb: Verb = Field(description="What happens.")
    meaning: str = Field(description="The same, as a sentence.")
    leaves: list[str] = Field(serialization_alias="from", description="From which states.")
    via: list[str] = Field(description="Through which states, in the same statement.")
    to: str = Field(description="To which state.")


class Brief(Answer):
    """A ledger in a list."""

    name: str = Field(description="Its name, as in addresses.")
    states: list[State] = Field(description="The states of its rows.")
    kinds: list[str] = Field(description="The kinds that the server's application has handlers for.")
    tenants: bool = Field(description="Whether its rows have tenants.")
    queues: bool = Field(description="Whether its rows have queues.")
    journal: bool = Field(description="Whether every change is recorded: then rows have a timeline.")
    keys: bool = Field(description="Whether an idempotency key can be given.")

    @classmethod
    def of(cls, ledger: Ledger, kinds: list[str]) -> Brief:
        return cls(**_brief(ledger, kinds))


class Described(Brief):
    """A ledger with its columns and its lifecycle."""

    table: str = Field(description="The table.")
    columns: dict[str, list[str]] = Field(description="The columns by what they are for.")
    edges: list[Edge] = Field(description="Every allowed change of state.")
    diagram: str = Field(description="The lifecycle as a Mermaid state diagram.")

    @classmethod
    def of(cls, ledger: Ledger, kinds: list[str]) -> Described:
        columns: dict[str, list[str]] = {}
        for role, column in ledger.columns():
            columns.setdefault(role, []).append(column)
        edges = [
            Edge(verb=e.verb, meaning=MEANING[e.verb], leaves=list(e.frm), via=list(e.via), to=e.to)
            for e in ledger.edges
        ]
        return cls(
            **_brief(ledger, kinds),
            table=ledger.table,
            columns=columns,
            edges=edges,
            diagram=mermaid(ledger.lifecycle),
        )


def _brief(ledger: Ledger, kinds: list[str]) -> dict[str, Any]:
    held = ledger.lifecycle.held
    states = [
        State(name=name, end=name in ledger.ends, held=name in held, actions=actions(ledger, name))
        for name in ledger.states
    ]
    return {
        "name": ledger.name,
        "states": states,
        "kinds": kinds,
        "tenants": ledger.tenant is not None,
        "queues": ledger.queue is not None,
        "journal": ledger.journal is not None,
        "keys": ledger.idempotency is not None,
    }


def actions(ledger: Ledger, state: str) -> list[Any]:
    """What a person may order about a row in this state."""
    return [verb for verb in PERSONAL if ledger.lifecycle.edge(verb, state)]


class Ledgers(Answer):
    """The ledgers that there are for the caller."""

    ledgers: list[Brief] = Field(description="In the order of their declaration.")


# -- rows ------------------------------------------------------------------------------------------------


class Row(Answer):
    """A row, by common names."""

    id: str = Field(description="Its key.")
    ledger: str = Field(description="Its ledger.")
    kind: str = Field(description="What is to be done.")
    state: str = Field(description="In the ledger's own words.")
    ended: bool = Field(description="Whether it has ended.")
    actions: list[Order] = Field(description="What a person may order now.")
    tenant: str | None = Field(description="Whose row it is.")
    payload: Json = Field(description="What the handler gets.")
    owner: str | None = Field(description="The worker that holds it, or ran it last.")
    fence: int | None = Field(description="Grows with every claim.")
    attempts: int | None = Field(description="How often it ran, or was tried again, as the ledger counts.")
    limit: int | None = Field(description="How often it may.")
    due: datetime | None = Field(description="When it may run.")
    created: datetime = Field(description="When it was made.")
    updated: datetime | None = Field(description="When it changed last.")
    claimed: datetime | None = Field(description="When a worker took it.")
    started: datetime | None = Field(description="When its handler was called.")
    finished: datetime | None = Field(description="When it ended.")
    error: str | None = Field(description="Why its last run went badly.")
    trace: str | None = Field(description="The W3C traceparent of whoever enqueued it.")

    @classmethod
    def of(cls, ledger: Ledger, row: values.Row) -> Row:
        return cls(**_row(ledger, row))


class WholeRow(Row):
    """A row with all that is known of it."""

    result: Json = Field(description="What its handler answered, where the ledger keeps it.")
    stage: str | None = Field(description="What its handler says that it is doing.")
    progress: float | None = Field(description="How far it has come, in percent.")
    columns: dict[str, Json] = Field(description="The row as the table has it, but for the payload.")

    @classmethod
    def of(cls, ledger: Ledger, row: values.Row) -> WholeRow:
        more = {name: getattr(row, name) for name in ("result", "stage", "progress", "columns")}
        return cls(**_row(ledger, row), **more)


def _row(ledger: Ledger, row: values.Row) -> dict[str, Any]:
    own = ("ledger", "ended", "actions", "id", "tenant")
    told = {name: getattr(row, name) for name in Row.model_fields if name not in own}
    return told | {
        "id": str(row.id),
        "ledger": ledger.name,
        "ended": row.state in ledger.ends,
        "actions": actions(ledger, row.state),
        "tenant": None if row.tenant is None else str(row.tenant),
    }


class Page(Answer):
    """Some rows, the newest first."""

    rows: list[Row] = Field(description="The rows, without what only a single row tells.")
    cursor: str | None = Field(description="For the next page; null: there is none.")


class Receipt(Answer):
    """What an enqueue did."""

    id: str | None = Field(description="The row's id; null where a ledger ignores a repeated key.")
    created: bool = Field(description="Whether this request made it; else its key was taken already.")

    @classmethod
    def of(cls, receipt: values.Receipt) -> Receipt:
        return cls(id=None if receipt.id is None else str(receipt.id), created=receipt.created)


class Receipts(Answer):
    """What a batch did, in the order of its items."""

    receipts: list[Receipt] = Field(description="One for each item.")


class Event(Answer):
    """One hop of a row."""

    seq: int = Field(description="The order.")
    at: datetime = Field(description="When.")
    prev: str | None = Field(description="From which state; null for the first.")
    next: str = Field(description="To which state.")
    detail: dict[str, Json] = Field(description="The verb, who, why, and what else is known.")


class Timeline(Answer):
    """What happened to a row."""

    events: list[Event] = Field(description="In their order.")
    after: int | None = Field(description="For the next page; null: there is none.")


class Waited(Answer):
    """What became of a row while somebody waited."""

    ended: bool = Field(description="Whether it has ended; false: ask again.")
    row: WholeRow = Field(description="The row as it is now.")


class Explanation(Answer):
    """Why a row is not running."""

    code: str = Field(description="The reason, for programs.")
    sentence: str = Field(description="The reason, for people.")
    facts: dict[str, Json] = Field(description="What the reason follows from.")


class Counted(Answer):
    """How many rows a bulk changed, or would change."""

    rows: int = Field(description="How many.")
    dry_run: bool = Field(description="Whether they were only counted.")
    exact: bool = Field(description="Whether all were counted, and none was estimated.")


# -- the record ------------------------------------------------------------------------------------------


class Entry(Answer):
    """One action that somebody took."""

    id: int = Field(description="Its number.")
    at: datetime = Field(description="When.")
    who: str = Field(description="Who.")
    action: str = Field(description="What.")
    ledger: str | None = Field(description="Of which ledger.")
    row_id: str | None = Field(description="About which row, or token.")
    tenant: str | None = Field(description="Within which tenant.")
    rows: int | None = Field(description="How many rows it changed.")
    detail: dict[str, Json] = Field(description="Why, and what else is known.")
    trace_id: str | None = Field(description="The trace of the request.")


class Entries(Answer):
    """What was done, the newest first."""

    entries: list[Entry] = Field(description="The entries.")
    before: int | None = Field(description="For the next page; null: there is none.")


class Token(Answer):
    """A token, without its secret."""

    id: str = Field(description="Its id: the part after `hf_`.")
    name: str = Field(description="Who or what brings it.")
    scope: Scope = Field(description="What it may do.")
    tenant: str | None = Field(description="Whose rows it is confined to.")
    created: datetime = Field(description="When it was made.")
    created_by: str | None = Field(description="By whom.")
    expires: datetime | None = Field(description="Until when it is good.")
    revoked: datetime | None = Field(description="When it was revoked.")
    used: datetime | None = Field(description="When it was used last, to the minute.")


class MadeToken(Token):
    """A token that was just made. Its text is told once, and never again."""

    token: str = Field(description="What goes into `Authorization: Bearer …`.")


class Tokens(Answer):
    """The tokens that there are."""

    tokens: list[Token] = Field(description="The newest first.")


class Health(Answer):
    """Whether it works."""

    status: Literal["ok"] = Field(description="That it does.")
