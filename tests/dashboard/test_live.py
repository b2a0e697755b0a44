"""A browser hears when what its page shows has changed, and nothing else."""

from __future__ import annotations

import threading
import time
from urllib.parse import quote

import pytest

from api.kit import A, B, Served
from dashboard.conftest import Visit
from dashboard.kit import PATIENCE, Visitor, events
from holdfast.dashboard import live
from holdfast.dashboard.live import Scene, Scenes


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come quickly, and a silent stream says so at once."""
    monkeypatch.setattr(live, "EVERY", 0.05)
    monkeypatch.setattr(live, "STILL", 0.2)


def address(visitor: Visitor, path: str, since: str | None = None) -> str:
    shown = since if since is not None else visitor.get(path).one("html")["data-shown"]
    return f"/live?path={quote(path, safe='')}&since={shown}"


def heard(visitor: Visitor, path: str) -> tuple[threading.Event, list[str]]:
    """Listens in a thread: the event is set when something has changed."""
    there, told = threading.Event(), list[str]()
    link = address(visitor, path)

    def listen() -> None:
        try:
            with events(visitor.client, link) as found:
                for _, data in found:
                    told.append(data)
                    there.set()
        except Exception:
            there.set()

    threading.Thread(target=listen, daemon=True).start()
    return there, told


def test_a_page_that_is_out_of_date_hears_so_at_once(visit: Visit) -> None:
    ana = visit()
    with events(ana.client, address(ana, "/", since="old")) as found:
        name, fingerprint = next(found)
    assert name == "changed"
    assert fingerprint == ana.get("/").one("html")["data-shown"], "the page and the watch agree"


@pytest.mark.parametrize("path", ["/", "/workers", "/ledgers/job", "/ledgers/job?state=queued&kind=x"])
def test_the_page_and_the_watch_take_the_same_fingerprint(served: Served, visit: Visit, path: str) -> None:
    served.enqueue("job", "x")
    ana = visit()
    with events(ana.client, address(ana, path, since="old")) as found:
        assert next(found)[1] == ana.get(path).one("html")["data-shown"]


def test_each_change_is_told_once(served: Served, visit: Visit) -> None:
    row = served.enqueue("job", "x")
    ana = visit()
    path = f"/ledgers/job/rows/{row}"
    with events(ana.client, address(ana, path)) as told:
        for _ in range(2):
            served.query("update job set updated_at = clock_timestamp()")
            assert next(told) == ("changed", ana.get(path).one("html")["data-shown"])


def test_a_list_hears_of_its_own_rows_and_counts(served: Served, visit: Visit) -> None:
    ana = visit()
    there, told = heard(ana, "/ledgers/tasks?state=pending")
    quiet, none = heard(ana, "/ledgers/job")
    served.enqueue("tasks", "x")
    assert there.wait(PATIENCE)
    assert len(told) == 1
    assert not quiet.wait(0.5)
    assert none == []


def test_a_tenant_hears_nothing_of_others(served: Served, visit: Visit) -> None:
    org = visit("tenant")
    there, _ = heard(org, "/")
    served.enqueue("job", "x", tenant=B)
    assert not there.wait(0.6)
    served.enqueue("job", "x", tenant=A)
    assert there.wait(PATIENCE)


def test_a_page_that_is_not_for_somebody_cannot_be_watched(served: Served, visit: Visit) -> None:
    other = served.enqueue("job", "x", tenant=B)
    org = visit("tenant")

    def status(path: str) -> int:
        return org.client.get(f"/live?path={path}&since=x").status_code

    assert status(f"/ledgers/job/rows/{other}") == 404, "as if the row were not there"
    assert status("/ledgers/job/rows/nonsense") == 400
    assert status("/ledgers/tasks") == status("/ledgers/nope") == 404
    assert status("/workers") == 403
    assert status("/nothing") == status("/tokens") == 404
    assert Visitor(served, None).client.get("/live?path=/").status_code == 401


def test_a_row_that_goes_away_while_it_is_watched_is_told(served: Served, visit: Visit) -> None:
    row = served.enqueue("job", "x")
    ana = visit()
    with events(ana.client, address(ana, f"/ledgers/job/rows/{row}")) as told:
        served.query("delete from job where id = %s", row)
        assert next(told) == ("changed", "gone")


def test_many_browsers_cost_one_look(served: Served, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes: list[Scene] = []
    original = Scenes.scene

    def scene(self: Scenes, *arguments: object) -> Scene:
        scenes.append(original(self, *arguments))  # type: ignore[arg-type]
        return scenes[-1]

    monkeypatch.setattr(Scenes, "scene", scene)
    people = [visit(), visit("reader"), visit("actor")]
    waits = [heard(one, "/ledgers/tasks") for one in people]
    deadline = time.monotonic() + PATIENCE
    while len(scenes) < 3 or len(scenes[0].boxes) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len({id(one) for one in scenes}) == 1
    served.enqueue("tasks", "x")
    assert all(there.wait(PATIENCE) for there, _ in waits)
    for one in people:
        one.client.close()
    while scenes[0].boxes:
        assert time.monotonic() < deadline + PATIENCE
        time.sleep(0.01)


def test_nobody_holds_a_connection_while_waiting(served: Served, visit: Visit) -> None:
    """More browsers watch than the pool has connections, and every page is still served."""
    ana = visit()
    most = served.settings.db_max_connections
    for n in range(most + 5):
        heard(ana, f"/ledgers/tasks?kind=k{n}")
    for _ in range(5):
        ana.get("/")


def test_a_session_that_has_ended_ends_its_streams(
    served: Served, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SESSION", 0.1)
    ana = visit()
    with events(ana.client, address(ana, "/")) as found:
        served.query("delete from holdfast_session")
        assert [name for name, _ in found][-1] == "gone"


def test_a_revoked_token_ends_its_streams_also_where_others_guess(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SESSION", 0.1)
    guesser = served.client(None, Authorization="Bearer hf_aaaaaaaa_" + "a" * 43)
    with events(served.client("reader"), "/live?path=/&since=old") as found:
        assert next(found)[0] == "changed"
        for _ in range(30):
            if guesser.get("/api/ledgers").status_code == 429:
                break
        else:
            raise AssertionError("nobody stopped the guessing")
        served.query("update holdfast_token set revoked_at = now() where name = 'reader'")
        assert next(found)[0] == "gone"


def test_a_message_waits_for_the_page_that_can_show_it(served: Served, visit: Visit) -> None:
    """The fetch of live.js does not eat what the next page shall say."""
    row = served.enqueue("job", "x")
    ana = visit()
    path = f"/ledgers/job/rows/{row}"
    ana.submit(path, path, verb="cancel")
    assert not ana.get(path, **{"X-Holdfast-Live": "1"}).every(class_="said")
    assert ana.get(path).one(class_="said")
