"""What Prometheus is told of schedules (S-55), and that no scrape reads a large table."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Settings
from holdfast.api import metrics as face
from holdfast.apps.schedules import metrics_queries as queries
from holdfast.apps.schedules.facts import Facts
from holdfast.apps.schedules.ledger import NOTICES, SESSIONS
from holdfast.apps.schedules.pages import queries as page_queries
from holdfast.apps.schedules.values import Refusal
from holdfast.db.pool import Connection
from holdfast.errors import DatabaseUnavailable
from holdfast.runtime import pulse
from schedules.kit import Stage, day, entry, stage

ENDED, EVENTS = "holdfast_captures_ended_total", "holdfast_schedule_events_total"


@pytest.fixture
async def here(settings: Settings) -> AsyncIterator[Stage]:
    async with stage(settings) as here:
        yield here


async def told(here: Stage) -> dict[tuple[str, ...], float]:
    """Every number by its name and its labels."""
    text = (await face.collect(here.app.site)).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_pending_sessions_and_the_oldest_of_them_are_told(here: Stage) -> None:
    """S-55: pending, and oldest pending, also of sessions that are not ready yet."""
    numbers = await told(here)
    assert numbers["holdfast_rows", SESSIONS, "pending"] == 0
    assert numbers["holdfast_captures_oldest_pending_seconds",] == 0
    for _ in range(2):
        await here.capture()
    await here.do(
        "update schedule_ingest.capture_session set created_at = now() - interval '1 hour'"
        " where id = (select id from schedule_ingest.capture_session limit 1)"
    )
    numbers = await told(here)
    assert numbers["holdfast_rows", SESSIONS, "pending"] == 2
    assert 3600 <= numbers["holdfast_captures_oldest_pending_seconds",] < 3700
    await here.work()
    assert (await told(here))["holdfast_captures_oldest_pending_seconds",] == 0


async def test_outcomes_and_events_are_counted_by_the_workers(here: Stage) -> None:
    """S-55: unchanged sessions, and events by type; every label is there before it counts."""
    before = await told(here)
    assert {before[ENDED, word] for word in ("done", "unchanged", "superseded", "failed")} == {0}
    assert before[EVENTS, "shift_reclassified"] == 0
    later = day(entry("10:00"))
    await here.observe(day(entry()), day(entry()), later, Refusal("time_invalid", "no"), later)
    numbers = await told(here)
    assert [numbers[ENDED, word] for word in ("done", "unchanged", "failed")] == [2, 2, 1]
    assert numbers[EVENTS, "shift_added"] == 1
    assert numbers[EVENTS, "shift_time_changed"] == 1
    assert sum(value for (name, *_), value in numbers.items() if name == EVENTS) == 2


async def test_leases_that_ran_out_are_counted(here: Stage) -> None:
    """S-55: lease steals."""
    assert (await told(here))["holdfast_captures_lost_total",] == 0
    stolen = await here.capture()
    await here.do(
        "update schedule_ingest.capture_session set state = 'processing', locked_by = 'gone/1',"
        " locked_at = now() - interval '1 day' where id = %s",
        stolen,
    )
    await here.do("insert into schedule_ingest.capture_attempt values (%s, 1, 'gone', now())", stolen)
    await here.work()
    assert await here.outcomes(stolen) == ["lost", "done"]
    assert (await told(here))["holdfast_captures_lost_total",] == 1


async def test_messages_that_are_not_sent_are_told(here: Stage) -> None:
    """S-55: undelivered notifications, those that wait and those that failed."""
    await here.observe(day(entry(), entry("07:00", "08:00", title="Ada")))
    (first, _) = await here.messages()
    await here.do(
        "update schedule_ingest.schedule_notification set status = 'failed' where notification_id = %s",
        first["notification_id"],
    )
    numbers = await told(here)
    assert numbers["holdfast_rows", NOTICES, "pending"] == 1
    assert numbers["holdfast_rows", NOTICES, "failed"] == 1
    assert numbers["holdfast_oldest_waiting_seconds", NOTICES] >= 0


async def test_no_user_is_a_label(here: Stage) -> None:
    await here.observe(day(entry()))
    labels = [label for _, *labels in await told(here) for label in labels]
    assert "42" not in labels
    assert not [label for label in labels if "Sjöberg" in label]


async def test_numbers_that_could_not_be_told_wait(conn: Connection) -> None:
    """Nothing is counted twice or forgotten while the database is away."""
    facts = Facts()
    facts.ended("done")
    facts.ended("lost")  # not an end that anybody counts here

    class Away:
        def transaction(self) -> Any:
            raise DatabaseUnavailable(message="it is away")

    with pytest.raises(DatabaseUnavailable):
        await facts.flush(Away())  # type: ignore[arg-type]
    facts.ended("done")
    assert await facts.flush(conn) == 1
    assert await facts.flush(conn) == 0
    (total,) = [one for one in await pulse.totals(conn) if one.fact == "ended"]
    assert (total.ledger, total.label, total.count) == (SESSIONS, "done", 2)


FILL = """
insert into schedule_ingest.capture_session (user_id, state)
select n % 500, 'done' from generate_series(1, 30000) as n;
insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at, ended_at, outcome)
select id, 1, 'w', now(), now(), 'done' from schedule_ingest.capture_session;
insert into schedule_ingest.schedule_notification (notification_id, user_id, schedule_date, source_session_id,
    notification_type, message, event_ids)
select n::text, n % 500, date '2026-03-02' + (n % 100), gen_random_uuid(), 'event', 'x', '[]'
from generate_series(1, 30000) as n;
insert into schedule_ingest.notification_attempt
select notification_id, 1, now(), null, null from schedule_ingest.schedule_notification;
analyze schedule_ingest.capture_session, schedule_ingest.capture_attempt,
    schedule_ingest.schedule_notification, schedule_ingest.notification_attempt;
"""


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", ()) for node in nodes(part))]


async def test_a_scrape_and_a_look_read_no_table_from_end_to_end(here: Stage) -> None:
    """However large the tables are: an index leads to what is told, and it is little."""
    async with here.app.database.connection() as conn:
        await conn.execute(FILL)  # type: ignore[arg-type]
        for query, params in (
            (queries.OLDEST_PENDING, {}),
            (queries.LOST, {"most": 1000}),
            (page_queries.GLANCE, {"user_id": 42, "day": "2026-03-02"}),
        ):
            asked = ("explain (analyze, buffers, format json) " + query).encode()
            ((found,),) = await (await conn.execute(asked, params)).fetchall()
            plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
            large = ("capture_session", "capture_attempt", "schedule_notification", "notification_attempt")
            read = [one for one in nodes(plan) if one["Node Type"] == "Seq Scan"]
            assert [one for one in read if one["Relation Name"] in large] == [], query
            assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 400, query
