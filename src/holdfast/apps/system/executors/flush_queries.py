"""The SQL of a flush: which rows go, what of them is written, and that exactly these leave the table."""

from collections.abc import Mapping
from typing import LiteralString

# A batch waits for its file, and a scan of a large table takes its time: for this transaction alone.
PATIENT: LiteralString = """
select set_config('statement_timeout', '0', true),
    set_config('idle_in_transaction_session_timeout', '0', true)
"""

# Which database this is; a copy of it on the same server is another.
WHOSE: LiteralString = """
select 'server ' || system_identifier || ' database '
    || (select oid from pg_database where datname = current_database())
from pg_control_system()
"""

# The number of this transaction, and how one of a number has ended: null if that is too long ago.
XID: LiteralString = "select pg_current_xact_id()::text"
ENDED: LiteralString = "select pg_xact_status(%(xid)s::text::xid8)"

# A commit that has something to write writes out whatever was done before, by others too.
WRITE_OUT: LiteralString = """
select set_config('synchronous_commit', 'local', true), pg_logical_emit_message(true, 'holdfast', 'flush')
"""

# Up to when rows must have ended, by the database's clock and in the words of the ledger's times.
UNTIL: Mapping[str, LiteralString] = {
    "timestamptz": "select (now() - make_interval(secs => %(seconds)s))::text",
    "timestamp": "select ((now() - make_interval(secs => %(seconds)s)) at time zone 'UTC')::text",
    "epoch_ms": "select floor(extract(epoch from now() - make_interval(secs => %(seconds)s)) * 1000)"
    "::bigint::text",
}

TIME_TYPE: Mapping[str, LiteralString] = {
    "timestamptz": "timestamptz",
    "timestamp": "timestamp",
    "epoch_ms": "bigint",
}

# Rows that somebody else holds are passed over: they are for the next run.
PICK: LiteralString = """
with picked as materialized (
    select t.{key}::text as key from {table} as t
    where t.{state} = any(%(states)s::text[]::{state_type}[])
    and coalesce({times}) < %(until)s::{time_type}
    and t.{key}::text is distinct from %(running)s
    and {conditions}
    limit %(rows)s
    for update of t skip locked
)
select key from picked
"""

# Once they are locked, nobody can begin to refer to them; whoever has while we were waiting is seen now.
STILL_PICKED: LiteralString = """
select t.{key}::text from {table} as t
where t.{key} = any(%(keys)s::text[]::{type}[])
and t.{state} = any(%(states)s::text[]::{state_type}[])
and coalesce({times}) < %(until)s::{time_type}
and {conditions}
"""

# The same, for whoever only wants to know whether there are many.
COUNT: LiteralString = """
select count(*) from (
    select from {table} as t
    where t.{state} = any(%(states)s::text[]::{state_type}[])
    and coalesce({times}) < %(until)s::{time_type}
    and {conditions}
    limit %(rows)s
) as found
"""

# What refers to a row keeps it, unless it goes with it into the archive.
NOT_REFERRED: LiteralString = "not exists (select from {table} as r where ({columns}) = ({keys}))"

# A time that does not fit into a file keeps its row.
FITS: LiteralString = "(t.{column} is null or not isfinite(t.{column}) or t.{column} < '294247-01-01')"

# With a lock, also on what goes along: a change that came after would go with the row, and be in no file.
READ: LiteralString = """
select {columns} from {table} as t where t.{key} = any(%(keys)s::text[]::{type}[]) order by t.{key}
for update of t
"""

# With a lock: whoever still holds one of these rows, like a flush that was cut off, has ended before we look.
STILL_THERE: LiteralString = """
select {columns} from {table} as t where t.{key} = any(%(keys)s::text[]::{type}[]) for update
"""

DELETE: LiteralString = "delete from {table} where {key} = any(%(keys)s::text[]::{type}[])"

# How a value of each kind is read: in a form that Parquet has, or as its text.
VALUE: Mapping[str, LiteralString] = {
    "date": "case t.{0} when 'infinity' then 2147483647 when '-infinity' then -2147483647"
    " else t.{0} - date '1970-01-01' end",
    "timestamp": "case t.{0} when 'infinity' then 9223372036854775807"
    " when '-infinity' then -9223372036854775807"
    " else (extract(epoch from t.{0}) * 1000000)::bigint end",
    "timestamptz": "case t.{0} when 'infinity' then 9223372036854775807"
    " when '-infinity' then -9223372036854775807"
    " else (extract(epoch from t.{0}) * 1000000)::bigint end",
    "other": "t.{0}::text",
}
PLAIN: LiteralString = "t.{0}"

# Foreign keys of a table that lead to itself.
OWN_REFERENCES: LiteralString = """
select array(select a.attname::text from unnest(f.conkey) with ordinality as k (number, place)
        join pg_attribute as a on a.attrelid = f.conrelid and a.attnum = k.number order by k.place),
    array(select a.attname::text from unnest(f.confkey) with ordinality as k (number, place)
        join pg_attribute as a on a.attrelid = f.confrelid and a.attnum = k.number order by k.place)
from pg_constraint as f
where f.contype = 'f' and f.confrelid = %(oid)s and f.conrelid = f.confrelid and f.conparentid = 0
"""
