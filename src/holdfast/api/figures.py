"""What the API answers in numbers: how ledgers and workers do."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.answers import Answer
from holdfast.engine.values import Json
from holdfast.runtime import overview as look
from holdfast.runtime import presence, pulse


class Stat(Answer):
    """The rows of one state."""

    state: str = Field(description="The ledger's own word.")
    rows: int = Field(description="How many.")
    oldest: datetime | None = Field(description="When the oldest of them was made.")
    due: datetime | None = Field(description="Since when one of them is due.")
    exact: bool = Field(description="Whether they were counted; else it is the planner's estimate.")


class Pause(Answer):
    """Something that is paused."""

    ledger: str = Field(description="Which ledger.")
    queue: str | None = Field(description="Which queue; null: the whole ledger.")
    since: datetime = Field(description="Since when.")
    by: str | None = Field(description="By whom.")
    reason: str | None = Field(description="Why.")


class Percentiles(Answer):
    """How long something took, in seconds, from the buckets of a histogram."""

    count: int = Field(description="Of how many.")
    p50: float | None = Field(description="Half of them took no longer.")
    p95: float | None = Field(description="95 of 100 took no longer.")
    p99: float | None = Field(description="99 of 100 took no longer.")


class Minute(Answer):
    """What workers did in one minute."""

    at: datetime = Field(description="Its beginning.")
    claimed: int = Field(description="Rows that were taken.")
    finished: int = Field(description="Rows that were finished.")
    retried: int = Field(description="Bad runs with runs left.")
    dead: int = Field(description="Rows that ended badly.")


class Failures(Answer):
    """Bad runs of one class of error."""

    code: str = Field(description="The class.")
    count: int = Field(description="How many.")


class Pace(Answer):
    """What workers did in the last hour."""

    minutes: list[Minute] = Field(description="The oldest first.")
    latency: Percentiles = Field(description="From being due to being taken.")
    run_time: Percentiles = Field(description="Of handlers.")
    failures: list[Failures] = Field(description="By the class of the error, the most first.")

    @classmethod
    def of(cls, pace: pulse.Pace) -> Pace:
        return cls(
            minutes=[Minute.model_validate(minute) for minute in pace.minutes],
            latency=Percentiles.model_validate(pace.latency),
            run_time=Percentiles.model_validate(pace.run_time),
            failures=[Failures(code=code, count=count) for code, count in pace.failures],
        )


class Statistics(Answer):
    """A ledger at a glance."""

    ledger: str = Field(description="Which ledger.")
    states: list[Stat] = Field(description="Every state, also those without rows.")
    exact: bool = Field(description="Whether all rows were counted.")
    waiting_since: datetime | None = Field(description="Since when the next row is due; null: none is.")
    oldest_wait: float | None = Field(description="The same as seconds until now.")
    pace: Pace | None = Field(description="What workers did; null within a tenant.")
    paused: list[Pause] = Field(description="What is paused; empty within a tenant.")
    held: dict[str, int] = Field(description="How many rows each worker holds; empty within a tenant.")
    trouble: str | None = Field(description="Why the table cannot be looked at; null: it can.")
    kinds_without_handler: list[str] = Field(
        description="Kinds of due rows that no worker takes, at most 100; empty within a tenant."
    )

    @classmethod
    def of(cls, view: look.LedgerView, now: datetime) -> Statistics:
        return cls(
            ledger=view.ledger.name,
            states=[Stat.model_validate(stat) for stat in view.stats],
            exact=view.exact,
            waiting_since=view.waiting_since,
            oldest_wait=view.oldest_wait(now),
            pace=Pace.of(view.pace) if view.pace else None,
            paused=[Pause.model_validate(pause) for pause in view.paused],
            held=dict(view.held),
            trouble=view.trouble,
            kinds_without_handler=list(view.kinds_without_handler),
        )


class Worker(Answer):
    """A worker that there is."""

    id: str = Field(description="Its id, as rows name it.")
    hostname: str = Field(description="Where it runs.")
    version: str | None = Field(description="Of Holdfast.")
    started: datetime = Field(description="Since when.")
    silent: float = Field(description="The age of its heartbeat, in seconds.")
    leads: bool = Field(description="Whether it is the leader.")
    slots: int = Field(description="How many handlers it runs at once.")
    held: int | None = Field(description="How many rows it holds.")
    serves: list[str] = Field(description="The ledgers that it takes rows from.")
    shares: dict[str, Json] = Field(description="Of each: slots, queues, and kinds that it has handlers for.")

    @classmethod
    def of(cls, worker: presence.Present, held: int | None) -> Worker:
        names = ("id", "hostname", "version", "started", "silent", "leads", "serves", "shares")
        told = {name: getattr(worker, name) for name in names}
        return cls(**told, slots=worker.pool_size, held=held)


class Fleet(Answer):
    """The workers, and who leads them."""

    workers: list[Worker] = Field(description="The oldest first.")
    leader: str | None = Field(description="The id of the one that does the duties.")


class Overview(Answer):
    """Everything at a glance. Within a tenant: its own rows, and no workers."""

    now: datetime = Field(description="The database's time.")
    ledgers: list[Statistics] = Field(description="Every ledger.")
    workers: list[Worker] = Field(description="Every worker.")
    leader: str | None = Field(description="The id of the one that does the duties.")

    @classmethod
    def of(cls, found: look.Overview) -> Overview:
        load = found.load
        return cls(
            now=found.now,
            ledgers=[Statistics.of(view, found.now) for view in found.ledgers],
            workers=[Worker.of(worker, load.get(worker.id, 0)) for worker in found.workers],
            leader=found.leader,
        )


class Paused(Answer):
    """What a pause or a resume did."""

    ledger: str = Field(description="Which ledger.")
    queue: str | None = Field(description="Which queue; null: the whole ledger.")
    paused: bool = Field(description="Whether it is paused now.")
    changed: bool = Field(description="Whether this request changed it.")
