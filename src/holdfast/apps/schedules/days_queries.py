"""The SQL of the record: days, versions, events, captures, messages. Days of no calendar are left out."""

from collections.abc import Iterable, Mapping
from typing import LiteralString


def _where(conditions: Mapping[str, LiteralString], given: Iterable[str]) -> LiteralString:
    """The conditions that are asked for, whole: a statement without the others has the better plan."""
    return " and ".join([conditions[name] for name in given]) or "true"


# What is read together is read at once: two statements could else tell of two moments.
ONE_MOMENT: LiteralString = "set transaction isolation level repeatable read, read only"

# -- days ------------------------------------------------------------------------------------------------

DAY: LiteralString = """
select d.current_version as version, v.payload, v.payload_hash,
    s.snapshot_payload as snapshot, s.source_session_id as session_id, s.updated_at
from (values (%(user_id)s::bigint, %(day)s::date)) as asked (user_id, schedule_date)
left join schedule_ingest.day_schedule as d using (user_id, schedule_date)
left join schedule_ingest.day_snapshot as s using (user_id, schedule_date)
left join schedule_ingest.schedule_version as v
    on v.user_id = d.user_id and v.schedule_date = d.schedule_date and v.version = d.current_version
"""

_DAYS: LiteralString = """
select d.user_id, d.schedule_date, d.current_version as version,
    coalesce(jsonb_array_length(s.snapshot_payload), 0) as shifts,
    s.source_session_id as session_id, s.updated_at
from schedule_ingest.day_schedule as d
left join schedule_ingest.day_snapshot as s using (user_id, schedule_date)
where d.schedule_date between '0001-01-01' and '9999-12-31' and
"""

_NEWEST_DAYS: LiteralString = " order by d.schedule_date desc, d.user_id desc limit %(limit)s"

_WHICH_DAYS: Mapping[str, LiteralString] = {
    "user_id": "d.user_id = %(user_id)s",
    "since": "d.schedule_date >= %(since)s",
    "until": "d.schedule_date <= %(until)s",
    "before": "(d.schedule_date, d.user_id) < (%(before)s, %(before_user)s)",
}


def days(given: Iterable[str]) -> LiteralString:
    """A page of days, the latest date first."""
    return _DAYS + _where(_WHICH_DAYS, given) + _NEWEST_DAYS


COUNT_DAYS: LiteralString = """
select count(*) from schedule_ingest.day_schedule where %(user_id)s::bigint is null or user_id = %(user_id)s
"""

# -- versions and events ---------------------------------------------------------------------------------

VERSION: LiteralString = """
select user_id, schedule_date, version, session_id, payload, payload_hash, created_at
from schedule_ingest.schedule_version
"""

EVENT: LiteralString = """
select event_id as id, user_id, schedule_date, event_type as type, location_fingerprint,
    customer_fingerprint, old_value_hash as old_hash, new_value_hash as new_hash, old_value as old,
    new_value as new, detected_at, source_session_id as session_id
from schedule_ingest.schedule_event
"""

_OF_DAY: LiteralString = "where user_id = %(user_id)s and schedule_date = %(day)s\n"

ORIGIN: LiteralString = """
select shifts, until from schedule_ingest.day_origin where user_id = %(user_id)s and schedule_date = %(day)s
"""

VERSIONS: LiteralString = VERSION + _OF_DAY + "and version = any(%(versions)s)"

VERSION_AT: LiteralString = VERSION + _OF_DAY + "and created_at <= %(at)s order by version desc limit 1"

VERSION_OF: LiteralString = VERSION + "where session_id = %(id)s"

LAST_VERSIONS: LiteralString = VERSION + _OF_DAY + "order by version desc limit %(limit)s"

EVENTS: LiteralString = EVENT + _OF_DAY + "order by detected_at"

EVENTS_UNTIL: LiteralString = EVENT + _OF_DAY + "and detected_at <= %(at)s order by detected_at"

LAST_EVENTS: LiteralString = EVENT + _OF_DAY + "order by detected_at desc, event_id desc limit %(limit)s"

EVENTS_OF: LiteralString = EVENT + "where source_session_id = %(id)s order by detected_at"

# -- captures --------------------------------------------------------------------------------------------

_CAPTURE: LiteralString = """
select c.id, c.user_id, c.state::text as state, c.created_at, c.error, c.locked_at, c.locked_by,
    (select count(*) from schedule_ingest.capture_image as i where i.session_id = c.id) as images,
    (select count(*) from schedule_ingest.capture_attempt as a where a.session_id = c.id) as attempts
from schedule_ingest.capture_session as c
where
"""

_NEWEST_CAPTURES: LiteralString = " order by c.created_at desc, c.id desc limit %(limit)s"

_WHICH_CAPTURES: Mapping[str, LiteralString] = {
    "id": "c.id = %(id)s",
    "ids": "c.id = any(%(ids)s)",
    "user_id": "c.user_id = %(user_id)s",
    "state": "c.state = %(state)s::schedule_ingest.capture_session_state",
    "before": "(c.created_at, c.id) < (%(before)s, %(before_id)s)",
}


def captures(given: Iterable[str]) -> LiteralString:
    """A page of capture sessions, the newest first."""
    return _CAPTURE + _where(_WHICH_CAPTURES, given) + _NEWEST_CAPTURES


IMAGES: LiteralString = """
select id, sequence, r2_key, telegram_message_id, created_at
from schedule_ingest.capture_image
where session_id = %(id)s
order by sequence
"""

ATTEMPTS: LiteralString = """
select attempt, worker, claimed_at, ended_at, outcome
from schedule_ingest.capture_attempt
where session_id = %(id)s
order by attempt
"""

# -- messages --------------------------------------------------------------------------------------------

# When it is tried next means nothing once it has ended, or was let go again.
_NOTICE: LiteralString = """
select n.notification_id as id, n.user_id, n.schedule_date, n.source_session_id as session_id, n.status,
    n.notification_type as type, n.message, n.event_ids, n.created_at, n.sent_at,
    coalesce(t.attempt, 0) as attempts, t.error, case when n.status = 'pending' then t.next_at end as next_at
from schedule_ingest.schedule_notification as n
left join lateral (
    select a.attempt, a.error, a.next_at
    from schedule_ingest.notification_attempt as a
    where a.notification_id = n.notification_id
    order by a.attempt desc
    limit 1
) as t on true
where n.schedule_date between '0001-01-01' and '9999-12-31' and
"""

_NEWEST_NOTICES: LiteralString = " order by n.created_at desc, n.notification_id desc limit %(limit)s"

_WHICH_NOTICES: Mapping[str, LiteralString] = {
    "id": "n.notification_id = %(id)s",
    "session_id": "n.source_session_id = %(session_id)s",
    "user_id": "n.user_id = %(user_id)s",
    "day": "n.schedule_date = %(day)s",
    "status": "n.status = %(status)s",
    "before": "(n.created_at, n.notification_id) < (%(before)s, %(before_id)s)",
}


def notices(given: Iterable[str]) -> LiteralString:
    """A page of messages, the newest first."""
    return _NOTICE + _where(_WHICH_NOTICES, given) + _NEWEST_NOTICES


TRIES: LiteralString = """
select attempt, tried_at, error, next_at
from schedule_ingest.notification_attempt
where notification_id = %(id)s
order by attempt
"""

# -- rebuild and erase -----------------------------------------------------------------------------------

# A statement of its own, and the first one: what is read after it is newer than the lock.
LOCK_DAY: LiteralString = "select pg_advisory_xact_lock(%(key)s)"

REBUILD: LiteralString = """
insert into schedule_ingest.day_snapshot
    (user_id, schedule_date, snapshot_payload, source_session_id, updated_at)
values (%(user_id)s, %(day)s, %(snapshot)s::text::jsonb, %(session_id)s, %(updated_at)s)
on conflict (user_id, schedule_date) do update
set snapshot_payload = excluded.snapshot_payload, source_session_id = excluded.source_session_id,
    updated_at = excluded.updated_at
"""

KNOWN_SESSION: LiteralString = """
select exists (select from schedule_ingest.capture_session where id = %(id)s and user_id = %(user_id)s)
"""

ERASE: LiteralString = "select schedule_ingest.erase(%(user_id)s)"
