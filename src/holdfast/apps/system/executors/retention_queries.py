"""The SQL of deletion by age: which rows are old enough, and that exactly these go."""

from collections.abc import Mapping
from typing import LiteralString

# The moment before which rows are old, by the database's clock and in the words of a table's times.
LIMIT: Mapping[str, LiteralString] = {
    "timestamptz": "select (clock_timestamp() - make_interval(secs => %(seconds)s))::text",
    "timestamp": "select ((clock_timestamp() - make_interval(secs => %(seconds)s)) at time zone 'UTC')::text",
    "epoch_ms": "select (floor(extract(epoch from clock_timestamp()) * 1000)"
    " - %(seconds)s * 1000)::bigint::text",
}

# Nobody changes the table from here to the end of the transaction; who reads and writes rows is not held up.
HOLD: LiteralString = "lock table {table} in row exclusive mode"

# A scan of a large table takes its time: for this transaction alone.
PATIENT: LiteralString = "select set_config('statement_timeout', '0', true)"

OLD: LiteralString = """
t.{state} = any(%(states)s::text[]::{state_type}[]) and coalesce({times}) < %(limit)s::{time_type}
"""

# An end from which a row is tried again when it is due is none for that row.
NOT_DUE: LiteralString = "not (t.{state} = any(%(claimable)s::text[]::{state_type}[]) and {lane})"
EMPTY: LiteralString = "t.{column} is null"
FILLED: LiteralString = "t.{column} is not null"

# Rows that somebody else holds are passed over: they are for the next run.
PICK: LiteralString = """
with picked as materialized (
    select t.{key}::text as key from {table} as t where {conditions}
    limit %(batch)s
    for update of t skip locked
)
select key from picked
"""

# Once they are locked, nobody can begin to refer to them; whoever has while we were waiting is seen now.
DELETE: LiteralString = """
delete from {table} as t where t.{key} = any(%(keys)s::text[]::{type}[]) and {conditions}
"""

STAYING: LiteralString = """
select count(*) from (select from {table} as t where {conditions} limit %(most)s) as staying
"""
