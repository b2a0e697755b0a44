"""Rows as Parquet and back. May use pyarrow, which is an extra. Knows no database and no archive.

A value is in the file as PostgreSQL has it: numbers, truth, text, bytes and dates as themselves, times as UTC
microseconds. Whatever Parquet has no like for (uuid, jsonb, enums, numeric, arrays, intervals …) is
PostgreSQL's own text of it, from which a cast makes the same value again. The infinite times are the largest
and the smallest numbers but one, as DuckDB reads them; a time that needs more than 63 bits of microseconds
since 1970, later than the year 294246, has no place in a file.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from typing import Any, BinaryIO, Literal, TypeAlias
from uuid import UUID

from holdfast.apps.system.manifest import ColumnType, Entry
from holdfast.engine.roles import TimeKind
from holdfast.errors import MissingExtra

Kind: TypeAlias = Literal[
    "smallint", "integer", "bigint", "real", "double", "boolean", "text", "bytea", "date", "timestamp",
    "timestamptz", "other",
]  # fmt: skip
Row: TypeAlias = Sequence[Any]

FOREVER = 2**63 - 1  # µs: how an infinite time is written
FOREVER_DAYS = 2**31 - 1
EPOCH, FIRST_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1)
ABOUT = b"holdfast"  # where the file itself says what it is
GROUP, GROUP_BYTES = 10_000, 2 * 2**20  # what is in memory at once, and becomes one row group of a file

_PLAIN: Mapping[str, Kind] = {
    "smallint": "smallint",
    "integer": "integer",
    "bigint": "bigint",
    "real": "real",
    "double precision": "double",
    "boolean": "boolean",
    "text": "text",
    "bytea": "bytea",
    "date": "date",
}
_TEXT = re.compile(r"character( varying)?(\(\d+\))?")
_TIME = re.compile(r"timestamp(?:\(\d\))? (with|without) time zone")


def kind_of(type: str) -> Kind:
    """How values of a type, in the words of PostgreSQL's `format_type`, are kept.

    >>> kind_of("timestamp with time zone"), kind_of("character varying(100)"), kind_of("uuid")
    ('timestamptz', 'text', 'other')
    """
    if _TEXT.fullmatch(type):
        return "text"
    if time := _TIME.fullmatch(type):
        return "timestamptz" if time[1] == "with" else "timestamp"
    return _PLAIN.get(type, "other")


def pyarrow() -> Any:
    """The library, with its part for Parquet; or `MissingExtra`."""
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError:
        raise MissingExtra(what="an archive of rows", extra="system") from None


def compute() -> Any:
    """The library's part for computing."""
    pyarrow()
    return import_module("pyarrow.compute")


@dataclass(frozen=True, kw_only=True)
class About:
    """What a file is: whose rows, of which kind, and which column tells them apart, or names their row.

    `xid` is the transaction that took these rows out of their table, and `owner` whose that is.
    """

    kind: Literal["rows", "events"]
    table: str
    key: str
    columns: tuple[ColumnType, ...]
    times: tuple[str, ...] = ()
    time_kind: TimeKind = "timestamptz"
    xid: str | None = None
    owner: str | None = None

    def place(self, column: str) -> int:
        """The number of a column."""
        return next(place for place, one in enumerate(self.columns) if one.name == column)


def schema_of(about: About) -> Any:
    """The schema of a file, which has in it what the file is."""
    pa = pyarrow()
    kinds: dict[Kind, Any] = {
        "smallint": pa.int16(),
        "integer": pa.int32(),
        "bigint": pa.int64(),
        "real": pa.float32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "bytea": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us"),
        "timestamptz": pa.timestamp("us", tz="UTC"),
    }
    fields = [(one.name, kinds.get(kind_of(one.type), pa.string())) for one in about.columns]
    told = {
        "kind": about.kind,
        "table": about.table,
        "key": about.key,
        "columns": [[one.name, one.type] for one in about.columns],
        "times": list(about.times),
        "time_kind": about.time_kind,
        "xid": about.xid,
        "owner": about.owner,
    }
    return pa.schema(fields, metadata={ABOUT: json.dumps(told).encode()})


def about_of(file: Any) -> About | None:
    """What an opened Parquet file says that it is; None if it is none of ours."""
    try:
        metadata: Mapping[bytes, bytes] = file.schema_arrow.metadata or {}
        told = json.loads(metadata[ABOUT])
        return About(
            kind=told["kind"],
            table=told["table"],
            key=told["key"],
            columns=tuple(ColumnType(*pair) for pair in told["columns"]),
            times=tuple(told["times"]),
            time_kind=told["time_kind"],
            xid=told.get("xid"),
            owner=told.get("owner"),
        )
    except (KeyError, ValueError, TypeError):
        return None


# -- rows to files ---------------------------------------------------------------------------------------


def batch_of(about: About, rows: Sequence[Row]) -> Any:
    """Rows, each with the values of all columns in order, as a batch of Arrow's."""
    pa, schema = pyarrow(), schema_of(about)
    arrays: list[Any] = []
    for place, field in enumerate(schema):
        values = [row[place] for row in rows]
        if pa.types.is_timestamp(field.type):
            arrays.append(pa.array(values, pa.int64()).view(field.type))
        elif pa.types.is_date(field.type):
            arrays.append(pa.array(values, pa.int32()).view(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def writer(sink: BinaryIO, about: About) -> Any:
    """A writer of one file, which takes batch by batch; it is complete when the writer is closed."""
    return pyarrow().parquet.ParquetWriter(sink, schema_of(about), compression="zstd")


def write(sink: BinaryIO, about: About, batches: Iterable[Any]) -> int:
    """Writes batches as one file; answers how many rows they had."""
    rows = 0
    with writer(sink, about) as file:
        for batch in batches:
            rows += batch.num_rows
            file.write_batch(batch)
    sink.flush()
    return rows


def entry_of(path: str, file: BinaryIO) -> Entry | None:
    """The entry of a file as it is, read from the file itself; None if it is none of ours, or not whole."""
    pa = pyarrow()
    size, total = 0, hashlib.sha256()
    file.seek(0)
    while piece := file.read(2**20):
        size += len(piece)
        total.update(piece)
    file.seek(0)
    try:
        opened = pa.parquet.ParquetFile(file)
    except pa.ArrowInvalid:
        return None
    about = about_of(opened)
    if about is None:
        return None
    first, last = _between(opened, about)
    return Entry(
        path=path,
        kind=about.kind,
        table=about.table,
        key=about.key,
        rows=opened.metadata.num_rows,
        bytes=size,
        sha256=total.hexdigest(),
        columns=about.columns,
        first=first,
        last=last,
    )


def _between(opened: Any, about: About) -> tuple[datetime | None, datetime | None]:
    """The first and the last time of its rows; of each row the first of its times that it has."""
    least = most = None
    times = [name for name in about.times if any(one.name == name for one in about.columns)]
    if not times:
        return None, None
    chosen = replace_columns(about, times)
    for rows in _groups(opened, chosen):
        known = [
            value for row in rows if (value := next((v for v in row if v is not None), None)) is not None
        ]
        if known:
            least = min(known) if least is None else min(least, min(known))
            most = max(known) if most is None else max(most, max(known))
    unit = 1000 if about.time_kind == "epoch_ms" else 1
    return _moment(least, unit), _moment(most, unit)


def replace_columns(about: About, names: Sequence[str]) -> About:
    """The same with some of the columns alone, in this order."""
    by_name = {one.name: one for one in about.columns}
    return About(
        kind=about.kind, table=about.table, key=about.key, columns=tuple(by_name[name] for name in names)
    )


# -- files to rows ---------------------------------------------------------------------------------------


def batches(file: BinaryIO) -> Iterator[Any]:
    """The batches of a file, one after the other."""
    pa = pyarrow()
    file.seek(0)
    yield from _batches(pa.parquet.ParquetFile(file))


def opened(file: BinaryIO) -> tuple[Any, About | None]:
    """A file opened as Parquet, and what it says that it is; None also where it is no Parquet at all."""
    pa = pyarrow()
    file.seek(0)
    try:
        found = pa.parquet.ParquetFile(file)
    except pa.ArrowInvalid:
        return None, None
    return found, about_of(found)


def rows_of(file: BinaryIO, columns: Sequence[str] | None = None) -> Iterator[tuple[Any, ...]]:
    """The rows of a file, or some columns of them, with values as they were written: times are numbers."""
    found, about = opened(file)
    assert about is not None
    wanted = about if columns is None else replace_columns(about, columns)
    for group in _groups(found, wanted):
        yield from group


def natural_rows(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """The rows of a file as psycopg gives those of a table: times as datetimes, uuid and jsonb as objects."""
    _, about = opened(file)
    assert about is not None
    for row in rows_of(file):
        yield {one.name: natural(one.type, value) for one, value in zip(about.columns, row, strict=True)}


def _groups(found: Any, about: About) -> Iterator[list[tuple[Any, ...]]]:
    names = [one.name for one in about.columns]
    for batch in _batches(found, names):
        yield list(zip(*(plain_values(batch.column(name)) for name in names), strict=True))


def _batches(found: Any, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Batches of as many neighbouring row groups as stay within the limits together.

    By itself, `iter_batches` joins row groups by their rows alone, however large these are.
    """
    chosen, rows, size = list[int](), 0, 0
    for number in range(found.num_row_groups):
        group = found.metadata.row_group(number)
        if chosen and (rows + group.num_rows > GROUP or size + group.total_byte_size > GROUP_BYTES):
            yield from found.iter_batches(GROUP, row_groups=chosen, columns=columns)
            chosen, rows, size = [], 0, 0
        chosen.append(number)
        rows, size = rows + group.num_rows, size + group.total_byte_size
    if chosen:
        yield from found.iter_batches(GROUP, row_groups=chosen, columns=columns)


def plain_values(array: Any) -> list[Any]:
    """The values of an array of Arrow's, with times and dates as numbers: not all fit into a datetime."""
    pa = pyarrow()
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", tz=array.type.tz)).view(pa.int64())
    elif pa.types.is_date32(array.type):
        array = array.view(pa.int32())
    return array.to_pylist()


def natural(type: str, value: Any) -> Any:
    """A value as psycopg gives it; a time that Python has no word for is `infinity`, or stays a number."""
    if value is None:
        return None
    match kind_of(type):
        case "timestamptz" | "timestamp" as kind:
            return _time(value, aware=kind == "timestamptz")
        case "date":
            return _date(value)
        case "real":
            return _shortest(value)
        case "other" if type == "uuid":
            return UUID(value)
        case "other" if type in ("jsonb", "json"):
            return json.loads(value)
        case _:
            return value


def _time(micros: int, *, aware: bool) -> datetime | str | int:
    if abs(micros) == FOREVER:
        return "infinity" if micros > 0 else "-infinity"
    try:
        moment = EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return micros
    return moment if aware else moment.replace(tzinfo=None)


def _date(days: int) -> date | str | int:
    if abs(days) == FOREVER_DAYS:
        return "infinity" if days > 0 else "-infinity"
    try:
        return FIRST_DAY + timedelta(days=days)
    except OverflowError:
        return days


def _moment(number: int | None, unit: int) -> datetime | None:
    """The time of a number of so many (`unit`) µs since 1970, if it is one that a calendar has."""
    try:
        return None if number is None else EPOCH + timedelta(microseconds=number * unit)
    except OverflowError:
        return None


def _shortest(value: float) -> float:
    """The shortest decimal that is this value in 32 bits: as PostgreSQL writes it."""
    if value != value or value in (float("inf"), float("-inf")):
        return value
    bits = struct.pack("f", value)
    texts = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next(short for short in texts if _packed(short) == bits)


def _packed(value: float) -> bytes | None:
    try:
        return struct.pack("f", value)
    except OverflowError:
        return None
