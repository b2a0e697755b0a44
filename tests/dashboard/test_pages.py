"""Every page as somebody sees it who has no JavaScript: over HTTP, on a real server and a real database."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time

import pytest

from api.kit import B, Served, served_app, working
from dashboard.conftest import Visit
from dashboard.kit import PATIENCE, Page, Visitor, populate, row
from holdfast import Context, Fail, Holdfast, Settings
from holdfast.api import reads as reading
from holdfast.engine import looks
from ledgers import PARCELS, PARCELS_DDL, PERMITS, PERMITS_DDL

EVIL = '<script>alert("1")</script><img src=x onerror=alert(2)>'
PATHS = ("/", "/workers", "/ledgers/job", "/ledgers/tasks", "/audit", "/tokens", "/docs")

# -- what there is to see --------------------------------------------------------------------------------


def test_every_page_is_well_formed_with_and_without_rows(served: Served, visit: Visit) -> None:
    ana = visit()
    for path in PATHS:
        ana.get(path)
    ids = populate(served)
    for path in (*PATHS, *(row(one, "tasks" if name == "task" else "job") for name, one in ids.items())):
        page = ana.get(path)
        assert [link["href"] for link in page.every("a", class_="skip")] == ["#main"]
        assert page.one("main")["id"] == "main"
        assert "made at" in page.one(id="made").words
    ana.get("/ledgers/job/bulk/requeue?state=dead_letter")
    Visitor(served, None).get("/login")


def test_the_overview_counts_by_state_and_each_count_leads_to_its_rows(served: Served, visit: Visit) -> None:
    populate(served)
    ana = visit()
    page = ana.get("/")
    counts = {
        link["href"]: link.words
        for link in page.every("a")
        if (link["href"] or "").startswith("/ledgers/job?state=")
    }
    assert counts["/ledgers/job?state=queued"] == "3 queued"
    assert counts["/ledgers/job?state=dead_letter"] == "1 dead_letter"
    listed = ana.get("/ledgers/job?state=dead_letter")
    assert len(listed.every("a", class_="row-link")) == 1
    assert "≈" not in page.words


def test_large_counts_say_that_they_are_estimates(
    served: Served, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.query(
        "insert into tasks (id, type, status, priority) select gen_random_uuid(), 'x', 'completed', 0"
        " from generate_series(1, 500)"
    )
    served.query("analyze tasks")
    monkeypatch.setattr(looks, "SMALL", 0)
    monkeypatch.setattr(looks, "COUNTED", 10)
    ana = visit()
    for path in ("/", "/ledgers/tasks"):
        page = ana.get(path)
        assert "≈ 500" in page.words
        assert "estimate" in page.words


def test_empty_pages_say_what_to_run(visit: Visit) -> None:
    ana = visit()
    assert "holdfast enqueue" in ana.get("/").words
    assert "holdfast worker" in ana.get("/").words
    assert "holdfast worker" in ana.get("/workers").words
    assert "No rows yet" in ana.get("/ledgers/job").words
    assert "No row fits this filter" in ana.get("/ledgers/job?kind=nothing").words


def test_the_workers_page_lists_kinds_without_a_handler(served: Served, visit: Visit) -> None:
    served.query("insert into tasks (type) values ('mail'), ('report')")
    served.query(
        "insert into workers (id, hostname, pool_size, serves, shares) values"
        ' (\'w\', \'h\', 1, \'{tasks}\', \'{"tasks": {"slots": 1, "queues": [], "kinds": ["mail"]}}\')'
    )
    ana = visit()
    assert "Kinds without a handler in tasks: report." in ana.get("/workers").words
    overview = ana.client.get(ana.root + "/api/overview").json()
    told = {one["ledger"]: one["kinds_without_handler"] for one in overview["ledgers"]}
    assert told["tasks"] == ["report"]


def test_the_lifecycle_has_a_node_for_each_state_that_leads_to_its_rows(served: Served, visit: Visit) -> None:
    populate(served)
    page = visit().get("/ledgers/job")
    picture = page.one("svg", class_="diagram")
    nodes = {link["href"]: link["aria-label"] for link in picture.every("a")}
    assert nodes["/ledgers/job?state=dead_letter"] == "dead_letter: 1 row, needs a person"
    assert len(nodes) == 6
    listing = page.one("details", id="edges")
    assert "claim queued running a worker takes the row" in listing.words


def test_a_filter_speaks_the_ledgers_own_words(served: Served, visit: Visit) -> None:
    ids = populate(served)
    ana = visit()

    def found(query: str) -> set[str]:
        links = ana.get(f"/ledgers/job?{query}").every("a", class_="row-link")
        return {str(link["href"]).rsplit("/", 1)[1] for link in links}

    assert found("state=dead_letter&state=failed") == {ids["dead"]}
    assert found("kind=secret") == {ids["other"]}
    assert found("queue=paper") == {ids["queued"]}
    assert found("code=BOOM") == {ids["dead"]}
    assert found(f"tenant={B}") == {ids["other"]}
    assert found("created_after=2000-01-01T00:00&created_before=2001-01-01T00:00") == set()
    assert found("finished_after=2000-01-01T00:00:00") == {ids["dead"]}
    assert found("kind=&queue=&code=&created_after=") == set(ids.values()) - {ids["task"]}
    page = ana.get("/ledgers/job?state=dead_letter&code=BOOM")
    labels = [label.words for label in page.every("label")]
    assert {"type", "queue", "last_error_code", "org_id", "worker_id"} <= set(labels)
    assert [box["value"] for box in page.every("input", type="checkbox") if "checked" in box.attributes] == [
        "dead_letter"
    ]
    assert page.one("input", name="code")["value"] == "BOOM"
    labels = [label.words for label in ana.get("/ledgers/tasks").every("label")]
    assert not {"queue", "org_id", "last_error_code"} & set(labels)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("state=nonsense", "has no state"),
        ("created_after=yesterday", "is no time"),
        ("cursor=nonsense", "cursor"),
        ("tenant=nobody", "org_id"),
        ("kind=%00", "kind"),
    ],
)
def test_a_wrong_filter_is_told_on_the_page(served: Served, visit: Visit, query: str, said: str) -> None:
    populate(served)
    page = visit().get(f"/ledgers/job?{query}", 400)
    assert said in page.one(role="alert").words
    assert page.every("a", class_="row-link") == []


def test_pages_of_rows_lead_on_and_back(served: Served, visit: Visit) -> None:
    served.client().post(
        "/api/ledgers/tasks/rows/batch", json={"items": [{"kind": f"k{n}"} for n in range(120)]}
    )
    ana = visit()

    def kinds(page: Page) -> list[str]:
        return [link.children[0].words for link in page.every("a", class_="row-link")]

    pages = [ana.get("/ledgers/tasks?state=pending")]
    while older := pages[-1].every("a", rel="next"):
        pages.append(ana.get(str(older[0]["href"])))
    assert [len(kinds(page)) for page in pages] == [25, 25, 25, 25, 20]
    assert len({kind for page in pages for kind in kinds(page)}) == 120
    back = pages[-1]
    for earlier in reversed(pages[:-1]):
        back = ana.get(str(back.one("a", rel="prev")["href"]))
        assert kinds(back) == kinds(earlier)
    assert back.every("a", rel="prev") == []


def reporter(settings: Settings) -> Holdfast:
    app = Holdfast(settings)

    @app.handler("report", ledger="job", limit=0)
    async def report(month: str, ctx: Context) -> Fail | dict[str, int]:
        await ctx.progress(40, "reading")
        return {"pages": 7} if month == "good" else Fail("the month is\nnot there", code="NO_MONTH")

    return app


def test_a_row_tells_its_story(settings: Settings) -> None:
    with served_app(settings, reporter(settings).web()) as served, working(reporter(settings)):
        ana = Visitor(served, "admin")
        good = served.enqueue("job", "report", payload="good", key="r-1")
        bad = served.enqueue("job", "report", payload="bad")
        for one in (good, bad):
            assert served.client().get(f"/api/ledgers/job/rows/{one}/wait").json()["ended"]
        page = ana.get(row(good))
        assert "succeeded" in page.one(id="heading").words
        assert "It ended as succeeded" in page.one(id="explain").words
        assert json.loads(next(page.one(id="result").every("pre")).text) == {"pages": 7}
        verbs = [item.words.split()[0] for item in page.one("ol", class_="events").every("li")]
        assert verbs == ["enqueue", "claim", "progress", "finish"]
        assert "reading; 40 %" in page.one("ol", class_="events").words
        assert page.one("svg", class_="timeline").every("title")
        assert "r-1" in page.one(id="facts").words
        assert not page.every("button", name="verb"), "nothing can be done to it"
        page = ana.get(row(bad))
        assert "NO_MONTH: the month is" in page.one(id="error").words
        assert "not there" in page.one("pre", class_="wrapped trace").words
        assert page.one("progress")["value"] == "40.0"
        assert [button["value"] for button in page.every("button", name="verb")] == ["requeue"]
        assert "leads" in ana.get("/workers").words
        assert "report" in ana.get("/workers").words
        overview = ana.get("/")
        assert "NO_MONTH" in overview.words or "1 dead" in overview.words


def test_the_overview_tells_failures_by_code_and_how_busy_a_worker_is(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "KEPT", 0.0)
    app, begun, done = reporter(settings), threading.Event(), threading.Event()

    @app.handler("slow", ledger="job")
    async def slow() -> None:
        begun.set()
        await asyncio.to_thread(done.wait, 20)

    with (
        served_app(settings, reporter(settings).web()) as served,
        working(app, ledgers=["job"], concurrency=3),
    ):
        ana = Visitor(served, "admin")
        try:
            for _ in range(2):
                bad = served.enqueue("job", "report", payload="bad")
                assert served.client().get(f"/api/ledgers/job/rows/{bad}/wait").json()["ended"]
            served.enqueue("job", "slow")
            assert begun.wait(20)
            deadline = time.monotonic() + PATIENCE
            while "NO_MONTH 2" not in (page := ana.get("/")).words:  # a worker tells its pulse now and then
                assert time.monotonic() < deadline, "the failures were not told in time"
                time.sleep(0.05)
        finally:
            done.set()
        failures = page.one("div", class_="failures")
        assert failures.words == "Failures by code, last hour NO_MONTH 2"
        assert next(failures.every("a"))["href"] == "/ledgers/job?code=NO_MONTH"
        (worker,) = next(page.one(id="workers").every("tbody")).every("tr")
        cells = {cell["data-label"]: cell.words for cell in worker.children}
        assert cells["Load"].endswith("1/3")
        assert next(worker.every("meter")).attributes["value"] == "1"
        assert re.fullmatch(r"[\d.]+ m?s ago", cells["Heartbeat"]), cells["Heartbeat"]


def test_the_overview_tells_which_worker_is_silent(served: Served, visit: Visit) -> None:
    served.query(
        "insert into workers (id, hostname, started_at, last_heartbeat, pool_size) select 'silent', 'here',"
        " now() at time zone 'UTC', (now() at time zone 'UTC') - interval '50 seconds', 4"
    )
    page = visit().get("/")
    late = next(page.one(id="workers").every("td", class_="late"))
    assert late["data-label"] == "Heartbeat"
    assert re.fullmatch(r"5\d(\.\d)? s ago", late.words), late.words
    assert "0/4" in page.one(id="workers").words


def test_rows_of_any_table_can_be_looked_at(settings: Settings) -> None:
    app = Holdfast(settings, ledgers=[PARCELS, PERMITS])
    with served_app(settings, app.web()) as served:
        served.query(PARCELS_DDL)
        served.query(PERMITS_DDL)
        ana = Visitor(served, "admin")
        parcel = served.enqueue("parcels", "express", payload={"to": "ana"})
        served.enqueue("permits", None, payload={"applicant": "bo", "floors": 2, "drawn_on": "2030-01-01"})
        served.query("update office.permit set slip = 'a/b c?d'")
        assert "express" in ana.get("/ledgers/parcels?state=shelved").words
        assert "no journal" in ana.get(row(parcel, "parcels")).words
        link = ana.get("/ledgers/permits").one("a", class_="row-link")
        assert link["href"] == "/ledgers/permits/rows/a%2Fb%20c%3Fd"
        page = ana.get(str(link["href"]))
        assert "a/b c?d" in page.one(id="heading").words
        done = ana.submit(str(link["href"]), "/ledgers/permits/rows/a%2Fb%20c%3Fd", verb="cancel")
        assert "failed" in ana.follow(done).one(id="heading").words


def test_one_table_that_is_not_there_does_not_hide_the_others(settings: Settings) -> None:
    with served_app(settings, Holdfast(settings, ledgers=[PARCELS]).web()) as served:
        ana = Visitor(served, "admin")
        page = ana.get("/")
        assert "This table cannot be read" in page.words
        assert "queued" in page.words
        assert "holdfast doctor parcels" in page.words


# -- what is written there is shown, and never obeyed ----------------------------------------------------


def test_whatever_a_row_contains_is_text_on_every_page(served: Served, visit: Visit) -> None:
    job = served.enqueue("job", EVIL[:100], payload={EVIL: [EVIL]}, queue=EVIL, key=EVIL)
    served.query("update job set last_error_code = %s, last_error_message = %s", EVIL[:64], EVIL)
    served.query("update job set status = 'running'")
    served.query("update job set status = 'failed', run_at = now() + interval '1 hour'")
    served.enqueue("tasks", EVIL, payload=EVIL)
    ana = visit()
    done = ana.submit("/ledgers/job", "/ledgers/job/pause", queue=EVIL, reason=EVIL)
    pages = [ana.follow(done), *(ana.get(path) for path in ("/", "/ledgers/job", "/ledgers/tasks", row(job)))]
    ana.submit(row(job), row(job), verb="cancel", reason=EVIL)
    pages += [ana.get(row(job)), ana.get("/audit"), ana.get(f"/ledgers/job?kind={EVIL}&owner={EVIL}")]
    pages += [ana.get("/ledgers/job/bulk/requeue?code=<script>alert(1)</script>")]
    for page in pages:
        assert {script["src"].split("?")[0] for script in page.every("script") if script["src"]} <= {
            "/static/live.js",
            "/static/keys.js",
        }
        assert not [image for image in page.every("img") if image["src"] == "x"]
    assert EVIL in pages[4].root.text, "it is shown as it is"


# -- who may see what ------------------------------------------------------------------------------------


def test_a_tenant_sees_its_own_rows_and_nothing_of_others(served: Served, visit: Visit) -> None:
    ids = populate(served)
    served.client().put("/api/ledgers/job/pause", params={"reason": "a secret reason"})
    org = visit("tenant")
    menu = [link.words for link in org.get("/").one("nav", class_="menu").every("a")]
    assert menu == ["Overview", "job", "sync_jobs", "Connectors", "API"]
    for path in ("/", "/ledgers/job", "/ledgers/job?state=queued", row(ids["queued"]), row(ids["later"])):
        page = org.get(path)
        for secret in (ids["other"], "secret", B, "tasks", "Workers", "Pause"):
            assert secret not in page.words, (path, secret)
    assert "2 queued" in org.get("/").words
    listed = {link["href"] for link in org.get("/ledgers/job").every("a", class_="row-link")}
    assert listed == {row(ids[name]) for name in ("queued", "later", "dead")}
    org.get(row(ids["other"]), 404)
    org.get("/ledgers/tasks", 404)
    org.get(row(ids["task"], "tasks"), 404)
    for path in ("/workers", "/audit", "/tokens"):
        org.get(path, 403)
    page = org.get(f"/ledgers/job?tenant={B}", 403)
    assert "another" in page.words


def test_a_tenant_acts_on_its_own_rows_only(served: Served, visit: Visit) -> None:
    ids = populate(served)
    org = visit("tenant")
    page = org.get("/ledgers/job/bulk/cancel")
    assert "Cancel 2 rows?" in page.words
    done = org.submit(
        "/ledgers/job/bulk/cancel", "/ledgers/job/bulk/cancel", everything="yes", reason="all of ours"
    )
    assert "2 rows cancelled." in org.follow(done).words
    assert served.query("select status::text from job where id = %s", ids["other"]) == [("queued",)]
    key = org.get("/").every("input", name="form_key")[0]["value"]
    for path in (row(ids["other"]), "/ledgers/job/pause", "/ledgers/job/resume"):
        response = org.client.post(path, data={"form_key": key, "verb": "cancel"})
        assert response.status_code in (403, 404), path
    assert served.query("select status::text from job where id = %s", ids["other"]) == [("queued",)]
    assert served.query("select * from holdfast_pause") == []


def test_a_reader_has_no_buttons_and_may_not_act(served: Served, visit: Visit) -> None:
    ids = populate(served)
    served.client().put("/api/ledgers/tasks/pause")
    eve = visit("reader")
    for path in ("/", "/ledgers/job", "/ledgers/tasks", row(ids["queued"]), row(ids["dead"]), "/audit"):
        page = eve.get(path)
        posts = {form["action"] for form in page.every("form") if form["method"] == "post"}
        assert posts == {"/theme", "/logout"}, path
        assert not [link for link in page.every("a") if "/bulk/" in (link["href"] or "")], path
    assert "Tokens" not in eve.get("/").one("nav", class_="menu").words
    key = eve.get("/").every("input", name="form_key")[0]["value"]
    before = served.query("select id, status::text from job order by id")
    for path in (
        row(ids["queued"]),
        "/ledgers/job/bulk/cancel",
        "/ledgers/job/pause",
        "/ledgers/tasks/resume",
        "/tokens",
    ):
        data = {"form_key": key, "verb": "cancel", "everything": "yes", "name": "x", "scope": "admin"}
        response = eve.client.post(path, data=data)
        assert response.status_code == 403, path
        assert "The caller may not do this" in response.text
    eve.get("/ledgers/job/bulk/cancel", 403)
    eve.get("/tokens", 403)
    assert served.query("select id, status::text from job order by id") == before
    assert len(served.query("select * from holdfast_pause")) == 1


@pytest.mark.parametrize("path", ["/", "/ledgers/job?state=queued", "/workers", "/audit", "/tokens"])
def test_nobody_is_led_to_the_login_and_back(served: Served, path: str) -> None:
    nobody = Visitor(served, None)
    response = nobody.client.get(path)
    assert response.status_code == 303
    login = response.headers["location"]
    assert login.startswith("/login")
    form = nobody.get(login)
    data = {str(one["name"]): one["value"] for one in form.every("input", type="hidden")} | {
        "token": served.tokens["admin"]
    }
    response = nobody.client.post("/login", data=data)
    assert response.headers["location"] == path
    nobody.get(path)
