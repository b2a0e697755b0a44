"""The pages of system jobs: lists, one job with its log, forms with their faults, archive and backups.

Y-37, Y-38 and Y-40 as people see them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.kit import A, Served
from dashboard.kit import Page, Visitor, events
from holdfast import Settings
from holdfast.apps.system import backups
from holdfast.dashboard import live
from system.face import LEGACY, audit, jobs, put, serving, tell

Visit = Callable[..., Visitor]
NASTY = "<script>alert('x')</script>"


@pytest.fixture
def served(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(live, "EVERY", 0.05)
    with serving(settings, tmp_path) as served:
        yield served


@pytest.fixture
def visit(served: Served) -> Visit:
    return lambda who="reader": Visitor(served, who)


def rows(page: Page) -> list[str]:
    """What the lines of the page's list say."""
    return [one.words for body in page.every("tbody") for one in body.every("tr")]


def part(page: Page, id: str) -> Any:
    return page.one(None, id=id)


def place(job: str) -> str:
    return f"/system/jobs/{job}"


# -- the list --------------------------------------------------------------------------------------------


def test_jobs_are_listed_newest_first_and_filtered(served: Served, visit: Visit) -> None:
    """Y-38: by type, status, key, queue and time."""
    old = put(served, "flush", "failed", message="no space left", created_at=1_000_000_000_000)
    late = put(
        served,
        "backup",
        "queued",
        idempotency_key="nightly",
        queue="night",
        parameters={"schema": "system", "backup_location": "a"},
        created_at=1_500_000_000_000,
    )
    page = visit().get("/system")
    links = [str(one["href"]) for one in page.every("a", class_="row-link")]
    assert links == [place(late), place(old)]
    assert "system → a" in rows(page)[0]
    assert "no space left" in rows(page)[1]
    for query in ("type=flush", "status=failed", "created_before=2010-01-01T00:00", "queue=default"):
        assert [old in line for line in rows(visit().get(f"/system?{query}"))] == [True], query
    for query in ("type=Backup", "key=nightly", "queue=night", "created_after=2010-01-01T00:00"):
        assert [late in line for line in rows(visit().get(f"/system?{query}"))] == [True], query
    assert "No job fits this filter." in visit().get("/system?status=running").words
    for wrong in ("type=vacuum", "status=gone", "created_after=never", "cursor=x"):
        assert visit().get(f"/system?{wrong}", 400).every(role="alert"), wrong


def test_old_records_stand_below_the_jobs_marked_as_legacy(served: Served, visit: Visit) -> None:
    """Y-43: no page and no order is offered for them."""
    served.query(LEGACY)
    new = put(served, "flush", "completed")
    page = visit().get("/system")
    assert [str(one["href"]) for one in page.every("a", class_="row-link")] == [place(new)]
    assert ["legacy" in line for line in rows(page)] == [False, True, True, True]
    assert "no space" in rows(page)[1]
    assert "No worker serves" not in page.words


def test_pages_are_turned_and_turned_back(served: Served, visit: Visit) -> None:
    for number in range(30):
        put(served, created_at=1_700_000_000_000 + number)
    ana = visit()
    first = ana.get("/system")
    second = ana.get(str(first.one("a", rel="next")["href"]))
    assert (len(rows(first)), len(rows(second))) == (25, 5)
    assert rows(ana.get(str(second.one("a", rel="prev")["href"])))[0] == rows(first)[0]


def test_an_empty_list_says_what_comes_there_and_one_that_waits_says_that_nobody_works(
    served: Served, visit: Visit
) -> None:
    assert "holdfast system backup" in visit().get("/system").words
    assert "No worker serves system jobs." not in visit().get("/system").words
    put(served)
    assert "No worker serves system jobs." in visit().get("/system").words
    served.query(
        "insert into workers (id, hostname, started_at, last_heartbeat, pool_size, serves) values"
        " ('w', 'h', now() at time zone 'UTC', now() at time zone 'UTC', 1, '{system_jobs}')"
    )
    assert "No worker serves system jobs." not in visit().get("/system").words


@pytest.mark.parametrize("path", ["/system", "/system/archive", "/system/backups", "/system/new"])
def test_a_tenant_sees_none_of_it(served: Served, visit: Visit, path: str) -> None:
    """Y-37."""
    assert "System" not in [one.words for one in visit("tenant").get("/").every("a")]
    assert "may not" in visit("tenant").get(path, 403).words
    assert visit("tenant").client.get(f"/live?path={path}").status_code in (403, 404)


# -- one job ---------------------------------------------------------------------------------------------


def test_a_job_shows_its_message_trace_parameters_and_lines(served: Served, visit: Visit) -> None:
    """Y-10, Y-18: whole, and nothing that somebody wrote is taken for markup."""
    trace = "\n".join(f"  line {number} {NASTY}" for number in range(1000))
    job = put(
        served,
        "flush",
        "failed",
        message=f"OSError {NASTY}",
        exception_trace=trace,
        retry_count=3,
        idempotency_key=NASTY,
        parameters={"ledger": NASTY},
    )
    tell(served, job, "queued by ana", f"text {NASTY}")
    tell(served, job, "failed: OSError", level="ERROR")
    page = visit().get(place(job))
    assert part(page, "lead").words == f"OSError {NASTY}"
    assert "line 999" in part(page, "trace").words
    assert NASTY in part(page, "parameters").words
    assert "3 of 3" in part(page, "facts").words
    lines = [one.words for one in part(page, "lines").every("li")]
    assert [line.split(" ", 1)[1] for line in lines] == [
        "INFO queued by ana",
        f"INFO text {NASTY}",
        "ERROR failed: OSError",
    ]
    assert part(page, "lines").every("li", class_="bad")
    assert [one["href"] for one in page.every("a", class_="refresh")] == [f"{place(job)}#log"]
    assert not page.every("button", value="cancel")


def test_a_running_job_shows_how_far_it_has_come(served: Served, visit: Visit) -> None:
    job = put(served, status="running")
    assert not visit().get(place(job)).every("progress")
    tell(served, job, "progress 40% 4000 of 10000 rows")
    bar = visit().get(place(job)).one("progress")
    assert (bar["value"], bar["max"]) == ("40.0", "100")
    assert "4,000 of 10,000 rows" in part(visit().get(place(job)), "lead").words
    tell(served, job, "started on w (attempt 2)")
    assert not visit().get(place(job)).every("progress")
    tell(served, job, "progress 12 files")
    assert "12 files" in part(visit().get(place(job)), "lead").words


def test_many_lines_are_cut_and_where_the_others_are_is_told(served: Served, visit: Visit) -> None:
    job = put(served)
    tell(served, job, "\n".join(f"line {number}" for number in range(250)))
    page = visit().get(place(job))
    assert len([*part(page, "lines").every("li")]) == 200
    assert f"holdfast system logs {job}" in page.words
    assert "50 earlier lines" in page.words


def test_a_job_is_killed_with_a_reason(served: Served, visit: Visit) -> None:
    """Y-15."""
    job, ana = put(served, status="running"), visit("actor")
    page = ana.follow(ana.submit(place(job), place(job), verb="cancel", reason="too early"))
    assert "The job is cancelled." in page.words
    assert "cancelled by token:actor" in part(page, "lead").words
    assert "too early" in part(page, "lines").words
    assert audit(served) == [("token:actor", "cancel", job, 1)]
    assert ana.client.post(place(job), data={"verb": "cancel"}).status_code == 403, "a form without its key"
    assert not visit().get(place(job)).every("button", name="verb"), "a reader orders nothing"


def test_a_job_that_has_ended_is_made_again_by_who_may(served: Served, visit: Visit) -> None:
    """Y-13; what cannot be taken back is for administrators."""
    job = put(served, "flush", "failed")
    ana = visit("actor")
    page = ana.follow(ana.submit(place(job), place(job), verb="retry"))
    assert f"This is a new job, like {job}." in page.words
    assert sorted(jobs(served)) == [("flush", "failed"), ("flush", "queued")]
    final = put(served, "retention", "failed", parameters={"ledger": "job", "retention_hours": 1})
    assert not visit("actor").get(place(final)).every("button", value="retry")
    assert visit("admin").get(place(final)).every("button", value="retry")
    assert not visit("admin").get(place(put(served, "vacuum", "failed"))).every("button", value="retry")


def test_a_malformed_id_and_an_unknown_one_are_told_as_pages(visit: Visit) -> None:
    visit().get(place("nonsense"), 400)
    visit().get(place("FL-4fK2mZ0q"), 404)


def test_a_page_hears_of_new_lines_and_of_nobody_elses(served: Served, visit: Visit) -> None:
    job, other = put(served, status="running"), put(served)
    ana = visit()
    shown = ana.get(place(job)).one("html")["data-shown"]
    with events(ana.client, f"/live?path={place(job)}&since={shown}") as heard:
        tell(served, other, "new")
        tell(served, job, "progress 1 rows")
        name, mark = next(heard)
    assert name == "changed"
    assert ana.get(place(job)).one("html")["data-shown"] == mark


# -- making one ------------------------------------------------------------------------------------------


def test_every_type_has_a_form_with_its_fields(served: Served, visit: Visit) -> None:
    admin = visit("admin")
    links = [str(one["href"]) for one in admin.get("/system/new").every("a") if "/new/" in str(one["href"])]
    assert len(links) == 8
    for link in links:
        page = admin.get(link)
        fields = [str(one["name"]) for one in page.every() if one.name in ("input", "select")]
        assert {"key", "queue", "max_retries", "priority"} < set(fields), link
    flush = admin.get("/system/new/flush")
    assert [one.words for one in flush.one("select", name="ledger").every("option")][1:4] == [
        "capture_session",
        "job",
        "schedule_notification",
    ]
    assert flush.one("input", name="older_than_hours")["value"] == "24"
    tables = admin.get("/system/new/cleanup").one("select", name="table")
    assert [one["value"] or one.words for one in tables.every("option")][1:] == ["parcels"]
    assert "checked" in admin.get("/system/new/compact").one("input", name="indexes").attributes
    admin.get("/system/new/vacuum", 404)
    assert (
        len([one for one in visit("actor").get("/system/new").every("a") if "/new/" in str(one["href"])]) == 3
    )
    visit("actor").get("/system/new/retention", 403)
    visit().get("/system/new", 403)


def test_a_job_is_made_by_its_form(served: Served, visit: Visit) -> None:
    ana = visit("actor")
    done = ana.submit(
        "/system/new/flush", "/system/new/flush", ledger="job", older_than_hours="1.5", key="k", priority="3"
    )
    page = ana.follow(done)
    assert "The job is made." in page.words
    made = served.query(
        "select job_type, parameters ->> 'older_than_hours', idempotency_key, priority from system.jobs"
    )
    assert made == [("flush", "1.5", "k", 3)]
    assert [row[:2] for row in audit(served)] == [("token:actor", "system run")]
    done = ana.submit("/system/new/compact", "/system/new/compact", ledger="job")
    assert done.status_code == 303
    assert served.query("select parameters -> 'indexes' from system.jobs where job_type = 'compact'") == [
        (False,)
    ], "a box that is not ticked means no"


@pytest.mark.parametrize(
    ("kind", "fields", "field", "said"),
    [
        ("flush", {}, "ledger", "Is needed."),
        ("flush", {"ledger": "job", "older_than_hours": "soon"}, "older_than_hours", "float"),
        ("flush", {"ledger": "job", "batch_rows": "0"}, "batch_rows", ">= 1"),
        ("flush", {"ledger": NASTY}, "ledger", "is not declared"),
        ("retention", {"ledger": "job", "retention_hours": "-1"}, "retention_hours", "> 0"),
        ("user_cleanup", {"subject_kind": "org_id"}, "subject", "Is needed."),
        ("backup", {"schema": "system", "backup_location": "x", "tables": "[" * 1000}, "tables", "array"),
        (
            "backup",
            {"schema": "system", "backup_location": "x", "tables": "[" * 500 + "]" * 500},
            "tables",
            "array",
        ),
    ],
)
def test_what_is_wrong_stands_beside_its_field_and_nothing_is_made(
    served: Served, visit: Visit, kind: str, fields: dict[str, str], field: str, said: str
) -> None:
    admin = visit("admin")
    done = admin.submit(f"/system/new/{kind}", f"/system/new/{kind}", **fields)
    assert done.status_code == 400, done.text
    page = Page(done.text)
    assert page.faults == []
    assert said in part(page, f"field-{field}-fault").words
    for name, value in fields.items():
        kept = [one for one in page.every("input") if one["name"] == name]
        assert [one["value"] for one in kept] in ([value], []), "what was typed is still there"
    assert (jobs(served), audit(served)) == ([], [])


@pytest.mark.parametrize(
    ("kind", "fields", "status", "said"),
    [
        ("compact", {}, 400, "a ledger or a table"),
        ("compact", {"table": "parcels"}, 404, "parcels"),
        ("flush", {"ledger": "job", "max_retries": "256"}, 400, "between 0 and 255"),
        ("flush", {"ledger": "job", "priority": "high"}, 400, "whole number"),
        ("backup", {"schema": "system", "backup_location": "/etc/x"}, 403, "folder for backups"),
        ("restore", {"backup_location": "nothing", "target_schema": "copy"}, 400, "holds no backup"),
    ],
)
def test_what_is_wrong_with_no_field_of_the_form_stands_above_it(
    served: Served, visit: Visit, kind: str, fields: dict[str, str], status: int, said: str
) -> None:
    done = visit("admin").submit(f"/system/new/{kind}", f"/system/new/{kind}", **fields)
    assert done.status_code == status, done.text
    assert said in " ".join(one.words for one in Page(done.text).every(role="alert"))
    assert (jobs(served), audit(served)) == ([], [])


def test_what_cannot_be_taken_back_is_asked_about_first(served: Served, visit: Visit) -> None:
    admin, form = visit("admin"), "/system/new/user_cleanup"
    given = {"subject_kind": "org_id", "subject_value": A, "cascade": "yes"}
    asked = admin.submit(form, form, **given)
    assert asked.status_code == 200
    page = Page(asked.text)
    assert page.faults == []
    assert "do you mean it?" in page.words
    assert A in page.words
    assert jobs(served) == []
    hidden = {str(one["name"]): str(one["value"]) for one in page.every("input", type="hidden")}
    assert hidden.items() >= given.items()
    done = admin.client.post(form, data={**hidden, "sure": "yes"})
    assert "The job is made." in admin.follow(done).words
    assert served.query("select parameters from system.jobs") == [
        ({"subject": {"org_id": A}, "cascade": True},)
    ]


# -- what was put away -----------------------------------------------------------------------------------


def test_the_archive_says_what_is_in_it_and_an_empty_one_says_how_it_fills(
    served: Served, visit: Visit
) -> None:
    assert "Nothing is archived yet." in visit().get("/system/archive").words
    folder = served.settings.home / "archive" / "job"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("no manifest")
    assert "cannot be read" in visit().get("/system/archive", 503).one(role="alert").words


def test_backups_are_listed_verified_and_offered_to_be_restored(served: Served, visit: Visit) -> None:
    assert "No backup yet." in visit().get("/system/backups").words
    folder = served.settings.home / "backups" / "safe"
    folder.mkdir(parents=True)
    (folder / "a.dump").write_bytes(b"dump")
    manifest = backups.Manifest(
        version=1,
        created_at="2030-01-01T00:00:00+00:00",
        job="BK-4fK2mZ0q",
        holdfast="1",
        revision=None,
        server=0,
        program=0,
        database="d",
        schema="system",
        compression="none",
        tables=(backups.Table(name="jobs", rows=1200, checksum=""),),
        without_rows=(),
        files=(backups.File(name="a.dump", bytes=4, sha256="0" * 64),),
    )
    backups.write_manifest(folder, manifest)
    page = visit("admin").get("/system/backups")
    assert "1,200" in rows(page)[0]
    (restore,) = [one for one in page.every("a") if one["aria-label"] == "Restore safe"]
    form = visit("admin").get(str(restore["href"]))
    assert form.one("input", name="backup_location")["value"] == str(folder)
    assert form.one("input", name="target_schema")["value"] == "system"
    admin = visit("admin")
    told = admin.follow(admin.submit("/system/backups", "/system/backups")).one(role="status", class_="said")
    assert "its checksum differs" in told.words
    (folder / "manifest.json").unlink()
    whole = backups.File(name="a.dump", bytes=4, sha256=hashlib.sha256(b"dump").hexdigest())
    backups.write_manifest(folder, msgspec.structs.replace(manifest, files=(whole,)))
    told = admin.follow(admin.submit("/system/backups", "/system/backups")).one(role="status", class_="said")
    assert "is whole" in told.words
    assert not [one for one in visit("actor").get("/system/backups").every("a") if one["aria-label"]]
