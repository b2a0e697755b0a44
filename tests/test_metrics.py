"""Metrics: what Prometheus reads is what the workers did, and one bad part costs no other."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from api.kit import served_app
from conftest import Connect
from holdfast import Context, Fail, Holdfast, Retry, Settings
from holdfast.api import metrics
from holdfast.apps.connectors.metrics import METRICS as CONNECTORS
from holdfast.apps.schedules.metrics import METRICS as SCHEDULES
from holdfast.apps.system.metrics import METRICS as SYSTEM
from holdfast.db.pool import Connection
from holdfast.engine import looks
from holdfast.runtime.app import App
from runtime.support import ERRANDS, ERRANDS_TABLE, Gate, drain, until, working

ROOT = Path(__file__).parent.parent
TENANT = "aaaaaaaa-0000-4000-8000-00000000000a"
WEIRD = 'a "kind"\\with\nall'

Labels = dict[str, str]


class Scrape:
    """What was scraped, read by Prometheus' own parser."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families: dict[str, Metric] = {}
        for family in text_string_to_metric_families(text):
            assert family.name not in self.families, f"{family.name} is told twice"
            self.families[family.name] = family

    def samples(self, name: str, **labels: str) -> list[tuple[Labels, float]]:
        return [
            (dict(sample.labels), sample.value)
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def value(self, name: str, **labels: str) -> float:
        found = self.samples(name, **labels)
        assert len(found) == 1, f"{name} {labels}: {found}"
        return found[0][1]

    @property
    def errors(self) -> list[Labels]:
        return [labels for labels, _ in self.samples("holdfast_scrape_error")]


async def scrape(app: Holdfast) -> Scrape:
    return Scrape((await metrics.collect(app.site)).decode())


@pytest.fixture
async def app(settings: Settings) -> AsyncIterator[Holdfast]:
    patient = dataclasses.replace(settings, heartbeat_interval=5.0, worker_timeout=60.0, leader_term=60.0)
    app = Holdfast(patient)

    @app.handler("double", ledger="tasks")
    async def double(number: int) -> int:
        return number * 2

    @app.handler("print", ledger="job")
    async def print_() -> None: ...

    @app.handler("slow", ledger="tasks")
    async def slow() -> None:
        await asyncio.sleep(0.3)

    @app.handler("broken", ledger="tasks")
    async def broken() -> Fail:
        return Fail("never", code="NO_STOCK")

    @app.handler("crash", ledger="tasks")
    def crash() -> None:
        raise ValueError("no")

    @app.handler("later", ledger="tasks")
    async def later() -> Retry:
        return Retry("later", after=3600, code="BUSY")

    @app.handler(WEIRD, ledger="tasks")
    async def weird() -> None: ...

    async with app:
        yield app


# -- what is told ----------------------------------------------------------------------------------------


async def test_what_prometheus_reads_is_what_a_worker_did(app: Holdfast, conn: Connection) -> None:
    for number in range(5):
        await app.enqueue("tasks", "double", number)
    for kind in ("broken", "later", "slow", "nobody", WEIRD):
        await app.enqueue("tasks", kind)
    await app.enqueue("tasks", "crash", limit=1)
    await app.enqueue("tasks", "double", 1, delay=3600)
    await app.enqueue("job", "print", tenant=TENANT)
    await drain(app)
    told = await scrape(app)

    states = {labels["state"]: int(value) for labels, value in told.samples("holdfast_rows", ledger="tasks")}
    assert set(states) == set(app.store("tasks").ledger.states)
    rows = dict(await (await conn.execute("select status::text, count(*) from tasks group by 1")).fetchall())
    assert {state: count for state, count in states.items() if count} == rows
    assert told.value("holdfast_rows", ledger="job", state="succeeded") == 1
    assert told.value("holdfast_rows_exact", ledger="tasks") == 1

    def by_kind(name: str) -> dict[str, int]:
        found = told.samples(name, ledger="tasks")
        return {labels["kind"]: int(value) for labels, value in found if value}

    once = {"broken": 1, "crash": 1, "later": 1, "slow": 1, WEIRD: 1, "": 1}
    assert by_kind("holdfast_claims_total") == {"double": 5, **once}
    assert by_kind("holdfast_finishes_total") == {"double": 5, "slow": 1, WEIRD: 1}
    assert by_kind("holdfast_retries_total") == {"later": 1}
    assert by_kind("holdfast_dead_letters_total") == {"broken": 1, "crash": 1, "": 1}
    assert told.value("holdfast_dead_letters_total", ledger="tasks", kind="double") == 0
    assert told.value("holdfast_moves_total", ledger="tasks", kind="crash", verb="exhaust") == 1
    assert told.value("holdfast_moves_total", ledger="tasks", kind="broken", verb="reject") == 1
    failures = told.samples("holdfast_failures_total", ledger="tasks")
    assert {labels["code"]: value for labels, value in failures} == {
        "NO_STOCK": 1,
        "BUSY": 1,
        "ValueError": 1,
        "NO_HANDLER": 1,
    }
    assert told.value("holdfast_workers") == 0
    assert told.errors == []
    assert TENANT not in told.text


async def test_histograms_are_cumulative_and_agree_with_their_counts(app: Holdfast) -> None:
    for number in range(40):
        await app.enqueue("tasks", "double", number)
    await app.enqueue("tasks", "slow")
    await drain(app)
    told = await scrape(app)
    for name, kind, count in (
        ("holdfast_wait_seconds", "double", 40),
        ("holdfast_run_seconds", "double", 40),
        ("holdfast_run_seconds", "slow", 1),
    ):
        labels = {"ledger": "tasks", "kind": kind}
        buckets = [(float(found["le"]), value) for found, value in told.samples(f"{name}_bucket", **labels)]
        bounds, counts = zip(*buckets, strict=True)
        assert list(bounds) == sorted(bounds)
        assert bounds[-1] == float("inf")
        assert list(counts) == sorted(counts)
        assert counts[-1] == told.value(f"{name}_count", **labels) == count
        total = told.value(f"{name}_sum", **labels)
        lowest = sum(
            low * (here - before)
            for low, here, before in zip((0.0, *bounds), counts, (0.0, *counts), strict=False)
        )
        highest = sum(
            high * (here - before)
            for high, here, before in zip(bounds, counts, (0.0, *counts), strict=False)
            if here > before
        )
        assert lowest <= total <= highest
    le = {found["le"]: value for found, value in told.samples("holdfast_run_seconds_bucket", kind="slow")}
    assert (le["0.25"], le["10.0"]) == (0, 1)
    assert 0.3 <= told.value("holdfast_run_seconds_sum", kind="slow", ledger="tasks") < 10


async def test_waiting_rows_pauses_workers_and_their_leader(
    app: Holdfast, conn: Connection, connect: Connect
) -> None:
    began = asyncio.Event()
    gate = Gate(await connect())
    await gate.close()

    @app.handler("gated", ledger="tasks")
    async def gated(ctx: Context) -> None:
        began.set()
        inside = await connect()
        await inside.execute(Gate.WAIT)

    await app.enqueue("tasks", "gated")
    async with working(app, ledgers=["tasks"], concurrency=3) as worker:
        await until(conn, "select is_leader from workers where id = %s", worker.id)
        await asyncio.wait_for(began.wait(), 30)
        await app.pause("job", by="ana")
        await app.pause("job", "paper")
        await app.enqueue("job", "print", tenant=TENANT)
        since = "now() - interval '90 seconds'"
        await conn.execute(f"update job set run_at = {since}, created_at = {since}".encode())
        told = await scrape(app)
        await gate.open()
    assert told.value("holdfast_workers") == 1
    assert told.value("holdfast_worker_slots", worker=worker.id) == 3
    assert told.value("holdfast_worker_held", worker=worker.id) == 1
    assert told.value("holdfast_leader", worker=worker.id) == 1
    assert 0 <= told.value("holdfast_worker_silent_seconds", worker=worker.id) < 30
    paused = [(labels["ledger"], labels["queue"]) for labels, _ in told.samples("holdfast_paused")]
    assert sorted(paused) == [("job", ""), ("job", "paper")]
    assert 90 <= told.value("holdfast_oldest_waiting_seconds", ledger="job") < 120
    assert told.value("holdfast_oldest_waiting_seconds", ledger="tasks") == 0


async def test_estimates_are_told_as_such(app: Holdfast, conn: Connection, monkeypatch: Any) -> None:
    await conn.execute("insert into tasks (type) select 'double' from generate_series(1, 500)")
    await conn.execute("analyze tasks")
    monkeypatch.setattr(looks, "SMALL", 0)
    monkeypatch.setattr(looks, "COUNTED", 10)
    told = await scrape(app)
    assert told.value("holdfast_rows_exact", ledger="tasks") == 0
    assert 400 < told.value("holdfast_rows", ledger="tasks", state="pending") < 600


async def test_the_pool_is_that_of_this_process(app: Holdfast) -> None:
    before = await scrape(app)
    async with asyncio.timeout(30):  # a pool that is still opening connections counts them as used
        while before.value("holdfast_pool_connections", state="used"):
            before = await scrape(app)
    async with app.database.connection():
        told = await scrape(app)
    assert told.value("holdfast_pool_connections_limit") == app.settings.db_max_connections
    assert told.value("holdfast_pool_connections", state="used") == 1
    asked = told.value("holdfast_pool_requests_total") - before.value("holdfast_pool_requests_total")
    assert asked == 5  # those of the scrape before, for us and for three apps, and the one that is held


def test_it_is_served_to_operators_as_prometheus_wants_it(settings: Settings) -> None:
    with served_app(settings, Holdfast(settings).web()) as served:
        answer = served.client("reader").get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == CONTENT_TYPE_LATEST
        assert Scrape(answer.text).value("holdfast_build_info")
        codes: Callable[[str | None], int] = lambda who: served.client(who).get("/metrics").status_code  # noqa: E731
        assert (codes(None), codes("tenant")) == (401, 403)


# -- what goes wrong -------------------------------------------------------------------------------------


async def test_a_ledger_without_its_table_costs_its_own_numbers_alone(settings: Settings) -> None:
    async with Holdfast(settings, ledgers=[ERRANDS]) as app:
        await app.enqueue("tasks", "double")
        told = await scrape(app)
    assert told.errors == [{"app": "", "ledger": "errands"}]
    assert told.value("holdfast_rows", ledger="tasks", state="pending") == 1
    assert told.samples("holdfast_rows", ledger="errands") == []


async def test_a_ledger_that_somebody_keeps_locked_does_not_hold_up_the_scrape(
    settings: Settings, conn: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "EACH", 0.3)
    await conn.execute(ERRANDS_TABLE)
    other = await connect()
    async with Holdfast(settings, ledgers=[ERRANDS]) as app:
        await app.enqueue("tasks", "double")
        async with other.transaction():
            await other.execute("lock table tasks in access exclusive mode")
            began = time.monotonic()
            told = await scrape(app)
            assert time.monotonic() - began < 8
        assert told.errors == [{"app": "", "ledger": "tasks"}]
        assert told.value("holdfast_rows", ledger="errands", state="waiting") == 0
        assert told.value("holdfast_workers") == 0
        again = await scrape(app)
        assert again.errors == []
        assert again.value("holdfast_rows", ledger="tasks", state="pending") == 1


async def test_a_database_that_is_away_leaves_what_the_process_itself_knows(
    settings: Settings, conn: Connection
) -> None:
    async with Holdfast(settings) as app:
        site = app.site
        await app.database.pool.close()
        told = Scrape((await metrics.collect(site)).decode())
    away = ("holdfast", "connectors", "schedules", "system")
    assert told.errors == [{"app": app, "ledger": ""} for app in away]
    assert told.value("holdfast_build_info") == 1
    assert told.samples("holdfast_rows") == []


async def test_what_is_not_known_is_not_told_as_nothing(settings: Settings, conn: Connection) -> None:
    """No workers, and not knowing the workers, are not the same; and each part is missed once."""
    await conn.execute("drop table workers; drop table holdfast_pulse")
    async with Holdfast(settings) as app:
        told = await scrape(app)
    assert told.errors == [{"app": app, "ledger": ""} for app in ("holdfast", "connectors", "schedules")]
    assert told.samples("holdfast_workers") == []
    assert told.value("holdfast_rows", ledger="tasks", state="pending") == 0


GOOD = """
from prometheus_client.core import GaugeMetricFamily
from holdfast.api.web import Web

async def metrics(site):
    async with site.connection() as conn:
        ((number,),) = await (await conn.execute("select 42")).fetchall()
    return [GaugeMetricFamily("shop_parcels", "Parcels.", value=number)]

WEB = Web(metrics=metrics)
"""
BAD = {
    "raises": "async def metrics(site): raise ValueError('no')",
    "takes_a_name": """
async def metrics(site):
    from prometheus_client.core import GaugeMetricFamily
    return [GaugeMetricFamily("holdfast_rows", "Mine.", value=1)]
""",
    "takes_a_name_of_another": """
async def metrics(site):
    from prometheus_client.core import GaugeMetricFamily
    return [GaugeMetricFamily("shop_parcels", "Mine.", value=1)]
""",
    "says_nonsense": """
async def metrics(site):
    from prometheus_client.core import GaugeMetricFamily
    return [GaugeMetricFamily("shop_nonsense", "Mine.", value="many")]
""",
    "hangs": "async def metrics(site): import asyncio; await asyncio.Event().wait()",
    "cannot_be_imported": "import there_is_no_such_module",
}


async def test_an_app_adds_its_own_and_its_failure_loses_nothing_else(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(metrics, "EACH", 0.5)
    (tmp_path / "shop_good.py").write_text(GOOD)
    for name, code in BAD.items():
        made = f"{code}\nfrom holdfast.api.web import Web\nWEB = Web(metrics=metrics)\n"
        (tmp_path / f"shop_{name}.py").write_text(made)
    names = ("good", *BAD)
    try:
        apps = [App(name=name, web=f"shop_{name}") for name in names]
        async with Holdfast(settings, apps=apps) as app:
            told = await scrape(app)
    finally:
        for name in names:
            sys.modules.pop(f"shop_{name}", None)
    assert told.value("shop_parcels") == 42
    assert sorted(labels["app"] for labels in told.errors) == sorted(BAD)
    assert told.value("holdfast_workers") == 0


# -- the papers ------------------------------------------------------------------------------------------


async def exported(app: Holdfast) -> dict[str, tuple[str, set[str]]]:
    """Every metric with its type and the labels that its samples really have."""
    await app.enqueue("tasks", "double", 1)
    await app.enqueue("tasks", "later")
    await drain(app)
    await app.pause("tasks")
    text = (await metrics.collect(app.site)).decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    told = Scrape(text)
    labels: dict[str, set[str]] = {name: set() for name in types}
    for family in told.families.values():
        for sample in family.samples:
            name = next(n for n in (sample.name, family.name) if n in types)
            labels[name] |= set(sample.labels) - ({"le"} if types[name] == "histogram" else set())
    return {name: (types[name], labels[name]) for name in types}


async def test_the_page_lists_every_metric_with_its_type_and_labels(app: Holdfast) -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    table = re.findall(r"^\| `(\w+)` \| (gauge|counter|histogram) \| ([\w, ]*)\|", page, re.MULTILINE)
    listed = {name: (type_, set(labels.replace(",", " ").split())) for name, type_, labels in table}
    assert len(listed) == len(table)
    declared = {**metrics.METRICS, **CONNECTORS, **SCHEDULES, **SYSTEM}
    assert {name: (one.type, set(one.labels)) for name, one in declared.items()} == listed
    found = await exported(app)
    assert {name: type_ for name, (type_, _) in found.items()} == {
        name: type_ for name, (type_, _) in listed.items()
    }
    for name, (_, labels) in found.items():
        if labels:  # a worker's, or an error's, are not there now
            assert labels == listed[name][1], name


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bholdfast_\w+", expression))


def known(name: str) -> bool:
    return name in metrics.METRICS or any(
        name == base + end
        for base, one in metrics.METRICS.items()
        if one.type == "histogram"
        for end in ("_bucket", "_sum", "_count")
    )


def test_the_grafana_dashboard_asks_for_what_there_is_and_for_all_of_it() -> None:
    board = json.loads((ROOT / "docs" / "grafana.json").read_text())
    assert board["schemaVersion"] >= 36
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    asked: set[str] = names_in(variables["ledger"]["definition"])
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"]
        for target in panel["targets"]:
            assert names_in(target["expr"]), panel["title"]
            assert set(re.findall(r"\$(?!__)\{?(\w+)", target["expr"])) <= set(variables)
            asked |= names_in(target["expr"])
    assert [name for name in asked if not known(name)] == []
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert set(metrics.METRICS) - bases == set()
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places)), "panels lie on one another"


def test_the_alerts_of_the_page_ask_for_what_there_is() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    rules = re.findall(r"^ +expr: (.+)$", page, re.MULTILINE)
    assert len(rules) >= 5
    assert [name for rule in rules for name in names_in(rule) if not known(name)] == []
