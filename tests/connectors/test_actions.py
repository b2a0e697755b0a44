"""What people may do about connections, and what is written down of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from conftest import Connect
from connectors.door import OTHER, TENANT, House, house
from connectors.kit import ACCESS, NOON, Stop, page
from holdfast import Settings
from holdfast.api.caller import Caller
from holdfast.apps.connectors import actions, connections, inbox, oauth, personal, sync_state
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.ledger import BY_HAND_PRIORITY
from holdfast.apps.connectors.protocol import Permanent, Transient
from holdfast.db.pool import Connection
from holdfast.errors import Conflict, InvalidInput, NotAllowed, NotFound

ANA = Caller(who="ana", scope="act", tenant=str(TENANT), bound=True)
READER = Caller(who="rob", scope="read", tenant=str(TENANT), bound=True)
OPERATOR = Caller(who="olga", scope="act")


@pytest.fixture
async def here(settings: Settings, conn: Connection) -> AsyncIterator[House]:
    async with house(settings, conn) as here:
        yield here


async def link(here: House, **more: Any) -> Link:
    return await here.link(tenant=TENANT, provider="shop", **more)


async def entries(here: House) -> list[tuple[str, str, str | None]]:
    rows = await here.rows("select action, who, tenant from holdfast_audit order by id")
    return [(row["action"], row["who"], row["tenant"]) for row in rows]


# -- syncing ---------------------------------------------------------------------------------------------


async def test_a_sync_by_hand_adds_a_job_or_finds_the_one_that_is_there(here: House) -> None:
    """C-70: one of each type waits or runs at most."""
    found = await link(here)
    first = await actions.sync_now(here.service, here.conn, ANA, TENANT, found.id)
    again = await actions.sync_now(here.service, here.conn, ANA, TENANT, found.id, priority=99)
    full = await actions.full_resync(here.service, here.conn, ANA, TENANT, found.id)
    assert (first.created, again.created, full.created) == (True, False, True)
    assert first.job.id == again.job.id
    assert (first.job.job_type, first.job.priority) == ("incremental", BY_HAND_PRIORITY)
    assert full.job.job_type == "full"
    assert len(await entries(here)) == 3


async def test_a_sync_rings_the_bell(here: House) -> None:
    """C-70: a worker that waits takes it at once."""
    found = await link(here)
    here.script.syncs = [page("a", cursor=1)]
    async with here.working():
        asked = await actions.sync_now(here.service, here.conn, ANA, TENANT, found.id)
        await here.until_job(asked.job.id, "succeeded")
    assert await here.keys(found) == ["a"]


@pytest.mark.parametrize("status", ["paused", "revoked", "error"])
async def test_a_connection_that_is_not_active_is_not_synced(here: House, status: str) -> None:
    """C-70: 409, and nothing is written."""
    found = await link(here, status=status)
    with pytest.raises(Conflict, match=status):
        await actions.sync_now(here.service, here.conn, ANA, TENANT, found.id)
    assert await here.count("sync_jobs") == 0
    assert await entries(here) == []


async def test_a_full_sync_begins_at_the_beginning(here: House) -> None:
    """C-34: whatever the cursor is."""
    found = await link(here)
    await actions.set_cursor(here.conn, ANA, TENANT, found.id, {"n": 7})
    await actions.full_resync(here.service, here.conn, ANA, TENANT, found.id)
    await here.work()
    assert here.script.of("sync") == [None]


async def test_an_interval_is_checked_and_counts_from_now(here: House) -> None:
    """C-19: 60 to the maximum, whole; a next run that lies further away is pulled near."""
    found = await link(here)
    far = sync_state.moment_text(datetime.now(UTC) + timedelta(days=1))
    await connections.merge_sync(here.conn, found.id, {"next_run_at": far, "mine": 1})
    for wrong in (59, 86401, "900", True, 900.5, None):
        with pytest.raises(InvalidInput, match="interval_seconds"):
            await actions.set_interval(here.service, here.conn, ANA, TENANT, found.id, wrong)
    assert await here.sync_of(found) == {"next_run_at": far, "mine": 1}
    await actions.set_interval(here.service, here.conn, ANA, TENANT, found.id, 600)
    sync = await here.sync_of(found)
    assert (sync["interval_seconds"], sync["mine"]) == (600, 1)
    wait = sync_state.read_moment(sync["next_run_at"]) - datetime.now(UTC)  # type: ignore[operator]
    assert 590 < wait.total_seconds() <= 600


async def test_a_cursor_can_be_seen_set_and_reset(here: House) -> None:
    """C-70: any JSON; what PostgreSQL cannot store is refused."""
    found = await link(here)

    async def seen() -> Any:
        return await actions.cursor(here.service, here.conn, TENANT, found.id)

    assert await seen() is None
    for cursor in ({"page": [1, None]}, "text", 7, [], False, None):
        await actions.set_cursor(here.conn, ANA, TENANT, found.id, cursor)
        assert await seen() == cursor
    with pytest.raises(InvalidInput, match="cursor"):
        await actions.set_cursor(here.conn, ANA, TENANT, found.id, "a\x00b")
    await actions.set_cursor(here.conn, ANA, TENANT, found.id, 8)
    await actions.reset_cursor(here.conn, ANA, TENANT, found.id)
    assert "cursor" not in await here.sync_of(found)


async def test_a_reset_cursor_survives_the_running_jobs_finish(here: House) -> None:
    """C-38: what a person says last counts."""
    found, stop = await link(here), Stop()
    await actions.set_cursor(here.conn, ANA, TENANT, found.id, 1)
    here.script.syncs = [stop.then(page("a", cursor=2))]
    async with here.working():
        asked = await actions.sync_now(here.service, here.conn, ANA, TENANT, found.id)
        await stop.reached()
        await actions.reset_cursor(here.conn, ANA, TENANT, found.id)
        stop.go()
        await here.until_job(asked.job.id, "succeeded")
    assert "cursor" not in await here.sync_of(found)
    assert await here.keys(found) == ["a"]


async def test_other_names_of_an_account_lead_its_webhooks_home(here: House) -> None:
    """C-51: `metadata.webhook.external_ids`; what else stands in the metadata stays."""
    found = await link(here, metadata={"webhook": {"hook": 7}, "login": "ana"})
    await actions.set_external_ids(here.conn, ANA, TENANT, found.id, ["org-1", "org-2", "org-1"])
    metadata = (await here.now(found)).metadata
    assert metadata["webhook"] == {"hook": 7, "external_ids": ["org-1", "org-2"]}
    assert metadata["login"] == "ana"
    matched = await inbox.matching(here.conn, TENANT, "shop", ["org-2"])
    assert matched
    assert matched.id == found.id
    await here.conn.execute("update connections set metadata = '{\"webhook\": 3}'")
    await actions.set_external_ids(here.conn, ANA, TENANT, found.id, [])
    assert (await here.now(found)).metadata == {"webhook": {"external_ids": []}}


@pytest.mark.parametrize("there", [None, "null", "[1]", "7", '"text"'])
async def test_metadata_that_is_no_object_is_made_one_by_other_names(here: House, there: str | None) -> None:
    """C-17, C-51: others write here, too."""
    found = await link(here)
    await here.conn.execute("update connections set metadata = %s::jsonb", (there,))
    await actions.set_external_ids(here.conn, ANA, TENANT, found.id, ["x"])
    (row,) = await here.rows("select metadata from connections")
    assert row["metadata"] == {"webhook": {"external_ids": ["x"]}}


# -- on and off ------------------------------------------------------------------------------------------


async def test_pause_and_resume(here: House) -> None:
    """C-70: twice is once; what webhooks brought meanwhile is drained."""
    found = await link(here)
    for _ in range(2):
        assert (await actions.pause(here.conn, ANA, TENANT, found.id)).status == "paused"
    await here.deliver(found, "d")
    assert await here.jobs(found) == []
    for _ in range(2):
        assert (await actions.resume(here.service, here.conn, ANA, TENANT, found.id)).status == "active"
    await here.work()
    assert await here.keys(found) == ["d"]
    details = await here.rows("select detail ->> 'changed' as changed from holdfast_audit order by id")
    assert [row["changed"] for row in details] == ["true", "false", "true", "false"]


async def test_a_connection_in_error_can_be_resumed_and_a_revoked_one_cannot(here: House) -> None:
    """C-70: whoever has mended what was wrong says so; without tokens there is nothing to resume."""
    broken, gone = await link(here, status="error"), await link(here, status="revoked")
    assert (await actions.resume(here.service, here.conn, ANA, TENANT, broken.id)).status == "active"
    with pytest.raises(Conflict, match="connect the account anew"):
        await actions.resume(here.service, here.conn, ANA, TENANT, gone.id)
    with pytest.raises(Conflict, match="cannot pause"):
        await actions.pause(here.conn, ANA, TENANT, gone.id)


async def test_disconnect_removes_the_tokens_and_cancels_the_jobs(here: House) -> None:
    """C-70: at once, also the one that runs; signals stay, and the provider is told."""
    found, stop = await link(here), Stop()
    here.script.syncs = [page("a", cursor=1), stop.then(page("b"))]
    await actions.sync_now(here.service, here.conn, ANA, TENANT, found.id)
    await here.work()
    waiting = await here.add(found, "full", delay=3600)
    async with here.working():
        running = await here.add(found)
        await stop.reached()
        ended = await actions.disconnect(here.service, here.conn, ANA, TENANT, found.id)
        stop.go()
    assert (ended.status, ended.access, ended.refresh, ended.expires_at) == ("revoked", None, None, None)
    for one in (waiting, running):
        job = await here.job(one)
        assert (job["status"], job["error"]["code"], job["error"]["message"]) == (
            "failed",
            "CANCELLED",
            "cancelled",
        )
        assert job["finished_at"] is not None
    assert await here.keys(found) == ["a"]
    assert here.trade.revoked == [ACCESS]


async def test_a_provider_that_does_not_listen_does_not_hold_up_a_disconnect(
    here: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C-70: our side is done; a log line tells the rest, without the token."""

    async def refuse(self: Any, token: str) -> None:
        raise Transient(message="shop is away")

    monkeypatch.setattr(here.service.known["shop"], "revoke", refuse)
    found = await link(here)
    assert (await actions.disconnect(here.service, here.conn, ANA, TENANT, found.id)).status == "revoked"
    assert "shop is away" in caplog.text
    assert ACCESS not in caplog.text
    broken = await link(here)
    await here.conn.execute(
        "update connections set access_token_ciphertext = 'x' where id = %s", (broken.id,)
    )
    assert (await actions.disconnect(here.service, here.conn, ANA, TENANT, broken.id)).status == "revoked"


@pytest.mark.parametrize("verb", ["disconnect", "remove"])
async def test_a_connector_that_breaks_when_it_is_told_of_the_end_hurts_nobody(
    settings: Settings,
    conn: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    verb: str,
) -> None:
    """C-70: told by its class, without the token; and no connection of the pool is held meanwhile."""
    async with house(settings, conn, db_max_connections=1) as here:

        async def breaks(_: Any, token: str) -> None:
            async with here.app.database.connection() as free:  # the only one that the pool has
                await free.execute("select 1")
            raise KeyError(token)

        monkeypatch.setattr(here.service.known["shop"], "revoke", breaks)
        found, client = await link(here), here.client("tenant")
        path = f"/api/connectors/connections/{found.id}"
        asked = client.post(f"{path}/disconnect") if verb == "disconnect" else client.delete(path)
        assert (await asked).status_code == (200 if verb == "disconnect" else 204)
    assert "KeyError" in caplog.text
    assert ACCESS not in caplog.text


async def test_what_webhooks_brought_while_an_account_was_away_is_drained_when_it_comes_back(
    here: House,
) -> None:
    """C-49, C-65: by OAuth, by a token, by name, or resumed; what failed before has its own time to wait."""
    for provider in ("shop", "ping"):
        found = await here.link(tenant=TENANT, provider=provider, external_id="shop-1", status="revoked")
        await here.deliver(found, f"{provider}-d")
    oauth_state = httpx.URL(await oauth.start(here.service, TENANT, "shop")).params["state"]
    link = await oauth.finish(here.service, "shop", {"state": oauth_state, "code": "c"})
    assert len(await here.jobs(link, "webhook")) == 1

    await here.conn.execute("delete from sync_jobs")
    account: Any = {"provider": "shop", "external_id": "shop-1"}
    await personal.connect_by_token(here.service, here.conn, ANA, TENANT, **account, token="t-1")
    assert len(await here.jobs(link, "webhook")) == 1

    back = await actions.register(here.service, here.conn, ANA, TENANT, provider="ping", external_id="shop-1")
    assert (back.status, [job["job_type"] for job in await here.jobs(back)]) == ("active", ["webhook"])
    with pytest.raises(Conflict):
        await actions.register(here.service, here.conn, ANA, TENANT, provider="ping", external_id="shop-1")
    await here.work()
    assert (await here.keys(link), await here.keys(back)) == (["shop-d"], ["ping-d"])


async def test_a_delivery_that_waits_after_a_failure_is_not_hurried_by_a_resume(here: House) -> None:
    """C-54: the same meaning of what is left for everybody."""
    found = await link(here)
    here.script.webhooks["d"] = [Transient(message="later")]
    await here.deliver(found, "d")
    await here.work()
    await here.conn.execute("delete from sync_jobs")
    await actions.pause(here.conn, ANA, TENANT, found.id)
    await actions.resume(here.service, here.conn, ANA, TENANT, found.id)
    assert await here.jobs(found) == []


async def test_a_removed_connection_takes_everything_along(here: House) -> None:
    """C-15: jobs, signals and deliveries; a run that is on can write nothing any more."""
    found, stop = await link(here), Stop()
    here.script.syncs = [page("a", cursor=1), stop.then(page("b"))]
    await actions.sync_now(here.service, here.conn, ANA, TENANT, found.id)
    await here.work()
    await here.deliver(found, "d")
    await here.conn.execute("delete from sync_jobs where job_type = 'webhook'")
    async with here.working():
        await here.add(found)
        await stop.reached()
        gone = await actions.remove(here.service, here.conn, ANA, TENANT, found.id)
        await actions.tell_provider(here.service, gone)
        stop.go()
    for table in ("connections", "sync_jobs", "signals", "webhook_delivery"):
        assert await here.count(table) == 0, table
    assert here.trade.revoked == [ACCESS]
    assert (await entries(here))[-1][0] == "connection remove"


async def test_a_job_that_a_webhook_is_just_adding_ends_with_its_connection(
    here: House, connect: Connect
) -> None:
    """A disconnect need not wait for deliveries; what they add is cancelled when it begins."""
    found = await link(here)
    coming = await connect()
    async with coming.transaction():
        await here.deliver(found, "d", conn=coming)
        ended = await actions.disconnect(here.service, here.conn, ANA, TENANT, found.id)
    assert ended.status == "revoked"
    await here.work()
    (job,) = await here.jobs(found)
    assert job["error"]["code"] == "CANCELLED"
    assert here.script.of("webhook") == []


# -- who may ---------------------------------------------------------------------------------------------

Doing = Callable[[House, Caller, "UUID | None", UUID], Awaitable[Any]]
EVERY: dict[str, Doing] = {
    "sync": lambda h, c, t, n: actions.sync_now(h.service, h.conn, c, t, n),
    "full": lambda h, c, t, n: actions.full_resync(h.service, h.conn, c, t, n),
    "interval": lambda h, c, t, n: actions.set_interval(h.service, h.conn, c, t, n, 900),
    "cursor": lambda h, c, t, n: actions.set_cursor(h.conn, c, t, n, 1),
    "reset": lambda h, c, t, n: actions.reset_cursor(h.conn, c, t, n),
    "names": lambda h, c, t, n: actions.set_external_ids(h.conn, c, t, n, ["x"]),
    "pause": lambda h, c, t, n: actions.pause(h.conn, c, t, n),
    "resume": lambda h, c, t, n: actions.resume(h.service, h.conn, c, t, n),
    "disconnect": lambda h, c, t, n: actions.disconnect(h.service, h.conn, c, t, n),
    "remove": lambda h, c, t, n: actions.remove(h.service, h.conn, c, t, n),
}


@pytest.mark.parametrize("name", EVERY)
async def test_who_may_do_it_and_what_is_written_of_it(here: House, name: str) -> None:
    """C-13, C-70: a reader may not, another tenant's is not there, and each deed has its entry."""
    do, mine, theirs = EVERY[name], await link(here), await here.link(tenant=OTHER, provider="shop")
    before = await here.everything()
    with pytest.raises(NotAllowed):
        await do(here, READER, TENANT, mine.id)
    with pytest.raises(NotAllowed):
        await do(here, ANA, None, mine.id)
    for wrong in (theirs.id, uuid4()):
        with pytest.raises(NotFound, match="connection"):
            await do(here, ANA, TENANT, wrong)
    assert await here.everything() == before
    assert await entries(here) == []
    await do(here, ANA, TENANT, mine.id)
    await do(here, OPERATOR, None, theirs.id)
    assert [one[1:] for one in await entries(here)] == [("ana", str(TENANT)), ("olga", str(OTHER))]


# -- how it does -----------------------------------------------------------------------------------------


async def test_the_health_of_a_connection_that_has_done_nothing(here: House) -> None:
    """C-69: nothing is known, and nothing is wrong."""
    assert await actions.health(here.service, here.conn, await link(here)) == actions.Health()


async def test_the_health_tells_success_error_and_failures_in_a_row(here: House) -> None:
    """C-69: bad runs since the last good one; a cancelled job is none of them."""
    found = await link(here)
    here.script.syncs = [Permanent(message="first"), page("a", cursor=1)]
    for _ in range(2):
        await actions.sync_now(here.service, here.conn, ANA, TENANT, found.id)
        await here.work()
    good = await actions.health(here.service, here.conn, found)
    assert good.last_success is not None
    assert good.failures == 0
    here.script.syncs = [Transient(message="away"), Transient(message="still away"), Permanent(message="no")]
    asked = await actions.sync_now(here.service, here.conn, ANA, TENANT, found.id)
    for failures in (1, 2, 3):
        await here.make_due()
        await here.work()
        now = await actions.health(here.service, here.conn, found)
        assert (now.failures, now.last_success) == (failures, good.last_success)
    assert now.last_error
    assert now.last_error["code"] == "PERMANENT"
    assert (await here.job(asked.job.id))["status"] == "failed"
    await here.add(found, delay=3600)
    await actions.pause(here.conn, ANA, TENANT, found.id)
    await actions.disconnect(here.service, here.conn, ANA, TENANT, found.id)
    after = await actions.health(here.service, here.conn, await here.now(found))
    assert (after.failures, after.last_error) == (3, now.last_error)


async def test_the_health_tells_the_next_run_and_the_cooldown(here: House) -> None:
    """C-69: of an active one; times that nobody can read are none."""
    text = sync_state.moment_text(NOON)
    metadata = {"sync": {"next_run_at": text, "cooldown_until": text}}
    found, odd = (
        await link(here, metadata=metadata),
        await link(here, metadata={"sync": {"next_run_at": "soon"}}),
    )
    paused = await link(here, metadata=metadata, status="paused")
    healths = await actions.healths(here.service, here.conn, [found, odd, paused])
    assert (healths[found.id].next_run, healths[found.id].cooldown_until) == (NOON, NOON)
    assert (healths[odd.id].next_run, healths[paused.id].next_run) == (None, None)


# -- the rest --------------------------------------------------------------------------------------------


async def test_a_webhook_only_account_is_registered_by_hand(here: House) -> None:
    """C-66: others are connected by OAuth; the same account twice is a conflict."""
    register = actions.register
    made = await register(
        here.service, here.conn, ANA, TENANT, provider="ping", external_id="bot-1", display_name="Bot"
    )
    assert (made.provider, made.external_id, made.status, made.access) == ("ping", "bot-1", "active", None)
    with pytest.raises(Conflict):
        await register(here.service, here.conn, ANA, TENANT, provider="ping", external_id="bot-1")
    with pytest.raises(InvalidInput, match="OAuth"):
        await register(here.service, here.conn, ANA, TENANT, provider="shop", external_id="x")
    with pytest.raises(InvalidInput, match="provider"):
        await register(here.service, here.conn, ANA, TENANT, provider="nothing", external_id="x")
    with pytest.raises(NotAllowed):
        await register(here.service, here.conn, READER, TENANT, provider="ping", external_id="y")


async def test_a_connector_of_ones_own_is_put_into_the_catalogue(here: House) -> None:
    """C-8: when its first connection is made; nobody has to seed it."""
    await here.conn.execute("delete from providers where slug = 'ping'")
    made = await actions.register(here.service, here.conn, ANA, TENANT, provider="ping", external_id="b")
    assert made.provider == "ping"


async def test_a_replay_is_written_down_with_its_count(here: House) -> None:
    """C-54: by id or by time, one of both; an id that there is not is 404."""
    found = await link(here)
    for name in ("d1", "d2"):
        await here.deliver(found, name)
    await here.work()

    async def replay(caller: Caller = ANA, tenant: UUID | None = TENANT, **which: Any) -> int:
        done = await actions.replay(here.service, here.conn, caller, tenant, provider="shop", **which)
        return done.deliveries

    assert await replay(delivery_id="d1") == 1
    assert await replay(received_before=datetime.now(UTC) + timedelta(days=1)) == 2
    assert await replay(OPERATOR, None, received_after=NOON) == 2
    with pytest.raises(InvalidInput, match="delivery_id"):
        await replay()
    with pytest.raises(NotFound, match="delivery"):
        await replay(delivery_id="nothing")
    with pytest.raises(NotAllowed):
        await replay(READER, delivery_id="d1")
    rows = await here.rows("select rows from holdfast_audit where action = 'webhook replay' order by id")
    assert [row["rows"] for row in rows] == [1, 2, 2, 0]


async def test_a_tenant_is_made_by_operators(here: House) -> None:
    """C-70: its name is trimmed."""
    made = await actions.create_tenant(here.conn, OPERATOR, "  Acme  ")
    assert made.name == "Acme"
    with pytest.raises(Conflict):
        await actions.create_tenant(here.conn, OPERATOR, "Acme", made.id)
    with pytest.raises(NotAllowed):
        await actions.create_tenant(here.conn, ANA, "Mine")
    assert await entries(here) == [("tenant create", "olga", None)]
