"""Waiting: the long poll, and streams of rows, of events, and of counts."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psycopg
import pytest

from api.kit import A, B, Sent, Served, Stream, api_of, served_app, streaming, working
from holdfast import Holdfast, Item, Settings
from holdfast.api import limits, streams

ROWS, TASKS = "/api/ledgers/job/rows", "/api/ledgers/tasks/rows"


class Gate:
    """Lets handlers wait until the test lets them go."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()


@pytest.fixture
def gate(settings: Settings) -> Iterator[Gate]:
    """A worker whose handler `gated` waits at the gate, and whose handler `broken` fails for good."""
    gate, app = Gate(), Holdfast(settings)

    @app.handler("gated")
    def gated(payload: Any) -> Any:
        gate.entered.set()
        gate.open.wait(20)
        return {"answer": 42}

    with working(app):
        yield gate
        gate.open.set()


def background(work: Any) -> Any:
    """What comes of it, later."""
    executor = ThreadPoolExecutor(1)
    future = executor.submit(work)
    executor.shutdown(wait=False)
    return future


# -- the long poll ---------------------------------------------------------------------------------------


def test_wait_answers_when_the_job_ends(served: Served, gate: Gate) -> None:
    client = served.client("tenant")
    key = served.enqueue("job", kind="gated")
    assert gate.entered.wait(20)
    early = client.get(f"{ROWS}/{key}/wait", params={"seconds": 0.3}).json()
    assert (early["ended"], early["row"]["state"]) == (False, "running")
    answer = background(lambda: client.get(f"{ROWS}/{key}/wait", params={"seconds": 20}))
    gate.open.set()
    waited = answer.result(20).json()
    assert (waited["ended"], waited["row"]["state"]) == (True, "succeeded")
    assert waited["row"]["result"] == {"answer": 42}
    at_once = client.get(f"{ROWS}/{key}/wait", params={"seconds": 20}).json()
    assert at_once["row"] == waited["row"]


def test_wait_has_limits(served: Served) -> None:
    client = served.client("reader")
    key = served.enqueue()
    for seconds in (-1, 61, "nan", "inf", "x"):
        response = client.get(f"{TASKS}/{key}/wait", params={"seconds": seconds})
        assert (response.status_code, response.json()["field"]) == (400, "seconds"), seconds
    assert client.get(f"{TASKS}/{key}/wait", params={"seconds": 0}).json()["ended"] is False


def test_wait_ends_when_the_row_goes(served: Served) -> None:
    client = served.client("reader")
    key = served.enqueue()
    answer = background(lambda: client.get(f"{TASKS}/{key}/wait", params={"seconds": 20}))
    served.query("delete from tasks where id = %s", key)
    assert answer.result(20).status_code == 404


# -- rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ledger", ["job", "tasks"])
def test_a_stream_of_rows_tells_every_change_and_the_end(served: Served, gate: Gate, ledger: str) -> None:
    first, second = (served.enqueue(ledger, kind="gated") for _ in range(2))
    assert gate.entered.wait(20)
    url = f"/api/ledgers/{ledger}/stream"
    with streaming(served.client("reader"), url, params={"id": [first, second]}) as stream:
        told = [stream.next(), stream.next()]
        assert {one.data["id"] for one in told if one} == {first, second}
        gate.open.set()
        rest = stream.rest()
    last = {one.data["id"]: one.data["state"] for one in rest if one.event == "row"}
    finished = "succeeded" if ledger == "job" else "completed"
    assert last == {first: finished, second: finished}
    assert (rest[-1].event, rest[-1].data) == ("end", {"rows": 2})


def test_a_stream_of_rows_that_have_ended_ends_at_once(served: Served) -> None:
    client = served.client("actor")
    key = served.enqueue("job")
    client.post(f"{ROWS}/{key}/cancel")
    with streaming(client, "/api/ledgers/job/stream", params={"id": key}) as stream:
        row, end = stream.rest()
    assert (row.event, row.data["state"], end.event) == ("row", "canceled", "end")


def test_a_row_that_is_deleted_is_told(served: Served) -> None:
    key, other = served.enqueue(), served.enqueue()
    with streaming(
        served.client("actor"), "/api/ledgers/tasks/stream", params={"id": [key, other]}
    ) as stream:
        stream.until("row")
        served.query("delete from tasks where id = %s", key)
        assert stream.until("gone").data == {"id": key}
        served.client("actor").post(f"{TASKS}/{other}/cancel")
        assert [one.event for one in stream.rest()] == ["row", "end"]


def test_a_stream_takes_a_hundred_rows(served: Served) -> None:
    key = served.enqueue()
    many = served.client("reader").get("/api/ledgers/tasks/stream", params={"id": [key] * 101})
    assert many.status_code == 400
    wrong = served.client("reader").get("/api/ledgers/tasks/stream", params={"id": "x"})
    assert (wrong.status_code, wrong.json()["field"]) == (400, "id")


# -- events ----------------------------------------------------------------------------------------------


def test_a_stream_of_events_tells_what_happens_from_now_on(served: Served) -> None:
    client = served.client("actor")
    served.enqueue("job")
    with streaming(served.client("reader"), "/api/ledgers/job/stream") as stream:
        assert stream.next() == Sent(":", "listening")
        key = served.enqueue("job")
        event = stream.until("event")
        assert (event.data["id"], event.data["prev"], event.data["next"]) == (key, None, "queued")
        assert event.id
        assert event.id.endswith(f".{event.data['seq']}")
        client.post(f"{ROWS}/{key}/cancel", json={"reason": "why not"})
        event = stream.until("event")
        assert (event.data["next"], event.data["detail"]["reason"]) == ("canceled", "why not")


def test_a_stream_goes_on_after_the_last_event(served: Served) -> None:
    client = served.client("reader")
    url = "/api/ledgers/job/stream"
    with streaming(client, url) as stream:
        stream.next()
        first = served.enqueue("job")
        last = stream.until("event")
    missed = [served.enqueue("job") for _ in range(3)]
    assert last.id
    with streaming(client, url, headers={"Last-Event-ID": last.id}) as stream:
        stream.next()
        told = [stream.until("event").data["id"] for _ in range(4)]
        assert told == [first, *missed]  # the last ten seconds are told again, once
        new = served.enqueue("job")
        assert stream.until("event").data["id"] == new
    much_later = int((time.time() + 20) * 1e6)
    with streaming(client, url, headers={"Last-Event-ID": f"{much_later}.1"}) as stream:
        stream.next()
        newest = served.enqueue("job")
        assert stream.until("event").data["id"] == newest  # and nothing of what came before
    for wrong in ("x", "1", "1.", ".1", "9" * 30 + ".1", "-1.1"):
        response = client.get(url, headers={"Last-Event-ID": wrong})
        assert response.status_code == 400, wrong


def test_an_event_whose_transaction_commits_late_is_told(served: Served) -> None:
    store = Holdfast(served.settings).store("job")
    with streaming(served.client("reader"), "/api/ledgers/job/stream") as stream:
        stream.next()
        with psycopg.connect(served.settings.database_url or "") as conn:  # which commits at the end
            late = store.enqueue_sync(conn, Item(kind="late", tenant=A)).id
            early = served.enqueue("job")
            assert stream.until("event").data["id"] == early
        assert stream.until("event").data["id"] == str(late)


def test_more_events_than_a_page_holds_are_all_told_once(served: Served) -> None:
    client = served.client("actor")
    keys: list[str] = []
    with streaming(served.client("reader"), "/api/ledgers/job/stream") as stream:
        stream.next()
        for _ in range(3):
            items = [{"kind": "many", "tenant": A}] * 400
            done = client.post(f"{ROWS}/batch", json={"items": items})
            keys += [one["id"] for one in done.json()["receipts"]]
        told = [stream.until("event") for _ in range(1200)]
    assert sorted(one.data["id"] for one in told) == sorted(keys)
    assert told[0].id
    with streaming(client, "/api/ledgers/job/stream", headers={"Last-Event-ID": told[0].id}) as stream:
        stream.next()
        again = [stream.until("event").data["id"] for _ in range(1200)]
        assert sorted(again) == sorted(keys)


# -- counts ----------------------------------------------------------------------------------------------


def test_a_stream_of_counts_tells_when_they_change(served: Served) -> None:
    def pending(stream: Stream) -> int:
        states = stream.until("stats").data["states"]
        return next(one["rows"] for one in states if one["state"] == "pending")

    with streaming(served.client("reader"), "/api/ledgers/tasks/stream") as stream:
        assert pending(stream) == 0
        served.enqueue()
        assert pending(stream) == 1
        served.enqueue()
        assert pending(stream) == 2


# -- how streams end -------------------------------------------------------------------------------------


def test_a_stream_is_kept_alive(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE", 0.05)
    for url in ("/api/ledgers/job/stream", f"/api/ledgers/tasks/stream?id={served.enqueue()}"):
        with streaming(served.client("reader"), url) as stream:
            while (sent := stream.next()) and sent.data != "still here":
                pass
            assert sent


def test_a_stream_ends_after_its_seconds(served: Served) -> None:
    key = served.enqueue()
    for url, told in ((f"/api/ledgers/tasks/stream?id={key}&", ["row"]), ("/api/ledgers/job/stream?", [])):
        with streaming(served.client("reader"), f"{url}seconds=0.2") as stream:
            assert [sent.event for sent in stream.rest()] == told


@pytest.mark.parametrize("ledger", ["job", "tasks"])
def test_a_revoked_token_ends_its_streams(
    served: Served, monkeypatch: pytest.MonkeyPatch, ledger: str
) -> None:
    monkeypatch.setattr(streams, "RECHECK", 0.1)
    with streaming(served.client("reader"), f"/api/ledgers/{ledger}/stream") as stream:
        stream.next()
        served.query("update holdfast_token set revoked_at = now() where name = 'reader'")
        stream.rest()  # which ends


def test_streams_are_counted_and_given_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(limits, "STREAMS", 2)
    app = api_of(Holdfast(settings))
    with served_app(settings, app) as served:
        url = "/api/ledgers/job/stream"
        with streaming(served.client("reader"), url) as one, streaming(served.client("actor"), url) as two:
            one.next(), two.next()
            full = served.client("admin").get(url)
            assert (full.status_code, full.json()["code"]) == (503, "UNAVAILABLE")
        eventually(lambda: app.state.limits.streams.taken == 0)
        eventually(lambda: not app.state.watch._shared)
        with streaming(served.client("reader"), url) as one:
            one.next()


def test_nobody_who_waits_holds_a_connection(settings: Settings) -> None:
    few = dataclasses.replace(settings, db_max_connections=2, db_acquire_timeout_seconds=5.0)
    with served_app(few, api_of(Holdfast(few))) as served:
        keys = [served.enqueue() for _ in range(6)]
        waiting = [
            background(
                lambda key=key: served.client("reader").get(f"{TASKS}/{key}/wait", params={"seconds": 20})
            )
            for key in keys
        ]
        with streaming(served.client("reader"), "/api/ledgers/job/stream") as stream:
            stream.next()
            began = time.monotonic()
            for _ in range(5):
                assert served.client("reader").get("/api/ledgers/tasks/rows").status_code == 200
            assert time.monotonic() - began < 5
            for key in keys:
                served.client("actor").post(f"{TASKS}/{key}/cancel")
            assert all(answer.result(20).json()["ended"] for answer in waiting)


def test_a_reader_that_is_too_slow_loses_its_stream_and_nothing_else(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.api.watch.ROOM", 3)
    url = "/api/ledgers/job/stream"
    with streaming(served.client("reader"), url) as stream:
        stream.next()
        items = [{"kind": "many", "tenant": A}] * 50
        served.client("actor").post(f"{ROWS}/batch", json={"items": items})
        told = stream.rest()  # which ends, although nobody has closed it
    assert len(told) == 3
    monkeypatch.undo()
    with streaming(served.client("reader"), url, headers={"Last-Event-ID": told[-1].id or ""}) as stream:
        stream.next()
        assert len({stream.until("event").data["id"] for _ in range(50)}) == 50


def test_a_stream_ends_when_the_database_goes_and_says_nothing_wrong(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "RECHECK", 0.1)
    with streaming(served.client("reader"), "/api/ledgers/job/stream") as stream:
        stream.next()
        served.query("alter table holdfast_token rename to hidden")
        assert stream.rest() == []
    served.query("alter table hidden rename to holdfast_token")


def test_a_client_that_goes_leaves_nothing_behind(settings: Settings, eventually: Any) -> None:
    app = api_of(Holdfast(settings))
    with served_app(settings, app) as served:
        key = served.enqueue()
        for url in (
            "/api/ledgers/job/stream",
            f"/api/ledgers/tasks/stream?id={key}",
            "/api/ledgers/tasks/stream",
        ):
            with (
                pytest.raises(httpx.ReadTimeout),
                streaming(served.client("reader"), url, timeout=1.0) as stream,
            ):
                stream.rest()
        eventually(lambda: app.state.limits.streams.taken == 0)
        eventually(lambda: not app.state.watch._shared)


def test_a_tenants_stream_has_its_own_events_alone(served: Served) -> None:
    with (
        streaming(served.client("tenant"), "/api/ledgers/job/stream") as mine,
        streaming(served.client("other tenant"), "/api/ledgers/job/stream") as theirs,
        streaming(served.client("reader"), "/api/ledgers/job/stream") as all_of_it,
    ):
        for stream in (mine, theirs, all_of_it):
            stream.next()
        a, b = served.enqueue("job", tenant=A), served.enqueue("job", tenant=B)
        last_a, last_b = served.enqueue("job", tenant=A), served.enqueue("job", tenant=B)
        assert [mine.until("event").data["id"] for _ in range(2)] == [a, last_a]
        assert [theirs.until("event").data["id"] for _ in range(2)] == [b, last_b]
        assert [all_of_it.until("event").data["id"] for _ in range(4)] == [a, b, last_a, last_b]
