"""The inbox: a delivery is stored once, finds its job, and can be processed once more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from conftest import Connect
from connectors.kit import FAKE, NOON, Stage, Stop, signal, stage
from holdfast import Settings
from holdfast.apps.connectors import inbox, listing
from holdfast.apps.connectors.inbox import BATCH, TRIES, Replayed
from holdfast.apps.connectors.protocol import Permanent, WebhookResult
from holdfast.db.pool import Connection
from holdfast.errors import NotFound
from runtime.support import until


@pytest.fixture
async def here(settings: Settings, conn: Connection) -> AsyncIterator[Stage]:
    async with stage(settings, conn) as here:
        yield here


def account_of(headers: Any, payload: Any) -> Sequence[str]:
    return [payload["account"]] if payload else []


async def replay(here: Stage, tenant: UUID | None, **which: Any) -> Replayed:
    return await inbox.replay(here.conn, here.store, tenant, provider=FAKE.slug, match=account_of, **which)


# -- coming in -------------------------------------------------------------------------------------------


async def test_a_delivery_is_stored_and_one_job_drains_all_that_come(here: Stage) -> None:
    """C-49: the first adds a webhook job, the others find it."""
    link = await here.link()
    for number in range(3):
        assert await here.deliver(link, f"d{number}")
    (job,) = await here.jobs(link)
    assert (job["job_type"], job["status"], job["priority"]) == ("webhook", "queued", 50)
    assert [one.delivery_id for one in await here.pending(link)] == ["d0", "d1", "d2"]


async def test_a_replayed_delivery_id_is_accepted_and_changes_nothing(here: Stage) -> None:
    """C-50: no row and no job, also when the first one's job has long ended."""
    link = await here.link()
    assert await here.deliver(link, "d", {"n": 1})
    await here.work()
    before = await here.everything()
    assert not await here.deliver(link, "d", {"n": 2})
    assert await here.everything() == before


async def test_the_same_id_of_another_tenant_is_another_delivery(here: Stage) -> None:
    """C-50: an id is one provider's and one tenant's."""
    for _ in range(2):
        assert await here.deliver(await here.link(), "d")


async def test_two_at_once_store_a_delivery_once(here: Stage, connect: Connect) -> None:
    """C-50: whoever comes second waits for the first, and finds that it is known."""
    link = await here.link()
    first, second = await connect(), await connect()
    async with first.transaction():
        assert await here.deliver(link, "d", conn=first)
        waiting = asyncio.create_task(here.deliver(link, "d", conn=second))
        await until_waits(here.conn, second)
    assert not await waiting
    assert len(await here.jobs(link)) == 1


async def until_waits(conn: Connection, other: Connection) -> None:
    """Waits until the other connection waits for a lock."""
    query = "select true from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    await until(conn, query, other.info.backend_pid)


async def test_a_delivery_that_finds_no_connection_is_stored_without_a_job(here: Stage) -> None:
    """C-51: nothing is guessed."""
    tenant = await here.tenant()
    assert await here.deliver(None, "d", tenant_id=tenant)
    assert (await here.delivery("d"))["connection_id"] is None
    assert await here.rows("select * from sync_jobs") == []


async def test_a_connection_that_is_gone_by_now_leaves_it_without_one(here: Stage) -> None:
    """C-51: between the match and the lock it was removed."""
    link = await here.link()
    await here.conn.execute("delete from connections")
    assert await here.deliver(link, "d")
    assert (await here.delivery("d"))["connection_id"] is None


@pytest.mark.parametrize("status", ["paused", "error", "revoked"])
async def test_a_connection_that_is_not_active_keeps_its_deliveries(here: Stage, status: str) -> None:
    """C-49: without a job, which would be cancelled at its start."""
    link = await here.link(status=status)
    assert await here.deliver(link, "d")
    assert await here.jobs(link) == []
    assert await inbox.left(here.conn, link.id)


async def test_a_delivery_naming_another_tenants_connection_is_refused(here: Stage) -> None:
    """C-14: by the database itself, and nothing is written."""
    link, other = await here.link(), await here.tenant("other")
    before = await here.everything()
    with pytest.raises(NotFound, match="connection"):
        await inbox.receive(
            here.conn,
            here.store,
            provider=FAKE.slug,
            tenant_id=other,
            link=link,
            delivery_id="d",
            headers={},
            payload={},
            body_sha256="",
            verification="operator",
        )
    assert await here.everything() == before


async def test_a_tenant_or_a_provider_that_there_is_not_is_not_found(here: Stage) -> None:
    """C-46: nothing is written for them."""
    with pytest.raises(NotFound, match="tenant"):
        await here.deliver(None, "d", tenant_id=uuid4())
    await here.conn.execute("delete from providers where slug = 'fake'")
    with pytest.raises(NotFound, match="provider"):
        await here.deliver(None, "d", tenant_id=await here.tenant())


DROPPED = (
    "Authorization",
    "Cookie",
    "Set-Cookie",
    "Proxy-Authorization",
    "WWW-Authenticate",
    "Authentication-Info",
    "X-Api-Key",
    "X-Auth-Token",
    "X-CSRF-Token",
    "X-XSRF-Token",
    "X-Webhook-Secret",
    "X-Hub-Signature",
    "X-Hub-Signature-256",
    "X-Slack-Signature",
    "X-Goog-Channel-Token",
    "Webhook-Signature",
    "X-Forwarded-For",
    "Forwarded",
    "X-Real-Ip",
    "CF-Connecting-IP",
    "Fly-Client-IP",
    "X-Envoy-External-Address",
)


async def test_no_dropped_header_ever_reaches_the_inbox(here: Stage) -> None:
    """C-52: neither a proof, nor an address; the others are stored by lower-case names."""
    headers = dict.fromkeys(DROPPED, "do not keep") | {"X-GitHub-Event": "push", "User-Agent": "hook"}
    await inbox.receive(
        here.conn,
        here.store,
        provider=FAKE.slug,
        tenant_id=await here.tenant(),
        link=None,
        delivery_id="d",
        headers=headers,
        payload=None,
        body_sha256="",
        verification="shared_secret",
    )
    row = await here.delivery("d")
    assert row["headers"] == {"x-github-event": "push", "user-agent": "hook"}
    assert (row["payload"], row["verification"]) == (None, "shared_secret")
    assert "do not keep" not in str(row)


async def test_what_postgresql_cannot_store_is_cleaned_and_not_refused(here: Stage) -> None:
    """C-52: it is signed, and it has come."""
    link = await here.link()
    assert await here.deliver(link, "d", {"a\x00": ["b\x00", "\ud800", 1.5, None]})
    (stored,) = await here.pending(link)
    assert "\x00" not in str(stored.payload)
    assert len(next(iter(stored.payload.values()))) == 4


# -- races -----------------------------------------------------------------------------------------------


async def test_a_delivery_at_the_moment_of_finish_is_not_stranded(here: Stage, connect: Connect) -> None:
    """C-49: it waits for the finish, which has looked before it came, and then adds a job of its own."""
    link = await here.link()
    await here.deliver(link, "first")
    finishing, coming = await connect(), await connect()
    async with finishing.transaction():
        await inbox.close(finishing, link.id)
        assert await inbox.left(finishing, link.id)
        (first,) = await here.pending(link, finishing)
        await inbox.processed(finishing, first.key)
        delivering = asyncio.create_task(here.deliver(link, "second", conn=coming))
        await until_waits(here.conn, coming)
        assert not await inbox.left(finishing, link.id)
        await finishing.execute("update sync_jobs set status = 'succeeded', finished_at = now()")
    assert await delivering
    assert [job["status"] for job in await here.jobs(link)] == ["succeeded", "queued"]


async def test_one_hundred_deliveries_during_a_running_job_are_all_processed_each_once(
    here: Stage, connect: Connect
) -> None:
    """C-49: the job that runs has read its batch already; its finish looks again."""
    link, stop = await here.link(), Stop()
    here.script.webhooks["first"] = [stop.then(WebhookResult())]
    await here.deliver(link, "first")
    async with here.working():
        await stop.reached()
        conns = [await connect() for _ in range(4)]

        async def send(place: int) -> None:
            for number in range(25):
                assert await here.deliver(link, f"d{place}-{number}", conn=conns[place])

        await asyncio.gather(*map(send, range(4)))
        stop.go()
        query = "select count(*) = 0 from webhook_delivery where processed_at is null"
        await until(here.conn, query)
    handled = here.script.of("webhook")
    assert sorted(handled) == sorted(["first", *(f"d{p}-{n}" for p in range(4) for n in range(25))])
    assert len(await here.keys(link)) == 100


async def test_a_body_that_comes_back_under_a_new_id_yields_no_second_signal(here: Stage) -> None:
    """C-39: what tells a fact is its content."""
    link = await here.link()
    fact = await here.deliver(link, "same")
    await here.work()
    here.script.webhooks["again"] = [lambda *_: signal_of("same")]
    assert fact
    assert await here.deliver(link, "again")
    await here.work()
    assert await here.keys(link) == ["same"]


def signal_of(key: str) -> WebhookResult:
    return WebhookResult(signals=(signal(key),))


# -- failing and once more -------------------------------------------------------------------------------


async def test_a_poisoned_delivery_does_not_hold_up_the_next(here: Stage) -> None:
    """C-54: it is processed with its error."""
    link = await here.link()
    here.script.webhooks["bad"] = [Permanent(message="nobody can read it")]
    for name in ("bad", "good"):
        await here.deliver(link, name)
    await here.work()
    bad, good = await here.delivery("bad"), await here.delivery("good")
    assert (bad["error"]["code"], good["error"]) == ("PERMANENT", None)
    assert None not in (bad["processed_at"], good["processed_at"])


async def test_a_delivery_that_failed_five_times_is_parked(here: Stage) -> None:
    """C-54: processed, with its last error; and a late failure of it is none."""
    link = await here.link()
    await here.deliver(link, "d")
    (stored,) = await here.pending(link)
    for number in range(1, TRIES + 1):
        assert (await here.delivery("d"))["processed_at"] is None
        assert await inbox.failed_once(here.conn, stored.key, {"code": f"E{number}"}) == number
    row = await here.delivery("d")
    assert (row["processed_at"] is not None, row["attempts"], row["error"]) == (True, TRIES, {"code": "E5"})
    assert await inbox.failed_once(here.conn, stored.key, {"code": "late"}) == TRIES
    assert not await inbox.processed(here.conn, stored.key)
    assert await here.delivery("d") == row


async def test_a_replay_by_id_lets_a_delivery_be_processed_once_more(here: Stage) -> None:
    """C-54: processed_at, attempts and error are cleared, and there is a job."""
    link = await here.link()
    here.script.webhooks["d"] = [Permanent(message="not today")]
    for name in ("d", "other"):
        await here.deliver(link, name)
    await here.work()
    assert await replay(here, link.tenant_id, delivery_id="d") == Replayed(deliveries=1)
    row = await here.delivery("d")
    assert (row["processed_at"], row["attempts"], row["error"]) == (None, 0, None)
    await here.work()
    assert here.script.of("webhook") == ["d", "other", "d"]
    assert await here.keys(link) == ["d", "other"]


async def test_a_replay_by_time_means_both_ends_and_only_the_tenants_own(here: Stage) -> None:
    """C-54: by range; another tenant's deliveries stay as they are."""
    link, other = await here.link(), await here.link()
    for number in range(5):
        now = NOON + timedelta(minutes=number)
        await here.deliver(link, f"d{number}", now=now)
        await here.deliver(other, f"o{number}", now=now)
    await here.conn.execute("update webhook_delivery set processed_at = now()")
    which = {"received_after": NOON + timedelta(minutes=1), "received_before": NOON + timedelta(minutes=3)}
    assert await replay(here, link.tenant_id, **which) == Replayed(deliveries=3)
    assert [one.delivery_id for one in await here.pending(link)] == ["d1", "d2", "d3"]
    assert not await inbox.left(here.conn, other.id)
    assert (await replay(here, None, **which)).deliveries == 6


async def test_a_replay_of_many_misses_none(here: Stage) -> None:
    """C-54: several batches, and equal times."""
    link = await here.link()
    for number in range(2 * BATCH + 1):
        await here.deliver(link, f"d{number:03}", now=NOON)
    await here.conn.execute("update webhook_delivery set processed_at = now(), attempts = 5, error = '{}'")
    done = await replay(here, link.tenant_id, received_after=NOON)
    assert done == Replayed(deliveries=2 * BATCH + 1)
    assert len(await here.pending(link)) == 2 * BATCH + 1


@pytest.mark.parametrize("moment", ["infinity", "-infinity"])
async def test_deliveries_of_no_time_hide_no_others_and_can_be_replayed(here: Stage, moment: str) -> None:
    """C-54: by somebody's own SQL; more of them than one batch has."""
    link = await here.link()
    for number in range(BATCH + 1):
        await here.deliver(link, f"d{number:03}")
    await here.conn.execute("update webhook_delivery set received_at = %s, processed_at = %s", [moment] * 2)
    await here.conn.execute("delete from sync_jobs")
    assert (await listing.delivery(here.conn, link.tenant_id, FAKE.slug, "d007")).processed_at
    assert await replay(here, link.tenant_id) == Replayed(deliveries=BATCH + 1)
    await here.work()
    assert len(await here.keys(link)) == BATCH + 1


async def test_an_unmatched_delivery_can_be_replayed(here: Stage) -> None:
    """C-51: once its account is there; while there is none, or two, it stays as it is."""
    tenant = await here.tenant()
    await here.deliver(None, "d", {"account": "acme"}, tenant_id=tenant)
    assert await replay(here, tenant, delivery_id="d") == Replayed(unmatched=1)
    link = await here.link(tenant=tenant, external_id="acme")
    metadata = {"webhook": {"external_ids": ["acme"]}}
    twin = await here.link(tenant=tenant, external_id="twin", metadata=metadata)
    assert await replay(here, tenant, delivery_id="d") == Replayed(unmatched=1)
    await here.conn.execute("delete from connections where id = %s", (twin.id,))
    assert await replay(here, tenant, delivery_id="d") == Replayed(deliveries=1)
    await here.work()
    assert await here.keys(link) == ["d"]


async def test_a_replay_finds_nothing_of_another_tenant(here: Stage) -> None:
    """C-13: as if it were not there."""
    link, other = await here.link(), await here.tenant("other")
    await here.deliver(link, "d")
    assert await replay(here, other, delivery_id="d") == Replayed()


async def test_a_delivery_of_a_provider_in_use_keeps_the_provider(here: Stage) -> None:
    """C-15: a provider that is in use cannot be removed."""
    await here.deliver(await here.link(), "d")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        await here.conn.execute("delete from providers where slug = 'fake'")
