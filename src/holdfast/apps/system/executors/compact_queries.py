"""The SQL of a compaction: leftovers of an index that was being rebuilt, bloated indexes, VACUUM, REINDEX."""

from typing import LiteralString

# What a REINDEX CONCURRENTLY has left behind when it was cut off. An index that somebody is just making is
# invalid, too, but has another name.
LEFTOVERS: LiteralString = """
select n.nspname, c.relname
from pg_index as i
join pg_class as c on c.oid = i.indexrelid
join pg_namespace as n on n.oid = c.relnamespace
where i.indrelid = %(oid)s and not i.indisvalid and c.relname ~ '_cc(new|old)[0-9]*$'
order by 2
"""

DROP_INDEX: LiteralString = "drop index concurrently if exists {}"

VACUUM: LiteralString = "vacuum (analyze) {}"

REINDEX: LiteralString = "reindex index concurrently {}"

# B-trees that have more than twice the pages that their rows would fill, by the widths that ANALYZE found:
# 8 bytes for the head of an entry and 4 for its place, in pages of which the fill factor is used. What has
# no statistics cannot be estimated, and small ones are not worth it.
BLOATED: LiteralString = """
with entries as (
    select i.indexrelid as oid, n.nspname as schema, c.relname as name, c.relpages as pages,
        greatest(c.reltuples, 0)::float8 as tuples,
        coalesce((select split_part(o, '=', 2)::float8 from unnest(c.reloptions) as o
            where o like 'fillfactor=%%'), 90) / 100 as fill,
        (
            select sum(coalesce(own.avg_width, of_table.avg_width))
            from unnest(i.indkey::int2[]) with ordinality as k (number, place)
            left join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.number
            left join pg_attribute as e on e.attrelid = i.indexrelid and e.attnum = k.place
            left join pg_stats as of_table on of_table.schemaname = tn.nspname
                and of_table.tablename = t.relname and of_table.attname = a.attname
            left join pg_stats as own on own.schemaname = n.nspname
                and own.tablename = c.relname and own.attname = e.attname
            having bool_and(coalesce(own.avg_width, of_table.avg_width) is not null)
        )::float8 as width
    from pg_index as i
    join pg_class as c on c.oid = i.indexrelid
    join pg_namespace as n on n.oid = c.relnamespace
    join pg_class as t on t.oid = i.indrelid
    join pg_namespace as tn on tn.oid = t.relnamespace
    join pg_am as m on m.oid = c.relam and m.amname = 'btree'
    where i.indrelid = %(oid)s and i.indisvalid and i.indisready and c.relkind = 'i'
)
select schema, name from (
    select *, 2 + ceil(tuples * (12 + 8 * ceil(width / 8))
        / ((current_setting('block_size')::float8 - 40) * fill)) as needed
    from entries where width is not null or tuples = 0
) as estimated
where pages > 2 * needed and pages > %(least)s
order by 2
"""
