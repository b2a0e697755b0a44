"""A database with many connections, jobs, deliveries and signals, for looks at what reading them costs."""

from __future__ import annotations

from typing import Any

import psycopg

Database = psycopg.Connection[Any]

TENANTS, CONNECTIONS = 100, 26_000

# Connection n is of tenant n % 100, and of provider n / 100 % 4: each tenant has them all.
SETUP = f"""
create function id(what int, n bigint) returns uuid language sql immutable
    as $$ select (to_hex(what) || lpad(to_hex(n), 31, '0'))::uuid $$;
create function slug(n bigint) returns text language sql immutable
    as $$ select (array['github', 'slack', 'jira', 'gmail'])[1 + n / {TENANTS} % 4] $$;
create function tenant(n bigint) returns uuid language sql immutable as $$ select id(1, n % {TENANTS}) $$;
insert into tenants (id, name) select id(1, n), 'tenant ' || n from generate_series(0, {TENANTS} - 1) as n;
insert into connections (
    id, tenant_id, provider_slug, external_id, refresh_token_ciphertext, expires_at, metadata
)
select id(2, n), tenant(n), slug(n), 'account ' || n, '\\x00',
    now() + interval '1 day' + make_interval(secs => n),
    '{{"sync": {{"next_run_at": "2100-01-01T00:00:00.000000Z"}}}}'
from generate_series(0, {CONNECTIONS} - 1) as n;
"""

SIGNALS = """
insert into signals (id, tenant_id, provider_slug, connection_id, kind, occurred_at, received_at, payload,
    dedupe_key)
select gen_random_uuid(), tenant(n), slug(n), id(2, n),
    (array['issue_created', 'issue_closed', 'pr_merged', 'message_posted'])[1 + n / 700 % 4],
    now() - make_interval(secs => m), now(), '{}', 'key ' || m
from generate_series(1, %(rows)s) as m, lateral (select m::bigint % 26000 as n) as c
"""

# What has ended: three of five well, the others badly.
ENDED = """
insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, priority, attempts,
    scheduled_at, started_at, finished_at, worker_id, error)
select gen_random_uuid(), tenant(n), slug(n), id(2, n), 'incremental',
    case when m / 100 % 5 < 3 then 'succeeded' else 'failed' end, 30, 1,
    now() - make_interval(secs => m), now() - make_interval(secs => m), now() - make_interval(secs => m),
    'w' || m % 50, case when m / 100 % 5 < 3 then null else '{"code": "PERMANENT"}'::jsonb end
from generate_series(1, %(rows)s) as m, lateral (select m::bigint % 26000 as n) as c
"""

# What may be claimed: of every lane some, and of lower priority than what waits.
READY = """
insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, priority, attempts,
    scheduled_at, retry_after)
select gen_random_uuid(), tenant(n), slug(n), id(2, n), 'webhook',
    (array['queued', 'queued', 'failed'])[1 + n % 3], n % 5, n % 3,
    now() - make_interval(secs => n),
    case when n % 3 > 0 then now() - make_interval(secs => n) end
from generate_series(25001, 25999) as n
"""

# What waits for years, and stands before all others by its priority: half of it queued, half failed.
WAITING = """
insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, priority, attempts,
    scheduled_at, retry_after)
select gen_random_uuid(), tenant(n), slug(n), id(2, n), type, status, 90 + n % 3, 1,
    now() - interval '1 day', now() + interval '10 years' + make_interval(secs => n)
from generate_series(0, %(rows)s / 4 - 1) as n,
    (values ('full'), ('incremental')) as t (type), (values ('queued'), ('failed')) as s (status)
"""

# Of the newest, one of ten is not processed yet.
DELIVERIES = """
insert into webhook_delivery (provider_slug, tenant_id, connection_id, delivery_id, body_sha256, verification,
    received_at, processed_at)
select slug(n), tenant(n), id(2, n), m::text, '', 'signature', now() - make_interval(secs => m),
    case when m > 2000 or m % 10 > 0 then now() - make_interval(secs => m) end
from generate_series(1, %(rows)s) as m, lateral (select m::bigint % 26000 as n) as c
"""


# What is no constraint: quicker to make anew than to keep up.
INDEXES = """
select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index
where indrelid = %s::regclass and not exists (select from pg_constraint where conindid = indexrelid)
"""


def fill(db: Database, table: str, *statements: str, rows: int = 0) -> None:
    """Fills a table without a look for what each row refers to; and lets the planner know."""
    indexes = db.execute(INDEXES, [table]).fetchall()
    for name, _ in indexes:
        db.execute(f"drop index {name}".encode())
    db.execute("set session_replication_role = replica")
    for statement in statements:
        db.execute(statement.replace("%(rows)s", str(rows)).encode())
    db.execute("reset session_replication_role")
    for _, definition in indexes:
        db.execute(definition)
    db.execute(f"vacuum (analyze) {table}".encode())
