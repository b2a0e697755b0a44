"""`holdfast doctor` tells what is missing, and prints the SQL that mends it."""

from __future__ import annotations

from cli.kit import Query, Run


def test_doctor_finds_our_own_tables_healthy(holdfast: Run) -> None:
    done = holdfast("doctor")
    assert (done.code, done.err) == (0, "")
    assert "job: healthy" in done.out
    assert "tasks: healthy" in done.out
    assert "sync_jobs: healthy" in done.out
    assert "capture_session: healthy" in done.out
    assert "schedule_notification: healthy" in done.out
    assert "system_jobs: healthy" in done.out
    assert "✗" not in done.out
    assert "!" not in done.out
    script = holdfast("doctor", "--sql")
    assert (script.code, script.out, script.err) == (0, "", "")
    diagnoses = holdfast("doctor", "--json").data
    assert {finding["remedy_sql"] for one in diagnoses for finding in one["findings"]} == {None}


def test_doctor_warns_of_kinds_that_no_worker_takes(holdfast: Run, query: Query) -> None:
    query("insert into tasks (type) values ('mail'), ('report')")
    query(
        "insert into workers (id, hostname, pool_size, serves, shares) values"
        ' (\'w\', \'h\', 1, \'{tasks}\', \'{"tasks": {"slots": 1, "queues": [], "kinds": ["mail"]}}\')'
    )
    done = holdfast("doctor", "tasks")
    assert (done.code, done.err) == (0, "")
    assert "! kinds without a handler: report\n" in done.out


def test_doctor_tells_what_is_missing_and_its_sql_mends_it(holdfast: Run, query: Query) -> None:
    query("drop index idx_tasks_due_retry")
    told = holdfast("doctor", "--json")
    assert told.code == 1
    healthy, diagnosis, *others = told.data
    assert [(other["ledger"], other["healthy"]) for other in others] == [
        ("sync_jobs", True),
        ("capture_session", True),
        ("schedule_notification", True),
        ("system_jobs", True),
    ]
    assert (healthy["ledger"], healthy["findings"][0]["severity"]) == ("job", "fine")
    assert (diagnosis["ledger"], diagnosis["healthy"]) == ("tasks", False)
    assert "missing" in [finding["severity"] for finding in diagnosis["findings"]]
    assert {"lane": "retry", "served": False}.items() <= {
        key: value for lane in diagnosis["lanes"] if lane["lane"] == "retry" for key, value in lane.items()
    }.items()
    shown = holdfast("doctor", "tasks")
    assert shown.code == 1
    assert "tasks: something is missing" in shown.out
    script = holdfast("doctor", "--sql")
    assert script.code == 1
    for statement in script.out.split(";\n"):
        if statement.strip():
            query(statement)
    assert holdfast("doctor").code == 0


def test_doctor_brings_a_built_in_table_back_to_what_the_migrations_made(holdfast: Run, query: Query) -> None:
    """Nothing else is proposed, and what loosens a constraint or changes a type is marked."""
    query("alter table job alter column fence type integer")
    query("alter table system.jobs alter column message set not null")
    query("alter table system.jobs alter column retry_count drop default")
    script = holdfast("doctor", "--sql")
    assert (script.code, holdfast("doctor").code, holdfast("doctor", "--json").code) == (9, 9, 9)
    kept = [line for line in script.out.splitlines() if line and not line.startswith(("-- w", "-- missing"))]
    assert kept == [
        "-- changes a type: stored values are converted, and the table is locked meanwhile",
        'alter table "job" alter column "fence" drop default,',
        '    alter column "fence" type bigint using "fence"::bigint,',
        '    alter column "fence" set default 0;',
        'alter table "system"."jobs" alter column "retry_count" set default 0;',
        "-- loosens a constraint: the column accepts NULL",
        'alter table "system"."jobs" alter column "message" drop not null;',
    ]
    for statement in script.out.split(";\n"):
        if statement.strip():
            query(statement)
    assert holdfast("doctor").code == 0
    assert holdfast("db", "check").code == 0
