"""The application that a command works on: the user's own, named by --app, or the built-in ledgers alone."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Coroutine
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast import logs, tracing
from holdfast.cli import output
from holdfast.errors import DatabaseUnavailable, HoldfastError, InvalidInput

if TYPE_CHECKING:
    from holdfast.platform import Holdfast

T = TypeVar("T")
VARIABLE = "HOLDFAST_APP"
ENDING = (signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal has ended a command, and everything that it had begun was put away."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number

    def die(self) -> int:
        """Dies by that signal, as whoever sent it expects."""
        signal.signal(self.number, signal.SIG_DFL)
        os.kill(os.getpid(), self.number)
        return 128 + self.number


def load(spec: str | None) -> Holdfast:
    """The application that is named, else one with the built-in ledgers and no handlers."""
    from holdfast.platform import Holdfast

    spec = named(spec)
    return find(spec) if spec else Holdfast()


def named(spec: str | None) -> str | None:
    """What --app or the environment says, else what .env says."""
    from holdfast.db.dotenv import read_dotenv

    return spec or read_dotenv(Path(".env"))[0].get(VARIABLE)


def settle(application: Holdfast, *, chatty: bool = False) -> None:
    """Reads the settings, which are refused here if they are wrong, and sets up logging and tracing.

    `chatty`: everything that the settings want to hear; otherwise warnings only, unless we debug.
    """
    settings = application.settings
    if settings.log_level == "DEBUG":
        output.set_debug(True)
    level = settings.log_level
    if output.debugging():
        level = "DEBUG"
    elif not chatty and level == "INFO":
        level = "WARNING"
    logs.configure(level, settings.log_format)
    tracing.configure()


def run(work: Coroutine[Any, Any, T], *, tidy: bool = True) -> T:
    """Runs what a command does, to its end, or until a signal ends it: also then its `finally` is done.

    Without that, SIGTERM and SIGHUP would leave a terminal without its cursor. A second one ends us at once.
    A command that stops by a signal in a way of its own says so to the loop itself. Not `tidy`: any other
    signal is the end at once, for a worker, whose handlers might not let go, and a server with its requests.
    """
    if not tidy:
        return asyncio.run(work)
    told: list[signal.Signals] = []
    try:
        return asyncio.run(_until_told(work, told))
    except BaseException as error:
        if told:
            raise Ended(told[0]) from error
        raise


async def _until_told(work: Coroutine[Any, Any, T], told: list[signal.Signals]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    # What was ignored when we were started stays so: nohup means it.
    numbers = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]

    def end(number: signal.Signals) -> None:
        told.append(number)
        for each in numbers:
            loop.remove_signal_handler(each)
        task.cancel()

    for number in numbers:
        loop.add_signal_handler(number, end, number)
    try:
        return await work
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def losses() -> tuple[type[Exception], ...]:
    """The errors after which trying again may help: the database is away."""
    import psycopg

    return psycopg.OperationalError, DatabaseUnavailable


def find(spec: str) -> Holdfast:
    """Imports `module:name`, looking in the working folder first."""
    from holdfast.platform import Holdfast

    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise _wrong(f"must be like module:name, not {spec!r}")
    module = _import(module_name)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise _wrong(f"{module_name} has no {name!r}{_candidates(module)}")
        found = getattr(found, part)
    if not isinstance(found, Holdfast):
        raise _wrong(f"{spec} is {_article(type(found).__name__)}, not a Holdfast application")
    return found


def _import(name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109 (sys.path wants a text)
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except HoldfastError:
        raise  # it says itself what is wrong
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise _wrong(f"there is no module {error.name!r} in {here} or among the packages") from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> InvalidInput:
    """What a module raised when it was imported, and where in the user's own code."""
    said = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    return _wrong(f"{name} cannot be imported: {said} ({_place(error) or name})")


def _place(error: BaseException) -> str | None:
    """The innermost place in the working folder, else the innermost of all."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    ours = str(Path(__file__).parent.parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith(ours)
    ]
    here = os.getcwd() + os.sep  # noqa: PTH109
    near = [f for f in frames if f.filename.startswith(here) and "site-packages" not in f.filename]
    return f"{(near or frames)[-1].filename}:{(near or frames)[-1].lineno}" if frames else None


def _candidates(module: ModuleType) -> str:
    from holdfast.platform import Holdfast

    names = [name for name, value in vars(module).items() if isinstance(value, Holdfast)]
    return f"; its applications are: {', '.join(names)}" if names else ", and no Holdfast application at all"


def _article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def _wrong(message: str) -> InvalidInput:
    return InvalidInput(field="--app", message=message)
