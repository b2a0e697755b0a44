"""What a job is asked to do, typed: one value for each type. Unknown fields are refused. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import Meta

from holdfast.apps.system.types import JobType
from holdfast.engine import intake
from holdfast.errors import InvalidInput

Name = Annotated[str, Meta(min_length=1, max_length=127)]
Location = Annotated[str, Meta(min_length=1, max_length=1024)]
Above0 = Annotated[float, Meta(gt=0, le=1e9)]
Count = Annotated[int, Meta(gt=0, le=1_000_000)]
SUBJECTS = ("org_id", "tenant_id", "user_id")


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every type of job has in common: a slip of the pen is refused.

    `judged` is the field of which a judgement speaks that takes the whole.
    """

    judged: ClassVar[str] = "parameters"


class Flush(Parameters, frozen=True):
    """Finished rows of a ledger that are older go into the archive, so many to a file."""

    ledger: Name
    older_than_hours: Annotated[float, Meta(ge=0, le=1e9)] = 24
    batch_rows: Count = 50_000


class Cleanup(Parameters, frozen=True):
    """A user's table is dropped, with its archive."""

    table: Name
    operation: Literal["drop_table"] = "drop_table"


class Retention(Parameters, frozen=True):
    """Finished rows of a ledger that are older are deleted."""

    ledger: Name
    retention_hours: Above0
    batch_size: Count = 1000
    include_dead_letter: bool = False


class StreamEviction(Parameters, frozen=True):
    """Rows of a stream that are older are deleted."""

    table: Name
    ttl_seconds: Above0
    batch_size: Count = 10_000


class UserCleanup(Parameters, frozen=True):
    """A subject is erased from every ledger, table and archive; `cascade`: its open work, too."""

    judged: ClassVar[str] = "subject"
    subject: dict[str, str | int]
    cascade: bool = False

    def __post_init__(self) -> None:
        if len(self.subject) != 1 or next(iter(self.subject)) not in SUBJECTS:
            raise ValueError(f"must have exactly one of {', '.join(SUBJECTS)} as its subject")
        if self.subject[self.word] == "":
            raise ValueError("must name its subject")

    @property
    def word(self) -> str:
        """The kind of subject."""
        return next(iter(self.subject))

    @property
    def value(self) -> str | int:
        """Who it is."""
        return self.subject[self.word]


class Compact(Parameters, frozen=True):
    """Fewer and larger files in the archive; `indexes`: smaller indexes of the table, too."""

    ledger: Name | None = None
    table: Name | None = None
    target_file_size_mb: Annotated[float, Meta(gt=0, le=1e6)] = 128
    indexes: bool = True

    def __post_init__(self) -> None:
        if (self.ledger is None) == (self.table is None):
            raise ValueError("must name a ledger or a table, and not both")

    @property
    def target(self) -> str:
        """What is compacted."""
        return self.ledger or self.table or ""


class Backup(Parameters, frozen=True):
    """A schema, or some of its tables, as a dump with a manifest."""

    schema: Name
    backup_location: Location
    tables: tuple[Name, ...] | None = None
    compression: Literal["zstd", "none"] = "zstd"


class Restore(Parameters, frozen=True):
    """A backup becomes a schema; `overwrite`: in the place of one that is there."""

    backup_location: Location
    target_schema: Name
    overwrite: bool = False


TYPES: Mapping[JobType, type[Parameters]] = {
    JobType.FLUSH: Flush,
    JobType.CLEANUP: Cleanup,
    JobType.RETENTION: Retention,
    JobType.STREAM_EVICTION: StreamEviction,
    JobType.USER_CLEANUP: UserCleanup,
    JobType.COMPACT: Compact,
    JobType.BACKUP: Backup,
    JobType.RESTORE: Restore,
}


def read(kind: JobType, given: Any) -> Parameters:
    """The parameters of a job, or `InvalidInput` that names the field.

    >>> read(JobType.FLUSH, {"ledger": "job"}).batch_rows
    50000
    """
    if not isinstance(given, Mapping):
        raise InvalidInput(field="parameters", message=f"must be an object, not {_word(given)}")
    try:
        _must_be_storable("parameters", given)
    except RecursionError:
        raise InvalidInput(field="parameters", message="is nested too deeply") from None
    try:
        return msgspec.convert(dict(given), TYPES[kind])  # pyright: ignore[reportUnknownArgumentType]
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        unknown = re.search(r"unknown field `([^`]*)`", message)
        missing = re.search(r"missing required field `([^`]*)`", message)
        field = (
            next((found[1] for found in (unknown, missing) if found), path.strip("`.")) or TYPES[kind].judged
        )
        if unknown:
            known = ", ".join(TYPES[kind].__struct_fields__)
            message = f"is no parameter of {kind}: it has {known}"
        elif missing:
            message = "is needed"
        raise InvalidInput(field=field, message=message) from None


def _must_be_storable(field: str, value: Any) -> None:
    """Refuses texts that PostgreSQL, or a file system, has no place for, wherever they stand."""
    match value:
        case str():
            intake.clean_text(field, value)
        case Mapping():
            for name, one in cast("Mapping[Any, Any]", value).items():
                _must_be_storable(field, name)
                _must_be_storable(str(name) if field == "parameters" else f"{field}.{name}", one)
        case list() | tuple():
            for one in cast("list[Any]", value):
                _must_be_storable(field, one)
        case _:
            pass


def told(parameters: Parameters) -> dict[str, Any]:
    """The parameters as they are stored, with what was left out."""
    return msgspec.to_builtins(parameters)


def _word(value: object) -> str:
    match value:
        case list() | tuple():
            return "an array"
        case str():
            return "a text"
        case None:
            return "null"
        case _:
            return "a number"
