"""The SQL of restores: what must be there, the scratch, and the step in which a schema takes its place."""

from typing import LiteralString

UNLIMITED: LiteralString = """
select set_config('statement_timeout', '0', false),
    set_config('idle_in_transaction_session_timeout', '0', false)
"""

# -- what must be there ------------------------------------------------------------------------------

RIGHTS: LiteralString = """
select r.rolsuper or r.rolcreatedb as may_create_databases,
    has_database_privilege(current_database(), 'CREATE') as may_create_schemas,
    quote_ident(current_user) as me, quote_ident(current_database()) as here
from pg_roles as r where r.rolname = current_user
"""

# Where the tables are that are called without a schema.
HERE: LiteralString = "select current_schema()"

THERE: LiteralString = "select to_regclass(%(table)s) is not null"

# NULL where there is no such schema.
TARGET: LiteralString = """
select pg_has_role(nspowner, 'USAGE') as ours, quote_ident(pg_get_userbyid(nspowner)) as owner
from pg_namespace where nspname = %(schema)s
"""

EXTENSIONS_INSIDE: LiteralString = """
select x.extname from pg_extension as x join pg_namespace as n on n.oid = x.extnamespace
where n.nspname = %(schema)s order by 1
"""

EXTENSIONS_MISSING: LiteralString = """
select name from unnest(%(names)s::text[]) as name
where not exists (select from pg_extension where extname = name) order by 1
"""

ROLES_MISSING: LiteralString = """
select name from unnest(%(names)s::text[]) as name
where not exists (select from pg_roles where rolname = name) order by 1
"""

ROLES_NOT_OURS: LiteralString = """
select r.rolname from pg_roles as r
where r.rolname = any(%(names)s::text[]) and not pg_has_role(r.oid, 'MEMBER') order by 1
"""

# -- the scratch -------------------------------------------------------------------------------------

# The columns that tell the locale have other names in other versions.
LOCALE: LiteralString = """
select d.oid::bigint as number, d.datname as name, pg_encoding_to_char(d.encoding) as encoding,
    d.datcollate as collate, d.datctype as ctype, d.datlocprovider::text as provider,
    coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale') as locale
from pg_database as d where d.datname = current_database()
"""

CREATE_DATABASE: LiteralString = """
create database {name} template template0 encoding {encoding} lc_collate {collate} lc_ctype {ctype}
locale_provider {provider}
"""
ICU: LiteralString = " icu_locale {locale}"
BUILTIN: LiteralString = " builtin_locale {locale}"

DROP_DATABASE: LiteralString = "drop database if exists {name} with (force)"
DROP_SCHEMA: LiteralString = "drop schema if exists {name} cascade"
CREATE_SCHEMA: LiteralString = "create schema if not exists {name}"
# Everybody may use the schema that every database begins with. A dump takes that for granted, and tells only
# what differs from it.
OPEN_TO_ALL: LiteralString = "alter default privileges grant usage on schemas to public"
CREATE_EXTENSION: LiteralString = "create extension if not exists {name} schema {schema} cascade"
RENAME: LiteralString = "alter schema {name} rename to {new}"
ANALYZE: LiteralString = "analyze {table}"

# What killed restores of this database have left: a database, a schema, or both.
LEFTOVERS: LiteralString = """
select datname::text from pg_database where starts_with(datname::text, %(prefix)s)
union
select nspname::text from pg_namespace where starts_with(nspname::text, %(prefix)s)
order by 1
"""

# Programs that outlived the process that had started them.
END_PROGRAMS: LiteralString = """
select pg_terminate_backend(pid, 5000) from pg_stat_activity
where application_name = %(name)s and pid <> pg_backend_pid()
"""

# -- taking the place --------------------------------------------------------------------------------

HASTE: LiteralString = """
select set_config('lock_timeout', '800', true), set_config('statement_timeout', '0', true)
"""

# What an upgrade holds while it alters tables. Whoever waits for it here waits as long as for a table.
UPGRADES: LiteralString = "select pg_advisory_xact_lock(hashtextextended('holdfast.migrate', 0))"

RELATIONS: LiteralString = """
select c.relname from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where n.nspname = %(schema)s and c.relkind in ('r', 'p') order by 1
"""
LOCK: LiteralString = "lock table {tables} in access exclusive mode"

# Whether a name, as everybody writes it, means a table of this schema.
MEANT: LiteralString = """
select exists (
    select from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    where c.oid = to_regclass(%(table)s) and n.nspname = %(schema)s
)
"""

HAS_TABLE: LiteralString = """
select exists (
    select from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    where n.nspname = %(schema)s and c.relname = %(table)s and c.relkind = 'r'
)
"""

# The columns that a table has in both schemas and that take a value.
SHARED: LiteralString = """
select a.attname from pg_attribute as a
join pg_class as c on c.oid = a.attrelid
join pg_namespace as n on n.oid = c.relnamespace
where n.nspname in (%(old)s, %(new)s) and c.relname = %(table)s
    and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.attidentity <> 'a'
group by a.attname having count(*) = 2
order by 1
"""

FORGET_ALL: LiteralString = "delete from {table}"
FORGET_ROW: LiteralString = "delete from {table} where {key} = %(id)s"
CARRY_ALL: LiteralString = "insert into {new} ({columns}) select {columns} from {old}"
CARRY_ROW: LiteralString = "insert into {new} ({columns}) select {columns} from {old} where {key} = %(id)s"

# While their table was ours alone, workers could not say that they live. The transaction began before that.
BEATEN: LiteralString = """
update {workers} set last_heartbeat = clock_timestamp() at time zone 'UTC'
where last_heartbeat >= (now() at time zone 'UTC') - make_interval(secs => %(timeout)s)
"""

OTHERS_RUNNING: LiteralString = """
select {key}::text from {table} where {state} = any(%(states)s) and {key} <> %(id)s order by 1
"""

# What waited or ran when a backup of the system jobs was made was done since, or is not wanted any more: a
# deletion that comes back must not be run again by itself.
# A backup job is running in its own dump; its manifest, which is written last, proves that it was completed.
COMPLETE_BACKUPS: LiteralString = """
update {table} as t set {state} = 'completed', message = made.message, exception_trace = null,
    finished_at = made.at, updated_at = greatest(t.updated_at, made.at)
from (
    select b.id, b.message, floor(extract(epoch from b.at::timestamptz) * 1000)::bigint as at
    from unnest(%(jobs)s::text[], %(messages)s::text[], %(times)s::text[]) as b (id, message, at)
) as made
where t.{key} = made.id and t.job_type = 'backup' and t.{state} <> all(%(ends)s)
"""

END_UNFINISHED: LiteralString = """
update {table} set {state} = 'failed', message = %(why)s, exception_trace = null,
    finished_at = floor(extract(epoch from clock_timestamp()) * 1000)::bigint,
    updated_at = floor(extract(epoch from clock_timestamp()) * 1000)::bigint
where {state} <> all(%(ends)s) and {key} <> %(id)s
returning {key}::text
"""

# A fence never goes back: whoever was told a later one before the restore must not be taken for its holder.
RAISE_FENCES: LiteralString = """
update {new} as t set {sets} from {old} as o
where o.{key} = t.{key} and o.{fence} > t.{fence}
"""
FENCE: LiteralString = "{fence} = o.{fence}"
TOUCHED: LiteralString = ", {updated} = greatest({clock}, t.{updated})"

# The same where rows have a record: each tells it, or the next claim would not follow from what is told.
RAISE_AND_TELL: LiteralString = (
    "with moved as ("
    + RAISE_FENCES
    + """
    returning t.*
)
insert into {journal} ({row}, {at}, {prev}, {next}, {detail})
select t.{key}, {moment}, t.{state}::text, t.{state}::text,
    jsonb_strip_nulls(jsonb_build_object({facts}, 'by', %(by)s::text))
from moved as t order by t.{key}
"""
)

# Functions that look for their tables in the schema's old name, and those of ours whose text has it.
SEARCHING: LiteralString = """
select p.oid::regprocedure::text, substring(setting from '=(.*)')
from pg_proc as p
join pg_namespace as n on n.oid = p.pronamespace
cross join lateral unnest(p.proconfig) as setting
where n.nspname = %(schema)s and setting like 'search_path=%%'
order by 1
"""
WRITTEN: LiteralString = """
select pg_get_functiondef(p.oid)
from pg_proc as p
join pg_namespace as n on n.oid = p.pronamespace
join pg_language as l on l.oid = p.prolang
where n.nspname = %(schema)s and l.lanname not in ('c', 'internal') and p.prokind in ('f', 'p')
    and p.prosrc ~ %(naming)s and obj_description(p.oid, 'pg_proc') = 'made by Holdfast'
order by 1
"""
SET_SEARCH_PATH: LiteralString = "alter routine {function} set search_path = {schemas}"

# Pooled sessions keep statements that were prepared for the tables that are gone, and for the types of their
# columns. One that is idle for a while can be ended: the pool checks it before it lends it. One that is idle
# since a moment may be in use by a client that is between two statements. Returned is how many are left.
RENEW: LiteralString = """
select count(*) filter (where not at_rest),
    count(case when at_rest then pg_terminate_backend(pid) end)
from pg_stat_activity,
    lateral (select coalesce(state = 'idle' and state_change
        <= clock_timestamp() - make_interval(secs => %(idle)s), false) as at_rest) as told
where datname = current_database() and starts_with(application_name, 'holdfast pool')
    and backend_start < %(since)s and pg_has_role(usesysid, 'MEMBER')
"""
CLOCK: LiteralString = "select clock_timestamp()"

# What an administrator would have to say for a role that a backup gives rights to.
ROLE_WANTED: LiteralString = "create role {} nologin"
