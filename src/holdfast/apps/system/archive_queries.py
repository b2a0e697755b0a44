"""What DuckDB is told before somebody asks it of an archive. Its SQL has no parameters for names."""

from collections.abc import Mapping
from typing import LiteralString

OPEN: Mapping[str, str] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "threads": "2",
    "temp_directory": "",
}

# Nothing outside of memory from now on, and nobody can take that back.
CLOSED: tuple[LiteralString, ...] = (
    "set TimeZone = 'UTC'",
    "set python_enable_replacements = false",
    "set enable_external_access = false",
    "set lock_configuration = true",
)

SCHEMA: LiteralString = "create schema if not exists {schema}"
VIEW: LiteralString = "create view {name} as from {source}"
