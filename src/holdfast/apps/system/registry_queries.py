"""What the catalogue says of a table."""

from typing import LiteralString

# The name is looked up as any statement of ours would: a bare one by the search path.
DEFINITION: LiteralString = """
select c.oid::bigint as oid, n.nspname as schema, c.relname as name, a.attname as column,
    format_type(a.atttypid, a.atttypmod) as type, t.typtype = 'e' as enum, a.attnotnull as filled
from pg_class as c
join pg_namespace as n on n.oid = c.relnamespace
join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
join pg_type as t on t.oid = a.atttypid
where c.oid = to_regclass(%(name)s) and c.relkind in ('r', 'p')
order by a.attnum
"""

# Where a table is made that is called without a schema.
HERE: LiteralString = "select current_schema()"

# Which tables refer to this one, by which columns, and what becomes of their rows when ours go.
REFERRING: LiteralString = """
select f.conname as name, n.nspname as schema, c.relname as table, f.confdeltype = 'c' as cascades,
    array(select a.attname::text from unnest(f.conkey) with ordinality as k (number, place)
        join pg_attribute as a on a.attrelid = f.conrelid and a.attnum = k.number
        order by k.place) as columns,
    array(select a.attname::text from unnest(f.confkey) with ordinality as k (number, place)
        join pg_attribute as a on a.attrelid = f.confrelid and a.attnum = k.number
        order by k.place) as keys
from pg_constraint as f
join pg_class as c on c.oid = f.conrelid
join pg_namespace as n on n.oid = c.relnamespace
where f.contype = 'f' and f.confrelid = %(oid)s and f.conrelid <> f.confrelid and f.conparentid = 0
order by 2, 3, 1
"""

ANNOUNCE: LiteralString = "select pg_notify('holdfast_schema', '')"
