"""The SQL of dropping a user's table."""

from typing import LiteralString

HOLD: LiteralString = "lock table {table} in access exclusive mode"

# Whatever else depends on the table keeps it: nothing of somebody else's goes along.
DROP: LiteralString = "drop table {table} restrict"
