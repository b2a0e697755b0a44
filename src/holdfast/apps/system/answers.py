"""What the routes of `system` answer and take, as JSON. Times are ISO 8601, in UTC."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.api.answers import Answer
from holdfast.api.models import Body, Moment, Text
from holdfast.apps.system import console, tails
from holdfast.apps.system.archive_query import Archived
from holdfast.apps.system.backups import BackupInfo
from holdfast.apps.system.console.words import LONGEST
from holdfast.apps.system.fields import FINAL, about_type, schema_of
from holdfast.apps.system.joblines import Level, Line
from holdfast.apps.system.ledger import told
from holdfast.apps.system.legacy import is_legacy
from holdfast.apps.system.orders import Wish
from holdfast.apps.system.types import JobType, read_status, read_type
from holdfast.engine.intake import INT4
from holdfast.engine.values import Filter, Json, Row

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEXT = "For the next page; null on the last one."
Order = Literal["cancel", "retry"]
Statement = Annotated[str, Field(min_length=1, max_length=LONGEST)]


# -- what may be asked -----------------------------------------------------------------------------------


class JobsQuery(BaseModel):
    """Which jobs are meant: everything that is given must hold."""

    model_config = ConfigDict(extra="forbid")

    type: Text | None = Field(default=None, description="Of this type, written in any way.")
    status: list[Text] = Field(
        default_factory=list[str], max_length=20, description="In one of these states, written in any way."
    )
    key: Text | None = Field(default=None, description="With this idempotency key.")
    queue: Text | None = Field(default=None, description="In this queue.")
    created_after: Moment | None = Field(default=None, description="Made at this time or later.")
    created_before: Moment | None = Field(default=None, description="Made before this time.")
    limit: int = Field(default=50, ge=1, le=100, description="How many at most.")
    cursor: Text | None = Field(default=None, description="Goes on where the page before ended.")

    def filter(self) -> Filter:
        """As the engine takes it."""
        return Filter(
            kind=self.type and str(read_type(self.type)),
            states=tuple(dict.fromkeys(map(read_status, self.status))),
            key=self.key,
            queue=self.queue,
            created_after=self.created_after,
            created_before=self.created_before,
        )


class NewJob(Body):
    """A job to be made."""

    type: Text = Field(
        description="What is to be done: one of the types, written in any way.", examples=["flush"]
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict[str, Any],
        description="What it needs to know: each type has its own, and refuses others.",
        examples=[{"ledger": "job", "older_than_hours": 24}],
    )
    key: Text | None = Field(
        default=None, description="No other job may have it until this one has ended: it is refused then."
    )
    max_retries: int | None = Field(
        default=None, ge=0, le=255, description="How often it is tried again after a bad run."
    )
    queue: Text | None = Field(default=None, description="Which queue; left out: `default`.")
    priority: int | None = Field(
        default=None, ge=INT4.start, lt=INT4.stop, description="Higher ones are taken first."
    )

    def wish(self) -> Wish:
        """As the app takes it."""
        given: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        return Wish(**given)


class Said(Body):
    """A statement of the console."""

    statement: Statement = Field(
        description="One statement, like `SHOW JOBS WHERE status = 'failed'`.", examples=["SHOW JOBS"]
    )


# -- jobs ------------------------------------------------------------------------------------------------


class ShownProgress(Answer):
    """How far a job has come."""

    done: int = Field(description="How much is done.")
    total: int | None = Field(description="Of how much; null: nobody knows.")
    what: str = Field(description="Of what.")
    percent: float | None = Field(description="The share, 0 to 100.")


class ListedJob(Answer):
    """A system job, as a list shows it."""

    id: str = Field(description="Its id, whose first letters tell its type.")
    type: str = Field(description="What it does; `unknown`: a type that this version does not know.")
    type_word: str = Field(description="The type as it is stored.")
    status: str = Field(description="new, queued, running, retrying, completed, failed or cancelled.")
    message: str | None = Field(description="What it did, or why it failed, in a sentence.")
    parameters: Json = Field(description="What it was asked to do.")
    key: str | None = Field(description="Its idempotency key.")
    retry_count: int = Field(description="How often it was tried again.")
    max_retries: int = Field(description="How often it may be.")
    created_at: datetime | None = Field(description="When it was made; null: a legacy record without it.")
    updated_at: datetime | None = Field(description="When it changed last; null: a legacy record without it.")
    started_at: datetime | None = Field(description="When its last run began.")
    finished_at: datetime | None = Field(description="When it ended.")
    run_at: datetime | None = Field(description="When it may be taken, where it waits.")
    node_id: str | None = Field(description="The worker that runs it, or ran it last.")
    queue: str | None = Field(description="Its queue; null: `default`.")
    priority: int | None = Field(description="Higher ones are taken first.")
    actions: list[Order] = Field(description="What a person may order now.")
    legacy: bool = Field(default=False, description="A record of an older `system.jobs`, which is only read.")

    @classmethod
    def of(cls, row: Row) -> ListedJob:
        return cls(**told(row), actions=orders_of(row), legacy=is_legacy(row))


class ShownJob(ListedJob):
    """A system job with all that is known of it."""

    exception_trace: str | None = Field(description="The whole trace of its last bad run.")
    progress: ShownProgress | None = Field(
        description="How far its run has come, as the log of this machine tells it."
    )

    @classmethod
    def of(cls, row: Row, progress: tails.Progress | None = None) -> ShownJob:
        return cls(
            **told(row),
            actions=orders_of(row),
            exception_trace=row.columns.get("exception_trace"),
            progress=progress and ShownProgress.model_validate(progress),
        )


def orders_of(row: Row) -> list[Order]:
    """What a person may order about a job now."""
    if is_legacy(row):
        return []
    return ["retry"] if row.finished else ["cancel"]


class SystemJobs(Answer):
    """Some jobs, the newest first."""

    jobs: list[ListedJob] = Field(description="The jobs.")
    next_cursor: str | None = Field(description=NEXT)


class LogLine(Answer):
    """A line of jobs.log."""

    id: str = Field(description="The job.")
    level: Level = Field(description="INFO, WARN or ERROR.")
    at: datetime = Field(description="When it was written.")
    text: str = Field(description="What it tells.")

    @classmethod
    def of(cls, line: Line) -> LogLine:
        return cls.model_validate(line)


class Logs(Answer):
    """Lines of a job, the oldest first."""

    lines: list[LogLine] = Field(description="The lines.")
    cursor: str | None = Field(description="What `after` takes, for the lines that come after these.")


# -- types, archives, backups, the console ---------------------------------------------------------------


class ShownType(Answer):
    """A type of job."""

    type: str = Field(description="Its name.")
    prefix: str = Field(description="What the ids of its jobs begin with.")
    description: str = Field(description="What its jobs do.")
    final: bool = Field(description="Whether that cannot be taken back: then it is for administrators.")
    parameters: dict[str, Any] = Field(description="What it needs to know, as a JSON schema.")

    @classmethod
    def of(cls, kind: JobType) -> ShownType:
        return cls(
            type=kind,
            prefix=kind.short_prefix or "",
            description=about_type(kind),
            final=kind in FINAL,
            parameters=schema_of(kind),
        )


class Types(Answer):
    """The types of jobs that can be made."""

    types: list[ShownType] = Field(description="The types.")


class ArchivedTable(Answer):
    """What is archived of a table."""

    table: str = Field(description="The table.")
    files: int = Field(description="How many files.")
    rows: int = Field(description="How many rows.")
    bytes: int = Field(description="The size of the files.")
    first: datetime | None = Field(description="When the first of its rows ended.")
    last: datetime | None = Field(description="When the last of its rows ended.")


class ShownArchive(Answer):
    """Everything that is archived, as the manifests tell it."""

    place: str = Field(description="Where the files are.")
    tables: list[ArchivedTable] = Field(description="By table.")

    @classmethod
    def of(cls, place: str, found: Sequence[Archived]) -> ShownArchive:
        return cls(place=place, tables=[ArchivedTable.model_validate(one) for one in found])


class ShownBackup(Answer):
    """A backup, as its manifest tells it."""

    name: str = Field(description="Its name below its folder for backups.")
    location: str = Field(description="Its folder: what a restore takes.")
    problem: str | None = Field(description="Why it cannot be used, as far as its manifest tells.")
    table_schema: str | None = Field(
        description="The schema that it was made of.", serialization_alias="schema"
    )
    created_at: datetime | None = Field(description="When it was made.")
    tables: int | None = Field(description="Of how many tables it has the rows.")
    rows: int | None = Field(description="How many rows.")
    bytes: int | None = Field(description="The size of its files.")
    compression: str | None = Field(description="How it is compressed.")
    job: str | None = Field(description="The job that made it.")

    @classmethod
    def of(cls, info: BackupInfo) -> ShownBackup:
        told = info.manifest
        return cls(
            name=info.name,
            location=str(info.location),
            problem=info.problem,
            table_schema=told and told.schema,
            created_at=told and datetime.fromisoformat(told.created_at),
            tables=told and len(told.tables),
            rows=told and told.rows,
            bytes=told and told.bytes,
            compression=told and told.compression,
            job=told and told.job,
        )


class Backups(Answer):
    """The backups that there are, the newest first."""

    backups: list[ShownBackup] = Field(description="The backups.")


class Answered(Answer):
    """What came of a statement."""

    columns: list[str] = Field(description="The names of the columns.")
    rows: list[list[Json]] = Field(
        description="The rows; times are ISO 8601, or milliseconds where no calendar has them."
    )
    message: str = Field(description="What was done, in a few words.")

    @classmethod
    def of(cls, answer: console.Answer) -> Answered:
        rows = [
            [told_time(one) if place in answer.times else one for place, one in enumerate(row)]
            for row in answer.rows
        ]
        return cls(columns=list(answer.columns), rows=rows, message=answer.message)


def told_time(milliseconds: Any) -> str | int | None:
    """A time of the table as ISO 8601; one that no calendar has stays a number.

    >>> told_time(1893456000123)
    '2030-01-01T00:00:00.123Z'
    """
    if milliseconds is None:
        return None
    try:
        when = EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return milliseconds
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
