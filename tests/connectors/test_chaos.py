"""Everything goes wrong at once, and then it is over: what happened at the providers is in `signals`, once.

Four worker processes, of which some are killed and some frozen; providers that answer with limits, failures
and garbage, and whose refresh tokens work once; webhooks that come twice, under another id, or not at all;
connections to the database that are cut. What nobody could survive is spared: a process does not die, and no
connection is cut, between a provider's answer with new tokens and their commit.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random, SystemRandom
from typing import Any
from uuid import UUID

import httpx
import pytest

from api.kit import api_of
from connectors.kit import KEY, Script, Stage
from connectors.provided import CLIENT
from connectors.servers import github, slack
from connectors.wild import (
    SECRET,
    Account,
    Chat,
    Clock,
    Drive,
    Fact,
    Folder,
    Grant,
    Hub,
    Repository,
    Team,
    Wild,
)
from holdfast import Holdfast, Settings
from holdfast.apps.connectors import connections, tick
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.normal import moment
from holdfast.apps.connectors.sync_state import moment_text
from holdfast.db.pool import Connection
from holdfast.db.settings import ProviderSettings
from runtime.support import PATH, PATIENCE, Process, column, one, shown, until, worker_of

WORKERS = 4
POLLED = ("github", "slack")  # Drive is fetched when it pushes, and never otherwise
COMMAND = (sys.executable, "-m", "holdfast.cli", "worker", "--ledger", "sync_jobs", "--concurrency", "4")
QUICK = {
    "heartbeat_interval": 0.5,
    "worker_timeout": 2.0,
    "leader_term": 1.0,
    "poll_interval": 0.2,
    "shutdown_timeout": 5.0,
    "sync_tick_seconds": 10.0,
    "sync_jitter_max": 0.0,
    "sync_max_items": 30,
    "sync_backoff_base_seconds": 0.05,
    "sync_backoff_max_seconds": 0.4,
    "token_refresh_tick_seconds": 1.0,
}
# Seconds that new tokens last: so short that each use and each look of the duty refreshes them, or long
# enough for the test to be the only one that ends them.
BRIEF, LONG = 30, 3600


@dataclass(frozen=True)
class Size:
    """How much there is of everything."""

    tenants: int
    facts: int  # for each move
    rounds: int  # of all moves


class Worker(Process):
    """`holdfast worker`, as it is run in earnest."""

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        with log.open("w") as out:
            self.popen = subprocess.Popen(COMMAND, env=environment, stdout=out, stderr=subprocess.STDOUT)
        self.log, self.pid = log, self.popen.pid


@contextmanager
def fleet(environment: dict[str, str], logs: Path) -> Generator[Fleet]:
    found = Fleet(environment, logs)
    try:
        yield found
    finally:
        for worker in found.workers:
            worker.kill()


class Fleet:
    """The worker processes; whoever was killed has a successor."""

    def __init__(self, environment: dict[str, str], logs: Path) -> None:
        self._environment, self._logs = environment, logs
        self._started = 0
        self.workers: list[Worker] = []
        for _ in range(WORKERS):
            self.start()

    def start(self) -> None:
        self.workers.append(Worker(self._logs / f"worker-{self._started}.log", self._environment))
        self._started += 1

    def named(self, id: str) -> Worker | None:
        """The process that is registered under an id, if it is one of those that live."""
        return next((worker for worker in self.workers if f"-{worker.pid}-" in id), None)

    def kill(self, worker: Worker) -> None:
        worker.kill()
        self.workers.remove(worker)
        self.start()

    def alive(self) -> bool:
        return all(worker.popen.poll() is None for worker in self.workers)


@dataclass(frozen=True, kw_only=True)
class Bond:
    """A connection, and what it is connected to."""

    link: Link
    server: Wild
    account: Account
    grant: Grant


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """A webhook on its way."""

    slug: str
    tenant_id: UUID
    id: str
    fact: Fact

    @property
    def key(self) -> tuple[str, UUID, str]:
        """What the inbox is to call it."""
        return self.slug, self.tenant_id, self.fact.delivery_id(self.id)


class World(Stage):
    """Tenants with connections, the providers behind them, and what has to be known of it at the end."""

    def __init__(self, app: Holdfast, conn: Connection, servers: dict[str, Wild], seed: str) -> None:
        super().__init__(app, conn, Script())
        self.servers, self.chance = servers, Random(seed)
        self.bonds: list[Bond] = []
        self.hooked: dict[Account, list[Bond]] = {}  # who is sent an account's webhooks
        self.expected: dict[UUID, set[str]] = {}
        self.accepted: set[tuple[str, UUID, str]] = set()  # deliveries
        self.answers: Counter[int] = Counter()
        self.parcels: asyncio.Queue[Parcel] = asyncio.Queue()
        self.sent = 0
        self.lost = 0  # rows that their worker was killed or frozen with

    # -- what there is -------------------------------------------------------------------------------

    async def populate(self, tenants: int, clock: Clock) -> None:
        """Each tenant: a repository, which a colleague and the next tenant see as well; a team; a folder."""
        ids = [await self.tenant(f"tenant {number}") for number in range(tenants)]
        for number, tenant in enumerate(ids):
            self.expected.setdefault(tenant, set())
            repository, following = Repository(number + 1, clock), ids[(number + 1) % tenants]
            await self._bond(tenant, "github", repository)
            await self._bond(tenant, "github", repository, colleague=True)
            await self._bond(following, "github", repository)
            await self._bond(tenant, "slack", Team(number + 1, clock))
            await self._bond(tenant, "google_drive", Folder(number + 1, clock))

    async def _bond(self, tenant: UUID, slug: str, account: Account, *, colleague: bool = False) -> None:
        server = self.servers[slug]
        grant = server.grant(account, (BRIEF, LONG)[len(self.bonds) % 2])
        channels = {"webhook": {"external_ids": [account.channel]}} if isinstance(account, Folder) else {}
        link = await self.link(
            tenant=tenant,
            provider=slug,
            external_id=f"colleague-{account.number}" if colleague else account.external_id,
            access=grant.access,
            refresh=grant.refresh,
            expires_in=grant.lasts,
            metadata=channels,
        )
        bond = Bond(link=link, server=server, account=account, grant=grant)
        self.bonds.append(bond)
        if not colleague:
            self.hooked.setdefault(account, []).append(bond)

    # -- what happens --------------------------------------------------------------------------------

    def feed(self, facts: int) -> None:
        """Lets things happen, and sends off their webhooks: once, twice, under two ids, or not at all."""
        for _ in range(facts):
            account = self.chance.choice(list(self.hooked))
            server = self.hooked[account][0].server
            with server.lock:
                fact = account.happen(self.chance)
            for bond in self.hooked[account]:
                self.expected[bond.link.tenant_id].add(fact.key)
                for each in self._ids(fact):
                    parcel = Parcel(
                        slug=bond.link.provider, tenant_id=bond.link.tenant_id, id=each, fact=fact
                    )
                    self.parcels.put_nowait(parcel)

    def _ids(self, fact: Fact) -> Sequence[str]:
        self.sent += 1
        first, other = str(2 * self.sent), str(2 * self.sent + 1)
        ways = [[first], [first], [first, first], [first, other]]
        return self.chance.choice(ways if fact.untold else [*ways, [], []])

    @asynccontextmanager
    async def postmen(self, number: int = 3) -> AsyncGenerator[None]:
        """Those who bring webhooks to the door, and as a provider does, again until they are accepted."""
        transport = httpx.ASGITransport(api_of(self.app), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://door", timeout=None) as client:
            tasks = [asyncio.create_task(self._deliver(client)) for _ in range(number)]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, client: httpx.AsyncClient) -> None:
        while True:
            parcel = await self.parcels.get()
            deadline = time.monotonic() + PATIENCE
            while True:
                headers, body = parcel.fact.webhook(parcel.id)
                url = f"/api/connectors/webhooks/{parcel.slug}/{parcel.tenant_id}"
                response = await client.post(url, content=body, headers=dict(headers))
                self.answers[response.status_code] += 1
                if response.status_code == 202:
                    self.accepted.add(parcel.key)
                if response.status_code == 202 or time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.02)
            self.parcels.task_done()

    # -- what the tokens are -------------------------------------------------------------------------

    async def stored(self, bond: Bond) -> tuple[str | None, str | None]:
        """The tokens that the database has for a connection."""
        link = await self.now(bond.link)
        return self.opened(link, link.access), self.opened(link, link.refresh)

    async def settled(self, bonds: Sequence[Bond]) -> None:
        """Waits until all tokens that were given are written down."""
        deadline = time.monotonic() + PATIENCE
        for bond in bonds:
            while (stored := await self.stored(bond)) != (given := (bond.grant.access, bond.grant.refresh)):
                assert time.monotonic() < deadline, f"{bond.link} was given {given}, and has {stored}"
                await asyncio.sleep(0.01)

    async def heard(self, server: Wild) -> None:
        """Waits until a server has answered everything that it was asked before."""
        async with httpx.AsyncClient() as client:
            for _ in range(2):
                await client.get(server.url)

    @asynccontextmanager
    async def no_new_tokens(self) -> AsyncGenerator[None]:
        for server in self.servers.values():
            server.closed = True
        try:
            yield
        finally:
            for server in self.servers.values():
                server.closed = False


class Monkey:
    """What goes wrong beside the providers. One thing at a time."""

    def __init__(self, world: World, fleet: Fleet) -> None:
        self.world, self.fleet, self.chance = world, fleet, world.chance

    def moves(self) -> Sequence[Callable[[], Awaitable[None]]]:
        moves = [self.freeze, *2 * [self.kill, self.cut, self.revoke], self.refetch]
        self.chance.shuffle(moves)
        return moves

    async def schedule(self) -> None:
        """Lets all that are polled be due, and the scheduler look, in competition with the leader's own."""
        world = self.world
        for bond in world.bonds:
            if bond.link.provider in POLLED:
                now = moment_text(await one(world.conn, "select clock_timestamp()"))
                await connections.merge_sync(world.conn, bond.link.id, {"next_run_at": now})
        await tick.tick(world.conn, world.store, world.service.settings)

    async def _caught(self) -> tuple[Worker, str]:
        """A worker, frozen in the middle of its work, and its id."""
        deadline = time.monotonic() + PATIENCE
        running = "select distinct worker_id from sync_jobs where status = 'running'"
        while True:
            assert time.monotonic() < deadline, "nobody was to be caught at work"
            for name in await column(self.world.conn, running):
                if worker := self.fleet.named(name):
                    worker.freeze()
                    held = "select count(*) from sync_jobs where status = 'running' and worker_id = %s"
                    if found := await one(self.world.conn, held, name):
                        self.world.lost += found
                        return worker, name
                    worker.thaw()
            await self.schedule()

    async def kill(self) -> None:
        """SIGKILL in the middle of a run; its successor is another process."""
        async with self.world.no_new_tokens():
            await self.world.settled(self.world.bonds)
            worker, _ = await self._caught()
            self.fleet.kill(worker)
            for server in self.world.servers.values():  # what it has asked for is answered before they give
                await self.world.heard(server)

    async def freeze(self) -> None:
        """SIGSTOP in the middle of a run until the others have given it up, and SIGCONT.

        What it has locked stays locked meanwhile: webhooks for that connection have to wait.
        """
        worker, name = await self._caught()
        self.world.feed(5)
        await until(self.world.conn, "select not exists (select from workers where id = %s)", name)
        worker.thaw()
        await worker_of(self.world.conn, worker, other_than=name)

    async def cut(self) -> None:
        """All connections to the database but those that wait for new tokens; the door's as well."""
        assert await one(self.world.conn, CUT)

    async def revoke(self) -> None:
        """Ends the tokens of some accounts. No run is refused twice: those that may have been are awaited."""
        world = self.world
        for bond in world.bonds:
            if bond.grant.lasts != LONG or self.chance.random() < 0.5:
                continue
            await world.settled([bond])
            now = await one(world.conn, "select clock_timestamp()")
            older = """
                select not exists (
                    select from sync_jobs
                    where connection_id = %s and status = 'running' and started_at <= %s
                )
            """
            await until(world.conn, older, bond.link.id, now)
            bond.server.end_tokens(bond.grant)

    async def refetch(self) -> None:
        """A full sync of some connections, beside whatever else they do."""
        for bond in self.chance.sample(self.world.bonds, 3):
            await self.world.add(bond.link, "full")


# -- the run ---------------------------------------------------------------------------------------------

SMALL, LARGE = Size(tenants=3, facts=14, rounds=1), Size(tenants=6, facts=60, rounds=8)
IDLE = """
select not exists (select from sync_jobs where status in ('queued', 'running'))
    and not exists (select from webhook_delivery where processed_at is null)
"""


CUT = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
where datname = current_database() and application_name like 'holdfast %%'
    and split_part(application_name, ' [', 1) not in ('holdfast test', 'holdfast token refresh')
"""


@pytest.fixture
def servers() -> Iterator[Callable[[str], tuple[Clock, dict[str, Wild]]]]:
    with ExitStack() as stack:

        def start(seed: str) -> tuple[Clock, dict[str, Wild]]:
            clock, found = Clock(), dict[str, Wild]()
            for slug, kind in (("github", Hub), ("slack", Chat), ("google_drive", Drive)):
                found[slug] = stack.enter_context(kind(clock, f"{seed} {slug}"))
            return clock, found

        yield start


def pointed(servers: dict[str, Wild]) -> dict[str, ProviderSettings]:
    """The settings that put the test's servers in the providers' places."""
    clients = {"github": github.CLIENT, "slack": slack.CLIENT, "google_drive": CLIENT}
    return {
        slug: ProviderSettings(
            api_url=server.url,
            auth_url=server.url,
            client_id=clients[slug][0],
            client_secret=clients[slug][1],
            webhook_secret=SECRET,
        )
        for slug, server in servers.items()
    }


def variables(url: str, providers: dict[str, ProviderSettings]) -> dict[str, str]:
    """The same for a process."""
    known: dict[str, Any] = {"database_url": url, "profile": "test", "crypto_key": KEY, **QUICK}
    for slug, own in providers.items():
        known |= {
            f"connector_{slug}_api_url": own.api_url,
            f"connector_{slug}_auth_url": own.auth_url,
            f"oauth_{slug}_client_id": own.client_id,
            f"oauth_{slug}_client_secret": own.client_secret,
        }
    given = {f"HOLDFAST_{name.upper()}": str(value) for name, value in known.items()}
    return os.environ | {"PYTHONPATH": PATH} | given


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.soak)], ids=["small", "large"])
async def test_after_everything_went_wrong_each_event_is_one_signal_and_nobody_lost_a_grant(
    settings: Settings,
    database_url: str,
    conn: Connection,
    servers: Callable[[str], tuple[Clock, dict[str, Wild]]],
    tmp_path: Path,
    size: Size,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """C-33, C-36..C-39, C-42, C-43, C-49..C-51, C-53, C-58, C-60: all of it at the same time."""
    seed = os.environ.get("CHAOS_SEED") or f"{SystemRandom().getrandbits(32):x}"
    sys.stdout.write(f"CHAOS_SEED={seed}; the workers' logs are in {tmp_path}\n")
    clock, found = servers(seed)
    providers = pointed(found)
    here = replace(
        settings,
        providers=providers,
        crypto_key=KEY,
        webhook_rate_per_minute=1_000_000,
        db_max_connections=6,
        **QUICK,
    )
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(Holdfast(here))
        world = World(app, conn, found, seed)
        await world.populate(size.tenants, clock)
        world.feed(size.facts)
        crew = stack.enter_context(fleet(variables(database_url, providers), tmp_path))
        await until(conn, "select count(*) = %s from workers", WORKERS)
        await stack.enter_async_context(world.postmen())
        began = time.monotonic()
        for server in found.values():
            server.wild = True
        monkey = Monkey(world, crew)
        for _ in range(size.rounds):
            for move in monkey.moves():
                world.feed(size.facts)
                await monkey.schedule()
                await move()
        for server in found.values():
            server.wild = False
        wild = time.monotonic() - began
        await settle(world, monkey, clock)
        assert crew.alive()
        await all_is_well(world)
    told = (
        f"{sum(map(len, world.expected.values()))} signals, {len(world.accepted)} deliveries,"
        f" {sum(one.faulty for one in found.values())} faults,"
        f" {sum(one.refreshed for one in found.values())} refreshes, {world.lost} rows lost in"
        f" {wild:.1f} s; settled {time.monotonic() - began - wild:.1f} s later; door: {dict(world.answers)}"
    )
    if request.node.get_closest_marker("soak"):
        shown(capsys, told)
    sys.stdout.write(told + "\n")


async def settle(world: World, monkey: Monkey, clock: Clock) -> None:
    """Waits until everything that has come is worked off, and everybody has been asked once more."""
    patience = PATIENCE + world.parcels.qsize() / 10
    async with asyncio.timeout(patience):
        await world.parcels.join()
    await until(world.conn, IDLE, within=patience)
    asked_from = clock.now()
    await monkey.schedule()
    await until(world.conn, IDLE, within=PATIENCE)
    while (await tick.tick(world.conn, world.store, world.service.settings)).scheduled:
        await until(world.conn, IDLE, within=PATIENCE)
    for bond in world.bonds:
        cursor = (await world.sync_of(bond.link))["cursor"]
        if isinstance(bond.account, Folder):
            assert cursor["token"] == str(len(bond.account.changes)), cursor
            assert cursor.keys() == {"token", "since"}
        else:
            assert cursor.keys() == {"since"}
            since = cursor["since"] if bond.link.provider == "github" else float(cursor["since"])
            assert moment(since) >= asked_from - timedelta(seconds=62), cursor  # a minute is read twice


async def all_is_well(world: World) -> None:
    """Nothing is missing, doubled, mixed up, stuck or lost."""
    found: dict[UUID, Counter[str]] = {tenant: Counter() for tenant in world.expected}
    for row in await world.rows("select tenant_id, dedupe_key from signals"):
        found[row["tenant_id"]][row["dedupe_key"]] += 1
    for tenant, expected in world.expected.items():
        assert sorted(expected - found[tenant].keys()) == [], "missing"
        assert sorted(found[tenant].keys() - expected) == [], "not this tenant's, or never happened"
        assert {key: count for key, count in found[tenant].items() if count > 1} == {}, "more than once"
    ended = await world.rows("select status, job_type, error from sync_jobs where status <> 'succeeded'")
    assert ended == [], "all jobs have ended, and well"
    query = "select provider_slug, tenant_id, delivery_id, processed_at, error from webhook_delivery"
    deliveries = await world.rows(query)
    assert {tuple(row.values())[:3] for row in deliveries} == world.accepted
    assert [row for row in deliveries if row["processed_at"] is None or row["error"] is not None] == []
    assert {server: server.doubles for server in world.servers.values() if server.doubles} == {}
    assert {(await world.now(bond.link)).status for bond in world.bonds} == {"active"}
    async with world.no_new_tokens():
        await world.settled(world.bonds)
    assert world.answers.keys() <= {202, 503}
