"""One run of a handler: payload in, ending out. Never raises what the handler raised."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast import logs, tracing
from holdfast.engine.outcomes import Crashed, Done, Ending, Fail, Outcome, Retry, outcome_of
from holdfast.engine.values import Claimed
from holdfast.errors import ClaimLost, InvalidInput
from holdfast.runtime.context import Context, SyncContext
from holdfast.runtime.handlers import Handler
from holdfast.runtime.processes import ProcessDied, Processes, crash_of

DONE = Done()


@dataclass
class Places:
    """What the handlers of a worker share: threads, processes, and how many may have a transaction at once.

    Threads are by ledger, as many as it has slots: one that hangs is missed by its own ledger alone.
    `abandoned` counts those that outlived their call, by ledger.
    """

    threads: Mapping[str, ThreadPoolExecutor]
    processes: Processes
    transactions: asyncio.Semaphore
    abandoned: Counter[str] = field(default_factory=Counter[str])


async def execute(handler: Handler, claim: Claimed, context: Context, places: Places) -> Ending:
    """Runs the handler and answers with its outcome, or with what became of it instead.

    Cancellation and `ClaimLost` of this row pass through: it is no longer ours, or the worker stops. The
    trace is that of whoever enqueued the row; the log tells of this run until its task has ended.
    """
    ledger, worker = context.store.ledger.name, claim.owner
    with tracing.running(
        ledger, claim.kind, id=claim.id, attempt=context.attempt, worker=worker, parent=claim.trace
    ) as span:
        logs.tell_of(logs.Run(ledger, claim.id, worker, tracing.trace_id()))
        ending = await _attempt(handler, claim, context, places)
        _tell(span, ending)
        return ending


def _tell(span: tracing.Span, ending: Ending) -> None:
    span.note(**{"holdfast.outcome": type(ending).__name__.lower()})
    match ending:
        case Crashed(code, message, stack) | Fail(message, code, stack):
            span.fail(code, message, stack)
        case Retry(reason, _, code):
            span.fail(code, reason)
        case _:
            pass


async def _attempt(handler: Handler, claim: Claimed, context: Context, places: Places) -> Ending:
    try:
        payload = handler.read(claim.payload)
    except InvalidInput as error:
        return Fail(reason=str(error), code="VALIDATION_ERROR")
    timer = asyncio.timeout(handler.timeout)
    try:
        async with timer:
            answer = await _call(handler, payload, context, places)
    except TimeoutError as error:
        if not timer.expired():
            return crash_of(error)
        context.cancelled.set()
        return Crashed(code="TIMEOUT", message=f"timed out after {handler.timeout:g} s")
    except ClaimLost as lost:
        if (lost.fields.get("id"), lost.fields.get("fence")) == (claim.id, claim.fence):
            raise
        return crash_of(lost)
    except ProcessDied as error:
        return Crashed(code="PROCESS_DIED", message=str(error))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return crash_of(error)  # the handler's own making: nobody called the run off
    except BaseException as error:  # also what is made to pass `except Exception`: it must not end the worker
        return crash_of(error)
    return answer if isinstance(answer, Crashed) else _outcome(answer)


def _outcome(answer: Any) -> Ending:
    """The answer as an outcome. Work that was handed back unfinished is not done."""
    if answer is None:
        return DONE
    if _is_a_slip(answer):
        message = f"the handler returned {answer!r}: return an outcome, like Done(), or raise"
        return Crashed(code="UNFINISHED", message=message)
    if inspect.iscoroutine(answer):
        answer.close()
    elif not (inspect.isawaitable(answer) or inspect.isgenerator(answer) or inspect.isasyncgen(answer)):
        return outcome_of(answer)
    message = f"the handler returned a {type(answer).__name__}, which nobody runs: is its `async def` hidden?"
    return Crashed(code="UNFINISHED", message=message)


async def _call(handler: Handler, payload: Any, context: Context, places: Places) -> Any:
    match handler.place:
        case "loop":
            return await handler.function(*handler.arguments(payload, context))
        case "process":
            return await places.processes.call(handler.function, *handler.arguments(payload, None))
        case "thread":
            return await _in_thread(handler, payload, context, places)


async def _in_thread(handler: Handler, payload: Any, context: Context, places: Places) -> Any:
    loop, ledger = asyncio.get_running_loop(), context.store.ledger.name
    arguments = handler.arguments(payload, SyncContext(context, loop))
    call = partial(contextvars.copy_context().run, _in_a_future, handler.function, *arguments)
    future = loop.run_in_executor(places.threads[ledger], call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        # A thread cannot be stopped: it is told, and counted until it comes to its end by itself.
        if not future.done():
            places.abandoned[ledger] += 1
            future.add_done_callback(lambda done: _came_back(done, places, ledger))
        raise


def _is_a_slip(answer: Any) -> bool:
    """`return Done` without its parentheses, or an error returned where it should be raised."""
    return isinstance(answer, BaseException) or (inspect.isclass(answer) and issubclass(answer, Outcome))


def _in_a_future(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (StopIteration, GeneratorExit) as stop:  # these two mean something else to those who await
        raise RuntimeError(f"the handler raised {type(stop).__name__}") from stop


def _came_back(done: asyncio.Future[Any], places: Places, ledger: str) -> None:
    places.abandoned[ledger] -= 1
    if not done.cancelled():
        done.exception()  # looked at, so that asyncio does not complain: its row has been decided already
