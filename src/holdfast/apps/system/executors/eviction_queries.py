"""The SQL of a stream's eviction: which rows are old enough, and that exactly these go."""

from collections.abc import Mapping
from typing import LiteralString

# What counts as a time, by the type of its column.
KINDS: Mapping[str, str] = {
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
    "bigint": "epoch_ms",
}

FIRST: Mapping[str, LiteralString] = {
    "timestamptz": "-infinity",
    "timestamp": "-infinity",
    "epoch_ms": "-9223372036854775808",
}

# Opens an append-only table, for this transaction. Of use only to who may delete there.
OPEN: LiteralString = "select set_config(%(gate)s, 'on', true)"

OLD: LiteralString = "t.{time} < %(limit)s::{type}"

# In the order of time, and each batch from where the last one ended: what stays is not read again and again.
EVICT: LiteralString = """
with picked as materialized (
    select {picked}, t.{time} as at from {table} as t
    where t.{time} >= %(since)s::{type} and {conditions}
    order by t.{time}
    limit %(batch)s
    for update of t skip locked
), removed as (
    delete from {table} as t where ({columns}) in (select {named} from picked) and {conditions}
    returning 1
)
select (select count(*) from removed), (select max(at)::text from picked)
"""
