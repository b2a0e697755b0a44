"""The SQL of the verification: which days there are, and all that is known of some of them."""

from collections.abc import Sequence
from typing import LiteralString

from holdfast.apps.schedules.days_queries import EVENT, VERSION

_TABLES: Sequence[LiteralString] = (
    "select user_id, schedule_date from schedule_ingest.day_schedule",
    "select user_id, schedule_date from schedule_ingest.day_snapshot",
    "select distinct user_id, schedule_date from schedule_ingest.schedule_version",
    "select distinct user_id, schedule_date from schedule_ingest.schedule_event",
    "select distinct user_id, schedule_date from schedule_ingest.schedule_notification",
)

_NEXT: LiteralString = """
where schedule_date between '0001-01-01' and '9999-12-31'
    and (user_id, schedule_date) > (%(after_user)s::bigint, %(after_day)s::date)
"""

_NEXT_OF_USER: LiteralString = """
where schedule_date between '0001-01-01' and '9999-12-31'
    and user_id = %(user_id)s and schedule_date > %(after_day)s::date
"""

_SOME: LiteralString = "order by user_id, schedule_date limit %(limit)s"

# A day that is at either end of the range of its type comes after, or before, all that can be told.
BEGINNING: LiteralString = "-infinity"


def keys(*, of_user: bool) -> LiteralString:
    """The days of which any table knows, in their order: each table gives its next ones."""
    rest: LiteralString = (_NEXT_OF_USER if of_user else _NEXT) + _SOME
    return " union ".join(["(" + table + rest + ")" for table in _TABLES]) + " " + _SOME


_THESE: LiteralString = """
join unnest(%(users)s::bigint[], %(days)s::date[]) as these (user_id, schedule_date)
    using (user_id, schedule_date)
"""

POINTERS: LiteralString = (
    """
select user_id, schedule_date, current_version as version
from schedule_ingest.day_schedule
"""
    + _THESE
)

SNAPSHOTS: LiteralString = (
    """
select user_id, schedule_date, snapshot_payload as shifts, updated_at
from schedule_ingest.day_snapshot
"""
    + _THESE
)

ORIGINS: LiteralString = (
    """
select user_id, schedule_date, shifts, until
from schedule_ingest.day_origin
"""
    + _THESE
)

VERSIONS: LiteralString = VERSION + _THESE + "order by version"

EVENTS: LiteralString = EVENT + _THESE + "order by detected_at"

NOTICES: LiteralString = (
    """
select notification_id as id, user_id, schedule_date, source_session_id as session_id,
    notification_type as type, event_ids, created_at
from schedule_ingest.schedule_notification
"""
    + _THESE
    + "order by created_at, notification_id"
)
