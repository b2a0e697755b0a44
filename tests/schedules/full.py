"""A database with many sessions, versions, events and messages, for looks at what reading them costs.

Session n is of user n % 1000, and the next version of one of his days: a day has ten, however many there are.
"""

from __future__ import annotations

from typing import Any

import psycopg

Database = psycopg.Connection[Any]

USERS, VERSIONS = 1000, 10

SETUP = f"""
create function id(what int, n bigint) returns uuid language sql immutable
    as $$ select (to_hex(what) || lpad(to_hex(n), 31, '0'))::uuid $$;
create function person(n bigint) returns bigint language sql immutable as $$ select n % {USERS} $$;
create function day(n bigint) returns date language sql immutable
    as $$ select date '2020-01-01' + (n / {USERS * VERSIONS})::int $$;
create function version(n bigint) returns int language sql immutable
    as $$ select (1 + n / {USERS} % {VERSIONS})::int $$;
create function came(n bigint) returns timestamptz language sql immutable
    as $$ select timestamptz '2020-01-01 00:00+00' + make_interval(secs => n) $$;
"""

# What has ended: one of a hundred badly.
ENDED = """
insert into schedule_ingest.capture_session (id, user_id, state, created_at, error)
select id(1, n), person(n),
    (case when n % 100 = 37 then 'failed' else 'done' end)::schedule_ingest.capture_session_state,
    came(n), case when n % 100 = 37 then 'time_invalid: no time' end
from generate_series(0, %(rows)s - 1) as n
"""

# What waits: for long, or its picture has just come. What is being read: held, or its worker is gone.
OPEN = """
insert into schedule_ingest.capture_session (id, user_id, state, created_at, locked_at, locked_by)
select id(2, n), person(n), (case when n < 2000 then 'pending' else 'processing' end)
    ::schedule_ingest.capture_session_state,
    now() - make_interval(secs => case when n % 2 = 0 then 100000 - n else 0 end),
    case when n >= 2000 then now() - make_interval(secs => case when n < 2100 then 1 else 7200 end) end,
    case when n >= 2000 then 'host-' || n % 7 || '-a/' || n end
from generate_series(0, 2149) as n
"""

IMAGES = """
insert into schedule_ingest.capture_image (id, session_id, sequence, r2_key, telegram_message_id, created_at)
select s.id, s.id, 1, s.id || '.jpg', 1, s.created_at from schedule_ingest.capture_session as s
"""

ATTEMPTS = """
insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at, ended_at, outcome)
select s.id, k, 'host-' || k || '-a', s.created_at, case when s.state <> 'processing' then s.created_at end,
    case when s.state = 'done' and k = 1 then 'released' when s.state <> 'processing' then s.state::text end
from schedule_ingest.capture_session as s, generate_series(1, 2) as k
where s.state <> 'pending' and (s.state <> 'processing' or k = 2);
insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at, ended_at, outcome)
select id(1, n * 100), 3, 'host-3-a', came(n), came(n), 'lost'
from generate_series(0, least(%(rows)s / 100 - 1, 999)) as n
"""

RECORD = """
insert into schedule_ingest.schedule_version
    (user_id, schedule_date, version, session_id, payload, payload_hash, created_at)
select person(n), day(n), version(n), id(1, n),
    jsonb_build_object('schedule_date', day(n), 'entries', '[]'::jsonb), n::text, came(n)
from generate_series(0, %(rows)s - 1) as n
"""

EVENTS = """
insert into schedule_ingest.schedule_event (event_id, user_id, schedule_date, event_type,
    location_fingerprint, customer_fingerprint, old_value_hash, new_value_hash, old_value, new_value,
    detected_at, source_session_id)
select id(3, n), person(n), day(n), 'shift_time_changed', 'here', 'somebody', n::text, (n + 1)::text,
    '{}', '{}', came(n), id(1, n)
from generate_series(0, %(rows)s - 1) as n
"""

DAYS = """
insert into schedule_ingest.day_schedule (user_id, schedule_date, current_version)
select user_id, schedule_date, max(version) from schedule_ingest.schedule_version group by 1, 2
"""

SNAPSHOTS = """
insert into schedule_ingest.day_snapshot
    (user_id, schedule_date, snapshot_payload, source_session_id, updated_at)
select user_id, schedule_date, '[]', (array_agg(session_id order by version desc))[1], max(created_at)
from schedule_ingest.schedule_version group by 1, 2
"""

# Every other session had something to tell. What was sent: one of a hundred was refused.
SENT = """
insert into schedule_ingest.schedule_notification (notification_id, user_id, schedule_date, source_session_id,
    status, notification_type, message, event_ids, created_at, sent_at)
select 'sent ' || n, person(n), day(n), id(1, n), case when n % 100 = 36 then 'failed' else 'sent' end,
    'event', 'New shift', '[]', came(n), case when n % 100 <> 36 then came(n) end
from generate_series(0, %(rows)s - 1, 2) as n
"""

# What waits: of half of the users the first message has failed for now, and three more wait behind it.
WAITING = """
insert into schedule_ingest.schedule_notification (notification_id, user_id, schedule_date, source_session_id,
    status, notification_type, message, event_ids, created_at)
select 'wait ' || n, n % 500, day(n), id(1, n), 'pending', 'event', 'New shift', '[]',
    now() - make_interval(secs => 10000 - n)
from generate_series(0, 1999) as n
"""

TRIES = """
insert into schedule_ingest.notification_attempt (notification_id, attempt, tried_at, error)
select notification_id, 1, created_at, case status when 'failed' then 'send_refused: no' end
from schedule_ingest.schedule_notification where status <> 'pending';
insert into schedule_ingest.notification_attempt (notification_id, attempt, tried_at, error, next_at)
select 'wait ' || n, 1, now(), 'send_failed: busy', now() + interval '10 years'
from generate_series(0, 249) as n
"""

# What is no constraint: quicker to make anew than to keep up.
INDEXES = """
select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index
where indrelid = %s::regclass and not exists (select from pg_constraint where conindid = indexrelid)
"""


def fill(db: Database, table: str, *statements: str, rows: int = 0) -> None:
    """Fills a table past its triggers, and without a look for what each row refers to."""
    name = f"schedule_ingest.{table}"
    indexes = db.execute(INDEXES, [name]).fetchall()
    for index, _ in indexes:
        db.execute(f"drop index {index}".encode())
    db.execute("set session_replication_role = replica")
    for statement in statements:
        db.execute(statement.replace("%(rows)s", str(rows)).encode())
    db.execute("reset session_replication_role")
    for _, definition in indexes:
        db.execute(definition)
    db.execute(f"vacuum (analyze) {name}".encode())


def fill_all(db: Database, rows: int) -> None:
    """Everything, with so many sessions that have ended."""
    db.execute(SETUP.encode())
    db.execute("set maintenance_work_mem = '256MB'")
    fill(db, "capture_session", ENDED, OPEN, rows=rows)
    fill(db, "capture_image", IMAGES)
    fill(db, "capture_attempt", ATTEMPTS, rows=rows)
    fill(db, "schedule_version", RECORD, rows=rows)
    fill(db, "schedule_event", EVENTS, rows=rows)
    fill(db, "day_schedule", DAYS)
    fill(db, "day_snapshot", SNAPSHOTS)
    fill(db, "schedule_notification", SENT, WAITING, rows=rows)
    fill(db, "notification_attempt", TRIES)
