"""What the ledgers of schedules say in SQL beyond their columns: when a row may be taken, and its attempts.

These pieces become part of the engine's own statements: `t` is the row, `clock` has the time, `picked` are
the rows of a claim, `moves` what is to be written about them, and `moved` those that were.
"""

from typing import LiteralString

# -- capture sessions ------------------------------------------------------------------------------------

# The newest image is old enough; without any, the session itself, or never.
QUIET: LiteralString = """coalesce((
            select max(i.created_at) from schedule_ingest.capture_image as i where i.session_id = t.id
        ), {alone}) <= (select now from clock) - make_interval(secs => {seconds})"""

# No older session of the same person still waits, or is being read.
IN_ORDER: LiteralString = """not exists (
            select from schedule_ingest.capture_session as older
            where older.user_id = t.user_id and (older.created_at, older.id) < (t.created_at, t.id)
                and (
                    older.state = 'pending' and {ready}
                    or older.state = 'processing'
                        and older.locked_at >= (select now from clock) - make_interval(secs => {lease})
                )
            offset 0
        )"""

# It has a picture to be read, without which it is never ready.
SHOWN: LiteralString = """exists (
                        select from schedule_ingest.capture_image as i where i.session_id = older.id
                    )"""

# Its lease is over, and not too many workers were lost with it.
STALE: LiteralString = """(
            t.locked_at is null or t.locked_at < (select now from clock) - make_interval(secs => {lease})
        ) and ({lost}) < {most}"""

# How many workers were lost since it last ended; an attempt that is still open is the last of them.
LOST: LiteralString = """select count(*) from schedule_ingest.capture_attempt as a
            where a.session_id = t.id and coalesce(a.outcome, 'lost') = 'lost' and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.capture_attempt as e
                where e.session_id = t.id and e.outcome not in ('lost', 'released')
            ), 0)"""

# One that another service held, and lost, was tried as well.
CLAIMED: LiteralString = """lost as (
    update schedule_ingest.capture_attempt as a
    set ended_at = m.now, outcome = 'lost'
    from moved as t join picked as m on m.key = t.id
    where a.session_id = t.id and a.ended_at is null
),
known as materialized (
    select t.id, m.now, coalesce((
        select max(a.attempt) from schedule_ingest.capture_attempt as a where a.session_id = t.id
    ), 0) as last, m.prev = 'processing' and not exists (
        select from schedule_ingest.capture_attempt as a where a.session_id = t.id and a.ended_at is null
    ) as theirs
    from moved as t join picked as m on m.key = t.id
),
begun as (
    insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at, ended_at, outcome)
    select k.id, k.last + 1, '-', k.now, k.now, 'lost' from known as k where k.theirs
    union all
    select k.id, k.last + 1 + k.theirs::int, %(worker)s, k.now, null, null from known as k
)"""

FINISHED: LiteralString = """ended as (
    update schedule_ingest.capture_attempt as a
    set ended_at = m.now, outcome = coalesce(m.result, 'done')
    from moved as t join moves as m on m.key = t.id
    where a.session_id = t.id and a.ended_at is null
)"""

FAILED: LiteralString = """ended as (
    update schedule_ingest.capture_attempt as a
    set ended_at = m.now, outcome = 'failed'
    from moved as t join moves as m on m.key = t.id
    where a.session_id = t.id and a.ended_at is null
)"""

RELEASED: LiteralString = """ended as (
    update schedule_ingest.capture_attempt as a
    set ended_at = m.now, outcome = 'released'
    from moved as t join moves as m on m.key = t.id
    where a.session_id = t.id and a.ended_at is null
)"""

# A session that was called off counts as tried: let run again, it is late.
CANCELLED: LiteralString = """ended as (
    insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at, ended_at, outcome)
    select t.id, coalesce((
        select max(a.attempt) from schedule_ingest.capture_attempt as a where a.session_id = t.id
    ), 0) + 1, '-', m.now, m.now, 'failed'
    from moved as t join moves as m on m.key = t.id
)"""

# Whoever ended the session, and be it another service before anybody read it: it counts as tried, and the
# count of lost workers begins anew.
REQUEUED: LiteralString = """ended as (
    update schedule_ingest.capture_attempt as a
    set ended_at = m.now, outcome = 'failed'
    from moved as t join moves as m on m.key = t.id
    where a.session_id = t.id and a.ended_at is null
),
noted as (
    insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at, ended_at, outcome)
    select t.id, coalesce(last.attempt, 0) + 1, '-', m.now, m.now, 'failed'
    from moved as t join moves as m on m.key = t.id
    left join lateral (
        select a.attempt, a.ended_at, a.outcome from schedule_ingest.capture_attempt as a
        where a.session_id = t.id order by a.attempt desc limit 1
    ) as last on true
    where last.attempt is null or (last.ended_at is not null and last.outcome is distinct from 'failed')
)"""

# -- notifications ---------------------------------------------------------------------------------------

# The last try in vain said when to try again; and a person's messages keep their order.
TIMELY: LiteralString = """coalesce((
            select a.next_at from schedule_ingest.notification_attempt as a
            where a.notification_id = t.notification_id order by a.attempt desc limit 1
        ), '-infinity') <= (select now from clock)
        and not exists (
            select from schedule_ingest.schedule_notification as older
            where older.user_id = t.user_id and older.status = 'pending'
                and (older.created_at, older.notification_id) < (t.created_at, t.notification_id)
        )"""

# Tries since it last ended.
TRIED: LiteralString = """select count(*) from schedule_ingest.notification_attempt as a
            where a.notification_id = t.notification_id and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.notification_attempt as e
                where e.notification_id = t.notification_id and e.next_at is null
            ), 0)"""

SENT: LiteralString = """tried as (
    insert into schedule_ingest.notification_attempt (notification_id, attempt, tried_at)
    select t.notification_id, coalesce((
        select max(a.attempt) from schedule_ingest.notification_attempt as a
        where a.notification_id = t.notification_id
    ), 0) + 1, m.now
    from moved as t join moves as m on m.key = t.notification_id
)"""

DELAYED: LiteralString = """tried as (
    insert into schedule_ingest.notification_attempt (notification_id, attempt, tried_at, error, next_at)
    select t.notification_id, coalesce((
        select max(a.attempt) from schedule_ingest.notification_attempt as a
        where a.notification_id = t.notification_id
    ), 0) + 1, m.now, m.reason, m.due
    from moved as t join moves as m on m.key = t.notification_id
)"""

REFUSED: LiteralString = """tried as (
    insert into schedule_ingest.notification_attempt (notification_id, attempt, tried_at, error)
    select t.notification_id, coalesce((
        select max(a.attempt) from schedule_ingest.notification_attempt as a
        where a.notification_id = t.notification_id
    ), 0) + 1, m.now, m.reason
    from moved as t join moves as m on m.key = t.notification_id
)"""

# What is sent again is sent at once, and has all its tries.
RESENT: LiteralString = """tried as (
    update schedule_ingest.notification_attempt as a
    set next_at = null
    from moved as t
    where a.notification_id = t.notification_id and a.next_at is not null
)"""

# -- maintenance -----------------------------------------------------------------------------------------

# Removes the events of days that have not changed since a moment, and keeps what they have led to.
EVICT: LiteralString = "select schedule_ingest.evict(%(limit)s::timestamptz, %(batch)s::integer)"

# A message stays as long as an event that it tells of: nobody would know that it was told.
UNTOLD: LiteralString = """
not exists (
    select from schedule_ingest.schedule_event as e
    where e.user_id = t.user_id and e.schedule_date = t.schedule_date and t.event_ids ? e.event_id::text
)
"""

ERASE: LiteralString = "select schedule_ingest.erase(%(value)s::bigint)"
