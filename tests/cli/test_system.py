"""`holdfast system`: jobs made, watched, called off and made again from the shell; backups on a bare machine.

Y-4, Y-21, Y-37, Y-38 and Y-40 as the command line has them.
"""

from __future__ import annotations

import getpass
import json
import signal
from pathlib import Path

import pytest

from cli.kit import Done, Query, Run, Show, Start
from conftest import Eventually
from holdfast.apps.system.joblog import JobLog
from holdfast.apps.system.programs import find_programs
from holdfast.errors import MissingExtra

ME = getpass.getuser()
FLUSH = ("system", "run", "flush", "ledger=job")


@pytest.fixture
def log(folder: Path) -> JobLog:
    return JobLog(folder / "home" / "jobs.log")


def fails(done: Done, code: int, said: str) -> None:
    assert (done.code, done.out) == (code, ""), done
    assert said in done.err, done.err
    assert len(done.err.splitlines()) == 1


def made(holdfast: Run, *arguments: str) -> str:
    done = holdfast("system", "run", *arguments)
    assert (done.code, done.err) == (0, ""), done
    return done.out.strip()


# -- making and looking ----------------------------------------------------------------------------------


def test_a_job_is_made_listed_and_shown(holdfast: Run, query: Query, log: JobLog) -> None:
    """Y-38, Y-4: who made it is in the log and in the audit; times are ISO 8601."""
    job = made(holdfast, "flush", "ledger=job", "older_than_hours=0", "--key", "k", "--max-retries", "0")
    assert query(
        "select job_type, status, parameters ->> 'older_than_hours', idempotency_key, max_retries"
        " from system.jobs"
    ) == [("flush", "queued", "0.0", "k", 0)]
    assert [line.text for line in log.lines(job)] == ["new", f"queued by {ME}"]
    assert query("select who, action, row_id from holdfast_audit") == [(f"cli:{ME}", "system run", job)]
    listed = holdfast("system", "list")
    assert (listed.code, job in listed.out, "queued" in listed.out) == (0, True, True)
    told = holdfast("system", "list", "--json").data
    assert (told["jobs"][0]["id"], told["jobs"][0]["key"], told["cursor"]) == (job, "k", None)
    assert told["jobs"][0]["created_at"].endswith("Z")
    shown = holdfast("system", "show", job)
    for word in (job, "queued", "ledger", "older_than_hours", "0 of 0"):
        assert word in shown.out, word
    whole = holdfast("system", "show", job, "--json").data
    assert whole["parameters"] == {"ledger": "job", "older_than_hours": 0.0, "batch_rows": 50000}
    assert not {"result", "error_message"} & set(whole)


def test_lists_are_filtered_by_type_status_key_queue_and_time(holdfast: Run) -> None:
    """Y-38."""
    flush = made(holdfast, "flush", "ledger=job", "--key", "a")
    compact = made(holdfast, "Compact", "ledger=tasks", "--queue", "night")

    def found(*arguments: str) -> list[str]:
        return [one["id"] for one in holdfast("system", "list", "--json", *arguments).data["jobs"]]

    assert found() == [compact, flush]
    assert found("--type", "FLUSH") == [flush]
    assert found("--status", "queued", "--status", "Failed") == [compact, flush]
    assert found("--key", "a") == [flush]
    assert found("--queue", "night") == [compact]
    assert found("--created-after", "2999-01-01T00:00:00Z") == []
    assert found("--created-before", "2999-01-01T00:00:00Z") == [compact, flush]
    first = holdfast("system", "list", "--limit", "1", "--json").data
    assert found("--cursor", first["cursor"]) == [flush]
    fails(holdfast("system", "list", "--type", "vacuum"), 2, "flush")
    fails(holdfast("system", "list", "--status", "gone"), 2, "completed")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("vacuum",), 2, "stream_eviction"),
        (("flush",), 2, "ledger: is needed"),
        (("flush", "job"), 2, "is like ledger=job"),
        (("flush", "ledger=job", "x=1"), 2, "x: is no parameter of flush"),
        (("flush", "ledger=job", "batch_rows=many"), 2, "batch_rows"),
        (("flush", "ledger=nothing"), 2, "is not declared"),
        (("flush", "ledger=job", "--json-params", "{}"), 2, "one of both"),
        (("flush", "--json-params", "[]"), 2, "parameters: must be an object"),
        (("flush", "--json-params", "{"), 2, "is not JSON"),
        (("flush", "ledger=job", "--max-retries", "256"), 2, "between 0 and 255"),
        (("retention", "ledger=job", "retention_hours=0"), 2, "retention_hours"),
        (("backup", "schema=system", "backup_location=/etc/x"), 7, "not allowed"),
        (("user_cleanup", "subject.org_id=a", "subject.user_id=b"), 2, "exactly one"),
        (("user_cleanup", "subject=x", "subject.org_id=a"), 2, "subject: is given twice: as a whole"),
        (("user_cleanup", "subject.org_id=a", "subject=x"), 2, "subject: is given twice: as a whole"),
        (("user_cleanup", "subject={}", "subject.org_id=a"), 2, "subject: is given twice: as a whole"),
        (("flush", "--json-params", "[" * 100_000), 2, "--json-params: is nested too deeply"),
        (("flush", "--json-params", "[" * 500 + "]" * 500), 2, "--json-params: is nested too deeply"),
    ],
)
def test_a_job_that_cannot_be_is_refused_and_nothing_is_written(
    holdfast: Run, query: Query, log: JobLog, arguments: tuple[str, ...], code: int, said: str
) -> None:
    fails(holdfast("system", "run", *arguments), code, said)
    assert query("select * from system.jobs") == []
    assert query("select * from holdfast_audit") == []
    assert log.lines() == []


def test_parameters_may_be_one_json_object(holdfast: Run, query: Query) -> None:
    made(holdfast, "retention", "--json-params", '{"ledger": "job", "retention_hours": 1.5}')
    assert query("select parameters ->> 'retention_hours' from system.jobs") == [("1.5",)]


def test_an_old_table_is_listed_in_the_words_of_today(holdfast: Run, query: Query) -> None:
    """Y-40, Y-41, Y-43: and nothing is written; without one there is nothing."""
    assert holdfast("system", "legacy", "--json").data == []
    query(
        "create table system.jobs_legacy (id text, type text, status text, result text, parameters jsonb,"
        " created_at bigint)"
    )
    query("insert into system.jobs_legacy values ('FL-1', 'Flush', 'Completed', '12 rows', '[\"a\", 7]', 1)")
    (told,) = holdfast("system", "legacy", "--json").data
    assert (told["id"], told["status"], told["message"]) == ("FL-1", "completed", "12 rows")
    assert told["parameters"] == {"arg0": "a", "arg1": 7}
    assert told["created_at"] == "1970-01-01T00:00:00.001000Z"
    assert "result" not in told
    shown = holdfast("system", "legacy")
    assert (shown.code, "12 rows" in shown.out) == (0, True)


def test_an_old_time_beyond_the_calendar_is_its_number_and_a_message_one_line(
    holdfast: Run, query: Query
) -> None:
    """Y-41, Y-43: whatever an old record has, it is listed."""
    query("create table system.jobs_legacy (id text, type text, status text, result text, created_at bigint)")
    for job, when in (("FL-1", 2**63 - 1), ("FL-2", -(2**63)), ("FL-3", 253_402_300_800_000)):
        query("insert into system.jobs_legacy values (%s, 'Flush', 'Completed', E'one\ntwo', %s)", job, when)
    told = {one["id"]: one["created_at"] for one in holdfast("system", "legacy", "--json").data}
    assert told == {"FL-1": 2**63 - 1, "FL-2": -(2**63), "FL-3": 253_402_300_800_000}
    shown = holdfast("system", "legacy")
    assert (shown.code, shown.out.count("one"), "two" in shown.out) == (0, 3, False)


def test_the_types_tell_what_they_need(holdfast: Run) -> None:
    told = holdfast("system", "types")
    for word in ("stream_eviction (SE)", "ttl_seconds", "needed", "drop_table", "50000"):
        assert word in told.out, word
    types = {one["type"]: one for one in holdfast("system", "types", "--json").data["types"]}
    assert types["backup"]["parameters"]["required"] == ["schema", "backup_location"]


def test_a_key_that_is_taken_and_an_unknown_id_have_exit_codes_of_their_own(holdfast: Run) -> None:
    first = made(holdfast, "flush", "ledger=job", "--key", "once")
    fails(holdfast(*FLUSH, "--key", "once"), 5, first)
    fails(holdfast("system", "show", "FL-4fK2mZ0q"), 4, "FL-4fK2mZ0q")
    fails(holdfast("system", "show", "nonsense"), 2, "FL-4fK2mZ0q")
    fails(holdfast("system", "logs", "FL-4fK2mZ0q"), 4, "FL-4fK2mZ0q")


# -- orders ----------------------------------------------------------------------------------------------


def test_jobs_are_killed_and_made_again(holdfast: Run, query: Query, log: JobLog) -> None:
    """Y-15, Y-13, Y-38."""
    one, other = made(holdfast, "flush", "ledger=job"), made(holdfast, "flush", "ledger=tasks")
    done = holdfast("system", "kill", one, other, "--reason", "not now", "--by", "ana")
    assert (done.code, done.out.splitlines()) == (0, [f"{one} is cancelled", f"{other} is cancelled"])
    assert log.lines(one)[-1].text == "cancelled by ana: not now"
    fails(holdfast("system", "kill", one), 5, "cancelled")
    again = holdfast("system", "retry", one)
    new = again.out.strip()
    assert (again.code, new[:3], new != one) == (0, "FL-", True)
    fails(holdfast("system", "retry", new), 5, "queued")
    assert query("select who, action, row_id from holdfast_audit order by id")[2:] == [
        ("cli:ana", "cancel", one),
        ("cli:ana", "cancel", other),
        (f"cli:{ME}", "system retry", new),
    ]


# -- the log ---------------------------------------------------------------------------------------------


def test_lines_of_a_job_and_the_newest_of_all_are_read(holdfast: Run, log: JobLog) -> None:
    """Y-21: across rotated files, too."""
    one, other = made(holdfast, "flush", "ledger=job"), made(holdfast, "flush", "ledger=tasks")
    log.write(one, "WARN", "retry 1 of 3 in 0.1 s: boom")
    told = holdfast("system", "logs", one).out.splitlines()
    assert [line.split(" ", 3)[3] for line in told] == [
        "new",
        f"queued by {ME}",
        "retry 1 of 3 in 0.1 s: boom",
    ]
    assert all(line.startswith(f"[{one}] ") for line in told)
    assert len(holdfast("system", "logs").out.splitlines()) == 5
    assert holdfast("system", "logs", "-n", "1").out.split()[0] == f"[{one}]"
    lines = holdfast("system", "logs", other, "--json").data["lines"]
    assert [(line["level"], line["text"]) for line in lines] == [("INFO", "new"), ("INFO", f"queued by {ME}")]


def test_lines_are_followed_until_the_job_ends(holdfast: Run, start: Start, log: JobLog) -> None:
    job = made(holdfast, "flush", "ledger=job")
    process = start("system", "logs", job, "--follow", "--json")
    assert process.stdout
    assert json.loads(process.stdout.readline())["text"] == "new"
    holdfast("system", "kill", job)
    rest = [json.loads(line)["text"] for line in process.stdout]
    assert rest == [f"queued by {ME}", f"cancelled by {ME}"]
    assert process.wait(30) == 0


# -- waiting ---------------------------------------------------------------------------------------------


def test_waiting_where_nobody_works_says_so_and_does_not_hang(holdfast: Run, query: Query) -> None:
    """No worker: the job waits on, and the exit code tells that it is not done."""
    done = holdfast(*FLUSH, "--wait")
    fails(done, 8, "--here does it in this process")
    assert "no worker" in done.err
    assert query("select status from system.jobs") == [("queued",)]
    told = holdfast("system", "run", "compact", "ledger=job", "--wait", "--json")
    assert (told.code, json.loads(told.err)["code"]) == (8, "NOT_YET")


def test_a_job_is_done_here_and_no_other(holdfast: Run, query: Query) -> None:
    """A worker for this one job: what others have queued stays queued, and no worker stays behind."""
    pytest.importorskip("pyarrow")
    waiting = made(holdfast, "flush", "ledger=tasks", "--priority", "9")
    done = holdfast(*FLUSH, "--here")
    assert done.code == 0, done
    assert "completed: 0 rows" in done.out
    assert query("select status from system.jobs where id = %s", waiting) == [("queued",)]
    assert query("select * from workers") == []


def test_a_job_that_fails_here_has_the_exit_code_of_failure(holdfast: Run, query: Query) -> None:
    """Y-30: without cascade nothing is erased while work is open."""
    org = "aaaaaaaa-0000-4000-8000-00000000000a"
    assert holdfast("enqueue", "job", "report", "--tenant", org).code == 0
    done = holdfast("system", "run", "user_cleanup", f"subject.org_id={org}", "--here")
    assert (done.code, done.err) == (1, ""), done
    assert "failed: " in done.out
    assert query("select count(*) from job") == [(1,)]


def test_who_interrupts_leaves_the_job_queued_and_no_worker_behind(
    start: Start, query: Query, eventually: Eventually, log: JobLog
) -> None:
    """Y-16, Y-17: somebody else has the target, so the job waits for it."""
    lock = "select pg_advisory_lock(hashtextextended('holdfast system job', 0))"
    query(lock)
    process = start("system", "run", "retention", "ledger=job", "retention_hours=1", "--here")
    eventually(lambda: any("is taken" in line.text for line in log.lines()))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "`holdfast system kill RT-" in said
    assert query("select status from system.jobs") == [("queued",)]
    assert query("select id from workers") == []


def test_a_worker_does_it_and_whoever_waits_is_told(
    holdfast: Run, start: Start, query: Query, eventually: Eventually
) -> None:
    worker = start("worker", "--ledger", "system_jobs")
    eventually(lambda: query("select id from workers"))
    done = holdfast("system", "run", "retention", "ledger=job", "retention_hours=1", "--wait", "--json")
    assert done.code == 0, done
    assert (done.data["status"], done.data["message"][:6]) == ("completed", "0 rows")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


def test_a_terminal_shows_a_bar_and_then_the_end(terminal: Show, log: JobLog) -> None:
    shown = terminal("system", "run", "retention", "ledger=job", "retention_hours=1", "--here")
    shown.until("completed: 0 rows")
    assert "retention queued" in shown.text or "retention running" in shown.text
    assert [line.text[:9] for line in log.lines()][-1] == "completed"


# -- backups ---------------------------------------------------------------------------------------------


@pytest.fixture
def dumps() -> None:
    """What dumps and packs, or no test."""
    pytest.importorskip("zstandard")
    try:
        find_programs(150_000)
    except MissingExtra as error:
        pytest.skip(str(error))


def test_a_backup_and_its_restore_need_no_worker(
    dumps: None, holdfast: Run, query: Query, folder: Path
) -> None:
    """Y-32, Y-33 on a bare machine: done in this process, since nobody else would."""
    query("create schema keep create table things (id int primary key)")
    query("insert into keep.things select generate_series(1, 10)")
    done = holdfast("system", "backup", "keep", "--to", "safe")
    assert done.code == 0, done
    assert "completed" in done.out
    assert (folder / "home" / "backups" / "safe" / "manifest.json").is_file()
    fails(holdfast("system", "backup", "keep", "--to", "safe"), 5, "holds a backup")
    restored = holdfast("system", "restore", "safe", "--into", "kept", "--json")
    assert (restored.code, restored.data["status"]) == (0, "completed"), restored
    assert query("select count(*) from kept.things") == [(10,)]
    fails(holdfast("system", "restore", "safe", "--into", "kept"), 5, "kept")
    fails(holdfast("system", "restore", "safe", "--into", "kept", "--overwrite"), 2, "--yes")
    assert holdfast("system", "restore", "safe", "--into", "kept", "--overwrite", "--yes").code == 0


def test_without_a_name_every_schema_of_the_platform_is_backed_up(
    dumps: None, holdfast: Run, folder: Path
) -> None:
    done = holdfast("system", "backup", "--to", "night", "--json")
    assert done.code == 0, done
    assert {one["status"] for one in done.data["jobs"]} == {"completed"}
    places = {one.parent.name for one in (folder / "home" / "backups" / "night").glob("*/manifest.json")}
    assert {"schedule_ingest", "system"} < places
    assert len(places) == 3


@pytest.mark.parametrize(
    ("schema", "loss"),
    [
        ("system", "drop schema system cascade"),
        ("public", "drop schema public cascade"),
        ("public", "drop schema public cascade; create schema public"),
    ],
)
def test_a_lost_schema_of_the_platform_is_restored_without_a_job(
    dumps: None, holdfast: Run, query: Query, log: JobLog, schema: str, loss: str
) -> None:
    """Y-33: the tables in which a job would be are what is lost; where they are there it is refused."""
    task = holdfast("enqueue", "tasks", "note").out.strip()
    job = made(holdfast, "flush", "ledger=job")
    assert holdfast("system", "backup", "--to", "night").code == 0
    order = ("system", "restore", f"night/{schema}", "--into", schema, "--overwrite", "--yes")
    fails(holdfast(*order, "--without-job"), 2, "here a job can be made")
    query(loss)
    for profile in ("test", "dev"):  # one would upgrade what is there, the other says that it is too old
        refused = holdfast(*order, env={"HOLDFAST_PROFILE": profile})
        fails(refused, 2, "--without-job: is needed here: tables of the platform are lost")
    done = holdfast(*order, "--without-job", "--json")
    assert (done.code, done.data["status"]) == (0, "completed"), done
    assert [line.text.partition(":")[0] for line in log.lines(done.data["id"])][-1] == "completed"
    assert query("select status from system.jobs where id = %s", job) == [
        ("failed" if schema == "system" else "queued",)
    ]
    assert query("select count(*) from tasks where id = %s", task) == [(1,)]
    assert holdfast("db", "check").code == 0
    assert made(holdfast, "flush", "ledger=job")
    fails(holdfast(*order, "--without-job"), 2, "here a job can be made")


def test_a_platform_that_is_lost_as_a_whole_is_restored_as_the_guide_says(
    dumps: None, holdfast: Run, query: Query
) -> None:
    """Y-33: first what has the revision, then the table of jobs; the rest is a job again."""
    task = holdfast("enqueue", "tasks", "note").out.strip()
    assert holdfast("system", "backup", "--to", "nightly").code == 0
    query("drop schema public cascade; drop schema system cascade; drop schema schedule_ingest cascade")
    # The last with --here: for half a minute the worker that made the backup seems to be there.
    for schema, more in (
        ("public", "--without-job"),
        ("system", "--without-job"),
        ("schedule_ingest", "--here"),
    ):
        done = holdfast("system", "restore", f"nightly/{schema}", "--into", schema, more)
        assert (done.code, "completed" in done.out) == (0, True), done
    assert holdfast("db", "check").code == 0
    assert query("select status from tasks where id = %s", task) == [("pending",)]
    assert query("select job_type, status from system.jobs where status = 'completed'")[-1][0] == "restore"


def test_a_person_is_asked_before_something_is_overwritten(terminal: Show) -> None:
    shown = terminal("system", "restore", "safe", "--into", "kept", "--overwrite")
    shown.until("replace all that is in the schema kept?")
    shown.type(b"n\n")
    shown.until("nothing was done")
