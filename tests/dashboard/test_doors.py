"""Who may come in, by which door, and what happens to those who knock wrongly."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from api.kit import Served, served_app
from dashboard.accounts import connected
from dashboard.conftest import Visit
from dashboard.kit import Page, Visitor, row
from holdfast import Holdfast, Settings
from holdfast.dashboard import people
from holdfast.dashboard.app import MACHINES
from schedules.face import ANA, fail, messages, story
from schedules.recorded import DAY

# -- every page, for everybody ---------------------------------------------------------------------------

EVERYBODY = ("reader", "actor", "admin", "tenant reader")
OPEN = (None, *EVERYBODY)
READERS, OPERATORS, ACTORS, ADMINS = EVERYBODY, ("reader", "actor", "admin"), ("actor", "admin"), ("admin",)

# Every page by its route: who may, and how it is asked for. {row} is a job of the tenant's,
# {spent} a token that is good for nothing, {link}, {signal} and {delivery} are the tenant's. Of schedules
# nothing is: users are numbers.
PAGES: dict[tuple[str, str], tuple[tuple[str | None, ...], str, dict[str, str]]] = {
    ("GET", "/"): (READERS, "/", {}),
    ("GET", "/workers"): (OPERATORS, "/workers", {}),
    ("GET", "/audit"): (OPERATORS, "/audit", {}),
    ("GET", "/tokens"): (ADMINS, "/tokens", {}),
    ("POST", "/tokens"): (ADMINS, "/tokens", {"name": "x", "scope": "read"}),
    ("POST", "/tokens/{id}/revoke"): (ADMINS, "/tokens/{spent}/revoke", {}),
    ("GET", "/ledgers/{name}"): (READERS, "/ledgers/job", {}),
    ("GET", "/ledgers/{name}/bulk/{verb}"): (ACTORS, "/ledgers/job/bulk/cancel", {}),
    ("POST", "/ledgers/{name}/bulk/{verb}"): (ACTORS, "/ledgers/job/bulk/cancel", {"kind": "none"}),
    ("POST", "/ledgers/{name}/pause"): (ACTORS, "/ledgers/job/pause", {}),
    ("POST", "/ledgers/{name}/resume"): (ACTORS, "/ledgers/job/resume", {}),
    ("GET", "/ledgers/{name}/rows/{id:path}"): (READERS, "/ledgers/job/rows/{row}", {}),
    ("POST", "/ledgers/{name}/rows/{id:path}"): (ACTORS, "/ledgers/job/rows/{row}", {"verb": "cancel"}),
    ("GET", "/connectors"): (READERS, "/connectors", {}),
    ("GET", "/connectors/connections/{id}"): (READERS, "/connectors/connections/{link}", {}),
    ("GET", "/connectors/connections/{id}/{verb}"): (ACTORS, "/connectors/connections/{link}/reset", {}),
    ("POST", "/connectors/connections/{id}"): (ACTORS, "/connectors/connections/{link}", {"verb": "pause"}),
    ("GET", "/connectors/signals"): (READERS, "/connectors/signals", {}),
    ("GET", "/connectors/signals/{id}"): (READERS, "/connectors/signals/{signal}", {}),
    ("GET", "/connectors/inbox"): (READERS, "/connectors/inbox", {}),
    ("GET", "/connectors/inbox/replay"): (ACTORS, "/connectors/inbox/replay", {}),
    ("POST", "/connectors/inbox/replay"): (
        ACTORS,
        "/connectors/inbox/replay",
        {"provider": "github", "received_after": "2030-01-31T12:00"},
    ),
    ("GET", "/connectors/inbox/{provider}/{tenant_id}/{id:path}"): (
        READERS,
        "/connectors/inbox/{delivery}",
        {},
    ),
    ("GET", "/schedules"): (OPERATORS, "/schedules", {}),
    ("GET", "/schedules/captures/{id}"): (OPERATORS, "/schedules/captures/{capture}", {}),
    ("POST", "/schedules/captures/{id}"): (ACTORS, "/schedules/captures/{waiting}", {"verb": "cancel"}),
    ("GET", "/schedules/days"): (OPERATORS, "/schedules/days", {}),
    ("GET", "/schedules/days/{user_id}/{date}"): (OPERATORS, "/schedules/days/{day}", {}),
    ("POST", "/schedules/days/{user_id}/{date}"): (ACTORS, "/schedules/days/{day}", {}),
    ("GET", "/schedules/notifications"): (OPERATORS, "/schedules/notifications", {}),
    ("GET", "/schedules/notifications/{id:path}"): (OPERATORS, "/schedules/notifications/{message}", {}),
    ("POST", "/schedules/notifications/{id:path}"): (ACTORS, "/schedules/notifications/{failed}", {}),
    ("GET", "/system"): (OPERATORS, "/system", {}),
    ("GET", "/system/jobs/{id}"): (OPERATORS, "/system/jobs/{system_job}", {}),
    ("POST", "/system/jobs/{id}"): (ACTORS, "/system/jobs/{system_job}", {"verb": "cancel"}),
    ("GET", "/system/new"): (ACTORS, "/system/new", {}),
    ("GET", "/system/new/{type}"): (ACTORS, "/system/new/flush", {}),
    ("POST", "/system/new/{type}"): (ACTORS, "/system/new/flush", {"ledger": "tasks"}),
    ("GET", "/system/archive"): (OPERATORS, "/system/archive", {}),
    ("GET", "/system/backups"): (OPERATORS, "/system/backups", {}),
    ("POST", "/system/backups"): (ACTORS, "/system/backups", {"name": "none"}),
    ("GET", "/docs"): (OPEN, "/docs", {}),
    ("GET", "/login"): (OPEN, "/login", {}),
    ("POST", "/login"): (OPEN, "/login", {"token": "{token}"}),
    ("POST", "/theme"): (OPEN, "/theme", {"theme": "dark"}),
    ("POST", "/logout"): (OPEN, "/logout", {}),
}


def page_routes(web: Any) -> Iterator[tuple[str, str]]:
    """Every page of an application, and what can be done there."""
    for route in web.state.routes.every:
        if route.methods and not f"{route.path}/".startswith(MACHINES):
            for method in sorted(route.methods - {"HEAD"}):
                yield method, route.path


def scheduled(served: Served) -> dict[str, Callable[[], str]]:
    """What stands in the addresses of schedules; what an order changes is made anew for each."""
    told = story(served)
    waiting = "insert into schedule_ingest.capture_session (user_id) values (42) returning id::text"
    job = (
        "insert into system.jobs (id, job_type, status)"
        " values ('FL-' || substr(md5(random()::text), 1, 8), 'flush', 'queued') returning id"
    )
    return {
        "system_job": lambda: served.query(job)[0][0],
        "capture": lambda: str(told.first),
        "waiting": lambda: served.query(waiting)[0][0],
        "day": lambda: f"{ANA}/{DAY}",
        "message": lambda: messages(served)[0],
        "failed": lambda: fail(served, messages(served)[1]),
    }


def test_every_page_is_for_those_whom_it_is_for(settings: Settings) -> None:
    web = Holdfast(settings).web()
    with served_app(settings, web) as served:
        found = set(page_routes(web))
        assert found == set(PAGES), "a page without a word on whom it is for, or the other way round"
        visitors = {who: Visitor(served, who) for who in OPEN}
        spent, things = served.tokens["expired"].split("_")[1], connected(served).addresses
        made = scheduled(served)
        for (method, route), (allowed, path, data) in PAGES.items():
            for who in OPEN:
                changes = route in ("/login", "/logout")  # the session, and the others go on with theirs
                visitor = Visitor(served, who) if changes else visitors[who]
                job = served.enqueue("job", "x") if "{row}" in path else ""
                fresh = {name: one() for name, one in made.items() if f"{{{name}}}" in path}
                key = visitor.get("/login").every("input", name="form_key")[0]["value"]
                sent = {name: value.format(token=served.tokens["reader"]) for name, value in data.items()}
                form = {"data": {"form_key": key, **sent}} if method == "POST" else {}
                response = visitor.client.request(
                    method, path.format(row=job, spent=spent, **things, **fresh), **form
                )
                place = (method, route, who, response.status_code)
                if who in allowed:
                    assert response.status_code == 200 or (
                        method == "POST" and response.status_code == 303
                    ), place
                    assert "/login" not in response.headers.get("location", "") or route == "/logout", place
                elif who is None:
                    assert response.status_code == 303, place
                    assert response.headers["location"].startswith("/login"), place
                elif who == "tenant reader" and route.startswith("/schedules") and method == "GET":
                    assert response.status_code == 404, place
                else:
                    assert response.status_code == 403, place
                    assert "The caller may not do this" in Page(response.text).words, place
        assert served.query("select count(*) from holdfast_token where name = 'x'") == [(1,)]


# -- the session's cookie --------------------------------------------------------------------------------


def test_a_request_that_brings_no_session_ends_none(served: Served) -> None:
    """Another site can make a browser send a form, or follow a link, without the cookie."""
    nobody = Visitor(served, None)
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        del nobody.client.headers["Sec-Fetch-Site"]
        for response in (
            nobody.client.post("/ledgers/job/pause", headers=headers),
            nobody.client.get("/ledgers/job", headers=headers),
        ):
            assert "holdfast_session" not in response.headers.get("set-cookie", "")
        nobody.client.headers["Sec-Fetch-Site"] = "same-origin"
    assert "set-cookie" not in nobody.client.get("/").headers


def test_a_session_that_did_not_count_goes_on(served: Served, visit: Visit) -> None:
    ana = visit()
    for headers in (
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil", "Sec-Fetch-Site": "cross-site"},
    ):
        response = ana.client.post("/ledgers/job/pause", headers=headers)
        assert response.status_code == 303
        assert "set-cookie" not in response.headers
    response = ana.client.get("/", headers={"Authorization": "Bearer hf_wrong"})
    assert "set-cookie" not in response.headers
    ana.get("/")


def test_a_session_that_is_no_good_is_taken_away(served: Served, visit: Visit) -> None:
    ana = visit()
    served.query("delete from holdfast_session")
    response = ana.client.get("/")
    assert response.status_code == 303
    assert 'holdfast_session=""; ' in response.headers["set-cookie"]
    assert "Max-Age=0" in response.headers["set-cookie"]
    assert "holdfast_session" not in ana.client.cookies


# -- bodies that cannot be read --------------------------------------------------------------------------


def multipart(charset: str, **fields: str) -> dict[str, Any]:
    parts = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    kind = f"multipart/form-data; boundary=x; charset={charset}"
    return {"content": f"{parts}--x--\r\n".encode(), "headers": {"Content-Type": kind}}


@pytest.mark.parametrize(
    "charset", ["punycode", "idna", "undefined", "unicode_escape", "utf-16-le", "hex", "utf-7"]
)
def test_a_body_that_is_no_text_is_refused_and_nothing_unexpected(
    served: Served, visit: Visit, charset: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people, "SLOWLY", 0)
    for somebody in (Visitor(served, None), visit()):
        key = str(somebody.get("/login").every("input", name="form_key")[0]["value"])
        for place, text in product(("form_key", "token", "next"), ("\\ud800", "ü-\x00", "xn--\x80", "+2AA-")):
            body = multipart(charset, **{"form_key": key, "token": "hf_x", "next": "/", place: text})
            for path in ("/login", "/theme"):
                response = somebody.client.post(path, **body)
                assert response.status_code in (303, 400, 401, 403, 429), (path, place, text)
                assert response.status_code == 303 or Page(response.text).faults == []
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_a_charset_that_breaks_the_reading_is_a_page_that_says_so(
    served: Served, visit: Visit, caplog: Any
) -> None:
    response = Visitor(served, None).client.post("/login", **multipart("punycode", form_key="ü", token="ü"))
    assert response.status_code == 400
    assert "is no form that can be read" in Page(response.text).words
    response = visit().client.post("/theme", **multipart("unicode_escape", form_key="\\ud800"))
    assert response.status_code == 400
    assert "is no form that can be read" in Page(response.text).words
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


# -- methods ---------------------------------------------------------------------------------------------


def test_head_tells_what_get_would(served: Served, visit: Visit) -> None:
    job = served.enqueue("job", "x")
    ana, nobody = visit(), Visitor(served, None)
    for path in ("/", "/workers", "/audit", "/tokens", "/docs", "/login", "/ledgers/job", row(job)):
        response = ana.client.head(path)
        assert response.status_code == 200, path
        assert response.headers["content-type"].startswith("text/html")
        assert response.content == b""
    assert ana.client.head(row("nonsense")).status_code == 400
    assert ana.client.head("/nothing").status_code == 404
    assert nobody.client.head("/login").status_code == 200
    assert nobody.client.head("/workers").headers["location"] == "/login?next=%2Fworkers"
    assert nobody.client.head("/", headers={"Accept": "*/*"}).status_code == 401
    assert ana.client.put("/ledgers/job").headers["allow"] == "GET, HEAD"


def test_a_file_says_what_can_be_done_to_it(served: Served) -> None:
    client = Visitor(served, None).client
    assert client.head("/static/style.css").status_code == 200
    for method in ("POST", "DELETE", "OPTIONS"):
        response = client.request(method, "/static/style.css")
        assert response.status_code == 405
        assert response.headers["allow"] == "GET, HEAD"
        assert response.json()["code"] == "METHOD_NOT_ALLOWED"
