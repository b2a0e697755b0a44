"""docs/schedules.md says what schedules do: its commands, programs and SQL run, its tables are complete."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import psycopg
import pytest

from conftest import Eventually
from connectors.servers.base import Asked, Reply, Server, route
from holdfast.apps.schedules.canonical import MOST_ENTRIES, canonical, canonical_json, payload_hash
from holdfast.apps.schedules.extractors import EXTRACTORS
from holdfast.apps.schedules.messages import text_of
from holdfast.apps.schedules.senders import told
from holdfast.apps.schedules.values import EventType, Notice, Shift
from holdfast.db import settings as described
from holdfast.db.schedule_settings import ScheduleSettings
from schedules.loops import loop
from schedules.meanings import DAY, SESSION, event, shift
from test_connectors_guide import Shell
from test_docs import blocks
from test_your_own_table import work_is_served

PAGE = Path(__file__).parent.parent / "docs" / "schedules.md"
SOURCE = Path(__file__).parent.parent / "src" / "holdfast" / "apps" / "schedules"
TEXT = PAGE.read_text()
UUID_LIKE = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def section(title: str) -> str:
    """What the page has below a heading, up to the next one of its kind."""
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return found


def program(name: str) -> str:
    (code,) = (one for one in blocks(PAGE, "python") if one.startswith(f"# {name}\n"))
    return code


def table(heading: str) -> str:
    return TEXT.split(f"| {heading} |")[1].split("\n\n")[0]


def first_column(heading: str) -> list[str]:
    """The words that the rows of a table are about."""
    rows = re.findall(r"^\| (`.*?) \|", table(heading), re.MULTILINE)
    return re.findall(r"`([\w.]+)`", "\n".join(rows))


# -- what it prints --------------------------------------------------------------------------------------


def test_two_minutes_print_what_the_guide_says(database_url: str, tmp_path: Path) -> None:
    """S-54: every command of the start, in its order; ids and times are whatever they are, but consistent."""
    start = section("Two minutes")
    (day,) = re.findall(r"^```json\n(.*?)^```", start, re.MULTILINE | re.DOTALL)
    (tmp_path / "day.json").write_text(day)
    env = _environment(database_url, tmp_path)
    steps = re.findall(r"^```bash\n(.*?)^```\n\n```text\n(.*?)^```", start, re.MULTILINE | re.DOTALL)
    assert len(steps) == start.count("```bash") == 3
    exports = ""
    really = said = ""
    for commands, printed in steps:
        script = exports + commands
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        exports += "".join(re.findall(r"^export .*\n", commands, re.MULTILINE))
        really, said = really + done.stdout, said + printed
    assert _plain(really) == _plain(said)


def _environment(url: str, folder: Path) -> dict[str, str]:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": programs, "HOLDFAST_DATABASE_URL": url, "HOLDFAST_HOME": str(folder)}
    return {**os.environ, **own}


def _plain(text: str) -> list[str]:
    """The lines, with the ids numbered in the order of their first appearance, and without times."""
    numbers: dict[str, str] = {}
    ids = UUID_LIKE.sub(lambda found: numbers.setdefault(found[0], f"id {len(numbers) + 1}"), text)
    return [line.rstrip() for line in TIME.sub("then", ids).splitlines()]


# -- what runs -------------------------------------------------------------------------------------------


class Gateway(Server):
    """Sends short messages, or says that it did."""

    @route("POST", "/sms")
    def sms(self, request: Asked) -> Reply:
        return Reply({"to": request.json["to"]}, 202)


def test_an_extractor_and_a_sender_of_ones_own_read_and_tell(
    database_url: str, tmp_path: Path, eventually: Eventually
) -> None:
    """S-22, S-50: the program of the guide, with the settings of the guide, in the loop of the guide."""
    (tmp_path / "planning.py").write_text(program("planning.py"))
    (tmp_path / "plans").mkdir()
    lines = ["2026-03-02", "9.00,12.00,Marie Sjöberg,BILLDAL,Valebergsvägen 316", "13:00,14:00,Bo Ek,Askim,"]
    (tmp_path / "plans" / "monday.csv").write_text("\n".join(lines))
    (tmp_path / "plans" / "odd.csv").write_text("2026-03-02\nnothing")
    (commands,) = (one for one in blocks(PAGE, "bash") if "planning:app" in one)
    exports = re.findall(r"^export (\w+)=(\S+)$", commands, re.MULTILINE)
    settings = dict(exports) | {"HOLDFAST_SCHEDULES_OBJECT_STORE": f"file://{tmp_path}/plans"}
    assert re.findall(r"^holdfast .*$", commands, re.MULTILINE) == [
        "holdfast schedules add 42 monday.csv",
        "holdfast schedules run-once",
        "holdfast schedules loop",
    ]
    with Gateway() as gateway, psycopg.connect(database_url, autocommit=True) as conn:
        settings |= {"HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_HOME": str(tmp_path)}
        settings |= {"SMS_URL": f"{gateway.url}/sms"}
        holdfast = Shell(tmp_path, **settings)
        session = holdfast("schedules", "add", "42", "monday.csv")
        assert holdfast("schedules", "run-once") == f"{session} done"
        holdfast("schedules", "add", "43", "odd.csv")
        with pytest.raises(AssertionError, match=r"csv_invalid: odd\.csv must have five columns"):
            holdfast("schedules", "run-once")
        waiting = "select true from schedule_ingest.schedule_notification where status = 'pending' limit 1"
        done = lambda: conn.execute(waiting).fetchone() is None  # noqa: E731
        _loop_until_told(database_url, tmp_path, settings, done, eventually)
        asked = [(one.json["text"], one.headers["idempotency-key"]) for one in gateway.requests]
        sent = conn.execute(
            "select message, notification_id from schedule_ingest.schedule_notification"
            " where status = 'sent' order by created_at"
        ).fetchall()
        assert asked == sent
        assert [message for message, _ in sent] == [
            "New shift added on 2026-03-02 09:00–12:00 in Billdal",  # noqa: RUF001
            "New shift added on 2026-03-02 13:00–14:00 in Askim",  # noqa: RUF001
        ]


def _loop_until_told(
    url: str, folder: Path, settings: dict[str, str], done: Callable[[], object], eventually: Eventually
) -> None:
    """`holdfast schedules loop`, until nothing is pending in the outbox."""
    names = ("EXTRACTOR", "OBJECT_STORE", "DELIVERY")
    own = {name.lower(): settings[f"HOLDFAST_SCHEDULES_{name}"] for name in names}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOLDFAST_APP", "SMS_URL", "HOLDFAST_HOME"):
            patch.setenv(name, settings[name])
        with loop(url, folder, **own) as running:
            eventually(done)
            assert running.stop() == 0


class Receiver(Server):
    """Answers as the receiver of the guide does."""

    take: Any = None

    @route("POST", "/messages")
    def messages(self, request: Asked) -> Reply:
        return Reply(None, self.take(request.headers, request.body))


def test_a_receiver_knows_who_sends_and_tells_once(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S-50: the receiver of the guide takes what is signed, once; anything else fails, for good."""
    receiver: dict[str, Any] = {}
    exec(compile(program("receiver.py"), "receiver.py", "exec"), receiver)
    with Receiver() as server, psycopg.connect(database_url, autocommit=True) as conn:
        server.take = receiver["take"]
        settings = {
            "HOLDFAST_DATABASE_URL": database_url,
            "HOLDFAST_HOME": str(tmp_path),
            "HOLDFAST_SCHEDULES_EXTRACTOR": "sample",
            "HOLDFAST_SCHEDULES_DELIVERY": "webhook",
            "HOLDFAST_SCHEDULES_DELIVERY_URL": f"{server.url}/messages",
        }
        strange = Shell(tmp_path, **settings, HOLDFAST_SCHEDULES_DELIVERY_SECRET="another secret")
        holdfast = Shell(tmp_path, **settings, HOLDFAST_SCHEDULES_DELIVERY_SECRET=receiver["SECRET"])
        holdfast("schedules", "add", "42")
        holdfast("schedules", "run-once")
        deliver = ("worker", "--ledger", "schedule_notification", "--until-idle")
        strange(*deliver)
        ((notice, status),) = conn.execute(
            "select notification_id, status from schedule_ingest.schedule_notification"
        ).fetchall()
        assert (status, capsys.readouterr().out) == ("failed", "")
        for _ in range(2):  # the second time as after a crash between the send and its commit
            conn.execute("set session_replication_role = replica")
            conn.execute("update schedule_ingest.schedule_notification set status = 'failed', sent_at = null")
            conn.execute("reset session_replication_role")
            holdfast("schedules", "resend", notice)
            holdfast(*deliver)
        statuses = conn.execute("select status from schedule_ingest.schedule_notification").fetchall()
        assert statuses == [("sent",)]
        assert capsys.readouterr().out == "to 42: 3 shifts updated on 2026-03-02\n"
        assert [json.loads(one.body)["notification_id"] for one in server.requests] == [notice] * 3


def test_the_fields_of_a_webhook_are_named() -> None:
    notice = Notice(
        id="1", user_id=42, schedule_date=DAY, session_id=SESSION, type="event", message="", event_ids=()
    )
    (named,) = re.findall(r"^The body has (.*?)\.$", TEXT, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) - {"event", "summary"} == set(told(notice))


@pytest.fixture
def conn(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as conn:
        yield conn


def test_what_the_other_service_says_is_understood(
    conn: psycopg.Connection[Any], database_url: str, tmp_path: Path
) -> None:
    """S-3, S-50: the statements of the guide, beside a worker: a capture, a look at a day, a message sent."""
    capture, look, drain = blocks(PAGE, "sql")
    conn.execute(capture)
    settings = {"HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_HOME": str(tmp_path)}
    holdfast = Shell(tmp_path, **settings, HOLDFAST_SCHEDULES_EXTRACTOR="sample")
    (made,) = conn.execute(
        "select s.id::text, s.state::text, count(i) from schedule_ingest.capture_session as s"
        " join schedule_ingest.capture_image as i on i.session_id = s.id group by s.id"
    ).fetchall()
    assert made[1:] == ("pending", 2)
    asyncio.run(work_is_served(database_url, "capture_session"))
    why = json.loads(holdfast("explain", "capture_session", made[0], "--json"))
    sentence = "it is passed over until no picture has come for 25 s"
    assert (why["code"], why["sentence"]) == ("PASSED_OVER", sentence)
    assert holdfast("schedules", "run-once") == f"{made[0]} done"
    ((version, payload, snapshot, _),) = conn.execute(look).fetchall()
    assert (version, len(payload["entries"]), len(snapshot)) == (1, 3, 3)
    begin, pick, send, commit = (one for one in drain.split(";\n") if one.strip())
    conn.execute(begin)
    ((notice, user, message),) = conn.execute(pick).fetchall()
    assert (user, message) == (42, "3 shifts updated on 2026-03-02")
    with psycopg.connect(database_url, autocommit=True) as other:
        assert other.execute(pick).fetchall() == []
    conn.execute(re.sub(r"'[0-9a-f]{64}'", f"'{notice}'", send))
    conn.execute(commit)
    ((status, sent_at),) = conn.execute(
        "select status, sent_at from schedule_ingest.schedule_notification"
    ).fetchall()
    assert status == "sent"
    assert sent_at is not None


# -- what it says ----------------------------------------------------------------------------------------


def test_the_canonical_payload_is_that_of_the_guide() -> None:
    """S-26, S-29: the second JSON is what becomes of the first, and the hash is its hash."""
    _, given, made = blocks(PAGE, "json")
    payload = canonical(json.loads(given))
    assert canonical_json(payload) == made.strip()
    assert f"`{payload_hash(payload)}`" in TEXT


def test_every_field_of_a_shift_is_in_the_table() -> None:
    assert sorted(first_column("field | from")) == sorted(Shift.__struct_fields__)


TEN, SCHOOL = shift("10:00-12:00"), shift("10:00-12:00", kind="SCHOOL")
ASKIM, ANNA = shift("10:00-12:00", place="Storgatan 3 Askim"), shift("10:00-12:00", "Anna Lind")
READ: dict[EventType, tuple[tuple[Shift | None, Shift | None], ...]] = {
    "shift_added": ((None, TEN),),
    "shift_removed": ((TEN, None),),
    "shift_time_changed": (
        (TEN, shift("11:00-12:00")),
        (TEN, shift("10:00-14:00")),
        (TEN, shift("11:00-13:00")),
    ),
    "shift_relocated": ((TEN, ASKIM),),
    "shift_retitled": ((TEN, ANNA),),
    "shift_reclassified": ((TEN, SCHOOL),),
}


@pytest.mark.parametrize("kind", get_args(EventType))
def test_a_person_reads_of_an_event_what_the_guide_says(kind: EventType) -> None:
    """S-49."""
    (printed,) = re.findall(rf"^\| `{kind}` \| [^|]+ \| (.*) \|$", TEXT, re.MULTILINE)
    whole, *further = [text_of(event(kind, *change), None) for change in READ[kind]]
    shortened = [text.removeprefix("On 2026-03-02 Billdal shift ") for text in further]
    assert printed == "; or: ".join([whole, *shortened])


def test_every_way_of_reading_and_of_sending_is_in_a_table() -> None:
    assert set(EXTRACTORS) <= set(first_column("name | reads"))
    ways = get_args(get_type_hints(ScheduleSettings)["schedules_delivery"])
    assert first_column("way | how") == list(ways)


def _sources() -> str:
    return "\n".join(path.read_text() for path in sorted(SOURCE.rglob("*.py")))


def test_every_code_of_an_error_is_in_the_table_and_no_other() -> None:
    listed = set(first_column("code in `error` | means"))
    written = set(re.findall(r"(?:Refusal|_refusal|_wrapped)\(\s*\"(\w+)\"", _sources()))
    of_any_ledger = {"timeout", "cancelled", "worker_lost", "cancellederror", "commit_failed", "unwritable"}
    assert listed == written | of_any_ledger
    assert f"more than {MOST_ENTRIES}," in table("code in `error` | means")


def test_every_event_of_the_log_is_in_the_table_and_no_other() -> None:
    """S-53."""
    listed = first_column("event | fields | when")
    written = re.findall(r"\b_?(?:tell|tells|log)\(\s*(?:ctx, |session, )?\"([a-z_]+\.[a-z_]+)\"", _sources())
    assert sorted(listed) == sorted(set(written))


def test_every_setting_that_is_named_is_one() -> None:
    known = {row.name for row in described.describe()}
    named = set(re.findall(r"\bHOLDFAST_SCHEDULES_[A-Z_]+[A-Z]\b", TEXT))
    assert named
    assert named <= known
