"""What the processing of a session asks and writes. The lock comes first, as a statement of its own."""

from typing import LiteralString

# A session, which of its attempts is the last, and its pictures in their order; one line without a picture,
# if it has none.
SESSION: LiteralString = """\
select s.user_id, greatest(least(s.created_at, '9999-12-31Z'), '0001-01-02Z') as came,
    (select max(a.attempt) from schedule_ingest.capture_attempt as a where a.session_id = s.id) as attempt,
    i.id, i.sequence, i.r2_key, i.telegram_message_id,
    greatest(least(i.created_at, '9999-12-31Z'), '0001-01-02Z') as created_at
from schedule_ingest.capture_session as s
left join schedule_ingest.capture_image as i on i.session_id = s.id
where s.id = %(session)s
order by i.sequence
"""

# Writers of one day, one after the other. What is read in a later statement is younger than the lock. Who has
# it may be standing still: so nobody waits for ever, and the server takes it from him who has been silent.
LOCK: LiteralString = """\
select set_config('lock_timeout', '5s', true), set_config('idle_in_transaction_session_timeout', '10s', true),
    pg_advisory_xact_lock(%(key)s)
"""

# Whoever stands still while a message is sent keeps it, and its person's others, for so long and no longer.
SILENCE: LiteralString = "select set_config('idle_in_transaction_session_timeout', %(limit)s, true)"

# Also keeps pictures from coming in: their reference to the session needs a lock that this one excludes. One
# that was on its way has come when we hold it, and only a later statement sees it.
HOLD: LiteralString = """\
select from schedule_ingest.capture_session
where id = %(session)s and locked_by = %(owner)s and state = 'processing'
for update
"""

# The pictures that the session has now, the day as it is known, the time of this observation, and whether the
# session comes too late for it: it was tried before, and is older than the one behind the snapshot. A clock
# may go back a little; a snapshot that is days ahead is nobody's clock. But an event that is ahead stays
# where it is, and what is noticed later has to be replayed later, as far as there is a calendar. Later by a
# millisecond: the messages of an observation are a microsecond apart, and never as many as fill it.
DAY: LiteralString = """\
select array(select i.id from schedule_ingest.capture_image as i where i.session_id = s.id) as images,
    n.snapshot_payload as snapshot, d.current_version as version, v.payload_hash as hash, v.payload,
    greatest(clock.now, case
        when n.updated_at <= clock.now + interval '1 day' then n.updated_at + interval '1 millisecond'
    end) as now,
    coalesce(source.created_at > s.created_at, false) and exists (
        select from schedule_ingest.capture_attempt as a
        where a.session_id = s.id and a.ended_at is not null and a.outcome <> 'released'
    ) as late
from schedule_ingest.capture_session as s
cross join lateral (
    select greatest(clock_timestamp(), last.at + interval '1 millisecond') as now from (
        select greatest((
            select max(e.detected_at) from schedule_ingest.schedule_event as e
            where e.user_id = s.user_id and e.schedule_date = %(day)s and e.detected_at < '9999-01-01Z'
        ), (
            select o.until from schedule_ingest.day_origin as o
            where o.user_id = s.user_id and o.schedule_date = %(day)s and o.until < '9999-01-01Z'
        )) as at
    ) as last
) as clock
left join schedule_ingest.day_snapshot as n on n.user_id = s.user_id and n.schedule_date = %(day)s
left join schedule_ingest.capture_session as source on source.id = n.source_session_id and source.id <> s.id
left join schedule_ingest.day_schedule as d on d.user_id = s.user_id and d.schedule_date = %(day)s
left join schedule_ingest.schedule_version as v
    on v.user_id = d.user_id and v.schedule_date = d.schedule_date and v.version = d.current_version
where s.id = %(session)s
"""

# Maintenance may remove a session, but not the last that was seen of a day: others are late by its time.
NOT_THE_LAST: LiteralString = """
not exists (
    select from schedule_ingest.day_snapshot as n
    where n.user_id = t.user_id and n.source_session_id = t.id
)
"""

# No conflict target: a session that has a version already stands in the way as well.
VERSION: LiteralString = """\
insert into schedule_ingest.schedule_version
    (user_id, schedule_date, version, session_id, payload, payload_hash, created_at)
values (%(user)s, %(day)s, %(version)s, %(session)s, %(payload)s, %(hash)s, %(now)s)
on conflict do nothing
returning version
"""

# What stood in the way: the session's own version first.
STANDING: LiteralString = """\
select session_id, user_id, schedule_date, version
from schedule_ingest.schedule_version
where session_id = %(session)s
    or (user_id = %(user)s and schedule_date = %(day)s and version = %(version)s)
order by session_id <> %(session)s
limit 1
"""

SLOTS: LiteralString = """\
select location_fingerprint, event_type as type, old_value_hash as old_hash, new_value_hash as new_hash,
    source_session_id as session
from schedule_ingest.schedule_event
where user_id = %(user)s and schedule_date = %(day)s
"""

# All of one observation.
EVENTS: LiteralString = """\
insert into schedule_ingest.schedule_event (
    event_id, user_id, schedule_date, event_type, location_fingerprint, customer_fingerprint,
    old_value_hash, new_value_hash, old_value, new_value, detected_at, source_session_id)
select e.id, %(user)s, %(day)s, e.type, e.location, e.customer, e.old_hash, e.new_hash, e.old, e.new,
    %(now)s, %(session)s
from jsonb_to_recordset(%(events)s) as e (
    id uuid, type text, location text, customer text, old_hash text, new_hash text, old jsonb, new jsonb)
"""

SNAPSHOT: LiteralString = """\
insert into schedule_ingest.day_snapshot (
    user_id, schedule_date, snapshot_payload, source_session_id, updated_at)
values (%(user)s, %(day)s, %(shifts)s, %(session)s, %(now)s)
on conflict (user_id, schedule_date) do update
set snapshot_payload = excluded.snapshot_payload, source_session_id = excluded.source_session_id,
    updated_at = excluded.updated_at
"""

IMAGE: LiteralString = """\
insert into schedule_ingest.capture_image (session_id, sequence, r2_key, telegram_message_id)
select %(session)s, coalesce(max(sequence), 0) + 1, %(key)s, %(message)s
from schedule_ingest.capture_image where session_id = %(session)s
"""

# What of a picture is taken; neither, if it was its number.
TAKEN: LiteralString = """\
select exists (select from schedule_ingest.capture_image where r2_key = %(key)s) as key,
    exists (
        select from schedule_ingest.capture_image
        where session_id = %(session)s and telegram_message_id = %(message)s
    ) as message
"""

# One after the other: each picture gets the next number.
OPEN: LiteralString = """\
select user_id, state::text as state from schedule_ingest.capture_session
where id = %(session)s
for no key update
"""

# The first of those that wait.
PENDING: LiteralString = """\
select id, user_id from schedule_ingest.capture_session
where state = 'pending'
order by created_at, id
limit 20
"""

TAKEN_BY: LiteralString = """\
select a.session_id as session, a.outcome, s.state::text as state, s.error
from schedule_ingest.capture_attempt as a join schedule_ingest.capture_session as s on s.id = a.session_id
where a.worker = %(worker)s
order by a.claimed_at desc
limit 1
"""
