"""The SQL of backups: one snapshot for dump and counts, and what a schema holds and needs."""

from typing import LiteralString

BEGIN: LiteralString = "begin isolation level repeatable read, read only"
END: LiteralString = "rollback"

# None of these takes a snapshot: what waits for a lock must see what whoever had it has done.
PATIENT: LiteralString = "set local statement_timeout = 0"
LOCK_WAIT: LiteralString = "set local lock_timeout = {wait}"
LOCK: LiteralString = "lock table {tables} in access share mode"

# Whether somebody waits for what we have locked.
AWAITED: LiteralString = """
select exists (
    select from pg_locks as l where not l.granted and pg_backend_pid() = any(pg_blocking_pids(l.pid))
)
"""

# For a transaction that lasts as long as a dump. What a value looks like as text must not depend on who asks.
# Row security that hid rows from us is an error and no shorter count.
LASTING: LiteralString = """
select set_config(name, value, true) from (values
    ('statement_timeout', '0'), ('idle_in_transaction_session_timeout', '0'), ('row_security', 'off'),
    ('search_path', 'pg_catalog'), ('TimeZone', 'UTC'), ('DateStyle', 'ISO, YMD'),
    ('IntervalStyle', 'postgres'),
    ('extra_float_digits', '1'), ('bytea_output', 'hex'), ('lc_monetary', 'C'), ('xmlbinary', 'base64')
) as pins (name, value)
"""

SNAPSHOT: LiteralString = "select pg_export_snapshot()"

CLOCK: LiteralString = """
select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), current_database()
"""

# An error would end the transaction.
INSTALLED: LiteralString = "select to_regclass('holdfast_version') is not null"

SCHEMA_EXISTS: LiteralString = "select exists (select from pg_namespace where nspname = %(schema)s)"

# Those that have rows of their own: a partitioned table's are in its partitions.
TABLES: LiteralString = """
select c.relname from pg_class as c
where c.relnamespace = (select oid from pg_namespace where nspname = %(schema)s) and c.relkind = 'r'
order by c.relname
"""

# All that pg_dump locks.
LOCKABLE: LiteralString = """
select c.relname from pg_class as c
where c.relnamespace = (select oid from pg_namespace where nspname = %(schema)s) and c.relkind in ('r', 'p')
order by c.relname
"""

# Where names are looked for: what a value names (regclass and its like) is bare if it is in this schema, also
# when that gets another name.
PATH: LiteralString = "select set_config('search_path', %(path)s, true)"

# A sum of hashes is the same in any order. It is as wide as it takes that two tables differ by no accident.
# Every value has a type, so that no function of the schema fits better than PostgreSQL's own.
COUNT: LiteralString = """
select count(*), coalesce(sum((
    'x'::text || encode(substring(sha256(convert_to(holdfast_row::text, 'UTF8'::name)) for 8), 'hex'::text)
)::bit(64)::bigint::numeric), 0::numeric)::text
from only {table} as holdfast_row
"""

# The columns whose values are names, or lists of them.
OF_NAMES: LiteralString = """
select c.relname, a.attname, coalesce(nullif(t.typelem, 0), t.oid) = 'regnamespace'::regtype
from pg_class as c
join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
join pg_type as t on t.oid = a.atttypid
where c.relnamespace = (select oid from pg_namespace where nspname = %(schema)s) and c.relkind = 'r'
    and coalesce(nullif(t.typelem, 0), t.oid) in (
        'regclass'::regtype, 'regproc'::regtype, 'regprocedure'::regtype, 'regoper'::regtype,
        'regoperator'::regtype, 'regtype'::regtype, 'regconfig'::regtype, 'regdictionary'::regtype,
        'regcollation'::regtype, 'regnamespace'::regtype
    )
order by 1, 2
"""

# Whether one of the names is that of something elsewhere: it has a dot that is in no quotes.
ELSEWHERE: LiteralString = """
select exists (
    select from only {table} as t
    where regexp_replace(t.{column}::text, '"([^"]|"")*"|information_schema[.]'::text, ''::text, 'g'::text)
        ~ '[.]'::text
)
"""

# Whatever belongs to a schema: what is in it, and what hangs on its tables.
MEMBERS: LiteralString = """
with here as (
    select oid from pg_namespace where nspname = %(schema)s
),
relations as (
    select oid from pg_class where relnamespace in (select oid from here)
),
members (classid, objid) as (
    select 'pg_class'::regclass, oid from relations
    union all
    select 'pg_type'::regclass, oid from pg_type where typnamespace in (select oid from here)
    union all
    select 'pg_proc'::regclass, oid from pg_proc where pronamespace in (select oid from here)
    union all
    select 'pg_operator'::regclass, oid from pg_operator where oprnamespace in (select oid from here)
    union all
    select 'pg_opclass'::regclass, oid from pg_opclass where opcnamespace in (select oid from here)
    union all
    select 'pg_opfamily'::regclass, oid from pg_opfamily where opfnamespace in (select oid from here)
    union all
    select 'pg_collation'::regclass, oid from pg_collation where collnamespace in (select oid from here)
    union all
    select 'pg_conversion'::regclass, oid from pg_conversion where connamespace in (select oid from here)
    union all
    select 'pg_statistic_ext'::regclass, oid from pg_statistic_ext
    where stxnamespace in (select oid from here)
    union all
    select 'pg_ts_config'::regclass, oid from pg_ts_config where cfgnamespace in (select oid from here)
    union all
    select 'pg_ts_dict'::regclass, oid from pg_ts_dict where dictnamespace in (select oid from here)
    union all
    select 'pg_constraint'::regclass, oid from pg_constraint where connamespace in (select oid from here)
    union all
    select 'pg_attrdef'::regclass, oid from pg_attrdef where adrelid in (select oid from relations)
    union all
    select 'pg_trigger'::regclass, oid from pg_trigger where tgrelid in (select oid from relations)
    union all
    select 'pg_policy'::regclass, oid from pg_policy where polrelid in (select oid from relations)
    union all
    select 'pg_rewrite'::regclass, oid from pg_rewrite where ev_class in (select oid from relations)
    union all
    select 'pg_default_acl'::regclass, oid from pg_default_acl where defaclnamespace in (select oid from here)
),
extended as (
    select classid, objid, refobjid as extension from pg_depend
    where refclassid = 'pg_extension'::regclass and deptype = 'e'
)
"""

# What leads out of the schema: to a table, type or function of another one that is no extension's.
OUTWARD: LiteralString = (
    MEMBERS  # noqa: S608
    + """
select distinct mine.type || ' ' || mine.identity || ' needs ' || other.type || ' ' || other.identity
from pg_depend as d
join members as m on (m.classid, m.objid) = (d.classid, d.objid)
cross join lateral pg_identify_object(d.classid, d.objid, 0) as mine
cross join lateral pg_identify_object(d.refclassid, d.refobjid, 0) as other
where d.deptype in ('n', 'a')
    and other.schema not in (%(schema)s, 'pg_catalog', 'information_schema', 'pg_toast')
    and not exists (select from members as r where (r.classid, r.objid) = (d.refclassid, d.refobjid))
    and not exists (select from extended as e where (e.classid, e.objid) = (d.refclassid, d.refobjid))
    and not exists (select from extended as e where (e.classid, e.objid) = (d.classid, d.objid))
order by 1
"""
)

# What leads into the schema, and would go with it.
INWARD: LiteralString = (
    MEMBERS
    + """
select distinct other.type || ' ' || other.identity || ' needs ' || mine.type || ' ' || mine.identity
from pg_depend as d
join members as m on (m.classid, m.objid) = (d.refclassid, d.refobjid)
cross join lateral pg_identify_object(d.refclassid, d.refobjid, 0) as mine
cross join lateral pg_identify_object(d.classid, d.objid, 0) as other
where d.deptype in ('n', 'a', 'i') and other.schema is distinct from 'pg_toast'
    and not exists (select from members as r where (r.classid, r.objid) = (d.classid, d.objid))
    and not exists (
        -- The parts of an operator class have no schema of their own.
        select where d.classid in ('pg_amop'::regclass, 'pg_amproc'::regclass)
    )
order by 1
"""
)

# The extensions whose things the schema uses, and where they live.
EXTENSIONS: LiteralString = (
    MEMBERS
    + """
select distinct x.extname as name, n.nspname as schema
from pg_depend as d
join members as m on (m.classid, m.objid) = (d.classid, d.objid)
join extended as e on (e.classid, e.objid) = (d.refclassid, d.refobjid)
join pg_extension as x on x.oid = e.extension
join pg_namespace as n on n.oid = x.extnamespace
where d.deptype in ('n', 'a')
    and not exists (select from extended as own where (own.classid, own.objid) = (d.classid, d.objid))
order by 1
"""
)

# The roles that something of the schema belongs to, and those that may do something with it. What the first
# user of a server owns is nowhere written down as such.
ROLES: LiteralString = (
    MEMBERS  # noqa: S608
    + """,
owners (oid) as (
    select nspowner from pg_namespace where nspname = %(schema)s
    union select relowner from pg_class where relnamespace in (select oid from here)
    union select proowner from pg_proc where pronamespace in (select oid from here)
    union select typowner from pg_type where typnamespace in (select oid from here)
),
granted (oid) as (
    select s.refobjid from pg_shdepend as s
    where s.dbid = (select oid from pg_database where datname = current_database())
        and s.refclassid = 'pg_authid'::regclass and s.deptype in ('a', 'r')
        and (
            exists (select from members as m where (m.classid, m.objid) = (s.classid, s.objid))
            or s.classid = 'pg_namespace'::regclass and s.objid in (select oid from here)
        )
)
select rolname, oid in (select oid from owners), oid in (select oid from granted)
from pg_roles where oid in (select oid from owners union select oid from granted)
order by 1
"""
)

# Functions whose text names the schema: such a text stays as it is when the schema gets another name. Ours
# are known, and are written anew.
NAMING: LiteralString = """
select p.oid::regprocedure::text
from pg_proc as p
join pg_language as l on l.oid = p.prolang
where p.pronamespace = (select oid from pg_namespace where nspname = %(schema)s)
    and l.lanname not in ('c', 'internal') and p.prosrc ~ %(naming)s
    and obj_description(p.oid, 'pg_proc') is distinct from 'made by Holdfast'
    and not exists (
        select from pg_depend as e
        where e.classid = 'pg_proc'::regclass and e.objid = p.oid and e.deptype = 'e'
    )
order by 1
"""

# Tables whose rows refer to rows of tables that would be left out.
REFERRING: LiteralString = """
select distinct r.relname || ' refers to ' || f.relname
from pg_constraint as k
join pg_class as r on r.oid = k.conrelid
join pg_class as f on f.oid = k.confrelid
where k.contype = 'f' and r.relnamespace = (select oid from pg_namespace where nspname = %(schema)s)
    and r.relname = any(%(tables)s) and f.relname <> all(%(tables)s)
order by 1
"""
