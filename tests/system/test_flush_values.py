"""Whatever a column may hold reads back equal from the archive (Y-26)."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from holdfast.apps.system import manifest as manifests
from holdfast.apps.system import parquet
from holdfast.apps.system.source import source_of
from holdfast.db.pool import Connection
from holdfast.db.settings import Settings
from holdfast.engine.roles import Key
from runtime.support import ERRANDS
from system.archiving import place

ODD = """
create schema odd;
create type odd.mood as enum ('very "glad"', 'so, so');
create domain odd.positive as int check (value > 0);
create table odd.things (
    id text primary key, status text not null, "the % of it" numeric, made_at timestamptz not null,
    small smallint, whole integer, big bigint, single real, double double precision, yes boolean,
    fixed char(5), short varchar(9), raw bytea, day date, at timestamp, moment timestamptz, of odd.mood,
    words text[], moods odd.mood[], numbers numeric[], long interval, address inet, few odd.positive,
    document json, tree jsonb, span tstzrange, bits bit varying, key uuid
);
insert into odd.things select 'n' || n, 'over', null, '2020-01-01' from generate_series(1, 2) n;
insert into odd.things values
    ('a', 'over', 'NaN', '2020-01-01', -32768, -2147483648, -9223372036854775808,
    'NaN', 'NaN', true, 'ab ',
    '', '\\x', 'infinity', 'infinity', 'infinity', 'so, so', '{}', '{}', '{NaN,null}',
    '-1 mon 2 days -03:04:05.000006',
    '::1', 1, ' {"b":1, "a" : 1.0, "b":2} ', '{"b": 1.00, "a": 1e400, "n": "\\u00e4"}', '[2020-01-01,)',
    '101',
    '00000000-0000-0000-0000-000000000000'),
    ('b', 'over', 'Infinity', '2020-01-01', 32767, 2147483647, 9223372036854775807,
    '-Infinity', '-Infinity', false,
    'abcde', 'ö 😀', '\\x00ff', '-infinity', '-infinity', '-infinity', 'very "glad"',
    '{"a\\"b",null,NULL,"null"," "}',
    '{"very \\"glad\\"",null}', '{1.10,-2}', '178000000 years',
    '10.0.0.0/8', 7, 'null', 'null', 'empty', '', null),
    ('c', 'over', 1234567890123456789012345678901234567890.5000, '2020-01-01', 0, 0, 0,
    0.1, 0.1, null, '', E'\\n\\t',
    '\\x5c', '4713-01-01 BC', '4713-01-01 BC', '4713-01-01 BC', null, '{{a,b},{c,d}}',
    null, '[0:1]={1,2}', '0',
    null, null, '"x"', '[]', null, null, null),
    ('d', 'over', -0.0, '2020-01-01', null, null, null, 3.4028235e38,
    1.7976931348623157e308, null, null, null, null,
    '5874897-12-31', '294246-12-31 23:59:59.999999',
    '294246-12-31 23:59:59.999999', null, null, null, null, null,
    null, null, null, null, null, null, null),
    ('e', 'over', 1e-30, '2020-01-01', null, null, null, 1e-45, -0.0, null, null, null, null,
    '0001-01-01', '0001-01-01', '1999-12-31 23:59:59.999999+14', null, null, null, null, null,
    null, null, null, null, null, null, null),
    ('late', 'over', 0, '2020-01-01', null, null, null, null, null, null, null, null, null,
    null, '294276-12-31 23:59:59.999999', null, null, null, null, null, null,
    null, null, null, null, null, null, null);
create table odd.copy (like odd.things);
create table odd.before as table odd.things;
"""
THINGS = replace(ERRANDS, name="things", table="odd.things", key=Key("id", "text"), state="status")
READ = "select t.id, {} from odd.before as t where id <> 'late' order by 1"
DIFFER = """
select c.id, c."column", c.value, t.value from copies as c
join (select t.id, e.key as "column", e.value from odd.before as t, jsonb_each_text(to_jsonb(t)) as e) as t
    using (id, "column")
where c.value is distinct from t.value
"""


async def test_every_value_of_every_type_reads_back_equal(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-26: also what Parquet has no like for; a time that no file can hold keeps its row."""
    await conn.execute(ODD)
    async with place(settings, (tmp_path / "archive").as_uri(), (THINGS,)) as here:
        source = await source_of(conn, here.bench.registry, here.bench.registry.ledger("things"))
        assert await here.flush("things") == "7 rows to 1 file"
        (entry,) = (await manifests.read(here.archive, "odd.things")).files
        with await manifests.opened(here.archive, entry) as file:
            written = [_singled(entry, row) for row in sorted(parquet.rows_of(file))]
        natural = await here.rows("odd.things")
    assert await (await conn.execute("select id from odd.things")).fetchall() == [("late",)]
    reading = READ.format(source.rows.reading().as_string(conn).replace("%%", "%"))
    before = [row[1:] for row in await (await conn.execute(reading.encode())).fetchall()]
    assert list(map(repr, written)) == list(map(repr, before))
    await _differs_from_nothing(conn, entry, natural)


def _singled(entry: manifests.Entry, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row as it was read from the table: a number of 32 bits has fewer digits there."""
    pairs = zip(entry.columns, row, strict=True)
    return tuple(parquet.natural("real", value) if one.type == "real" else value for one, value in pairs)


async def _differs_from_nothing(conn: Connection, entry: manifests.Entry, rows: list[dict[str, Any]]) -> None:
    """Each value, made a value of its type again from what was read, is in the database what it was."""
    await conn.execute('create table copies (id text, "column" text, value text)')
    compared = 0
    for row in rows:
        for one in entry.columns:
            if (given := _told(one.type, row[one.name])) is not None:
                made = f"select %s, %s, to_jsonb(%s::text::{one.type}) #>> '{{}}'"
                await conn.execute(f"insert into copies {made}".encode(), [row["id"], one.name, given])
                compared += 1
    assert compared > 70
    assert await (await conn.execute(DIFFER)).fetchall() == []


def _told(type: str, value: Any) -> str | None:
    """A value as PostgreSQL reads it; None where there is none, or Python has no word for it."""
    match value:
        case None:
            return None
        case _ if type == "bytea":
            return "\\x" + value.hex()
        case int() if parquet.kind_of(type) in ("date", "timestamp", "timestamptz"):
            return None
        case _ if type in ("json", "jsonb"):
            return None  # Python's numbers are not JSON's; their texts were compared
        case date():
            return value.isoformat()
        case _:
            return str(value)
