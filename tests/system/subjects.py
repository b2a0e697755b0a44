"""Two organisations of which every table knows something, and a search for what anything knows of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from pyarrow import parquet

from system.kit import Stage

ANNA, BO = UUID("a11a0000-0000-4000-8000-00000000a11a"), UUID("b0b00000-0000-4000-8000-00000000b0b0")

TABLES = """
select format('%I.%I', n.nspname, c.relname) as name,
    array_agg(a.attname::text order by a.attnum) as columns
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relkind in ('r', 'p') and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
group by 1
"""

JOBS = """
with made as (
    insert into job (org_id, type, status, created_at, updated_at, finished_at, payload, run_at)
    select %(org)s, 'mail', s::job_status, now() - interval '3 days', now() - interval '3 days',
        case when s = 'succeeded' then now() - interval '3 days' end,
        jsonb_build_object('text', %(mark)s::text), now() + interval '1 day'
    from unnest(%(states)s::text[]) as s returning id
)
insert into job_event (job_id, next_status, detail_json)
select id, 'queued', jsonb_build_object('tenant', %(org)s::text, 'said', %(mark)s::text) from made
"""

LINKS = """
with tenant as (
    insert into tenants (id, name) values (%(org)s, %(mark)s) returning id
), link as (
    insert into connections (id, tenant_id, provider_slug, external_id, metadata)
    select gen_random_uuid(), id, 'slack', %(mark)s, jsonb_build_object('text', %(mark)s::text) from tenant
    returning id, tenant_id
), syncs as (
    insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, finished_at,
        scheduled_at, cursor)
    select gen_random_uuid(), tenant_id, 'slack', id, 'full', s,
        case when s = 'succeeded' then now() - interval '3 days' end, now() + interval '1 day',
        jsonb_build_object('text', %(mark)s::text)
    from link, unnest(%(states)s::text[]) as s
), said as (
    insert into signals (id, tenant_id, provider_slug, connection_id, kind, occurred_at, payload)
    select gen_random_uuid(), tenant_id, 'slack', id, 'said', now(),
        jsonb_build_object('text', %(mark)s::text)
    from link
), inbox as (
    insert into webhook_delivery (provider_slug, tenant_id, connection_id, delivery_id, payload, body_sha256,
        verification)
    select 'slack', tenant_id, id, %(mark)s, jsonb_build_object('text', %(mark)s::text), 'x', 'signature'
    from link
)
insert into oauth_states (id, tenant_id, provider, state, expires_at)
select gen_random_uuid(), id, 'slack', %(mark)s, now() from tenant
"""

FACE = """
with token as (
    insert into holdfast_token (id, name, hash, scope, tenant)
    values (%(mark)s, %(mark)s, 'x', 'read', upper(%(org)s::text)) returning id
), session as (
    insert into holdfast_session (hash, token_id, who, scope, tenant, expires_at)
    select %(mark)s::bytea, id, 'token:' || id, 'read', %(org)s::text, now() from token
)
insert into holdfast_audit (who, action, tenant, row_id, detail) values
    ('token:' || %(mark)s, 'cancel', %(org)s::text, null, '{}'),
    ('boss', 'tenant create', null, %(org)s::text, jsonb_build_object('of', upper(%(org)s::text)))
"""


def mark(org: UUID) -> str:
    """A text that stands in whatever an organisation has written."""
    return f"pelican-{org.hex[:4]}"


async def filled(staged: Stage, *orgs: UUID, states: tuple[str, ...] = ("succeeded", "queued")) -> None:
    """Something of these organisations in every table that can name one; work that is done, and other."""
    for org in orgs or (ANNA, BO):
        given = {"org": org, "mark": mark(org), "states": list(states)}
        async with staged.app.database.connection() as conn:
            for statement in (JOBS, LINKS, FACE):
                await conn.execute(statement, given)


async def flushed(staged: Stage) -> None:
    """What is done is in the archive."""
    for ledger in ("job", "sync_jobs"):
        done = await staged.run("flush", {"ledger": ledger, "older_than_hours": 1})
        assert done.state == "completed", done.columns["message"]


async def mentions(staged: Stage, *wanted: Any) -> dict[str, int]:
    """Every column of every table, every archived file and the log, as far as they know one of these."""
    words = [
        str(word).lower() for one in wanted for word in (one, *([mark(one)] if isinstance(one, UUID) else []))
    ]
    found: dict[str, int] = {}
    for table in await staged.rows(TABLES):
        for column in table["columns"]:
            name = '"' + column.replace('"', '""') + '"'
            query = f"select count(*) from {table['name']} where lower({name}::text) like any(%s)"
            if number := await staged.one(query, [f"%{word}%" for word in words]):
                found[f"{table['name']}.{column}"] = number
    for path in _files(staged.folder / "archive"):
        if path.is_file() and path.suffix == ".parquet":
            rows = parquet.read_table(path).to_pylist()
            number = sum(any(word in str(row).lower() for word in words) for row in rows)
        else:
            number = int(path.is_file() and any(word in path.read_text().lower() for word in words))
        if number:
            kind = path.name.partition(".")[2] or path.name
            found[f"archive {path.parent.name} {kind}"] = (
                found.get(f"archive {path.parent.name} {kind}", 0) + number
            )
    if any(word in line.lower() for word in words for line in staged.lines()):
        found["jobs.log"] = 1
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))
