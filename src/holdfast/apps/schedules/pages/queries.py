"""The SQL of the pages: whether a day has changed, without reading all that is known of it."""

from typing import LiteralString

GLANCE: LiteralString = """
select
    (select d.current_version from schedule_ingest.day_schedule as d
        where d.user_id = %(user_id)s and d.schedule_date = %(day)s) as version,
    (select s.updated_at from schedule_ingest.day_snapshot as s
        where s.user_id = %(user_id)s and s.schedule_date = %(day)s) as updated_at,
    (select count(*) from schedule_ingest.schedule_event as e
        where e.user_id = %(user_id)s and e.schedule_date = %(day)s) as events,
    (select md5(string_agg(concat_ws(':', n.notification_id, n.status, tried.times), ','
            order by n.notification_id))
        from schedule_ingest.schedule_notification as n
        cross join lateral (
            select count(*) as times
            from schedule_ingest.notification_attempt as a
            where a.notification_id = n.notification_id
        ) as tried
        where n.user_id = %(user_id)s and n.schedule_date = %(day)s) as messages
"""
