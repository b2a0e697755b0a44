"""Letting many failed jobs run again at once: which ones a filter means, and what becomes of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from connectors import kit
from connectors.kit import FAKE, Stage
from holdfast import Settings
from holdfast.apps.connectors.connections import Link
from holdfast.db.pool import Connection
from holdfast.engine.values import Filter
from holdfast.errors import InvalidInput

DAY = datetime(2026, 3, 1, tzinfo=UTC)
Rows = dict[UUID, dict[str, Any]]


@dataclass
class World:
    """A stage with failed jobs by name; each is the only one of its connection and type unless it says so."""

    stage: Stage
    links: dict[str, Link]
    jobs: dict[str, UUID]

    async def failed(self, name: str, link: str, code: str, day: int, kind: str = "incremental") -> None:
        """A job that was made on a day at eight, failed for this reason, and ended at noon."""
        job = self.jobs[name] = await self.stage.add(self.links[link], kind)
        made = DAY + timedelta(days=day, hours=8)
        await self.stage.conn.execute(
            "update sync_jobs set status = 'failed', attempts = 10, error = %s, created_at = %s, "
            "started_at = %s, finished_at = %s, worker_id = 'w1', fence = 10, retry_after = %s where id = %s",
            (Jsonb({"code": code, "message": "no"}), made, made, made + timedelta(hours=4), made, job),
        )

    async def requeued(self, which: Filter) -> set[str]:
        """The names of the jobs that a filter lets run again; the store's count must agree."""
        before = await self.rows()
        count = await self.stage.store.requeue_where(self.stage.conn, which, by="ada")
        after = await self.rows()
        moved = {name for name, job in self.jobs.items() if before[job] != after[job]}
        assert {job for job in before if before[job] != after[job]} == {self.jobs[name] for name in moved}
        assert count == len(moved)
        assert all(after[self.jobs[name]]["status"] == "queued" for name in moved)
        return moved

    async def rows(self) -> Rows:
        return {row["id"]: row for row in await self.stage.rows("select * from sync_jobs")}


@pytest.fixture
async def world(settings: Settings, conn: Connection) -> AsyncIterator[World]:
    async with kit.stage(settings, conn) as stage:
        ours, theirs = await stage.tenant("ours"), await stage.tenant("theirs")
        world = World(stage, {}, {})
        for name, tenant, provider in (
            ("hub", ours, "github"),
            ("hub 2", ours, "github"),
            ("chat", ours, "slack"),
            ("their hub", theirs, "github"),
        ):
            world.links[name] = await stage.link(tenant=tenant, provider=provider)
        await world.failed("hub, slow", "hub", "TIMEOUT", 0)
        await world.failed("hub, full", "hub", "PERMANENT", 1, "full")
        await world.failed("hub 2, slow", "hub 2", "TIMEOUT", 2)
        await world.failed("chat, slow", "chat", "TIMEOUT", 1)
        await world.failed("chat, full", "chat", "RATE_LIMITED", 3, "full")
        await world.failed("theirs", "their hub", "TIMEOUT", 3)
        yield world


def at(day: int, hour: int) -> datetime:
    return DAY + timedelta(days=day, hours=hour)


FILTERS: dict[str, tuple[Callable[[World], Filter], set[str]]] = {
    "a provider": (
        lambda w: Filter(extras={"provider_slug": "slack"}),
        {"chat, slow", "chat, full"},
    ),
    "a connection": (
        lambda w: Filter(extras={"connection_id": w.links["hub"].id}),
        {"hub, slow", "hub, full"},
    ),
    "a connection, as text": (
        lambda w: Filter(extras={"connection_id": str(w.links["hub 2"].id)}),
        {"hub 2, slow"},
    ),
    "an error": (
        lambda w: Filter(code="TIMEOUT"),
        {"hub, slow", "hub 2, slow", "chat, slow", "theirs"},
    ),
    "made since": (lambda w: Filter(created_after=at(3, 8)), {"chat, full", "theirs"}),
    "made before": (lambda w: Filter(created_before=at(1, 8)), {"hub, slow"}),
    "ended since": (lambda w: Filter(finished_after=at(2, 12)), {"hub 2, slow", "chat, full", "theirs"}),
    "ended within a day": (
        lambda w: Filter(finished_after=at(1, 0), finished_before=at(2, 0)),
        {"hub, full", "chat, slow"},
    ),
    "a type": (lambda w: Filter(kind="full"), {"hub, full", "chat, full"}),
    "a tenant": (lambda w: Filter(tenant=w.links["their hub"].tenant_id), {"theirs"}),
    "all at once": (
        lambda w: Filter(
            extras={"provider_slug": "github", "connection_id": w.links["hub"].id},
            code="TIMEOUT",
            created_before=at(1, 0),
        ),
        {"hub, slow"},
    ),
    "what contradicts itself": (
        lambda w: Filter(extras={"provider_slug": "slack", "connection_id": w.links["hub"].id}),
        set(),
    ),
    "an error that there was not": (lambda w: Filter(code="timeout"), set()),
}


@pytest.mark.parametrize("name", FILTERS)
async def test_a_bulk_requeue_means_the_jobs_of_its_filter_and_no_others(world: World, name: str) -> None:
    """C-44: by provider, connection, error code and time, and by all of them together."""
    which, expected = FILTERS[name]
    assert await world.requeued(which(world)) == expected


async def test_what_is_let_run_again_begins_anew(world: World) -> None:
    """C-44: attempts 0, no retry_after, no finished_at; a second time there is nothing to do."""
    which = Filter(extras={"provider_slug": "slack"}, code="TIMEOUT")
    assert await world.requeued(which) == {"chat, slow"}
    row = await world.stage.job(world.jobs["chat, slow"])
    assert (row["status"], row["attempts"]) == ("queued", 0)
    assert (row["retry_after"], row["finished_at"], row["worker_id"]) == (None, None, None)
    assert await world.requeued(which) == set()
    claimed = await world.stage.store.claim(world.stage.conn, "w2", 10, kinds=["incremental"])
    assert world.jobs["chat, slow"] in {claim.id for claim in claimed}


async def test_what_has_not_failed_is_not_meant(world: World) -> None:
    """C-44, section 4: queued, running and succeeded jobs stay as they are, whatever the filter says."""
    stage = world.stage
    for status in ("queued", "running", "succeeded", "completed"):
        link = await stage.link(provider=FAKE.slug)
        job = await stage.add(link)
        await stage.conn.execute("update sync_jobs set status = %s where id = %s", (status, job))
    assert await world.requeued(Filter(extras={"provider_slug": FAKE.slug})) == set()
    assert await world.requeued(Filter(states=("running",))) == set()


async def test_a_job_whose_place_is_taken_is_passed_over_and_holds_up_no_other(world: World) -> None:
    """C-44: its sibling runs; of two that failed one goes."""
    active = await world.stage.add(world.links["hub"])
    await world.failed("chat, slow again", "chat", "TIMEOUT", 2)
    assert await world.requeued(Filter(code="TIMEOUT")) == {"hub 2, slow", "chat, slow again", "theirs"}
    assert (await world.stage.job(active))["attempts"] == 0


@pytest.mark.parametrize(
    ("which", "field"),
    [
        (Filter(extras={"colour": "red"}), "colour"),
        (Filter(extras={"cursor": "x"}), "cursor"),
        (Filter(extras={"connection_id": "no uuid"}), "connection_id"),
        (Filter(extras={"provider_slug": "a\x00b"}), "provider_slug"),
        (Filter(code="a\x00b"), "code"),
        (Filter(created_after=datetime(2026, 3, 1)), "created_after"),  # noqa: DTZ001
        (Filter(states=("asleep",)), "state"),
        (Filter(tenant="no uuid"), "tenant_id"),
    ],
    ids=[
        "no column",
        "not to be asked by",
        "no uuid",
        "no text",
        "no code",
        "no zone",
        "no state",
        "no tenant",
    ],
)
async def test_a_filter_that_cannot_be_meant_is_refused_and_nothing_moves(
    world: World, which: Filter, field: str
) -> None:
    """C-44, section 4."""
    before = await world.rows()
    with pytest.raises(InvalidInput) as caught:
        await world.stage.store.requeue_where(world.stage.conn, which)
    assert caught.value.field == field
    assert await world.rows() == before
