"""The condition of a claim that takes some jobs only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString

from psycopg.sql import SQL, Composable, Literal

ONLY: LiteralString = "t.id = any({ids})"


def only(ids: Sequence[str]) -> Composable:
    """That a row is one of these."""
    return SQL(ONLY).format(ids=Literal(list(ids)))
