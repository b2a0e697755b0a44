"""What can be done on the pages; and that nobody else can make a browser do it."""

from __future__ import annotations

from typing import Any

import pytest

from api.kit import A, Served, served_app
from dashboard.conftest import Visit
from dashboard.kit import Page, Visitor, populate, row
from holdfast import Holdfast, Settings
from holdfast.dashboard import people

# -- what can be done ------------------------------------------------------------------------------------


def test_a_row_is_cancelled_and_the_record_tells_who_and_why(served: Served, visit: Visit) -> None:
    ids = populate(served)
    ana = visit("actor")
    page = ana.get(row(ids["queued"]))
    assert [button["value"] for button in page.every("button", name="verb")] == ["cancel"]
    done = ana.submit(row(ids["queued"]), row(ids["queued"]), verb="cancel", reason="paid in cash")
    page = ana.follow(done)
    assert "The row is cancelled." in page.one(class_="said").words
    assert "canceled" in page.one(id="heading").words
    assert "by token:actor; paid in cash" in page.one(id="events").words
    assert not page.every("button", name="verb")
    assert not ana.get(row(ids["queued"])).every(class_="said"), "it is said once"
    entry = visit().get("/audit").every("tbody")[0].children[1]
    assert "token:actor" in entry.words
    assert "cancel" in entry.words
    assert "paid in cash" in entry.words


def test_what_has_happened_meanwhile_is_told(served: Served, visit: Visit) -> None:
    ids = populate(served)
    ana = visit()
    key = ana.get(row(ids["queued"])).every("input", name="form_key")[0]["value"]
    served.query("update job set status = 'canceled', finished_at = now() where id = %s", ids["queued"])
    response = ana.client.post(row(ids["queued"]), data={"form_key": key, "verb": "cancel"})
    assert response.status_code == 409
    assert "it is canceled" in Page(response.text).words


def test_a_filter_is_requeued_after_a_preview(served: Served, visit: Visit) -> None:
    for _ in range(3):
        served.bury(served.enqueue("job", "report"))
    served.bury(served.enqueue("job", "other"))
    waiting = served.enqueue("job", "report")
    ana = visit()
    query = "state=dead_letter&kind=report"
    page = ana.get(f"/ledgers/job?{query}")
    (link,) = [link for link in page.every("a") if "/bulk/" in (link["href"] or "")]
    assert link["href"] == f"/ledgers/job/bulk/requeue?{query}"
    preview = ana.get(str(link["href"]))
    assert "Requeue 3 rows?" in preview.words
    assert "become queued" in preview.words
    assert served.query("select count(*) from job where status = 'dead_letter'") == [(4,)]
    done = ana.submit(str(link["href"]), "/ledgers/job/bulk/requeue", reason="mended")
    assert done.headers["location"] == f"/ledgers/job?{query}"
    assert "3 rows requeued." in ana.follow(done).words
    assert served.query("select count(*) from job where status = 'queued'") == [(4,)]
    assert served.query("select count(*) from job where status = 'dead_letter' and type = 'other'") == [(1,)]
    (entry,) = served.query("select who, rows, detail from holdfast_audit where action = 'requeue'")
    assert entry[:2] == ("token:admin", 3)
    assert entry[2]["filter"] == {"states": ["dead_letter"], "kind": "report"}
    assert entry[2]["reason"] == "mended"
    assert waiting


def test_no_filter_means_all_rows_only_where_somebody_says_so(served: Served, visit: Visit) -> None:
    populate(served)
    ana = visit()
    page = ana.get("/ledgers/job/bulk/cancel")
    assert "There is no filter" in page.words
    assert page.one("input", name="everything").attributes["required"] is None
    response = ana.submit("/ledgers/job/bulk/cancel", "/ledgers/job/bulk/cancel")
    assert response.status_code == 400
    assert served.query("select count(*) from job where status = 'canceled'") == [(0,)]
    response = ana.submit("/ledgers/job/bulk/cancel", "/ledgers/job/bulk/cancel", everything="yes")
    assert served.query("select count(*) from job where status = 'canceled'") == [(3,)]
    ana.get("/ledgers/job/bulk/finish", 404)


def test_a_ledger_and_a_queue_are_paused_and_resumed(served: Served, visit: Visit) -> None:
    ana = visit("actor")
    done = ana.submit("/ledgers/job", "/ledgers/job/pause", queue="paper", reason="no ink")
    page = ana.follow(done)
    banner = page.one(class_="banner")
    assert "Paused: queue paper" in banner.words
    assert "by token:actor: no ink" in banner.words
    ana.submit("/ledgers/tasks", "/ledgers/tasks/pause")
    assert len(ana.get("/").every(class_="banner")) == 2
    done = ana.submit("/ledgers/job", "/ledgers/job/resume")
    assert "goes on" in ana.follow(done).one(class_="said").words
    assert served.query("select ledger, queue from holdfast_pause") == [("tasks", "")]
    assert "by token:actor" in visit("reader").get("/ledgers/tasks").one(class_="banner").words


# -- forms -----------------------------------------------------------------------------------------------


def test_a_form_without_the_key_of_its_session_changes_nothing(served: Served, visit: Visit) -> None:
    ids = populate(served)
    ana, bo = visit(), visit("actor")
    foreign = bo.get("/").every("input", name="form_key")[0]["value"]
    for key in ({}, {"form_key": ""}, {"form_key": "0" * 64}, {"form_key": foreign}, {"form_key": "ü"}):
        for path in (
            row(ids["queued"]),
            "/ledgers/job/bulk/cancel",
            "/ledgers/job/pause",
            "/ledgers/job/resume",
            "/tokens",
            "/tokens/abc/revoke",
            "/logout",
            "/theme",
            "/login",
        ):
            response = ana.client.post(path, data={"verb": "cancel", "everything": "yes", **key})
            assert response.status_code == 403, (path, key)
            assert "form" in Page(response.text).words
    ana.get("/")
    assert served.query("select count(*) from job where status = 'canceled'") == [(0,)]
    assert served.query("select * from holdfast_pause") == []


def test_another_site_cannot_use_a_session(served: Served, visit: Visit) -> None:
    ids = populate(served)
    ana = visit()
    key = ana.get("/").every("input", name="form_key")[0]["value"]
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
        data = {"form_key": key, "verb": "cancel"}
        response = ana.client.post(row(ids["queued"]), data=data, headers=headers)
        assert response.status_code == 303
        assert response.headers["location"].startswith("/login")
    assert served.query("select count(*) from job where status = 'canceled'") == [(0,)]


def test_a_link_on_another_site_comes_back_with_its_cookie(served: Served) -> None:
    nobody = Visitor(served, None)
    page = nobody.get("/ledgers/job?state=queued", **{"Sec-Fetch-Site": "cross-site"})
    (refresh,) = [meta for meta in page.every("meta") if meta["http-equiv"]]
    assert refresh["content"] == "0; url=/ledgers/job?state=queued"


def test_cookies_are_kept_from_scripts_and_from_other_sites(served: Served) -> None:
    nobody = Visitor(served, None)
    first = nobody.client.get("/login").headers.get_list("set-cookie")
    done = nobody.submit("/login", "/login", token=served.tokens["admin"])
    cookies = [*first, *done.headers.get_list("set-cookie")]
    assert {cookie.split("=")[0] for cookie in cookies} == {"holdfast_visit", "holdfast_session"}
    for cookie in cookies:
        if "Max-Age=0" not in cookie:
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert "Secure" not in cookie, "there is no https here"
    assert served.tokens["admin"] not in "".join(cookies)


def test_the_session_is_secure_where_the_address_is(settings: Settings) -> None:
    from starlette.datastructures import URL

    class Https:
        """What a proxy tells: the browser speaks https."""

        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self._app({**scope, "scheme": "https"} if scope["type"] == "http" else scope, receive, send)

    with served_app(settings, Https(Holdfast(settings).web())) as served:
        response = Visitor(served, None).client.get("/login")
        assert URL(str(response.url)).path == "/login"
        assert all("Secure" in cookie for cookie in response.headers.get_list("set-cookie"))


@pytest.mark.parametrize("onward", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", ""])
def test_a_login_leads_to_no_other_host(served: Served, onward: str) -> None:
    nobody = Visitor(served, None)
    done = nobody.submit("/login", "/login", token=served.tokens["reader"], next=onward)
    assert done.headers["location"] == "/"


def test_wrong_tokens_are_refused_and_soon_not_even_looked_at(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people, "SLOWLY", 0)
    nobody = Visitor(served, None)
    statuses: list[int] = []
    for who in ("expired", "revoked"):
        statuses.append(nobody.submit("/login", "/login", token=served.tokens[who]).status_code)
    assert statuses == [401, 401]
    while 429 not in statuses:
        response = nobody.submit("/login", "/login", token="hf_aaaaaaaa_" + "a" * 43)
        statuses.append(response.status_code)
        assert len(statuses) < 30
    assert "Too many wrong tokens" in Page(response.text).words
    done = nobody.submit("/login", "/login", token=served.tokens["admin"])
    assert done.status_code == 303, "whoever knows a token is not kept out by others who guess"


def test_logging_out_ends_the_session_for_good(served: Served, visit: Visit) -> None:
    ana = visit()
    cookie = ana.client.cookies["holdfast_session"]
    assert ana.submit("/", "/logout").headers["location"] == "/login"
    assert served.query("select action from holdfast_audit order by id desc limit 1") == [("logout",)]
    again = Visitor(served, None)
    again.client.cookies.set("holdfast_session", cookie)
    assert again.client.get("/").status_code == 303
    assert served.query("select count(*) from holdfast_session") == [(0,)]


def test_light_and_dark_are_chosen_by_a_form(visit: Visit) -> None:
    ana = visit()
    assert ana.get("/").one("html")["data-theme"] is None
    done = ana.submit("/ledgers/job?state=queued", "/theme", theme="dark")
    assert done.headers["location"] == "/ledgers/job?state=queued"
    assert ana.get("/").one("html")["data-theme"] == "dark"
    ana.submit("/", "/theme", theme="system")
    assert ana.get("/").one("html")["data-theme"] is None


def test_a_token_is_shown_once_and_can_be_revoked(served: Served, visit: Visit) -> None:
    ana = visit()
    page = Page(ana.submit("/tokens", "/tokens", name="ci", scope="act", tenant=A).text)
    text = page.one("code", class_="secret").words
    assert text.startswith("hf_")
    assert text not in ana.get("/tokens").words
    served.tokens["ci"] = text
    ci = visit("ci")
    assert "tenant " + A in ci.get("/").words
    name = text.split("_")[1]
    done = ana.submit("/tokens", f"/tokens/{name}/revoke")
    assert "revoked" in ana.follow(done).words
    assert ci.client.get("/").status_code == 303, "its sessions end with it"
    actions = served.query("select action, who from holdfast_audit where row_id = %s order by id", name)
    assert actions == [("token create", "token:admin"), ("token revoke", "token:admin")]
    for wrong in ({"name": ""}, {"name": "x", "scope": "all"}, {"name": "x", "expires": "2001-01-01T00:00"}):
        response = ana.submit("/tokens", "/tokens", **{"scope": "read", **wrong})
        assert response.status_code == 400
        assert Page(response.text).one(role="alert").words
