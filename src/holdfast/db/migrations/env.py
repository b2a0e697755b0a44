"""What Alembic runs for each command.

`holdfast.db.migrate` hands its connection over and owns its transaction. Alembic's own command line
(`alembic.ini`) comes without one: it uses the database of the settings, or with --sql none at all.
"""

from typing import Any

from alembic import context

from holdfast.db import migrate


def run(**options: Any) -> None:
    context.configure(version_table=migrate.VERSION_TABLE, **options)
    context.run_migrations()


if "connection" in context.config.attributes:
    run(connection=context.config.attributes["connection"])
elif context.is_offline_mode():
    run(dialect_name="postgresql", dialect_opts={"paramstyle": "named"})
else:
    with migrate.configured_connection() as connection:
        run(connection=connection)
