"""The program `holdfast`: the tree of its commands, and what becomes of an error.

An error is one sentence on stderr and an exit code (docs/cli.md has the table), or with --json a JSON object
on stderr. A trace is shown only when somebody debugs.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from holdfast import tracing
from holdfast.cli import (
    INTERRUPTED,
    application,
    archive,
    checkup,
    completion,
    connect,
    database,
    explain,
    intake,
    jobs,
    ledgers,
    orders,
    output,
    pauses,
    rows,
    schedules,
    serve,
    sql,
    stats,
    system,
    tokens,
    top,
    up,
    watch,
    worker,
)
from holdfast.errors import HoldfastError, InvalidInput

FAILURE, USAGE = 1, 2

program = typer.Typer(
    name="holdfast",
    help="Durable work on PostgreSQL: your table is the queue.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
program.command("up")(up.up)
program.command("worker")(worker.worker)
program.command("serve")(serve.serve)
program.command("top")(top.top)
program.command("stats")(stats.stats)
program.command("enqueue")(intake.enqueue)
program.command("list")(rows.list_rows)
program.command("show")(rows.show)
program.command("watch")(watch.watch)
program.command("explain")(explain.explain)
program.command("cancel")(orders.cancel)
program.command("requeue")(orders.requeue)
program.command("pause")(pauses.pause)
program.command("resume")(pauses.resume)
program.command("doctor")(checkup.doctor)
program.add_typer(ledgers.commands, name="ledger")
program.add_typer(tokens.commands, name="token")
program.add_typer(database.commands, name="db")
program.add_typer(jobs.commands, name="job")
program.add_typer(connect.commands, name="connect")
program.add_typer(schedules.commands, name="schedules")
program.add_typer(system.commands, name="system")
program.command("sql")(sql.sql)
program.add_typer(archive.commands, name="archive")
program.command("completion")(completion.completion)


@program.callback()
def _every(  # pyright: ignore[reportUnusedFunction]
    debug: Annotated[
        bool, typer.Option("--debug", help="Show traces of errors; so does HOLDFAST_LOG_LEVEL=DEBUG.")
    ] = False,
) -> None:
    output.set_debug(debug or os.environ.get("HOLDFAST_LOG_LEVEL", "").upper() == "DEBUG")


@program.command()
def version(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the version of Holdfast."""
    from importlib.metadata import version as version_of

    number = version_of("holdfast")
    output.data({"version": number}) if json else output.line(number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and answers with its exit code."""
    output.begin()
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
    except application.Ended as ended:
        _leave()
        return ended.die()
    _leave()
    worker.leave_behind(code)
    return code


def _leave() -> None:
    """Lets everything out that is still here."""
    with suppress(OSError):  # it was said already, or cannot be said
        output.flush()
    tracing.finish()


def _run(given: list[str]) -> int:
    try:
        code = program(given, prog_name="holdfast", standalone_mode=False) or 0
        output.flush()
        return code
    except typer.Abort:
        return _fail(given, "ABORTED", "nothing was done", FAILURE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as left:  # so do Typer and Rich, when nobody reads the help to its end
        if isinstance(left.__context__, BrokenPipeError):
            return 0
        raise
    except Exception as error:
        return _tell(given, _innermost(error))


def _innermost(error: BaseException) -> BaseException:
    """The first error of a group: what tasks raise comes wrapped."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return error  # pyright: ignore[reportUnknownVariableType]


def _tell(given: Sequence[str], error: BaseException) -> int:
    """An error of ours, wrong usage, the database's own words, or a bug."""
    if isinstance(error, InvalidInput):
        error = _as_typed(given, error)
    if isinstance(error, HoldfastError):
        return _fail(given, error.code, str(error), error.exit_code, error.fields)
    if hasattr(error, "format_message"):  # Typer's, whose classes have moved between its versions
        return _usage(given, error)
    if type(error).__module__.partition(".")[0] == "psycopg":
        said = (str(error).splitlines() or [type(error).__name__])[0]
        message = f"the database said: {said} (`holdfast doctor` tells what a ledger's table lacks)"
        return _fail(given, "DATABASE", message, FAILURE)
    if isinstance(error, OSError) and error.strerror and error.filename:
        return _fail(given, "SYSTEM", f"{error.filename}: {error.strerror}", FAILURE)
    message = f"unexpected {type(error).__name__}: {error} (`holdfast --debug …` shows where)"
    return _fail(given, "UNEXPECTED", message, FAILURE)


def _as_typed(given: Sequence[str], error: InvalidInput) -> InvalidInput:
    """The error, about the option that was typed where there is one of that name."""
    option = f"--{error.field.replace('_', '-')}"
    if not any(word == option or word.startswith(option + "=") for word in given):
        return error
    return InvalidInput(**{**error.fields, "field": option})


def _usage(given: Sequence[str], error: BaseException) -> int:
    context = getattr(error, "ctx", None)
    message = str(getattr(error, "format_message")()).strip()  # noqa: B009
    if type(error).__name__ == "NoArgsIsHelpError":  # the help itself may have been printed already
        if message:
            output.error(message)
        return USAGE
    more = f" (`{context.command_path} --help` tells more)" if context else ""
    return _fail(given, "USAGE", f"{message[:1].lower()}{message[1:].rstrip('.')}{more}", USAGE)


def _fail(
    given: Sequence[str], code: str, message: str, exit_code: int, fields: dict[str, object] | None = None
) -> int:
    if output.debugging():
        output.error(traceback.format_exc().rstrip())
    if "--json" in given:
        told = {name: value for name, value in (fields or {}).items() if name not in ("title", "listing")}
        output.problem({**told, "code": code, "message": message})
    else:
        output.error(f"holdfast: {message}")
    return exit_code
