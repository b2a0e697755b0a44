"""What Alembic runs for each command.

`holdfast.db.migrate` opens the connection and owns its transaction. The command `alembic`, run where
`alembic.ini` is, brings no connection: then the database is the one that our settings name.
"""

from contextlib import ExitStack

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection

from holdfast.db import embedded, migrate
from holdfast.db.settings import load
from holdfast.errors import HoldfastError


def run(connection: Connection) -> None:
    context.configure(connection=connection, version_table=migrate.VERSION_TABLE)
    context.run_migrations()


def run_by_settings() -> None:
    settings = load()
    with ExitStack() as stack:
        if settings.database_url:
            url = settings.database_direct_url or settings.database_url
        else:
            url = stack.enter_context(embedded.acquire(settings.home)).url
        run(stack.enter_context(migrate.locked(url, settings.schema)))


def print_sql() -> None:
    context.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},
        version_table=migrate.VERSION_TABLE,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


if "connection" in context.config.attributes:
    run(context.config.attributes["connection"])
elif context.is_offline_mode():
    print_sql()
else:
    try:
        run_by_settings()
    except HoldfastError as error:
        raise CommandError(str(error)) from None  # a sentence, and no traceback
