"""Rows as Parquet and back (Y-26)."""

from __future__ import annotations

import io
import json
import random
import sys
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql

from holdfast.apps.system import parquet
from holdfast.apps.system.manifest import ColumnType
from holdfast.apps.system.parquet import About
from holdfast.errors import MissingExtra
from holdfast.platform import metadata
from system.archiving import LEDGERS

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
NATURAL: dict[str, st.SearchStrategy[Any]] = {
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "real": st.floats(allow_nan=False, width=32).map(lambda value: parquet.natural("real", value)),
    "boolean": st.booleans(),
    "text": TEXT,
    "bytea": st.binary(),
    "date": st.dates(),
    "timestamp": st.datetimes(),
    "timestamptz": st.datetimes(timezones=st.just(UTC)),
}


def columns_of(table: str) -> tuple[ColumnType, ...]:
    """The columns of a table as the catalogue has them."""
    found = metadata().tables[table]
    return tuple(
        ColumnType(
            one.name, one.type.compile(postgresql.dialect()).lower().replace("varchar", "character varying")
        )
        for one in found.columns
    )


def natural_values(type: str) -> st.SearchStrategy[Any]:
    if type == "uuid":
        return st.uuids()
    if type in ("jsonb", "json"):
        return JSON
    return NATURAL.get(parquet.kind_of(type), TEXT)


def raw(type: str, value: Any) -> Any:
    """A value as the SQL of a flush reads it."""
    match value:
        case None:
            return None
        case UUID():
            return str(value)
        case _ if type in ("jsonb", "json"):
            return json.dumps(value)
        case datetime():
            return (value.replace(tzinfo=UTC) - parquet.EPOCH) // timedelta(microseconds=1)
        case date():
            return (value - parquet.FIRST_DAY).days
        case _:
            return value


@pytest.mark.parametrize("table", [ledger.table for ledger in LEDGERS] + ["job_event"])
def test_any_row_of_every_ledger_reads_back_equal(table: str) -> None:
    """Y-26: whatever values its columns have."""
    columns = columns_of(table)
    about = About(kind="rows", table=table, key=columns[0].name, columns=columns)

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.tuples(*(st.none() | natural_values(one.type) for one in columns)), max_size=4))
    def check(rows: list[tuple[Any, ...]]) -> None:
        plain = [tuple(raw(one.type, value) for one, value in zip(columns, row, strict=True)) for row in rows]
        sink = io.BytesIO()
        assert parquet.write(sink, about, [parquet.batch_of(about, plain)]) == len(rows)
        assert list(parquet.rows_of(sink)) == plain
        back = [tuple(row.values()) for row in parquet.natural_rows(sink)]
        assert back == rows
        entry = parquet.entry_of("a", sink)
        assert entry is not None
        assert (entry.rows, entry.columns, entry.key) == (len(rows), columns, columns[0].name)

    check()


def test_infinite_times_read_back() -> None:
    """Y-26: and a time that Python has no word for stays a number."""
    columns = (ColumnType("at", "timestamp with time zone"), ColumnType("day", "date"))
    about = About(kind="rows", table="t", key="at", columns=columns, times=("at",))
    far = parquet.FOREVER - 1
    rows = [
        (parquet.FOREVER, parquet.FOREVER_DAYS),
        (-parquet.FOREVER, -parquet.FOREVER_DAYS),
        (far, 4_000_000),
    ]
    sink = io.BytesIO()
    parquet.write(sink, about, [parquet.batch_of(about, rows)])
    assert list(parquet.rows_of(sink)) == rows
    assert [tuple(row.values()) for row in parquet.natural_rows(sink)] == [
        ("infinity", "infinity"),
        ("-infinity", "-infinity"),
        (far, 4_000_000),
    ]
    entry = parquet.entry_of("a", sink)
    assert entry is not None
    assert (entry.first, entry.last) == (None, None)


@pytest.mark.parametrize(
    ("type", "kind"),
    [
        ("timestamp(3) with time zone", "timestamptz"),
        ("timestamp without time zone", "timestamp"),
        ("character varying", "text"),
        ("character(5)", "text"),
        ("text[]", "other"),
        ("numeric(10,2)", "other"),
        ("interval", "other"),
        ("job_status", "other"),
    ],
)
def test_what_parquet_has_no_like_for_is_text(type: str, kind: str) -> None:
    """Y-26."""
    assert parquet.kind_of(type) == kind


def test_a_file_that_is_none_of_ours_has_no_entry() -> None:
    """Y-25."""
    import pyarrow
    import pyarrow.parquet

    assert parquet.entry_of("a", io.BytesIO(b"PAR1 and so on")) is None
    other = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), other)
    assert parquet.entry_of("a", other) is None


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Y-26."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match=r"holdfast\[system\]"):
        parquet.pyarrow()


@pytest.mark.parametrize(("length", "groups"), [(100_000, 30), (10, 1)], ids=["large rows", "small rows"])
def test_a_file_is_read_in_batches_of_few_bytes_and_small_row_groups_are_joined(
    length: int, groups: int
) -> None:
    """Y-31: what merges files writes these batches; neither its memory nor its row groups depend on rows."""
    about = About(kind="rows", table="t", key="id", columns=(ColumnType("id", "text"),))
    chance = random.Random(1)
    pages = [[(chance.randbytes(length).hex(),) for _ in range(10)] for _ in range(30)]
    file, again = io.BytesIO(), io.BytesIO()
    assert parquet.write(file, about, (parquet.batch_of(about, page) for page in pages)) == 300
    found = [*parquet.batches(file)]
    assert len(found) == groups
    assert max(batch.nbytes for batch in found) < 1.1 * parquet.GROUP_BYTES
    parquet.write(again, about, found)
    assert parquet.opened(again)[0].num_row_groups == groups
    assert [*parquet.rows_of(again)] == [row for page in pages for row in page]
