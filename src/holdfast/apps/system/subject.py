"""Whose rows are where: the tables that name a subject, the archives that do, and the order in which rows go.

An organisation is one subject under two names: what `job` calls `org_id` is the `tenant_id` of the
connectors, and the row security of both reads the same setting. Whoever erases the one erases the other.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

import msgspec
from psycopg.sql import SQL, Composable, Composed

from holdfast.apps.system import manifest as manifests
from holdfast.apps.system.bench import Bench, Connection
from holdfast.apps.system.executors import erase_queries as queries
from holdfast.apps.system.parameters import UserCleanup
from holdfast.apps.system.registry import Declared, Definition
from holdfast.apps.system.source import name
from holdfast.apps.system.types import JobType
from holdfast.engine import intake
from holdfast.errors import HoldfastError, InvalidInput, NotFound

ORGANISATION = ("org_id", "tenant_id")
TEXTS = ("text", "character varying", "character", "citext")
WANTED = {"uuid": "a UUID", "bigint": "a whole number of at most 64 bits"}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Who is meant: the words for him, and his name as the database writes it."""

    word: str
    words: tuple[str, ...]
    value: str

    @property
    def unmistakable(self) -> bool:
        """Whether the name is nobody else's, wherever it stands."""
        return len(self.value) >= 32

    def hidden(self, text: str) -> str:
        """A text in which the name does not stand."""
        return re.sub(rf"(?<!\w){re.escape(self.value)}(?!\w)", "erased", text, flags=re.IGNORECASE)

    def forgotten(self, job: tuple[Any, ...]) -> tuple[Any, ...]:
        """Type, parameters and key of an archived job: one that was to erase the subject forgets whom."""
        kind, told, key = job
        given: Any = msgspec.json.decode(told) if kind == JobType.USER_CLEANUP and told else None
        named: Any = cast("dict[str, Any]", given).get("subject") if isinstance(given, dict) else None
        if not isinstance(named, dict) or not any(
            word in self.words and str(value).lower() == self.value.lower()
            for word, value in cast("dict[str, Any]", named).items()
        ):
            return job
        given["subject"] = {self.word: "erased"}
        kept = None if key and self.value.lower() in str(key).lower() else key
        return kind, msgspec.json.encode(given).decode(), kept


@dataclass(frozen=True, kw_only=True)
class Place:
    """A table whose rows name the subject, and by which column."""

    declared: Declared
    definition: Definition
    column: str

    @property
    def table(self) -> Composable:
        return name(self.definition.schema, self.definition.name)

    @property
    def condition(self) -> Composed:
        """That the row t is the subject's."""
        found = next(one.type for one in self.definition.columns if one.name == self.column)
        template = queries.IS_TEXT if found.partition("(")[0] in TEXTS else queries.IS
        return SQL(template).format(column=name(self.column))

    def render(self, template: Any, *more: Composable) -> Composed:
        """A statement about the subject's rows, of which more may be asked."""
        key = [name(one) for one in self.declared.key]
        return SQL(template).format(
            table=self.table,
            condition=SQL(" and ").join([self.condition, *more]),
            key=SQL(", ").join(SQL("t.{}").format(one) for one in key),
            named=SQL(", ").join(key),
        )


def subject_of(params: UserCleanup) -> Subject:
    """Who is meant, or `InvalidInput`: an organisation is a UUID, a user a whole number."""
    word = params.word
    if word in ORGANISATION:
        return Subject(word=word, words=ORGANISATION, value=_typed(word, "uuid", params.value))
    return Subject(word=word, words=(word,), value=_typed(word, "bigint", params.value))


def _typed(word: str, type: str, value: str | int) -> str:
    """The name as the database writes it. A wrong one is not told: the log may hear of it."""
    try:
        return str(intake.typed("subject", type, value))
    except InvalidInput:
        raise InvalidInput(field="subject", message=f"{word} must be {WANTED[type]}") from None


@contextmanager
def nameless(subject: Subject) -> Generator[None]:
    """Takes the subject's name out of errors on their way to the log, which forgets nothing.

    Our own have only counts; what the database says may have values, and a trigger says what it wants.
    """
    try:
        yield
    except Exception as error:
        told: BaseException | None = error
        while told is not None:
            if not isinstance(told, HoldfastError):
                told.args = tuple(subject.hidden(one) if isinstance(one, str) else one for one in told.args)
            told = told.__cause__ or told.__context__
        raise


def column_of(declared: Declared, subject: Subject) -> str | None:
    """The column by which a table names such a subject."""
    return next((declared.subjects[word] for word in subject.words if word in declared.subjects), None)


async def places_of(conn: Connection, bench: Bench, subject: Subject) -> list[Place]:
    """The tables that name such a subject, those first that refer to others; a table that is gone is none."""
    places: list[Place] = []
    for declared in bench.registry.declared.values():
        column = column_of(declared, subject)
        if column is None:
            continue
        try:
            definition = await bench.registry.fresh(conn, declared)
        except NotFound:
            continue
        bench.registry.must_have(declared, definition, (column, *declared.key))
        places.append(Place(declared=declared, definition=definition, column=column))
    return await _in_order(conn, places)


async def _in_order(conn: Connection, places: Sequence[Place]) -> list[Place]:
    """In the order of foreign keys: whoever refers goes before whom he refers to."""
    known = {place.definition.oid: place for place in places}
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(known, ()))
    for referring, referred in await (
        await conn.execute(queries.REFERENCES, {"oids": list(known)})
    ).fetchall():
        sorter.add(referred, referring)
    try:
        return [known[oid] for oid in sorter.static_order()]
    except CycleError:  # then the database says what it refuses
        return list(places)


async def archives_of(bench: Bench, subject: Subject) -> list[tuple[str, str]]:
    """The archived tables that may know the subject, each with the column that would name it."""
    by_table = {one.table: one for one in bench.registry.declared.values()}
    folders = {key.partition("/")[0] for key in await bench.archive.list()}
    known = {manifests.folder_of(one.table): one.table for one in by_table.values()}
    tables = {*await manifests.tables(bench.archive), *(known[one] for one in folders if one in known)}
    found: list[tuple[str, str]] = []
    for table in sorted(tables):
        if table in by_table:
            columns = [column_of(by_table[table], subject)]
        else:  # nobody declares it any more: its files say what they hold
            entries = (await manifests.read(bench.archive, table)).files
            names = {column.name for entry in entries for column in entry.columns}
            columns = [word for word in subject.words if word in names]
        found += [(table, column) for column in columns if column]
    return found
