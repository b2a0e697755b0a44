"""The console of `holdfast sql` in a terminal: statements are typed up to their semicolon, and remembered.

Keys are waited for in the main thread, where Ctrl-C comes; the application is open in a loop of another
thread, so that its connections live on while somebody thinks.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.cli import application, output, sql
from holdfast.errors import HoldfastError, SyntaxRefused

if TYPE_CHECKING:
    from holdfast.apps.system.console import Answer, Context, Statement
    from holdfast.platform import Holdfast

T = TypeVar("T")


class Call(Protocol):
    """Runs something where the application is open, and waits for it."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T: ...


FILE = "sql_history"
KEPT = 1000  # statements of the history
PROMPT, MORE = "holdfast> ", "{:>8}> "
NUDGE = signal.SIGURG  # which means nothing to anybody else
NUDGES = (0.05, 0.2, 0.5)  # seconds
FORM = 25  # characters of a whole form, at least
JOINTS = ("AND", "BETWEEN", "DESC", "ILIKE", "IS", "LIKE", "NOT", "NULL", "OR")
LEAVING = ("\\q", "quit", "exit")
HELPING = ("\\?", "\\h", "help")
KEYS = (
    ("\\?", "this help"),
    ("\\q", "leave; so do quit, exit and Ctrl-D"),
    ("Ctrl-C", "forget what was typed, or stop waiting for an answer"),
    (";", "ends a statement, which may have several lines"),
)


def converse(app: Holdfast, by: str | None, json: bool) -> None:
    """Reads statements and answers them, until somebody has had enough."""
    with _ending(), _open(app) as call, _nudging():
        context = call(sql.context(app))
        keep = _history(app.settings.home / FILE, _words(context))
        output.said("Statements end with a semicolon; \\? tells which there are, \\q leaves.")

        def work(statement: Statement) -> Answer:
            return call(sql.answered(app, statement, context, by))

        while (text := _typed()) is not None:
            with suppress(KeyboardInterrupt):  # one that comes between two statements means nothing
                if text:
                    keep(text)
                    _answer(text, work, json)


def _typed() -> str | None:
    """The next statement; empty if there is none after all, None at the end of all."""
    from holdfast.apps.system.console import unfinished

    lines: list[str] = []
    waits: str | None = None
    try:
        while True:
            lines.append(input(PROMPT if not lines else MORE.format("..." if waits == ";" else waits)))
            text = "\n".join(lines).strip()
            if len(lines) == 1 and (word := text.rstrip(" ;").lower()) in (*LEAVING, *HELPING):
                if word in LEAVING:
                    return None
                _help()
                return ""
            if not text or (waits := unfinished(text)) is None:
                return text
    except KeyboardInterrupt:
        output.said("")
        return ""
    except EOFError:
        output.said("")
        return None


def _answer(text: str, work: Callable[[Statement], Answer], json: bool) -> None:
    """Answers one statement; whatever goes wrong is told, and the next one may be typed."""
    from holdfast.apps.system.console import parse

    try:
        sql.tell(work(parse(text)), json)
        output.flush()
    except SyntaxRefused as error:
        sql.point(text, error)
        _refused(error)
    except KeyboardInterrupt:
        output.error("\nnot waited for: what had begun may have been done")
    except Exception as error:
        output.error(_told(error))


def _refused(error: SyntaxRefused) -> None:
    """What was found, and what is allowed there: whole forms one a line, words in a row."""
    allowed: tuple[str, ...] = error.fields["allowed"]
    message = str(error.fields["message"])
    if len(allowed) < 2 or max(map(len, allowed)) < FORM:
        output.error(message)
        return
    output.error(f"{message.partition('; allowed here: ')[0]}; allowed here:")
    for form in allowed:
        output.error(f"  {form}")


def _told(error: Exception) -> str:
    if isinstance(error, HoldfastError):
        return output.readable(str(error))
    said = (str(error).splitlines() or [""])[0]
    if type(error).__module__.partition(".")[0] == "psycopg":
        return f"the database said: {output.readable(said)}"
    return f"unexpected {type(error).__name__}: {output.readable(said)}"


def _help() -> None:
    from holdfast.apps.system.console import FORMS

    for clauses in FORMS:
        output.line("  " + " ".join(clauses))
    output.line("")
    for key, meaning in KEYS:
        output.line(f"  {key:<8}{meaning}")
    output.flush()


# -- the application -------------------------------------------------------------------------------------


@contextmanager
def _open(app: Holdfast) -> Generator[Call]:
    """An application that is open in a loop of its own: what is called runs there, and is waited for here."""
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None, asyncio.Event]] = Future()
    ready: Future[None] = Future()

    async def hold() -> None:
        stop = asyncio.Event()
        begun.set_result((asyncio.get_running_loop(), asyncio.current_task(), stop))
        async with app:
            ready.set_result(None)
            await stop.wait()

    def live() -> None:
        try:
            asyncio.run(hold())
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)

    def call(work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    thread = threading.Thread(target=live, name="console", daemon=True)
    thread.start()
    loop, task, stop = begun.result()
    assert task is not None
    try:
        ready.result()
        yield call
    finally:
        with suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(stop.set if ready.done() else task.cancel)
        thread.join()


@contextmanager
def _ending() -> Generator[None]:
    """A signal that ends us lets everything be put away first."""

    def end(number: int, _: FrameType | None) -> None:
        raise application.Ended(signal.Signals(number))

    before = {number: signal.getsignal(number) for number in application.ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # what was ignored stays so: nohup means it
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _nudging() -> Generator[None]:
    """Misses no signal: one that comes just before readline waits would be heard with the next key only."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    main = threading.get_ident()
    before = signal.signal(NUDGE, lambda _number, _frame: None)
    others = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        while numbers := ours.recv(64):
            if any(number != NUDGE for number in numbers):
                for seconds in NUDGES:
                    time.sleep(seconds)
                    signal.pthread_kill(main, NUDGE)

    thread = threading.Thread(target=watch, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(others)
        theirs.close()
        thread.join()
        signal.signal(NUDGE, before)
        ours.close()


# -- history ---------------------------------------------------------------------------------------------


def _history(path: Path, words: list[str]) -> Callable[[str], None]:
    """What keeps a statement for the next time, for nobody else to read; without readline it keeps none."""
    try:
        import readline
    except ImportError:
        return lambda _: None
    _complete(readline, words)
    readline.set_auto_history(False)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDONLY, 0o600))
        path.chmod(0o600)
        readline.read_history_file(path)
    readline.set_history_length(KEPT)

    def keep(text: str) -> None:
        line = " ".join(text.splitlines())
        last = readline.get_current_history_length()
        if readline.get_history_item(last) == line:
            return
        readline.add_history(line)
        with suppress(OSError):  # a history that cannot be written is no reason to stop
            readline.append_history_file(1, path)

    return keep


def _complete(readline: ModuleType, words: list[str]) -> None:
    """Lets the tabulator complete keywords, columns and tables."""

    def complete(begun: str, number: int) -> str | None:
        known = [word for word in words if word.lower().startswith(begun.lower())]
        return known[number] if begun and number < len(known) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()=<>;'\"")
    readline.parse_and_bind("tab: complete")


def _words(context: Context) -> list[str]:
    from holdfast.apps.system.console import FORMS
    from holdfast.apps.system.console.statements import COLUMNS

    keywords = {
        word for form in FORMS for word in " ".join(form).split() if word.isalpha() and word.isupper()
    }
    return sorted(
        {
            *keywords,
            "AND",
            "OR",
            "NOT",
            "LIKE",
            "NULL",
            "DESC",
            *COLUMNS,
            *(one.name for one in context.targets),
        }
    )
