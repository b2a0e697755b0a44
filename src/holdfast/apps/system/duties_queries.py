"""The SQL of the timetable."""

from typing import LiteralString

from psycopg.sql import SQL, Composed, Identifier

CLOCK: LiteralString = "select coalesce(%(now)s::timestamptz, clock_timestamp())"
MADE: LiteralString = "select exists (select from {table} where idempotency_key = %(key)s)"


def made(table: str) -> Composed:
    """Whether a job with this key was ever made: once in a period means also after its end."""
    return SQL(MADE).format(table=Identifier(*table.split(".")))
