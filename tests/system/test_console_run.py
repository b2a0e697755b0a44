"""What the statements of the console do, for whom, and what they refuse (Y-35, Y-36, Y-37)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.apps.system import actions
from holdfast.apps.system.console import Answer, Context, Session, context_of, execute
from holdfast.db.settings import Settings
from holdfast.errors import (
    HoldfastError,
    IdempotencyConflict,
    IllegalEdge,
    InvalidInput,
    NotAllowed,
    NotFound,
    SyntaxRefused,
)
from holdfast.runtime.app import App, Table
from system.face import LEGACY
from system.kit import Stage, stage

ANA = Session(who="ana", administrator=True)
EVA = Session(who="eva", administrator=False)
NOTES = App(name="notes", tables=(Table(name="notes", kind="user"), Table(name="gone", kind="stream")))


@pytest.fixture
async def opened(settings: Settings) -> AsyncIterator[Stage]:
    async with stage(settings, apps=[NOTES]) as found:
        await found.do("create schema system_more")
        await found.do("create table notes (id int primary key)")
        yield found


@pytest.fixture
async def context(opened: Stage) -> Context:
    return await context_of(opened.bench)


async def jobs(opened: Stage) -> list[dict[str, Any]]:
    return await opened.rows("select id, job_type, status, parameters, idempotency_key from system.jobs")


async def only(opened: Stage) -> dict[str, Any]:
    (job,) = await jobs(opened)
    return job


# -- orders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["KILL JOB {}", "cancel job '{}';", 'Kill Job "{}"'])
async def test_kill_job_cancels_and_answers_id_and_status(opened: Stage, context: Context, text: str) -> None:
    """Y-15, Y-35, Y-37: in any case and quoting; who asked is in the log."""
    job = await opened.create("flush", {"ledger": "job"})
    answered = await execute(ANA, text.format(job), context)
    assert answered == Answer(
        columns=("id", "status"), rows=((job, "cancelled"),), message=f"{job} is cancelled"
    )
    assert (await only(opened))["status"] == "cancelled"
    assert "cancelled by ana" in opened.lines(job)[-1]


async def test_kill_job_refuses_what_cannot_be_cancelled(opened: Stage, context: Context) -> None:
    """Y-15: malformed, unknown and finished jobs, each by its own error."""
    with pytest.raises(InvalidInput, match="must be like FL-"):
        await execute(ANA, "KILL JOB 'x; drop table job'", context)
    with pytest.raises(NotFound):
        await execute(ANA, "KILL JOB FL-aaaaaaaa", context)
    job = await opened.create("flush", {"ledger": "job"})
    await execute(ANA, f"KILL JOB {job}", context)
    with pytest.raises(IllegalEdge, match="cancelled"):
        await execute(ANA, f"KILL JOB {job}", context)


@pytest.mark.parametrize(
    ("text", "kind", "parameters", "key"),
    [
        ("STORAGE FLUSH TABLE system.jobs", "flush", {"ledger": "system_jobs"}, "FL:system.jobs"),
        ("storage flush table SYSTEM_JOBS;", "flush", {"ledger": "system_jobs"}, "FL:system.jobs"),
        ('STORAGE FLUSH TABLE "system"."jobs"', "flush", {"ledger": "system_jobs"}, "FL:system.jobs"),
        ("STORAGE FLUSH TABLE jobs", "flush", {"ledger": "system_jobs"}, "FL:system.jobs"),
        ("STORAGE FLUSH TABLE public.job", "flush", {"ledger": "job"}, "FL:public.job"),
        ("STORAGE FLUSH TABLE job", "flush", {"ledger": "job"}, "FL:public.job"),
        ("STORAGE COMPACT TABLE system.jobs", "compact", {"ledger": "system_jobs"}, "CO:system.jobs"),
        ("STORAGE COMPACT TABLE public.notes", "compact", {"table": "notes"}, "CO:public.notes"),
        ("STORAGE COMPACT TABLE notes", "compact", {"table": "notes"}, "CO:public.notes"),
    ],
)
async def test_flush_and_compact_of_a_table_answer_the_job_at_once(
    opened: Stage, context: Context, text: str, kind: str, parameters: dict[str, Any], key: str
) -> None:
    """Y-35: a table by its full name, its ledger's or its own."""
    answered = await execute(ANA, text, context)
    made = await only(opened)
    assert answered.columns == ("id", "table", "answer")
    assert answered.rows == ((made["id"], key[3:], "queued"),)
    assert answered.message == "queued"
    assert (made["job_type"], made["status"], made["idempotency_key"]) == (kind, "queued", key)
    assert made["parameters"].items() >= parameters.items()
    assert any("queued by ana" in line for line in opened.lines(made["id"]))


async def test_flush_all_makes_one_job_for_each_ledger(opened: Stage, context: Context) -> None:
    """Y-35: one row each; what is refused is told in its row and keeps no other from its job."""
    answered = await execute(ANA, "STORAGE FLUSH ALL", context)
    ledgers = {one.name for one in opened.bench.registry.ledgers}
    made = {job["id"]: job["parameters"]["ledger"] for job in await jobs(opened)}
    assert len(answered.rows) == len(ledgers)
    for job, _, told in answered.rows:
        assert told == "queued" if job in made else told.startswith("refused: ")
    refused = [row for row in answered.rows if row[0] is None]
    assert len(made) + len(refused) == len(ledgers)
    assert {"job", "tasks", "system_jobs"} <= set(made.values())
    assert f"{len(made)} queued" in answered.message
    again = await execute(ANA, "STORAGE FLUSH ALL", context)
    assert f"{len(made)} skipped" in again.message
    assert len(await jobs(opened)) == len(made)


async def test_flush_all_in_a_schema_makes_those_of_its_ledgers(opened: Stage, context: Context) -> None:
    """Y-35: an unknown schema is refused with those that there are."""
    answered = await execute(ANA, "STORAGE FLUSH ALL IN system", context)
    assert [row[1] for row in answered.rows] == ["system.jobs"]
    with pytest.raises(InvalidInput, match=r"no ledger lies in 'nowhere'; they lie in .*system"):
        await execute(ANA, "STORAGE FLUSH ALL IN nowhere", context)
    assert len(await jobs(opened)) == 1


async def test_compact_all_makes_one_job_for_each_ledger(opened: Stage, context: Context) -> None:
    """Y-35: each by its ledger's name."""
    answered = await execute(ANA, "STORAGE COMPACT ALL", context)
    assert {row[2] for row in answered.rows} == {"queued"}
    made = {job["parameters"]["ledger"] for job in await jobs(opened)}
    assert made == {one.name for one in opened.bench.registry.ledgers}


@pytest.mark.parametrize(
    ("text", "declared"),
    [
        ("STORAGE FLUSH TABLE pg_catalog.pg_authid", "system.jobs"),
        ("STORAGE FLUSH TABLE nowhere.jobs", "system.jobs"),
        ("STORAGE FLUSH TABLE missing", "public.job, "),
        ("STORAGE FLUSH TABLE notes", "public.job, "),  # no ledger
        ("STORAGE COMPACT TABLE missing", "public.notes"),
    ],
)
async def test_an_unknown_table_is_refused_with_those_that_are_declared(
    opened: Stage, context: Context, text: str, declared: str
) -> None:
    """Y-35: declared names only."""
    with pytest.raises(InvalidInput, match="is not declared for this; declared are") as refused:
        await execute(ANA, text, context)
    assert declared in str(refused.value)
    assert await jobs(opened) == []


async def test_a_declared_table_that_does_not_exist_is_not_found(opened: Stage, context: Context) -> None:
    """Y-35: what is declared and missing is another mistake than what was never declared."""
    with pytest.raises(NotFound, match="gone"):
        await execute(ANA, "STORAGE COMPACT TABLE gone", context)
    assert await jobs(opened) == []


async def test_backup_and_restore_become_jobs_with_their_parameters(opened: Stage, context: Context) -> None:
    """Y-35: a schema, some tables, and back again."""
    await opened.do("create table system_more.a (id int)")
    await opened.do("create table system_more.b (id int)")
    place = opened.folder / "backups"
    for text in (
        f"BACKUP SCHEMA system_more TO '{place}/whole'",
        f"backup table system_more.a, system_more.b to '{place}/some'",
    ):
        answered = await execute(ANA, text, context)
        assert answered.columns == ("id", "status")
        assert answered.rows[0][0].startswith("BK-")
        assert answered.message == f"{answered.rows[0][0]} is queued"
        await opened.drain()
    found = {job["parameters"]["backup_location"]: job["parameters"] for job in await jobs(opened)}
    whole, some = found[f"{place}/whole"], found[f"{place}/some"]
    assert (whole["schema"], whole["tables"]) == ("system_more", None)
    assert (some["schema"], some["tables"]) == ("system_more", ["a", "b"])
    answered = await execute(ANA, f"RESTORE FROM '{place}/whole' INTO SCHEMA copy", context)
    restored = await opened.job(answered.rows[0][0])
    assert restored.payload == {
        "backup_location": f"{place}/whole",
        "target_schema": "copy",
        "overwrite": False,
    }
    with pytest.raises(HoldfastError, match="overwrite"):
        await execute(ANA, f"RESTORE FROM '{place}/whole' INTO SCHEMA system_more", context)
    text = f"RESTORE FROM '{place}/whole' INTO SCHEMA system_more OVERWRITE"
    answered = await execute(ANA, text, context)
    assert (await opened.job(answered.rows[0][0])).payload["overwrite"] is True


async def test_tables_of_one_backup_lie_in_one_schema(opened: Stage, context: Context) -> None:
    """Y-35: a name alone is that of a table we know."""
    with pytest.raises(InvalidInput, match="these lie in public, system"):
        await execute(ANA, "BACKUP TABLE job, system.jobs TO '/b'", context)
    with pytest.raises(InvalidInput, match="is not declared"):
        await execute(ANA, "BACKUP TABLE missing TO '/b'", context)
    assert await jobs(opened) == []


# -- skipping --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["FLUSH", "COMPACT"])
async def test_a_second_flush_of_a_busy_table_answers_skipped_with_the_running_id(
    opened: Stage, context: Context, what: str
) -> None:
    """Y-37: a success, in every active state; after the end there is a new one."""
    text = f"STORAGE {what} TABLE tasks"
    ((first, *_),) = (await execute(ANA, text, context)).rows
    for status in ("new", "queued", "running", "retrying"):
        await opened.do("update system.jobs set status = %s", status)
        answered = await execute(ANA, text, context)
        assert answered.rows == ((first, "public.tasks", f"skipped: already {status}"),)
        assert answered.message == f"skipped: already {status}"
    await opened.do("update system.jobs set status = 'completed', finished_at = 0")
    ((second, _, told),) = (await execute(ANA, text, context)).rows
    assert second != first
    assert told == "queued"


@pytest.mark.parametrize("called", ["tasks", "public.tasks"])
async def test_a_job_that_was_made_another_way_is_skipped_to_as_well(
    opened: Stage, context: Context, called: str
) -> None:
    """Y-37: by API, command line or timetable, with any key or none, and by any name of the table."""
    job = await opened.create("flush", {"ledger": called}, key="FL:tasks:2025-01-31")
    answered = await execute(ANA, "STORAGE FLUSH TABLE tasks", context)
    assert answered.rows == ((job, "public.tasks", "skipped: already queued"),)
    other = await execute(ANA, "STORAGE COMPACT TABLE tasks", context)
    assert other.message == "queued", "another type has its own"


async def test_racing_consoles_get_one_job(opened: Stage, context: Context) -> None:
    """Y-37: twenty at once: the key lets one pass, and the others are answered with it."""
    text = "STORAGE FLUSH TABLE tasks"
    answers = await asyncio.gather(*(execute(ANA, text, context) for _ in range(20)))
    made = await only(opened)
    assert {answered.rows[0][0] for answered in answers} == {made["id"]}
    assert sorted(answered.message for answered in answers) == ["queued", *["skipped: already queued"] * 19]


async def test_a_key_that_other_work_has_is_no_skip(opened: Stage, context: Context) -> None:
    """Y-37: nobody is told that a table is being flushed because a compaction has the key."""
    await opened.create("compact", {"ledger": "job"}, key="FL:public.tasks")
    with pytest.raises(IdempotencyConflict):
        await execute(ANA, "STORAGE FLUSH TABLE tasks", context)


# -- questions -------------------------------------------------------------------------------------------


async def test_show_jobs_answers_the_newest_first(opened: Stage, context: Context) -> None:
    """Y-35: columns, rows and a message."""
    first = await opened.create("flush", {"ledger": "job"})
    second = await opened.create("compact", {"ledger": "job"})
    await opened.do("update system.jobs set created_at = created_at - 1000 where id = %s", first)
    answered = await execute(ANA, "SHOW JOBS", context)
    assert [row[0] for row in answered.rows] == [second, first]
    assert answered.columns[:3] == ("id", "job_type", "status")
    assert answered.message == "2 rows"
    assert [answered.columns[place] for place in answered.times] == ["created_at", "finished_at"]
    one = await execute(ANA, "SHOW JOBS WHERE job_type = 'Compact' AND status IN ('QUEUED') LIMIT 1", context)
    assert ([row[0] for row in one.rows], one.message) == ([second], "1 row")


async def test_show_jobs_answers_old_records_too_marked_as_legacy(opened: Stage, context: Context) -> None:
    """Y-40, Y-43: conditions, order and limit mean them as well, in the words of today."""
    await opened.do(LEGACY)
    job = await opened.create("flush", {"ledger": "job"})
    answered = await execute(ANA, "SHOW JOBS", context)
    legacy = answered.columns.index("legacy")
    assert [(row[0], row[legacy]) for row in answered.rows] == [
        (job, False),
        ("2", True),
        ("1", True),
        ("0", True),
    ]
    failed = await execute(ANA, "SHOW JOBS WHERE status = 'FAILED' AND message LIKE 'no%' LIMIT 5", context)
    assert [row[:3] for row in failed.rows] == [("2", "flush", "failed")]
    first = await execute(ANA, "SHOW JOBS LIMIT 1", context)
    assert [row[0] for row in first.rows] == [job]
    assert (await execute(ANA, "SELECT count(*) FROM system.jobs", context)).rows == ((1,),)


async def test_select_reads_and_never_changes(opened: Stage, context: Context) -> None:
    """Y-35, Y-40: rows, counts and old names."""
    job = await opened.create("flush", {"ledger": "job"})
    await opened.do("update system.jobs set message = 'well done'")
    before = await opened.rows("select * from system.jobs")
    answered = await execute(ANA, "SELECT id, result, error_message FROM system.jobs", context)
    assert answered.columns == ("id", "result", "error_message")
    assert answered.rows == ((job, "well done", "well done"),)
    counted = await execute(ANA, "SELECT count(*) FROM system.jobs WHERE result LIKE 'well%'", context)
    assert (counted.columns, counted.rows) == (("count",), ((1,),))
    everything = await execute(ANA, "SELECT * FROM system.jobs", context)
    assert "message" in everything.columns
    assert not {"result", "error_message"} & set(everything.columns)
    assert await opened.rows("select * from system.jobs") == before


# -- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["SHOW JOBS", "SELECT * FROM system.jobs", "STORAGE FLUSH ALL", "KILL JOB {}", "no statement at all", ""],
)
async def test_a_non_administrator_is_refused_before_anything_is_read(
    opened: Stage, context: Context, text: str
) -> None:
    """Y-37: not even whether the text could be read is told."""
    job = await opened.create("flush", {"ledger": "job"})
    with pytest.raises(NotAllowed, match="administrators"):
        await execute(EVA, text.format(job), context)
    assert [(one["id"], one["status"]) for one in await jobs(opened)] == [(job, "queued")]


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM system.jobs",
        "SELECT * FROM job",
        "SELECT * FROM system.jobs, job",
        "SELECT * FROM system.jobs; DELETE FROM system.jobs",
        "SELECT * FROM system.jobs WHERE id = ''; DELETE FROM system.jobs; --'",
        "SELECT pg_sleep(60) FROM system.jobs",
        "SHOW JOBS WHERE id IN (SELECT id FROM job)",
        "COPY system.jobs TO PROGRAM 'true'",
        "STORAGE FLUSH TABLE job; STORAGE FLUSH TABLE tasks",
        "",
    ],
)
async def test_no_console_text_can_write_join_read_another_table_or_run_a_second_statement(
    opened: Stage, context: Context, text: str
) -> None:
    """Y-36: refused before anything is done."""
    job = await opened.create("flush", {"ledger": "job"})
    with pytest.raises(SyntaxRefused):
        await execute(ANA, text, context)
    assert [one["id"] for one in await jobs(opened)] == [job]
    assert (await actions.show(opened.bench, job)).state == "queued"
