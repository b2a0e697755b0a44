"""`holdfast schedules`: captures of work schedules, and the days that are known from them."""

from __future__ import annotations

import sys
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast import logs
from holdfast.cli import application, options, output, progress, record, schedules_shown, schedules_told
from holdfast.cli import worker as workers
from holdfast.cli.jobs import UNTRUE
from holdfast.cli.schedules_asked import OfDay, User, day_of, load, opened, user_of
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.apps.schedules.record import Day, Report
    from holdfast.apps.schedules.work import Once
    from holdfast.platform import Holdfast

FAILED = 1  # exit code
NOTIFICATIONS, CAPTURES = "schedule_notification", "capture_session"

commands = typer.Typer(help="Work schedules: captures, and the days known from them.", no_args_is_help=True)

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


# -- captures --------------------------------------------------------------------------------------------


@commands.command()
def add(
    user: User,
    image_key: Annotated[
        list[str] | None,
        typer.Argument(metavar="[IMAGE_KEY]...", help="Where the object store has its pictures, in order."),
    ] = None,
    message_id: Annotated[
        list[int] | None,
        typer.Option("--message-id", help="The message that brought a picture; one for each, in order."),
    ] = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Add a capture session with its pictures, and print its id."""
    keys, messages = image_key or [], message_id or []
    if messages and len(messages) != len(keys):
        told = f"give one for each of the {len(keys)} pictures, or none: {len(messages)} were given"
        raise InvalidInput(field="--message-id", message=told)
    pairs = list(zip(keys, messages or [None] * len(keys), strict=True))
    made = application.run(_add(load(app), user_of(user), pairs))
    output.data({"id": made}) if json else output.line(str(made))


async def _add(app: Holdfast, user: int, pairs: list[tuple[str, int | None]]) -> Any:
    from holdfast.apps.schedules import intake

    pictures = [intake.Picture(r2_key=key, telegram_message_id=message) for key, message in pairs]
    async with opened(app) as conn:
        return await intake.add(conn, app.store(CAPTURES), user, pictures)


@commands.command("run-once")
def run_once(app: options.App = None, json: options.Json = False) -> None:
    """Process one session, the first that is pending, here and now; exit code 1 when it failed."""
    once = application.run(_run_once(load(app)))
    if json:
        output.data(once)
    elif once is None:
        output.error("no session is pending")
    else:
        output.line(f"{once.session} {once.outcome or once.state}")
        if once.error:
            output.flush()
            output.error(once.error)
    if once is not None and once.state == "failed":
        raise typer.Exit(FAILED)


async def _run_once(app: Holdfast) -> Once | None:
    from holdfast.apps.schedules import work

    async with app:
        return await work.once(app)


@commands.command()
def loop(app: options.App = None) -> None:
    """Process sessions, and deliver messages where that is set up, until SIGTERM or Ctrl-C.

    Logs go to stdout, as JSON lines.
    """
    found = application.load(app)
    application.settle(found, chatty=True)
    logs.configure("DEBUG" if output.debugging() else found.settings.log_level, "json", sys.stdout)
    if application.run(_loop(found), tidy=False):
        raise typer.Exit(workers.ABANDONED)


async def _loop(app: Holdfast) -> int:
    from holdfast.apps.schedules import work
    from holdfast.runtime.worker import stopping_on_signals

    async with app:
        worker = app.worker(ledgers=work.served(app))
        worker.last_resort = lambda: workers.end(workers.ABANDONED)
        worker.exit = workers.end
        with stopping_on_signals(worker.stop):
            return await worker.run()


# -- the record ------------------------------------------------------------------------------------------


@commands.command()
def verify(
    user: Annotated[str | None, typer.Argument(metavar="[USER]", help="Only this user's days.")] = None,
    date: Annotated[str | None, typer.Argument(metavar="[DATE]", help="Only this day.")] = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Replay the events of days and compare; exit code 6 when the record is not true."""
    whose = None if user is None else user_of(user)
    report = application.run(_verify(load(app), whose, None if date is None else day_of(date), quiet=json))
    if json:
        output.data({"true": not report.found, **vars(report)})
    else:
        for one in report.problems:
            output.line(output.readable(f"{one.user_id} {one.schedule_date}: {one.what}").replace("\n", " "))
        if report.found > len(report.problems):
            output.line(f"… and {report.found - len(report.problems):,} more")
        output.line(_verdict(report))
    if report.found:
        raise typer.Exit(UNTRUE)


def _verdict(report: Report) -> str:
    counts = [
        *((report.days, "day"), (report.versions, "version"), (report.events, "event")),
        (report.notifications, "message"),
    ]
    told = ", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    verdict = f"{report.found:,} things are" if report.found != 1 else "1 thing is"
    return f"{told}: {f'{verdict} not true' if report.found else 'the record is true'}"


async def _verify(app: Holdfast, user: int | None, day: date | None, *, quiet: bool) -> Report:
    from holdfast.apps.schedules import days

    async with opened(app) as conn:
        total = 1 if day else await days.count(conn, user_id=user)
        with progress.told("days", total, quiet=quiet) as tell:
            return await days.verify(
                conn, user_id=user, day=day, tell=lambda done, events: tell(done, f"{events:,} events")
            )


@commands.command()
def rebuild(
    user: User, date: OfDay, by: options.By = None, app: options.App = None, json: options.Json = False
) -> None:
    """Write the snapshot of a day anew from its events."""
    made = application.run(_rebuild(load(app), user_of(user), day_of(date), options.doer(by)))
    if json:
        output.data(schedules_told.day(made))
        return
    schedules_told.show_shifts(made.shifts)


async def _rebuild(app: Holdfast, user: int, day: date, by: str | None) -> Day:
    from holdfast.apps.schedules import days

    async with opened(app) as conn, conn.transaction():
        made = await days.rebuild(conn, user, day)
        await record.note(conn, by, "schedule rebuild", row_id=f"{user}/{day}", rows=1)
        return made


# -- orders ----------------------------------------------------------------------------------------------


@commands.command()
def resend(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="The message's; `holdfast schedules notifications`.")
    ],
    by: options.By = None,
    reason: options.Reason = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Let a message that failed be sent again, with all its tries."""
    application.run(_resend(load(app), id, options.doer(by), reason))
    output.data({"id": id, "status": "pending"}) if json else output.line(f"{id} will be sent again")


async def _resend(app: Holdfast, id: str, by: str | None, reason: str | None) -> None:
    """The order and its entry in the audit, both or none."""
    async with opened(app) as conn, conn.transaction():
        await app.store(NOTIFICATIONS).requeue(conn, id, by=by, reason=reason)
        detail = {"reason": reason}
        await record.note(conn, by, "requeue", ledger=NOTIFICATIONS, row_id=id, rows=1, detail=detail)


@commands.command()
def erase(
    user: User,
    yes: Yes = False,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Remove every row of a user for good: captures, days, events and messages."""
    whose = user_of(user)
    if not yes:
        if json or not sys.stdin.isatty():
            raise InvalidInput(field="--yes", message="is needed here: the rows are removed for good")
        typer.confirm(f"remove every row of user {whose} for good?", abort=True, err=True)
    gone = application.run(_erase(load(app), whose, options.doer(by)))
    if json:
        output.data({"user_id": whose, "rows": sum(gone.values()), "tables": gone})
        return
    output.line(f"{sum(gone.values()):,} rows of user {whose} were removed")


async def _erase(app: Holdfast, user: int, by: str | None) -> dict[str, int]:
    from holdfast.apps.schedules import days

    async with opened(app) as conn, conn.transaction():
        gone = await days.erase(conn, user)
        rows = sum(gone.values())
        await record.note(conn, by, "schedule erase", row_id=user, rows=rows, detail={"tables": gone})
        return gone


commands.command("day")(schedules_shown.day)
commands.command("days")(schedules_shown.days)
commands.command("history")(schedules_shown.history)
commands.command("diff")(schedules_shown.diff)
commands.command("capture")(schedules_shown.capture)
commands.command("notifications")(schedules_shown.notifications)
commands.command("notification")(schedules_shown.notification)
