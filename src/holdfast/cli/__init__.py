"""The command line, one module a noun. Prints, and is the only part that does. SQL only in queries.py."""

from __future__ import annotations

INTERRUPTED = 130


def main() -> int:
    """The program `holdfast`. What it needs is imported when called, so that Ctrl-C finds us ready."""
    try:
        from holdfast.cli import program

        return program.main()
    except KeyboardInterrupt:
        return INTERRUPTED
