"""What a declaration needs of its table: of every column, and of the login that works on it. Pure.

A need is data: the types that fit, whether NULL must be possible, the default that an enqueue counts on, and
what is lost without it. `judging` compares it with what is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, LiteralString

from psycopg.sql import SQL, Composable, Composed, Identifier
from psycopg.sql import Literal as Quoted

from holdfast.engine import effects, queries
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import VERBS
from holdfast.engine.queries import ShippedColumn
from holdfast.engine.roles import CodeError, Journal, JsonError, TextError

Severity = Literal["missing", "warning", "fine"]

TEXT = ("text", "character varying")
INTEGERS = ("integer", "bigint")
SERIALS = ("integer", "bigint", "smallint")
ZERO = SQL("0")
ENDLESS = 10**9  # room for a text that nobody cuts
OWNER_ROOM = 100  # hostname-pid-random, and a token where there is no fence

ZONED, NAIVE = "timestamp with time zone", "timestamp without time zone"
TIMES: Mapping[str, str] = {"timestamptz": ZONED, "timestamp": NAIVE, "epoch_ms": "bigint"}
NOW: Mapping[str, LiteralString] = {
    "timestamptz": "now()",
    "timestamp": "(now() at time zone 'UTC')",
    "epoch_ms": "(extract(epoch from now()) * 1000)::bigint",
}

LOST: Mapping[str, str] = {
    "key": "no row can be moved: every write names its key",
    "state": "rows cannot be found, moved or ended",
    "owner": "nobody knows who holds a row, so the work of a dead worker never comes back",
    "kind": "a row cannot be matched with its handler",
    "fence": "a worker that lost its claim can still overwrite the row",
    "priority": "urgent rows are not claimed first",
    "queue": "a row enqueued without a queue is never claimed",
    "payload": "a handler does not get what was enqueued",
    "created": "rows are not taken in the order in which they came",
    "updated": "nobody sees when a row last changed",
    "claimed": "rows of an unknown worker cannot be told from fresh claims, and rows cannot be given back",
    "started": "nobody sees when a run began, and rows cannot be given back",
    "finished": "nobody sees when a row ended, and rows cannot run again",
    "due": "a retry comes back at once or never",
    "attempts": "a row that always fails is retried for ever",
    "limit": "a row without a limit gets one run only",
    "error": "a run cannot fail: the reason has no place",
    "idempotency key": "a repeated enqueue makes a second row",
    "lease": "the rows of a dead worker never come back",
    "tenant": "enqueue cannot say whose row it is",
    "extra": "enqueue cannot fill it",
    "requester": "nobody sees who asked for a row",
    "policy": "a row cannot say how its retries wait",
    "trace": "a run cannot be found in the trace of the request that asked for it",
    "order": "rows are not claimed in the declared order",
    "journal": "moves cannot be told, so they cannot happen",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that `doctor` saw. `remedy_sql` is runnable: statements that end with a semicolon each.

    "missing": a promise is lost until the remedy has run. "warning": it works, and somebody should know.
    "fine": all is well; SQL beside it is an offer and no part of the remedy.
    """

    severity: Severity
    what: str
    promise_lost: str | None = None
    remedy_sql: str | None = None

    @property
    def loosens(self) -> bool:
        """Whether the remedy accepts more than the table did, or changes a type; a comment in it says so."""
        lines = (self.remedy_sql or "").splitlines()
        return any(line.startswith((queries.LOOSENS, queries.RETYPES)) for line in lines)


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one column must be. No `fits`: any type, and nobody but the user can add it.

    `strained`: types that work for a while. `bare`: what it is to have no default where NULL is possible.
    `written`: every single enqueue fills it. `room`: how many characters must fit. `own_type`: the
    declaration names the type, so the declaration is the place to change it. `made`: how to add the column,
    where type and default do not say it all.
    """

    role: str
    column: str
    fits: tuple[str, ...] = ()
    strained: tuple[str, ...] = ()
    nulls: Literal["needed", "wanted", "free", "forbidden"] = "free"
    default: Composable | None = None
    bare: Severity | None = None
    written: bool = False
    room: int | None = None
    own_type: bool = False
    made: Composable | None = None

    @property
    def lost(self) -> str:
        return LOST[self.role]

    @property
    def definition(self) -> Composable | None:
        """What follows the name of the column when it is added."""
        if self.made or not self.fits:
            return self.made
        bare = raw(self.fits[0])
        return SQL("{} not null default {}").format(bare, self.default) if self.default else bare


def needs(ledger: Ledger, types: Mapping[str, str]) -> list[Need]:
    """The needs of a ledger's table; `types` has the catalogue's names for the types it declares."""
    found = [
        Need(role=role, column=column, **_demands(ledger, role, column, types))
        for role, column in ledger.columns()
    ]
    orders = [order.column for lane in ledger.lanes for order in lane.orders]
    orders += [name for lane in ledger.lanes for name in (*lane.empty, *lane.filled, lane.due) if name]
    scope = ledger.idempotency.scope if ledger.idempotency else ()
    seen = {need.column for need in found}
    for role, columns in (("order", orders), ("idempotency key", scope)):
        found += [Need(role=role, column=name) for name in dict.fromkeys(columns) if name not in seen]
        seen |= set(columns)
    return found


def as_shipped(need: Need, column: ShippedColumn | None) -> Need:
    """The need of a column that our migrations make: it asks for nothing that they did not make."""
    if column is None:
        return need
    nullable = need.nulls in ("free", "forbidden") or not column.not_null
    return replace(
        need,
        fits=(column.type, *need.fits),
        room=column.length or need.room,
        nulls=need.nulls if nullable else "free",
        default=need.default if column.fills_itself else None,
    )


def journal_needs(ledger: Ledger, types: Mapping[str, str]) -> list[Need]:
    """The needs of the table that gets the events; the first of a row has nothing before it."""
    journal = ledger.journal
    if journal is None:
        return []
    columns: Mapping[str, tuple[str, ...]] = {
        journal.row: (types[ledger.key.type],),
        journal.at: (TIMES[ledger.times.kind],),
        journal.prev: TEXT,
        journal.next: TEXT,
        journal.detail: ("jsonb", "json"),
    }
    counter = Need(
        role="journal",
        column=journal.seq,
        fits=("bigint",),
        strained=("integer",),
        made=SQL("bigint generated always as identity"),
    )
    return [counter] + [
        Need(
            role="journal",
            column=name,
            fits=fits,
            nulls="needed" if name == journal.prev else "free",
            written=True,
        )
        for name, fits in columns.items()
    ]


def privileges(ledger: Ledger) -> Mapping[str, Sequence[str]]:
    """What a login needs on the table: to read it, to write what moves set, to fill what an enqueue does."""
    filled = (
        ledger.key.column if ledger.key.make else None,
        ledger.kind,
        ledger.tenant and ledger.tenant.name,
        ledger.state,
        ledger.due.columns[0] if ledger.due and (ledger.due.first or not ledger.due.cleared) else None,
        ledger.times.created,
        ledger.times.updated,
    )
    return {
        "select": (),
        "update": _moved(ledger),
        "insert": [name for name in filled if name],
    }


def _moved(ledger: Ledger) -> list[str]:
    """The columns that claims and moves set, read from what they do: the first part of each `column = …`."""
    written: list[Composable] = []
    for verb in VERBS:
        if verb != "enqueue" and ledger.lifecycle.of(verb):
            sets = effects.sets(ledger, verb)
            assert isinstance(sets, Composed)
            written += [next(iter(part)) for part in sets if isinstance(part, Composed)]
    return [name for _, name in ledger.columns() if Identifier(name) in written]


def journal_privileges(journal: Journal) -> Mapping[str, Sequence[str]]:
    """What a login needs on the table that gets the events: every move adds some."""
    return {"insert": (journal.row, journal.at, journal.prev, journal.next, journal.detail)}


# What these roles ask is the same for every ledger.
ANY_LEDGER: Mapping[str, Mapping[str, Any]] = {
    "owner": {"fits": TEXT, "nulls": "needed", "room": OWNER_ROOM},
    "kind": {"fits": TEXT, "written": True},
    "fence": {
        "fits": ("bigint",),
        "strained": ("integer", "smallint"),
        "nulls": "forbidden",
        "default": ZERO,
    },
    "attempts": {"fits": INTEGERS, "strained": ("smallint",), "nulls": "forbidden", "default": ZERO},
    "limit": {"fits": INTEGERS, "strained": ("smallint",), "default": SQL("3"), "bare": "warning"},
    "priority": {"fits": SERIALS, "default": ZERO, "bare": "warning"},
    "queue": {"fits": TEXT, "default": SQL("'default'"), "bare": "missing"},
    "idempotency key": {"fits": TEXT, "nulls": "wanted"},
    "requester": {"fits": TEXT, "nulls": "wanted"},
    "trace": {"fits": TEXT, "nulls": "wanted"},
}


def _demands(ledger: Ledger, role: str, column: str, types: Mapping[str, str]) -> Mapping[str, Any]:
    """What a role asks of its column."""
    time, now = (TIMES[ledger.times.kind],), SQL(NOW[ledger.times.kind])
    match role:
        case "key":
            declared = types[ledger.key.type]
            return {"fits": _family(declared), "made": _key(declared), "own_type": True}
        case "state":
            room, initial = max(map(len, ledger.states)), Quoted(ledger.lifecycle.initial)
            known = {"fits": _family(types[ledger.state_type]), "default": initial, "room": room}
            return known | {"bare": "warning", "written": True, "own_type": True}
        case "created":
            return {"fits": time, "default": now, "bare": "warning", "written": True}
        case "updated":
            return {"fits": time, "default": now, "written": True}
        case "due" if ledger.due and (column == ledger.due.first or not ledger.due.cleared):
            return {"fits": time, "default": now, "bare": "missing"}
        case "claimed" | "started" | "finished" | "due" | "lease":
            return {"fits": time, "nulls": "needed"}
        case "payload" if isinstance(ledger.payload, str):
            return {"fits": ("jsonb",), "strained": ("json",), "nulls": "wanted"}
        case "payload":
            return {"written": True}
        case "error":
            return _error_demands(ledger, column)
        case "queue" if ledger.queue_null:
            return {"fits": TEXT, "nulls": "wanted"}
        case "policy":  # a text takes the words of any type
            return {"fits": tuple(dict.fromkeys((types[ledger.policy_type], *TEXT))), "own_type": True}
        case _ if role in ANY_LEDGER:
            declared = ledger.defaults.get(column) if "default" in ANY_LEDGER[role] else None
            return {**ANY_LEDGER[role], **({} if declared is None else {"default": Quoted(declared)})}
        case _:
            further = (*ledger.extras, ledger.tenant) if ledger.tenant else ledger.extras
            declared = next(types[one.type] for one in further if one.name == column)
            rest = {"written": True} if role == "tenant" else {"nulls": "wanted"}
            return {"fits": _family(declared), "own_type": True, **rest}


def _error_demands(ledger: Ledger, column: str) -> dict[str, Any]:
    """A text longer than its column would make the end of a bad run fail, again and again."""
    if isinstance(ledger.errors, JsonError):
        return {"fits": ("jsonb",), "nulls": "needed"}
    lengths: dict[str, int | None] = {}
    if isinstance(ledger.errors, TextError):
        lengths = {ledger.errors.column: ledger.errors.length}
    elif isinstance(ledger.errors, CodeError):
        both = ledger.errors
        lengths = {both.code: both.code_length, both.message: both.message_length}
    return {"fits": TEXT, "nulls": "needed", "room": lengths.get(column) or ENDLESS}


def _family(type: str) -> tuple[str, ...]:
    """The types that a parameter of this type may be written to and compared with."""
    return (type, *(other for other in TEXT if other != type)) if type in TEXT else (type,)


def _key(type: str) -> Composable | None:
    if type in SERIALS:
        return SQL("{} generated by default as identity").format(raw(type))
    drawn: Mapping[str, LiteralString] = {
        "uuid": "uuid not null default gen_random_uuid()",
        "text": "text not null default gen_random_uuid()::text",
    }
    return SQL(drawn[type]) if type in drawn else None


def raw(word: str) -> Composable:
    """A type's name, from the catalogue or checked by the declaration."""
    return SQL(word)  # pyright: ignore[reportArgumentType]


def missing(what: str, lost: str, remedy: str | None) -> Finding:
    """A promise that is lost."""
    return Finding(severity="missing", what=what, promise_lost=lost, remedy_sql=remedy)


def statement(template: LiteralString, **holes: Composable) -> str:
    """A proposal, filled in."""
    return SQL(template).format(**holes).as_string(None) + ";"
