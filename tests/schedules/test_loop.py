"""`holdfast schedules loop`: a process that works for ever, without a port, and tells what it does."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast import Settings
from holdfast.db.pool import Connection
from runtime.support import until, until_true
from schedules.kit import day, entry, stage
from schedules.loops import loop

FIELDS = {"timestamp", "service", "level", "event", "session_id", "user_id", "correlation_id"}


def ports(pid: int) -> list[str]:
    """The sockets of a process on which it listens, by the kernel's own tables."""
    own = {
        target
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if (target := _target(link)).startswith("socket:")
    }
    listening: list[str] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                listening.append(words[1])
    return listening


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


async def test_the_loop_survives_a_failing_session_and_logs_start_end_and_error_and_it_opens_no_port(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """S-52, S-53, S-18."""
    (tmp_path / "1.json").write_text("{")
    (tmp_path / "default.json").write_text(json.dumps(day(entry())))
    assert settings.database_url
    async with stage(settings) as here:
        bad, good = await here.capture(1), await here.capture(2)
        with loop(settings.database_url, tmp_path, fixture_path=tmp_path, concurrency=1) as process:
            await until(
                conn,
                "select count(*) = 2 from schedule_ingest.capture_session where state in ('done', 'failed')",
            )
            assert ports(process.pid) == []
            later = await here.capture(3)
            await until(
                conn,
                "select true from schedule_ingest.capture_session where id = %s and state = 'done'",
                later,
            )
            await until_true(lambda: process.events().count("iteration.end") >= 3)
            assert process.stop() == 0
        assert str((await here.session(bad))["error"]).startswith("payload_not_json: ")
    lines = [line for line in process.said() if "event" in line]
    (failed,) = [line for line in lines if line["event"] == "session.failed"]
    assert failed["session_id"] == failed["correlation_id"] == str(bad)
    assert (failed["error.type"], failed["error.stage"], failed["level"]) == (
        "payload_not_json",
        "ocr",
        "ERROR",
    )
    assert "error.message" in failed
    told = [line["event"] for line in lines if line.get("session_id") == str(good)]
    assert told == [
        "session.finalized",
        "session.images_loaded",
        "aggregation.completed",
        "diff.computed",
        "events.persisted",
        "notifications.generated",
        "notifications.stored",
        "session.processed",
    ]
    assert all(line.keys() >= FIELDS for line in lines if "session_id" in line)
    events = [line["event"] for line in lines]
    assert events.count("iteration.start") == events.count("iteration.end")


async def test_of_idle_iterations_the_first_is_told_and_each_twelfth(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """S-53: and a session that is not ready is told as skipped."""
    assert settings.database_url
    async with stage(settings) as here:
        session = await here.capture()
        how = {"poll_seconds": 0.01, "idle_log_every": 5, "idle_timeout_seconds": 3600}
        with loop(settings.database_url, tmp_path, **how) as process:
            await until_true(lambda: process.events().count("session.skipped_idle") >= 2)
            assert process.stop() == 0
    idle = [line for line in process.said() if line.get("event") == "iteration.end"]
    assert {line["sessions"] for line in idle} == {0}
    skipped = [line for line in process.said() if line.get("event") == "session.skipped_idle"]
    assert {line["session_id"] for line in skipped} == {str(session)}


async def test_the_loop_goes_on_when_the_database_was_away(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """S-52: the error of an iteration is logged."""
    from runtime.support import cut

    assert settings.database_url
    async with stage(settings) as here:
        with loop(settings.database_url, tmp_path) as process:
            await until_true(lambda: "iteration.end" in process.events())
            await cut(conn, "worker capture_session")
            await until_true(lambda: "iteration.error" in process.events())
            (failed, *_) = [line for line in process.said() if line.get("event") == "iteration.error"]
            assert failed["error.stage"] == "db"
            assert "connection" in failed["error.message"]
            session = await here.capture()
            await until(
                conn,
                "select true from schedule_ingest.capture_session where id = %s and state = 'done'",
                session,
            )
            assert process.stop() == 0
