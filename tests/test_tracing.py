"""Traces: a job's handler belongs to the trace of whoever enqueued it, with OpenTelemetry and without."""

from __future__ import annotations

import asyncio
import doctest
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from api.kit import on, serving, working
from holdfast import Context, Fail, Holdfast, Item, Retry, Settings, Snooze, SyncContext, tracing
from holdfast.api import tokens
from holdfast.db.pool import Connection
from runtime.support import not_outliving, until_true

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
COMMAND = (sys.executable, "-m", "holdfast.cli")

SHOP = """
import logging
from holdfast import Holdfast, tracing

app = Holdfast()
log = logging.getLogger("shop")

@app.handler("hello")
async def hello() -> None:
    log.info("hello from %s", tracing.trace_id())
    await app.enqueue("tasks", "more")

@app.handler("more")
def more() -> None:
    log.info("more from %s", tracing.trace_id())

@app.handler("broken")
def broken() -> None:
    raise ValueError("it broke")
"""

# Put first on the path, it makes a Python in which OpenTelemetry is not installed.
WITHOUT = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
"""


# -- the form --------------------------------------------------------------------------------------------


def test_the_examples_in_the_code_are_true() -> None:
    assert doctest.testmod(tracing).failed == 0


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "nonsense",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + "-more",
        PARENT + " ",
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        PARENT.replace("-", "_"),
        PARENT.replace("4", "٤", 1),
    ],
)
def test_a_malformed_traceparent_is_none_and_nobody_continues_it(traceparent: str | None) -> None:
    assert tracing.parse(traceparent) is None
    with tracing.span("run", parent=traceparent, kind="consumer"):
        assert tracing.current() is None


@pytest.mark.parametrize("traceparent", [PARENT, f"cc-{PARENT[3:]}-what-comes-later", f"cc-{PARENT[3:]}"])
def test_a_later_version_is_read_as_far_as_we_know_it(traceparent: str) -> None:
    assert tracing.parse(traceparent) == (TRACE, SPAN)


# -- our own ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", ["00", "01", "03"])
def test_a_step_has_a_new_id_in_the_trace_of_its_parent_and_keeps_its_flags(flags: str) -> None:
    with tracing.span("a", parent=f"00-{TRACE}-{SPAN}-{flags}", kind="server"):
        outer = tracing.current()
        assert outer
        assert tracing.trace_id() == TRACE
        with tracing.span("b"):
            inner = tracing.current()
        assert tracing.current() == outer
    assert tracing.current() is None
    assert inner
    assert len({SPAN, outer[36:52], inner[36:52]}) == 3
    assert (outer[:36], outer[52:]) == (inner[:36], inner[52:]) == (f"00-{TRACE}-", f"-{flags}")


def test_a_request_begins_a_trace_and_a_row_alone_does_not() -> None:
    with tracing.span("GET /", kind="server"):
        first = tracing.trace_id()
    with tracing.span("GET /", kind="server"):
        second = tracing.trace_id()
    assert first
    assert second
    assert first != second
    with tracing.running("tasks", "mail", id=1, attempt=1, worker=None, parent=None) as span:
        assert span is tracing.QUIET
        assert tracing.trace_id() is None


# -- OpenTelemetry in this process -----------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What is told to OpenTelemetry, for the length of the test."""
    return provide(monkeypatch)


def provide(monkeypatch: pytest.MonkeyPatch, **options: Any) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False, **options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # the API lets it be set once a process
    return exporter


def named(told: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = (span for span in told.get_finished_spans() if span.name == name)
    return found


def ids(span: ReadableSpan) -> tuple[str, str]:
    """Its trace, and its parent."""
    assert span.context
    return f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}" if span.parent else ""


def own(span: ReadableSpan) -> str:
    assert span.context
    return f"{span.context.span_id:016x}"


def ancestors(told: InMemorySpanExporter, span: ReadableSpan) -> list[str]:
    parents = {own(one): ids(one)[1] for one in told.get_finished_spans()}
    found = [ids(span)[1]]
    while found[-1] in parents:
        found.append(parents[found[-1]])
    return found


def test_a_job_is_followed_from_the_request_into_its_handler(
    settings: Settings, told: InMemorySpanExporter
) -> None:
    """A real server, a real worker beside it, and a header as any client may send it."""
    ran, seen = threading.Event(), dict[str, Any]()
    app = Holdfast(settings)

    @app.handler("mail")
    def mail(payload: str, ctx: SyncContext) -> None:
        seen.update(here=tracing.current(), job=str(ctx.job.id), row=ctx.job.trace)
        ran.set()

    token = on(settings, lambda conn: tokens.create(conn, "test", "act"))[1]
    headers = {"Authorization": f"Bearer {token}", "traceparent": PARENT}
    with serving(Holdfast(settings).web()) as url, working(app):
        row = {"kind": "mail", "payload": "ana"}
        answer = httpx.post(f"{url}/api/ledgers/tasks/rows", json=row, headers=headers)
        assert answer.status_code == 201, answer.text
        assert ran.wait(30)
    (request,) = (span for span in told.get_finished_spans() if span.kind is SpanKind.SERVER)
    enqueue, run = named(told, "enqueue mail"), named(told, "run mail")
    assert ids(request) == (TRACE, SPAN)
    assert own(request) in ancestors(told, enqueue)  # FastAPI may tell of steps between
    assert ids(run) == (TRACE, own(enqueue))
    assert run.parent
    assert run.parent.is_remote
    assert (enqueue.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert seen["row"] == f"00-{TRACE}-{own(enqueue)}-01"
    assert seen["here"] == f"00-{TRACE}-{own(run)}-01"
    assert run.attributes
    worker = run.attributes["messaging.client.id"]
    words = {"messaging.system": "holdfast", "messaging.destination.name": "tasks"}
    assert dict(run.attributes) == words | {
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.message.id": seen["job"],
        "messaging.client.id": worker,
        "holdfast.kind": "mail",
        "holdfast.attempt": 1,
        "holdfast.outcome": "done",
    }
    assert enqueue.attributes
    assert dict(enqueue.attributes) == words | {
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.message.id": seen["job"],
        "holdfast.kind": "mail",
    }
    assert run.status.status_code is StatusCode.UNSET


async def test_how_a_run_ended_is_its_spans_status(settings: Settings, told: InMemorySpanExporter) -> None:
    app = Holdfast(settings)

    @app.handler("crash")
    async def crash() -> None:
        raise ValueError("it broke \ud800")

    @app.handler("fail")
    async def fail() -> Fail:
        return Fail(KeyError("not even a text"), code="NO_STOCK")  # type: ignore[arg-type]

    @app.handler("retry")
    async def retry() -> Retry:
        return Retry("not yet", after=3600, code="BUSY")

    @app.handler("snooze")
    async def snooze() -> Snooze:
        return Snooze(3600)

    async with app:
        for kind in ("crash", "fail", "retry", "snooze", "nobody"):
            await app.enqueue("tasks", kind, limit=0)
        await app.work(until_idle=True)
    ends = {name: named(told, f"run {name}") for name in ("crash", "fail", "retry", "snooze")}
    codes = {name: (s.attributes or {}).get("error.type") for name, s in ends.items()}
    assert codes == {"crash": "ValueError", "fail": "NO_STOCK", "retry": "BUSY", "snooze": None}
    said = {name: s.status.description for name, s in ends.items()}
    assert said == {
        "crash": "ValueError: it broke ?",
        "fail": "'not even a text'",
        "retry": "not yet",
        "snooze": None,
    }
    bad = {name for name, s in ends.items() if s.status.status_code is StatusCode.ERROR}
    assert bad == {"crash", "fail", "retry"}
    (event,) = ends["crash"].events
    assert (event.attributes or {})["exception.type"] == "ValueError"
    assert "in crash" in str((event.attributes or {})["exception.stacktrace"])
    assert not [span for span in told.get_finished_spans() if span.name == "run nobody"]


async def test_a_handler_that_is_called_off_ends_its_span_and_is_no_error(
    settings: Settings, conn: Connection, told: InMemorySpanExporter
) -> None:
    app = Holdfast(settings)
    began = asyncio.Event()

    @app.handler("wait")
    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    async with app:
        job = (await app.enqueue("tasks", "wait")).id
        told.clear()
        worker = app.worker(ledgers=["tasks"])
        work = asyncio.create_task(worker.run())
        await asyncio.wait_for(began.wait(), 30)
        await app.cancel("tasks", job)
        await until_true(told.get_finished_spans)
        worker.stop()
        await work
    span = named(told, "run wait")
    assert span.status.status_code is StatusCode.UNSET
    assert "holdfast.outcome" not in (span.attributes or {})


async def test_what_a_handler_enqueues_stays_in_its_trace_and_a_batch_is_one_step(
    settings: Settings, conn: Connection, told: InMemorySpanExporter
) -> None:
    app = Holdfast(settings)

    @app.handler("parent", ledger="tasks")
    async def parent(ctx: Context) -> None:
        many = [Item(kind="child"), Item(kind="child", trace=f"00-{'a' * 32}-{SPAN}-00")]
        await app.enqueue_many("tasks", many)

    @app.handler("child", ledger="tasks")
    def child() -> None: ...

    async with app:
        await app.enqueue("tasks", "parent", trace=PARENT)
        await app.work(until_idle=True)
    batch, run = named(told, "enqueue tasks"), named(told, "run parent")
    assert ids(run) == (TRACE, SPAN)
    assert ids(batch) == (TRACE, own(run))
    assert (batch.attributes or {})["messaging.batch.message_count"] == 2
    rows = await conn.execute("select traceparent from tasks where type = 'child' order by 1")
    assert [row[0] for row in await rows.fetchall()] == [
        f"00-{TRACE}-{own(batch)}-01",
        f"00-{'a' * 32}-{SPAN}-00",
    ]
    assert ids(named(told, "run child")) == (TRACE, own(batch))  # the other trace is not sampled


async def test_a_trace_that_is_not_sampled_stays_so_all_the_way(
    settings: Settings, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = provide(monkeypatch, sampler=ParentBased(ALWAYS_OFF))
    app, seen = Holdfast(settings), list[str | None]()

    @app.handler("mail")
    async def mail() -> None:
        seen.append(tracing.current())

    async with app:
        with tracing.span("POST /", parent=f"00-{TRACE}-{SPAN}-00", kind="server"):
            await app.enqueue("tasks", "mail")
        await app.work(until_idle=True)
    row = await (await conn.execute("select traceparent from tasks")).fetchone()
    assert row
    assert row[0].startswith(f"00-{TRACE}-")
    assert row[0].endswith("-00")
    assert seen[0]
    assert seen[0].startswith(f"00-{TRACE}-")
    assert seen[0].endswith("-00")
    assert told.get_finished_spans() == ()


def test_a_request_that_somebody_else_traces_has_one_span_and_ours_are_below_it(
    told: InMemorySpanExporter,
) -> None:
    tracer = trace.get_tracer("theirs")
    with tracer.start_as_current_span("theirs", kind=SpanKind.SERVER):
        with tracing.span("ours", parent=PARENT, kind="server") as span:
            span.note(answer=42)
            here = tracing.current()
            with tracing.span("below"):
                assert tracing.current() != here
            assert tracing.current() == here
        assert trace.get_current_span().is_recording()  # it is theirs to end
    theirs = named(told, "theirs")
    assert [span.name for span in told.get_finished_spans()] == ["below", "theirs"]
    assert (theirs.attributes or {})["answer"] == 42
    assert ids(named(told, "below"))[1] == own(theirs)


def test_without_a_provider_a_span_of_the_users_own_is_continued_all_the_same() -> None:
    """OpenTelemetry's API alone: something has read a header, and nobody records."""
    context = trace.SpanContext(int(TRACE, 16), int(SPAN, 16), True, trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)):
        assert tracing.current() == PARENT
        assert not tracing.recording()
    assert tracing.current() is None


async def test_an_enqueue_without_a_trace_leaves_the_row_without_one(
    settings: Settings, conn: Connection
) -> None:
    app, seen = Holdfast(settings), list[str | None]()

    @app.handler("mail")
    async def mail() -> None:
        seen.append(tracing.current())

    async with app:
        await app.enqueue("tasks", "mail")
        await app.work(until_idle=True)
    assert await (await conn.execute("select traceparent from tasks")).fetchone() == (None,)
    assert seen == [None]


# -- real processes --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def environment(folder: Path, database_url: str) -> dict[str, str]:
    """What a program of ours needs to know, and JSON logs."""
    kept = {name: value for name, value in os.environ.items() if "HOLDFAST" not in name}
    settings = {"DATABASE_URL": database_url, "PROFILE": "test", "LOG_FORMAT": "json", "HOME": str(folder)}
    return kept | {f"HOLDFAST_{name}": value for name, value in settings.items()}


@pytest.fixture
def run_worker(folder: Path, environment: dict[str, str]) -> Run:
    """Runs `holdfast worker --until-idle`; answers with the lines of its log."""

    def run_worker(**more: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [*COMMAND, "worker", "--app", "shop:app", "--until-idle", "--ledger", "tasks"],
            env=environment | more,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr.replace('"trace": "Traceback', "")
        return [json.loads(line) for line in done.stderr.splitlines()]

    return run_worker


@pytest.fixture
def rows(database_url: str) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    with psycopg.connect(database_url, autocommit=True) as conn:
        yield lambda text: (lambda c: c.fetchall() if c.description else [])(conn.execute(text.encode()))


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A collector on loopback, and what it was sent."""
    taken: list[ExportTraceServiceRequest] = []

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf":
                taken.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Taker)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", taken
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_worker_process_sends_its_spans_to_the_collector_that_the_environment_names(
    run_worker: Run, rows: Any, collector: tuple[str, list[ExportTraceServiceRequest]]
) -> None:
    url, taken = collector
    rows(f"insert into tasks (type, traceparent) values ('hello', '{PARENT}')")
    log = run_worker(OTEL_EXPORTER_OTLP_ENDPOINT=url)
    spans = sent(taken)
    found = {span.name: span for span in spans}
    assert set(found) == {"run hello", "enqueue more", "run more"}
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert found["run hello"].parent_span_id.hex() == SPAN
    assert found["enqueue more"].parent_span_id == found["run hello"].span_id
    assert found["run more"].parent_span_id == found["enqueue more"].span_id
    assert service(taken) == "holdfast"
    assert {line["trace_id"] for line in log if line["logger"] == "shop"} == {TRACE}

    taken.clear()
    rows(f"insert into tasks (type, traceparent) values ('more', '{PARENT}')")
    run_worker(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{url}/v1/traces", OTEL_SERVICE_NAME="shop")
    assert service(taken) == "shop"


def sent(taken: Sequence[ExportTraceServiceRequest]) -> list[Any]:
    resources = [resource for request in taken for resource in request.resource_spans]
    return [span for resource in resources for scope in resource.scope_spans for span in scope.spans]


def service(taken: Sequence[ExportTraceServiceRequest]) -> str:
    about = taken[0].resource_spans[0].resource.attributes
    return {pair.key: pair.value.string_value for pair in about}["service.name"]


def test_a_server_process_and_a_worker_process_tell_of_one_trace(
    run_worker: Run,
    folder: Path,
    settings: Settings,
    environment: dict[str, str],
    collector: tuple[str, list[ExportTraceServiceRequest]],
) -> None:
    url, taken = collector
    there = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
    token = on(settings, lambda conn: tokens.create(conn, "test", "act"))[1]
    command = [*COMMAND, "serve", "--port", "0"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment | there, cwd=folder, stdout=pipe, text=True)
    assert process.stdout
    with process.stdout as said, not_outliving(process) as server:
        address = next(line.split()[-1] for line in said if line.startswith("  dashboard"))
        answer = httpx.post(
            f"{address}/api/ledgers/tasks/rows",
            json={"kind": "more"},
            headers={"Authorization": f"Bearer {token}", "traceparent": PARENT},
            timeout=30,
        )
        assert answer.status_code == 201, answer.text
        assert answer.headers["X-Trace-Id"] == TRACE
        server.terminate()
        assert server.wait(60) == 0
    run_worker(**there)
    spans = [span for span in sent(taken) if not span.name.startswith("fastapi.")]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    request, enqueue, run = (span.name for span in sorted(spans, key=lambda span: span.start_time_unix_nano))
    assert (request, enqueue, run) == ("POST /api/ledgers/{ledger}/rows", "enqueue more", "run more")
    found = {span.name: span for span in spans}
    assert found[request].parent_span_id.hex() == SPAN
    assert found[run].parent_span_id == found[enqueue].span_id


def test_a_collector_that_is_away_costs_a_stopping_worker_seconds_and_no_job(
    run_worker: Run, rows: Any
) -> None:
    rows(f"insert into tasks (type, traceparent) values ('more', '{PARENT}')")
    began = time.monotonic()
    log = run_worker(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")  # nobody there
    assert time.monotonic() - began < 30  # patience is five; the rest is the start of a process
    assert rows("select status::text from tasks") == [("completed",)]
    assert "the last spans could not be sent within 5 s" in " ".join(line["message"] for line in log)


def test_the_log_of_a_worker_process_names_job_and_trace_in_every_line_of_a_handler(
    run_worker: Run, rows: Any
) -> None:
    """The user's own logger, in the loop and in a thread; and what the worker says of a crash."""
    rows(f"insert into tasks (type, traceparent) values ('hello', '{PARENT}'), ('broken', '{PARENT}')")
    log = run_worker()
    jobs = dict(rows("select type, id::text from tasks"))
    (hello,) = (line for line in log if line["message"].startswith("hello"))
    (more,) = (line for line in log if line["message"].startswith("more"))
    (broken,) = (line for line in log if "it broke" in line["message"])
    for line, kind in ((hello, "hello"), (more, "more"), (broken, "broken")):
        assert (line["ledger"], line["job"], line["trace_id"]) == ("tasks", jobs[kind], TRACE)
        assert line["worker"]
    assert hello["message"] == f"hello from {TRACE}"
    assert more["message"] == f"more from {TRACE}"
    assert "job" not in log[0]


def test_without_opentelemetry_the_ids_flow_and_who_asks_for_spans_is_told_what_to_install(
    run_worker: Run, rows: Any, folder: Path
) -> None:
    (folder / "without").mkdir()
    (folder / "without" / "sitecustomize.py").write_text(WITHOUT)
    path = {"PYTHONPATH": str(folder / "without")}
    blocked = subprocess.run(
        [sys.executable, "-c", "import opentelemetry"], env={**os.environ, **path}, capture_output=True
    )
    assert blocked.returncode == 1  # it is really not there
    rows(f"insert into tasks (type, traceparent) values ('hello', '{PARENT}'), ('more', null)")
    log = run_worker(**path)
    assert not [line for line in log if "otel" in line["message"]]
    lines = {line["message"] for line in log if line["logger"] == "shop"}
    assert lines == {f"hello from {TRACE}", f"more from {TRACE}", "more from None"}
    (child,) = rows("select traceparent from tasks where type = 'more' and traceparent is not null")
    assert child[0].startswith(f"00-{TRACE}-")
    assert tracing.parse(child[0]) != (TRACE, SPAN)  # the run that enqueued it has an id of its own

    log = run_worker(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", **path)
    (warning,) = (line for line in log if line["level"] == "WARNING")
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is set" in warning["message"]
    assert "pip install 'holdfast[otel]'" in warning["message"]


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "console,otlp"}, True),
    ],
)
def test_spans_are_sent_where_the_environment_asks_for_it(environment: dict[str, str], wanted: bool) -> None:
    assert tracing.wanted(environment) is wanted


def test_a_provider_that_the_application_has_set_up_stays(told: InMemorySpanExporter) -> None:
    before = trace.get_tracer_provider()
    tracing.configure({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
    assert trace.get_tracer_provider() is before
