"""Follows work from the request that enqueues it into its handler. May use OpenTelemetry, where it is there.

What travels is the W3C traceparent: in an HTTP header, and in a column of the row. Where OpenTelemetry is
loaded and has a provider, every step is a span of it; else the ids are our own, so that logs can be joined.
Where nobody traces, nothing is made at all.

Only `configure` and `finish` are for programs: a library leaves OpenTelemetry to the program that uses it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import random
import re
import sys
import threading
from collections.abc import Mapping
from contextvars import ContextVar, Token
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

log = logging.getLogger("holdfast.tracing")

Kind = Literal["server", "producer", "consumer", "internal"]
SYSTEM = "holdfast"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PARTS = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")  # what the extra installs
MESSAGE, STACK = 2048, 16384  # characters that a span tells of an error
PATIENCE = 5.0  # seconds that a program which ends waits for its last spans to be taken
FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)

_here: ContextVar[str | None] = ContextVar("holdfast_traceparent", default=None)
_known: tuple[Any, Tracer | None] = (None, None)  # the provider that was seen last, and our tracer of it
_ours: Any = None  # the provider that `configure` has set up


# -- the W3C form ------------------------------------------------------------------------------------


def parse(traceparent: str | None) -> tuple[str, str] | None:
    """The trace id and the span id of a traceparent; None when it is malformed.

    >>> parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    ('4bf92f3577b34da6a3ce929d0e0e4736', '00f067aa0ba902b7')
    >>> parse("00-00000000000000000000000000000000-00f067aa0ba902b7-01")
    """
    read = _read(traceparent)
    return read and read[:2]


def _read(traceparent: str | None) -> tuple[str, str, str] | None:
    """The same with the flags. A later version than ours may say more than we know, as the W3C wants it."""
    found = FORM.fullmatch(traceparent) if traceparent else None
    if found is None:
        return None
    edition, trace, span, flags, more = found.groups()
    if edition == "ff" or (edition == "00" and more) or not trace.strip("0") or not span.strip("0"):
        return None
    return trace, span, flags


def _random(digits: int) -> str:
    """Hex digits that are not all zero. Nobody's secret, so the quick generator is good enough."""
    return f"{random.getrandbits(4 * digits) or 1:0{digits}x}"


# -- what runs now -----------------------------------------------------------------------------------


def current() -> str | None:
    """The traceparent of what runs now: that of OpenTelemetry's span where there is one, else our own."""
    api = sys.modules.get("opentelemetry.trace")
    if api is not None and hasattr(api, "get_current_span"):  # another thread may just be importing it
        context = api.get_current_span().get_span_context()
        if context.is_valid:
            return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return _here.get()


def trace_id() -> str | None:
    """The 32 hex digits of the trace that runs now; None when there is none."""
    here = current()
    return here and here[3:35]


def recording() -> bool:
    """Whether spans go to OpenTelemetry, so that attributes are worth their making."""
    return _tracer() is not None


class Span:
    """A step of a trace, for `with`. This one is what there is when nobody traces: it tells nothing."""

    def note(self, **attributes: str | int | float | bool) -> None:
        """Adds attributes."""

    def enqueued(self, id: object = None, *, count: int | None = None) -> None:
        """Says which row was added, or how many."""

    def fail(self, code: str, message: str, stack: str | None = None) -> None:
        """Says that the step ended badly; `code` is the class of the error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


QUIET = Span()


class _Numbered(Span):
    """A step that has an id, and is told to nobody."""

    def __init__(self, traceparent: str) -> None:
        self._traceparent = traceparent

    def __enter__(self) -> Self:
        self._before: Token[str | None] = _here.set(self._traceparent)
        return self

    def __exit__(self, *_: object) -> None:
        _here.reset(self._before)


class _Recorded(Span):
    """A span of OpenTelemetry."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    def note(self, **attributes: str | int | float | bool) -> None:
        self._span.set_attributes(attributes)

    def enqueued(self, id: object = None, *, count: int | None = None) -> None:
        if count is None:
            self._span.set_attribute("messaging.message.id", str(id))
        else:
            self._span.set_attribute("messaging.batch.message_count", count)

    def fail(self, code: str, message: str, stack: str | None = None) -> None:
        from opentelemetry.trace import Status, StatusCode

        code, message = _clean(code)[:MESSAGE], _clean(message)[:MESSAGE]
        told = {"exception.type": code, "exception.message": message}
        if stack:
            told["exception.stacktrace"] = _clean(stack)[-STACK:]
        self._span.set_attribute("error.type", code)
        self._span.add_event("exception", told)
        self._span.set_status(Status(StatusCode.ERROR, message))

    def __enter__(self) -> Self:
        from opentelemetry import context, trace

        self._before = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from opentelemetry import context

        context.detach(self._before)
        if isinstance(error, Exception):  # a cancellation is nobody's fault
            self.fail(type(error).__name__, _clean(error))
        self._span.end()


class _Borrowed(_Recorded):
    """A span that somebody else has begun, and ends: what we know goes there."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def span(name: str, *, parent: str | None = None, kind: Kind = "internal", **attributes: Any) -> Span:
    """A step that continues the parent's trace, or else the current one, or else begins a new one.

    `parent` is a traceparent that came from elsewhere: a header, a row. Without OpenTelemetry, rows begin no
    trace: neither an enqueue nor a run costs an id that nobody asked for.
    """
    tracer = _tracer()
    if tracer is None:
        return _numbered(parent, begins=kind not in ("producer", "consumer"), goes_on=kind != "server")
    if kind == "server" and (begun := _request()) is not None:
        begun.set_attributes(attributes)
        return _Borrowed(begun)
    return _Recorded(_start(tracer, name, parent, kind, attributes))


def _numbered(parent: str | None, *, begins: bool, goes_on: bool = True) -> Span:
    """A step with an id of our own in the trace that there is; `begins`: else in a new one.

    `goes_on`: also in one that began here. A request never does: the context that a server reads it in may be
    left over from an earlier request of the same connection.
    """
    before = _read(parent) or (_read(current()) if goes_on else None)
    if before is None and not begins:
        return QUIET
    trace, _, flags = before or (_random(32), "", "01")
    return _Numbered(f"00-{trace}-{_random(16)}-{flags}")


def enqueuing(ledger: str, kind: str | None = None) -> Span:
    """The step that adds rows: told to OpenTelemetry, else no step at all."""
    if not recording():
        return QUIET
    more = {"holdfast.kind": kind} if kind else {}
    return span(f"enqueue {kind or ledger}", kind="producer", **_words(ledger, "enqueue", "send"), **more)


def running(
    ledger: str, kind: str, *, id: object, attempt: int, worker: str | None, parent: str | None
) -> Span:
    """The step that runs a handler, in the trace of whoever enqueued its row."""
    if not recording():
        return _numbered(parent, begins=False)
    more = {"messaging.message.id": str(id), "holdfast.kind": kind, "holdfast.attempt": attempt}
    if worker:
        more["messaging.client.id"] = worker
    words = _words(ledger, "run", "process")
    return span(f"run {kind}", parent=parent, kind="consumer", **words, **more)


def _words(ledger: str, name: str, type: str) -> dict[str, str]:
    """What OpenTelemetry's conventions call a queue and what is done with it."""
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": ledger,
        "messaging.operation.name": name,
        "messaging.operation.type": type,
    }


def _clean(told: object) -> str:
    """Whatever it is as a text. What UTF-8 has no place for would cost the exporter the whole batch."""
    try:
        return str(told).encode("utf-8", "replace").decode()
    except Exception:  # an error that cannot even be told
        return type(told).__name__


# -- OpenTelemetry -----------------------------------------------------------------------------------


def _tracer() -> Tracer | None:
    """Our tracer, where the program has set OpenTelemetry up. Who did that has loaded it: we need not."""
    global _known
    api = sys.modules.get("opentelemetry.trace")
    if api is None or not hasattr(api, "get_tracer_provider"):
        return None
    provider = api.get_tracer_provider()
    if provider is not _known[0]:
        tracer: Tracer | None = None
        if not isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
            tracer = provider.get_tracer(SYSTEM, version("holdfast"))
        _known = (provider, None if isinstance(tracer, api.NoOpTracer) else tracer)
    return _known[1]


def _start(
    tracer: Tracer, name: str, parent: str | None, kind: Kind, attributes: Mapping[str, Any]
) -> OtelSpan:
    from opentelemetry import context as otel_context
    from opentelemetry.trace import SpanKind

    context = _remote(parent, goes_on=kind != "server")
    if context is None and kind == "server" and _is_left_over():
        context = otel_context.Context()
    return tracer.start_span(name, context, SpanKind[kind.upper()], attributes)


def _is_left_over() -> bool:
    """Whether the current span has ended: it is that of an earlier request of the same connection."""
    from opentelemetry.trace import get_current_span

    return getattr(get_current_span(), "end_time", None) is not None


def _request() -> OtelSpan | None:
    """The span of this request, where somebody has begun it: the user's framework, or FastAPI itself."""
    from opentelemetry.trace import SpanKind, get_current_span

    now = get_current_span()
    return now if now.is_recording() and getattr(now, "kind", None) is SpanKind.SERVER else None


def _remote(parent: str | None, *, goes_on: bool) -> Context | None:
    """The context in which that parent is the current span; None for the context that there is."""
    from opentelemetry import trace

    found = _read(parent)
    if found is None and goes_on and not trace.get_current_span().get_span_context().is_valid:
        found = _read(_here.get())  # begun before there was a provider
    if found is None:
        return None
    context = trace.SpanContext(
        trace_id=int(found[0], 16),
        span_id=int(found[1], 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(found[2], 16)),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(context))


# -- for programs ------------------------------------------------------------------------------------


def configure(environment: Mapping[str, str] = os.environ) -> None:
    """Sends spans to where OpenTelemetry's own variables say; does nothing where they say nothing.

    A provider that the user's application has set up stays.
    """
    global _ours
    if not wanted(environment) or recording():
        return
    if missing := [part for part in PARTS if not _installed(part)]:
        log.warning(
            "%s is set, and %s is not installed, so nobody is told of traces: pip install 'holdfast[otel]'",
            next(name for name in ENDPOINTS if environment.get(name)),
            missing[0],
        )
        return
    if any("grpc" in environment.get(name, "") for name in PROTOCOLS):
        log.warning("traces are sent by HTTP, and %s says grpc: use the collector's HTTP port", PROTOCOLS[1])
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    _ours = TracerProvider(resource=Resource.create({} if named else {"service.name": SYSTEM}))
    _ours.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(_ours)
    if not log.isEnabledFor(
        logging.DEBUG
    ):  # a collector that is away is told of once a batch, not at each try
        logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for traces to be sent.

    >>> wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"})
    True
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = environment.get("OTEL_TRACES_EXPORTER") or "otlp"
    if "otlp" not in [name.strip() for name in exporters.split(",")]:
        return False
    return any(environment.get(name) for name in ENDPOINTS)


def finish(patience: float = PATIENCE) -> None:
    """Sends the last spans before the program ends, and waits no longer than `patience` seconds for it."""
    global _ours
    provider, _ours = _ours, None
    if provider is None:
        return
    last = threading.Thread(target=provider.shutdown, name="holdfast traces", daemon=True)
    last.start()
    last.join(patience)
    if last.is_alive():
        log.warning("the last spans could not be sent within %g s: is the collector there?", patience)


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # not even the package around it
        return False
