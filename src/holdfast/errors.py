"""What can go wrong, as one tree of typed errors. May use nothing. Never prints.

Each class is one kind of answer: a stable `code`, the HTTP status an API gives it and the exit code a
command line gives it. The first line of its docstring, filled with the error's fields, is the message.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar


class HoldfastError(Exception):
    """{message}"""

    code: ClassVar[str] = "ERROR"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.__dict__.update(fields)
        doc = inspect.cleandoc(self.__class__.__doc__ or "")  # python -OO leaves none
        super().__init__(doc.splitlines()[0].format(**fields) if doc else f"{self.code} {fields}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.__class__, self.fields)


def _rebuild(kind: type[HoldfastError], fields: dict[str, Any]) -> HoldfastError:
    return kind(**fields)


class Problems(HoldfastError):
    """{title}{listing}

    Several faults found at once and told together: nobody mends a configuration one error at a time.
    """

    problems: tuple[str, ...]

    def __init__(self, *, title: str, problems: Sequence[str]) -> None:
        super().__init__(
            title=title, problems=tuple(problems), listing="".join(f"\n  - {p}" for p in problems)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.__class__, {"title": self.fields["title"], "problems": self.problems})


class SettingsError(Problems):
    """{title}{listing}

    One or more settings are wrong; every one is listed with what would be right, secrets never shown.
    """

    code = "SETTINGS"
    exit_code = 2


class LedgerError(Problems):
    """{title}{listing}

    A ledger's declaration contradicts itself; everything that is wrong with it is listed.
    """

    code = "LEDGER"
    exit_code = 2


class DatabaseUnavailable(HoldfastError):
    """{message}

    The server cannot be reached, or did not answer in time; trying again later may help.
    """

    code = "DATABASE_UNAVAILABLE"
    status = 503


class DatabaseAuthError(HoldfastError):
    """{message}

    The server answered and refused: wrong user, password or database. Trying again does not help.
    """

    code = "DATABASE_AUTH"
    status = 503


class SchemaOutdated(HoldfastError):
    """the database is at revision {current} and this version needs {head}: run `holdfast db upgrade`"""

    code = "SCHEMA_OUTDATED"
    status = 503
    exit_code = 3


class MigrationError(HoldfastError):
    """the migration failed and changed nothing: {reason}

    The database refused a statement, or holds something that stands in the way.
    """

    code = "MIGRATION"
    status = 503


class InvalidInput(HoldfastError):
    """{field}: {message}"""

    code = "INVALID_INPUT"
    status = 400
    exit_code = 2
    field: str


class NotFound(HoldfastError):
    """no {what} with the id {id}"""

    code = "NOT_FOUND"
    status = 404
    exit_code = 4


class IllegalEdge(HoldfastError):
    """cannot {verb} {what} {id}: it is {state}, and {verb} is allowed from {allowed}"""

    code = "ILLEGAL_EDGE"
    status = 409
    exit_code = 5
    verb: str
    state: str


class IdempotencyConflict(HoldfastError):
    """{what}: the key {key!r} is taken by {id} ({detail})"""

    code = "IDEMPOTENCY_CONFLICT"
    status = 409
    exit_code = 5


class Conflict(HoldfastError):
    """{what}: {message}

    Something else has the place already.
    """

    code = "CONFLICT"
    status = 409
    exit_code = 5


class ClaimLost(HoldfastError):
    """the claim on {what} {id} is gone (fence {fence}): nothing was written

    Stays inside the worker: the row belongs to somebody else now, or has ended.
    """

    code = "CLAIM_LOST"
    status = 409
    exit_code = 5


class NotAllowed(HoldfastError):
    """not allowed: {message}

    Nobody in particular asks (401), or somebody who may not (403).
    """

    code = "NOT_ALLOWED"
    status = 403
    exit_code = 7


class MissingExtra(HoldfastError):
    """{what} needs {remedy}

    Something is not installed, or not granted; `remedy` says what would help.
    """

    code = "MISSING_EXTRA"
    status = 503
    exit_code = 2

    def __init__(self, *, what: str, extra: str | None = None, remedy: str | None = None) -> None:
        remedy = remedy or f"the extra {extra!r}: pip install 'holdfast[{extra}]'"
        super().__init__(what=what, extra=extra, remedy=remedy)


class TargetExists(HoldfastError):
    """{message}

    What would be written is there already, and is not overwritten by accident.
    """

    code = "TARGET_EXISTS"
    status = 409
    exit_code = 5


class InvalidBackup(HoldfastError):
    """{message}

    There is no backup, or it is not what it was when it was made: nothing of it is used.
    """

    code = "INVALID_BACKUP"
    status = 400
    exit_code = 2


class SyntaxRefused(HoldfastError):
    """{message} (at position {position})

    A statement that the console does not know; `position` counts characters from 1.
    """

    code = "SYNTAX_REFUSED"
    status = 400
    exit_code = 2
    position: int


class DecryptionError(HoldfastError):
    """a stored token cannot be read: connect the account anew

    The key is another one, or the stored bytes were changed or moved. Never says which.
    """

    code = "DECRYPTION"


class ProviderError(HoldfastError):
    """{message}

    An outside provider refused, or answered with something that nobody can read.
    """

    code = "PROVIDER_ERROR"
    status = 502


class NotSupported(HoldfastError):
    """{message}

    It could be, but is not built.
    """

    code = "NOT_SUPPORTED"
    status = 501
    exit_code = 2
