"""What Alembic runs for each command. `holdfast.db.migrate` opens the connection and owns its transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
)
context.run_migrations()
