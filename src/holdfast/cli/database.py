"""`holdfast db`: the database that the settings mean, and its schema."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import application, options, output
from holdfast.errors import DatabaseUnavailable, InvalidInput

if TYPE_CHECKING:
    from holdfast.db.settings import Settings

commands = typer.Typer(help="The database: where it is, whether it runs, its schema.", no_args_is_help=True)

Revision = Annotated[str, typer.Argument(metavar="[REVISION]", help="The revision; default: the newest.")]


@commands.command()
def start(json: options.Json = False) -> None:
    """Start the embedded PostgreSQL, and keep it running until `holdfast db stop`."""
    from holdfast.db import embedded

    embedded.start(_embedded(_settings()).home)
    _tell(_settings(), json)


@commands.command()
def stop(json: options.Json = False) -> None:
    """Stop the embedded PostgreSQL, also under processes that still use it."""
    from holdfast.db import embedded

    was_running = embedded.stop(_embedded(_settings()).home)
    if json:
        output.data({"was_running": was_running})
    else:
        output.line("stopped" if was_running else "it was not running")


@commands.command()
def status(json: options.Json = False) -> None:
    """Tell where the database is and whether it answers; exit code 1 when it does not."""
    if not _tell(_settings(), json):
        raise typer.Exit(1)


@commands.command()
def url(json: options.Json = False) -> None:
    """Print the URL of the database, and nothing else; it contains the password."""
    from holdfast.db import embedded

    settings = _settings()
    found = settings.database_url or embedded.status(settings.home).url
    if found is None:
        raise DatabaseUnavailable(
            message=f"the embedded PostgreSQL in {settings.home} is not running: "
            "`holdfast db start` starts it and keeps it running"
        )
    output.data({"url": found}) if json else output.line(found)


@commands.command()
def upgrade(revision: Revision = "head", json: options.Json = False) -> None:
    """Bring the schema up to date."""
    from holdfast.db import migrate

    settings = _settings()
    with _reached(settings) as address:
        before = migrate.current(address, settings.schema)
        with _steps(quiet=json):
            migrate.upgrade(address, revision, settings.schema)
        after = migrate.current(address, settings.schema)
    _changed(before, after, json)


@commands.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="The revision to go back to; base removes everything.")],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask: what goes takes its data along.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Take the schema back to an older revision, which loses the data of what goes."""
    from holdfast.db import migrate

    settings = _settings()
    if not yes:
        if json or not sys.stdin.isatty():
            raise InvalidInput(field="--yes", message="is needed here: a downgrade loses data")
        typer.confirm(f"go back to {revision}, and lose the data of what goes?", abort=True, err=True)
    with _reached(settings) as address:
        before = migrate.current(address, settings.schema)
        with _steps(quiet=json):
            migrate.downgrade(address, revision, settings.schema)
        after = migrate.current(address, settings.schema)
    _changed(before, after, json)


@commands.command()
def current(json: options.Json = False) -> None:
    """Print the revision that the schema is at."""
    from holdfast.db import migrate

    settings = _settings()
    with _reached(settings) as address:
        at = migrate.current(address, settings.schema)
    output.data({"revision": at, "head": migrate.head()}) if json else output.line(at or "none")


@commands.command()
def check(json: options.Json = False) -> None:
    """Compare the live schema with what this version needs; exit code 1 when they differ."""
    from holdfast.db import migrate
    from holdfast.platform import metadata

    settings = _settings()
    with _reached(settings) as address:
        problems = migrate.check(address, metadata(), settings.schema)
    if json:
        output.data({"problems": problems})
    else:
        output.line("\n".join(problems) or "the schema is what it should be")
    if problems:
        raise typer.Exit(1)


@commands.command()
def sql(revision: Revision = "head", json: options.Json = False) -> None:
    """Print the migrations as SQL for psql; running it twice changes nothing."""
    from holdfast.db import migrate

    text = migrate.sql(revision)
    output.data({"sql": text}) if json else output.line(text.rstrip())


def _settings() -> Settings:
    from holdfast.platform import Holdfast

    built_in = Holdfast()
    application.settle(built_in)
    return built_in.settings


def _embedded(settings: Settings) -> Settings:
    """The settings, if they mean the embedded server."""
    if settings.database_url is not None:
        raise InvalidInput(field="HOLDFAST_DATABASE_URL", message="is set, so no embedded PostgreSQL is used")
    return settings


@contextmanager
def _reached(settings: Settings) -> Generator[str]:
    """The URL for changes of the schema, past any pooler; the embedded server runs meanwhile."""
    from holdfast.db import embedded

    if settings.database_url is not None:
        yield settings.database_direct_url or settings.database_url
    else:
        with embedded.acquire(settings.home) as lease:
            yield lease.url


@contextmanager
def _steps(*, quiet: bool) -> Generator[None]:
    """Tells each migration as it begins: one may take long on a full table."""
    log = logging.getLogger("alembic.runtime.migration")
    level, passes = log.level, log.propagate
    teller = _Steps(logging.INFO)
    if not quiet:
        log.addHandler(teller)
        log.setLevel(logging.INFO)
        log.propagate = passes and output.debugging()
    try:
        yield
    finally:
        log.removeHandler(teller)
        log.setLevel(level)
        log.propagate = passes


class _Steps(logging.Handler):
    """Prints what Alembic says of each step, like "Running upgrade 0001 -> 0002, jobs"."""

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if said.startswith("Running "):
            output.error(said.removeprefix("Running ").replace(" -> ", " → ").replace("  ", " "))


def _changed(before: str | None, after: str | None, json: bool) -> None:
    if json:
        output.data({"before": before, "revision": after})
    elif before == after:
        output.line(f"nothing to do: the schema is at {after or 'none'}")
    else:
        output.line(f"{before or 'none'} → {after or 'none'}")


def _tell(settings: Settings, json: bool) -> bool:
    """Prints what is known of the database; answers whether it runs."""
    from holdfast.db import embedded, migrate
    from holdfast.db.parsers import redacted

    told: dict[str, Any] = {"kind": "url", "running": True, "url": settings.database_url}
    if settings.database_url is None:
        found = embedded.status(settings.home)
        told = {"kind": "embedded", "running": found.running, "url": found.url, "kept": found.kept}
        told |= {"pid": found.pid, "version": found.version, "data": str(found.data)}
    if told["running"]:
        told["revision"] = migrate.current(settings.database_direct_url or told["url"], settings.schema)
        told["head"] = migrate.head()
        told["url"] = redacted(told["url"])
    if json:
        output.data(told)
    else:
        output.facts([(name, _word(value)) for name, value in told.items()])
    return bool(told["running"])


def _word(value: Any) -> Any:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
