"""Everything that can be asked, asked as the wrong tenant: nothing of the other comes back, in any words.

A control asks the same as an operator, so that a question which could never tell anything is not counted
as one that told nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from api.kit import A, B, Served, streaming
from holdfast.errors import NotFound

JOB = "/api/ledgers/job"
SECRET = "the-secret-of-b"
NOWHERE = "00000000-0000-4000-8000-000000000000"


@dataclass
class World:
    """Rows of both tenants, as the wrong one sees them."""

    served: Served
    thief: httpx.Client
    operator: httpx.Client
    mine: str
    theirs: str
    dead: str

    def truth(self) -> Any:
        """B's rows and events as the database has them."""
        rows = self.served.query("select to_jsonb(j)::text from job as j where org_id = %s order by id", B)
        events = "select to_jsonb(e)::text from job_event as e join job on job.id = job_id where org_id = %s"
        return rows, self.served.query(events + " order by 1", B)

    def marks(self, given: str = "") -> list[str]:
        """What no answer may have, but for what was said in the question."""
        marks = (B, SECRET, self.theirs, self.dead, "key-of-b", "worker-of-b")
        return [mark for mark in marks if mark not in given]


@pytest.fixture
def world(served: Served) -> World:
    mine = served.enqueue("job", kind="same", key="same-key")
    theirs = served.enqueue("job", kind="same", tenant=B, key="key-of-b", payload={"secret": SECRET})
    dead = served.bury(served.enqueue("job", kind="same", tenant=B, payload=SECRET, queue="queue-of-b"))
    served.query(
        "update job set worker_id = 'worker-of-b', last_error_message = %s where id = %s", SECRET, dead
    )
    return World(served, served.client("tenant"), served.client("admin"), mine, theirs, dead)


def test_nothing_is_told_and_nothing_is_changed(world: World) -> None:
    before = world.truth()
    asked: list[tuple[str, str, Any, Any]] = []
    for key in (world.theirs, world.dead):
        row = f"{JOB}/rows/{key}"
        asked += [("GET", f"{row}{rest}", None, None) for rest in ("", "/timeline", "/explain")]
        asked += [("GET", f"{row}/wait", None, {"seconds": 0.1})]
        asked += [("POST", f"{row}/{verb}", {"reason": "theft"}, None) for verb in ("cancel", "requeue")]
        asked += [("GET", f"{JOB}/stream", None, {"id": key, "seconds": 0.2})]
        asked += [("GET", f"{JOB}/stream", None, {"id": [world.mine, key], "seconds": 0.2})]
    for verb in ("cancel", "requeue"):
        for which in ({"filter": {"tenant": B}}, {"filter": {"kind": "same"}}, {"all": True}):
            for dry in (True, False):
                asked.append(("POST", f"{JOB}/{verb}", which | {"dry_run": dry}, None))
    for params in (
        {},
        {"tenant": B},
        {"kind": "same"},
        {"code": "BOOM"},
        {"owner": "worker-of-b"},
        {"queue": "queue-of-b"},
        {"state": "dead_letter"},
        {"finished_after": "2020-01-01T00:00:00Z"},
        {"limit": 1},
    ):
        asked.append(("GET", f"{JOB}/rows", None, params))
    for body in (
        {"kind": "same", "tenant": B},
        {"kind": "same", "tenant": B, "key": "key-of-b"},
        {"kind": "same", "key": "key-of-b"},
        {"kind": "other", "key": "key-of-b"},
        {"kind": "same", "extras": {"org_id": B}},
    ):
        asked += [("POST", f"{JOB}/rows", body, None), ("POST", f"{JOB}/rows/batch", {"items": [body]}, None)]
    asked += [("GET", path, None, None) for path in (f"{JOB}/stats", "/api/overview", "/api/ledgers", JOB)]
    told_to_operators = 0
    for method, path, body, params in asked:
        response = world.thief.request(method, path, json=body, params=params)
        words = response.text + str(response.headers)
        found = [mark for mark in world.marks(f"{path} {body} {params}") if mark in words]
        assert found == [], (method, path, body, params)
        assert response.status_code < 500, (method, path)
        assert world.truth() == before, (method, path, body, params)
        if method == "GET":
            control = world.operator.request(method, path, params=params)
            told_to_operators += any(mark in control.text for mark in world.marks(f"{path} {params}"))
    assert told_to_operators >= 10


def test_what_is_theirs_and_what_is_not_there_are_told_in_the_same_words(world: World) -> None:
    for method, rest in (
        ("GET", ""),
        ("GET", "/timeline"),
        ("GET", "/explain"),
        ("GET", "/wait"),
        ("POST", "/cancel"),
        ("POST", "/requeue"),
    ):
        theirs = world.thief.request(method, f"{JOB}/rows/{world.theirs}{rest}")
        nothing = world.thief.request(method, f"{JOB}/rows/{NOWHERE}{rest}")
        assert theirs.status_code == nothing.status_code == NotFound.status
        words = [one.json() | {"trace_id": None} for one in (theirs, nothing)]
        assert str(words[0]).replace(world.theirs, NOWHERE) == str(words[1])


def test_a_key_of_theirs_cannot_be_probed(world: World) -> None:
    for key in ("key-of-b", "never-used"):
        response = world.thief.post(f"{JOB}/rows", json={"kind": "same", "tenant": B, "key": key})
        assert response.status_code == 403
        response = world.thief.post(f"{JOB}/rows", json={"kind": "same", "key": key})
        assert (response.status_code, response.json()["created"]) == (201, True)


def test_a_cursor_of_somebody_else_shows_no_more(world: World) -> None:
    cursor = world.operator.get(f"{JOB}/rows", params={"limit": 1}).json()["cursor"]
    rows = world.thief.get(f"{JOB}/rows", params={"cursor": cursor}).json()["rows"]
    assert {row["tenant"] for row in rows} <= {A}
    assert {row["id"] for row in rows} <= {world.mine}


def test_numbers_are_the_tenants_own(world: World) -> None:
    for path in (f"{JOB}/stats", "/api/overview"):
        answer = world.thief.get(path).json()
        ledgers = answer.get("ledgers", [answer])
        assert [one["ledger"] for one in ledgers] in (["job"], ["job", "sync_jobs"])
        assert sum(one["rows"] for one in ledgers[0]["states"]) == 1
        assert (ledgers[0]["pace"], ledgers[0]["held"], ledgers[0]["paused"]) == (None, {}, [])
    assert (answer["workers"], answer["leader"]) == ([], None)
    empty = world.served.client("other tenant").get(f"{JOB}/stats").json()
    assert sum(one["rows"] for one in empty["states"]) == 2


def test_a_bulk_of_everything_is_everything_of_the_tenant(world: World) -> None:
    before = world.truth()
    body = {"all": True, "dry_run": True}
    assert world.thief.post(f"{JOB}/cancel", json=body).json()["rows"] == 1
    assert world.thief.post(f"{JOB}/cancel", json={"all": True}).json()["rows"] == 1
    assert world.truth() == before
    assert world.operator.get(f"{JOB}/rows/{world.mine}").json()["state"] == "canceled"


def test_an_explanation_tells_a_tenant_nothing_of_others(world: World) -> None:
    told = world.thief.get(f"{JOB}/rows/{world.mine}/explain").json()
    assert (told["code"], told["facts"]) == ("NO_WORKERS", {})
    whole = world.operator.get(f"{JOB}/rows/{world.mine}/explain").json()
    assert (whole["code"], whole["facts"] != {}) == ("NO_WORKERS", True)


def test_a_stream_that_goes_on_tells_a_tenant_its_own_events(world: World) -> None:
    with streaming(world.thief, f"{JOB}/stream", headers={"Last-Event-ID": "1.1"}) as stream:
        stream.next()
        assert stream.until("event").data["id"] == world.mine
        world.served.enqueue("job", tenant=B)
        last = world.served.enqueue("job")
        assert stream.until("event").data["id"] == last


def test_the_control_fails_where_the_database_does_not_confine(world: World) -> None:
    """The tenant is named in every call as well: without the policies nothing is told either."""
    for table in ("job", "job_event"):
        world.served.query(f"alter table {table} disable row level security")
    before = world.truth()
    for path in (f"{JOB}/rows", f"{JOB}/rows?tenant={B}", f"{JOB}/stats", f"{JOB}/rows/{world.theirs}"):
        response = world.thief.get(path)
        assert [mark for mark in world.marks(path) if mark in response.text] == []
    world.thief.post(f"{JOB}/cancel", json={"all": True})
    assert world.thief.post(f"{JOB}/rows/{world.theirs}/cancel").status_code == 404
    assert world.truth() == before
