"""The parameters of the jobs as people fill them in: what each is for, and its value out of a text. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

import msgspec
from msgspec import inspect

from holdfast.apps.system.parameters import TYPES
from holdfast.apps.system.types import JobType

Kind = Literal["text", "number", "whole", "truth", "choice", "names", "subject"]

# What these do cannot be taken back: they are for administrators, and a person is asked once more.
FINAL = frozenset(
    (JobType.CLEANUP, JobType.RETENTION, JobType.STREAM_EVICTION, JobType.USER_CLEANUP, JobType.RESTORE)
)

TYPE_ABOUT: Mapping[JobType, str] = {
    JobType.FLUSH: "Moves finished rows of a ledger that are old enough into the archive.",
    JobType.CLEANUP: "Drops a table of yours, with all that was archived of it.",
    JobType.RETENTION: "Deletes finished rows of a ledger that are old enough.",
    JobType.STREAM_EVICTION: "Deletes rows of a stream that are old enough.",
    JobType.USER_CLEANUP: "Erases a subject from every ledger, every table and the archive.",
    JobType.COMPACT: "Makes fewer and larger files of what is archived, and smaller indexes of the table.",
    JobType.BACKUP: "Dumps a schema, with a manifest of what is in it.",
    JobType.RESTORE: "Makes a schema of a backup.",
}
ABOUT: Mapping[str, str] = {
    "backup_location": "The folder of the backup, below one of those in which backups may lie.",
    "batch_rows": "How many rows a file has at most.",
    "batch_size": "How many rows are deleted in one commit.",
    "cascade": "Erase open work, connections and archived rows as well. Without it, nothing is erased while "
    "there is any.",
    "compression": "How the dump is compressed.",
    "include_dead_letter": "Delete also what ended badly and waits for a person.",
    "indexes": "Make indexes smaller that have grown beyond twice their size.",
    "ledger": "The ledger whose finished rows are meant.",
    "older_than_hours": "Only rows that ended so many hours ago, or earlier.",
    "operation": "What is done to the table.",
    "overwrite": "Take the place of a schema that is there.",
    "retention_hours": "Rows that ended so many hours ago, or earlier, are deleted.",
    "schema": "The schema that is dumped.",
    "subject": "Who is erased: exactly one of org_id, tenant_id and user_id.",
    "table": "The table that is meant.",
    "tables": "Only the rows of these tables; left out: of all.",
    "target_file_size_mb": "Files are merged up to this size, in megabytes.",
    "target_schema": "The schema that the backup becomes.",
    "ttl_seconds": "Rows that are so many seconds old, or older, are deleted.",
}
OF_TYPE: Mapping[tuple[JobType, str], str] = {  # where that is not all
    (JobType.CLEANUP, "table"): "The table: one that an application of yours declares.",
    (JobType.COMPACT, "ledger"): "The ledger whose files and indexes are meant; or else a table.",
    (JobType.COMPACT, "table"): "The table whose indexes are meant; or else a ledger.",
    (JobType.STREAM_EVICTION, "table"): "The stream: a table whose rows only get older.",
}
DEEPEST = 20  # levels of what is asked for
TOO_DEEP = "is nested too deeply"
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, kw_only=True)
class Field:
    """One parameter. `about` says what it is for, `choices` what it may be where that is a few words."""

    name: str
    kind: Kind
    about: str
    needed: bool
    default: Any = None
    choices: tuple[str, ...] = ()

    def read(self, text: str) -> Any:
        """The value that a text means; what means none stays a text, which the parameters refuse by name.

        >>> Field(name="cascade", kind="truth", about="", needed=False).read("yes")
        True
        """
        match self.kind:
            case "number" | "whole":
                return _number(text)
            case "truth":
                return _truth(text)
            case "names" if not text.lstrip().startswith("["):
                return [word.strip() for word in text.split(",") if word.strip()]
            case "names" | "subject":
                return _json(text)
            case _:
                return text


@cache
def fields_of(kind: JobType) -> tuple[Field, ...]:
    """The parameters of a type, those first that are needed."""
    told = inspect.type_info(TYPES[kind])
    assert isinstance(told, inspect.StructType)
    found = [_field(kind, one) for one in told.fields]
    return tuple(sorted(found, key=lambda one: not one.needed))


def parsed(text: str) -> Any:
    """A value out of JSON; `ValueError` if it is none, or has more levels than anything that is asked for.

    >>> parsed('{"ledger": "job"}')
    {'ledger': 'job'}
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    level: list[Any] = [found]
    for _ in range(DEEPEST):
        level = [one for value in level for one in _parts(value)]
        if not level:
            return found
    raise ValueError(TOO_DEEP)


def _parts(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return cast("dict[str, Any]", value).values()
        case list():
            return cast("list[Any]", value)
        case _:
            return ()


def about_type(kind: JobType) -> str:
    """What jobs of a type do, in a sentence."""
    return TYPE_ABOUT[kind]


@cache
def schema_of(kind: JobType) -> dict[str, Any]:
    """The parameters of a type as a JSON schema."""
    made = msgspec.json.schema(TYPES[kind])
    found: dict[str, Any] = made["$defs"][TYPES[kind].__name__] | {"description": about_type(kind)}
    for name, one in found["properties"].items():
        one["description"] = about(kind, name)
    return found


def about(kind: JobType, name: str) -> str:
    """What a parameter is for."""
    return OF_TYPE.get((kind, name)) or ABOUT[name]


def _field(type: JobType, told: inspect.Field) -> Field:
    kind, choices = _kind(told.type)
    return Field(
        name=told.name,
        kind=kind,
        about=about(type, told.name),
        needed=told.required,
        default=None if told.required else told.default,
        choices=choices,
    )


def _kind(told: inspect.Type) -> tuple[Kind, tuple[str, ...]]:
    match told:
        case inspect.UnionType(types=types):
            return _kind(next(one for one in types if not isinstance(one, inspect.NoneType)))
        case inspect.LiteralType(values=values):
            return "choice", tuple(str(one) for one in values)
        case inspect.FloatType():
            return "number", ()
        case inspect.IntType():
            return "whole", ()
        case inspect.BoolType():
            return "truth", ()
        case inspect.VarTupleType():
            return "names", ()
        case inspect.DictType():
            return "subject", ()
        case _:
            return "text", ()


def _number(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return text


def _truth(text: str) -> Any:
    word = text.strip().lower()
    return word in TRUE if word in (*TRUE, *FALSE) else text


def _json(text: str) -> Any:
    try:
        return parsed(text)
    except ValueError:
        return text
