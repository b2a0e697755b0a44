"""The pages of connectors: connections and how they do, one of them, signals, and the inbox of webhooks."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from api.kit import B, Served, on
from dashboard.accounts import DELIVERY, TOKEN, Connected, account, add_job, connected, deliver
from dashboard.conftest import Visit
from dashboard.kit import Page, events, read
from holdfast.apps.connectors.connections import Link
from holdfast.dashboard.phrases import NOTHING
from holdfast.db.pool import Connection

LIST, SIGNALS, INBOX, REPLAY = (
    "/connectors",
    "/connectors/signals",
    "/connectors/inbox",
    "/connectors/inbox/replay",
)
BUTTONS = {
    "active": ["Sync now", "Full re-sync…", "Pause", "Disconnect…"],
    "paused": ["Resume", "Disconnect…"],
    "error": ["Resume", "Disconnect…"],
    "revoked": [],
}


def place(link: Link, *more: str) -> str:
    return "/".join((f"/connectors/connections/{link.id}", *more))


def make(served: Served, **how: Any) -> Link:
    """A connection alone."""
    return on(served.settings, lambda conn: account(conn, served, **how))


def accounts_on(page: Page) -> list[str]:
    return [link.words for link in page.every("a") if link.has("row-link")]


def badges(page: Page) -> list[str]:
    return [one.words for one in page.every("span") if one.has("badge")]


def audited(served: Served) -> list[tuple[Any, ...]]:
    return served.query(
        "select who, action, row_id, tenant from holdfast_audit where action <> 'login' order by id"
    )


# -- connections -----------------------------------------------------------------------------------------


def test_the_list_tells_how_every_connection_does(served: Served, visit: Visit) -> None:
    """C-69: health: last success, next run, failures in a row, cool-down; and whether a cursor is set."""

    async def fill(conn: Connection) -> None:
        good = await account(conn, served, name="Good")
        await add_job(conn, good)
        bad = await account(conn, served, name="Bad", sync={}, due=None)
        await add_job(conn, bad, status="failed", attempts=3, error='{"code": "TRANSIENT", "message": "no"}')
        await account(conn, served, name="New", sync={}, due=None)
        cool = {"cooldown_until": "2099-01-31T12:00:00.000000Z"}
        await account(conn, served, name="Cool", sync=cool)
        for status in ("paused", "error", "revoked"):
            await account(conn, served, name=status.title(), status=status)
        await account(conn, served, name="", provider="zoho_mail", external_id="4711")

    on(served.settings, fill)
    page = visit().get(LIST)
    assert badges(page) == [
        *("healthy", "failing", "new", "cooling down", "paused", "error", "disconnected", "new")
    ]
    rows = [[cell.words for cell in row.children] for row in page.every("tr")]
    assert rows[0] == ["Account", "Health", "Tenant", "Next run", "Last success", "Failures", "Cursor"]
    good, bad, new = rows[1:4]
    assert good[1:3] + good[5:] == ["healthy", "Tenant A", "0", "set"]
    assert re.fullmatch(r"5 min (\d+ s )?ago", good[4])
    assert good[3].startswith("in 9 min")
    assert bad[3:] == ["next tick", "never", "3", NOTHING]
    assert new[3:] == ["next tick", "never", "0", NOTHING]
    assert rows[8][0] == "4711 zoho_mail"
    here = [one.words for one in page.every("a") if one["aria-current"]]
    assert here == ["Connectors", "Connections"]


def test_the_list_is_filtered_by_provider_status_and_tenant(served: Served, visit: Visit) -> None:
    make(served, name="One")
    make(served, name="Two", provider="slack", status="paused")
    other = make(served, name="Three", tenant=B)
    ana = visit("reader")
    for query, names in (
        ("", ["One", "Two", "Three"]),
        ("?provider=slack", ["Two"]),
        ("?provider=google-drive", []),
        ("?status=paused&provider=", ["Two"]),
        (f"?tenant={B}", ["Three"]),
        (f"?tenant={other.tenant_id}&status=paused", []),
    ):
        page = ana.get(LIST + query)
        assert [one.split()[0] for one in accounts_on(page)] == names, query
        assert ("No connection fits this filter." in page.words) == (not names)
    chosen = ana.get(f"{LIST}?provider=slack&status=paused")
    picked = [one["value"] for one in chosen.every("option") if "selected" in one.attributes]
    assert picked == ["slack", "paused"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("provider=nobody", "provider: there is no provider 'nobody'"),
        ("status=happy", "status: must be one of"),
        ("tenant=me", "tenant: 'me' is not a UUID"),
        ("cursor=abc", "cursor: is not base64"),
        ("provider=%00", "provider:"),
    ],
)
def test_a_filter_that_means_nothing_is_told_on_the_page(visit: Visit, query: str, said: str) -> None:
    page = visit().get(f"{LIST}?{query}", 400)
    assert said in page.one(role="alert").words


def test_a_long_list_is_turned_page_by_page_and_back(served: Served, visit: Visit) -> None:
    async def fill(conn: Connection) -> None:
        for number in range(60):
            await account(conn, served, name=f"n{number:02}")

    on(served.settings, fill)
    ana, way, path = visit(), [], f"{LIST}?provider=github"
    while True:
        page = ana.get(path)
        way.append([one.split()[0] for one in accounts_on(page)])
        following = page.every("a", rel="next")
        if not following:
            break
        path = str(following[0]["href"])
    assert [len(one) for one in way] == [25, 25, 10]
    assert sorted(name for names in way for name in names) == [f"n{n:02}" for n in range(60)]
    for names in (way[1], way[0]):
        page = ana.get(str(page.one("a", rel="prev")["href"]))
        assert [one.split()[0] for one in accounts_on(page)] == names
    assert page.every("a", rel="prev") == []


def test_an_empty_list_says_how_to_connect(visit: Visit) -> None:
    page = visit().get(LIST)
    assert "Nothing is connected yet." in page.words
    assert "holdfast connect start github --tenant ID" in page.words
    assert "No signals yet." in visit().get(SIGNALS).words
    assert "No webhook has come yet." in visit().get(INBOX).words


def test_a_tenant_sees_its_own_and_nothing_else(served: Served, visit: Visit) -> None:
    """C-13: another tenant's id is 404, not 403; and no filter leads to it."""
    own, foreign = connected(served, name="Own"), connected(served, tenant=B, name="Foreign")
    ana = visit("tenant reader")
    for path in (LIST, SIGNALS, INBOX):
        for query in ("", f"?tenant={B}"):
            page = ana.get(path + query)
            assert "Foreign" not in page.words
            assert "Own" in page.words
        assert not page.every("input", name="tenant")
    assert accounts_on(ana.get(f"{SIGNALS}?connection={foreign.link.id}")) == []
    for form, status in (("connections/{link}", 404), ("signals/{signal}", 404), ("inbox/{delivery}", 404)):
        ana.get(f"/connectors/{form.format(**own.addresses)}")
        ana.get(f"/connectors/{form.format(**foreign.addresses)}", status)
    visit("other tenant").get(place(foreign.link))
    bo = visit("tenant")
    key = bo.get(place(own.link)).every("input", name="form_key")[0]["value"]
    response = bo.client.post(place(foreign.link), data={"form_key": key, "verb": "pause"})
    assert response.status_code == 404
    data = {"form_key": key, "provider": "github", "delivery": DELIVERY, "tenant": B}
    bo.client.post(REPLAY, data=data)
    waits = served.query("select tenant_id::text from webhook_delivery where processed_at is null")
    assert waits == [(str(own.link.tenant_id),)], "the tenant's own of that id, and nobody else's"
    assert served.query("select status from connections where id = %s", foreign.link.id) == [("active",)]


def test_nothing_secret_is_on_any_page(served: Served, visit: Visit) -> None:
    """C-60, C-52: neither a token, sealed or not, nor a signature, nor a key."""
    made = connected(served)
    ((sealed,),) = served.query("select encode(access_token_ciphertext, 'hex') from connections")
    secret = (TOKEN, sealed[:40], "never-on-a-page", str(made.link.key_id))
    paths = [LIST, SIGNALS, INBOX, REPLAY, place(made.link), place(made.link, "disconnect")]
    paths += [
        f"/connectors/{one.format(**made.addresses)}" for one in ("signals/{signal}", "inbox/{delivery}")
    ]
    ana = visit()
    for path in paths:
        text = ana.client.get(path).text
        assert not [one for one in secret if one in text], path


# -- one connection --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", sorted(BUTTONS))
def test_a_connection_offers_just_what_its_state_allows(served: Served, visit: Visit, status: str) -> None:
    link = make(served, status=status)
    page = visit("actor").get(place(link))
    found = [form for form in page.every("form") if form["aria-label"] == "What can be done"]
    shown = [one.words for form in found for one in form.children if one.name in ("button", "a")]
    assert shown == BUTTONS[status]
    reader = visit("reader").get(place(link))
    assert [form["action"] for form in reader.every("form")] == ["/theme", "/logout"]
    for verb in ("disconnect", "full"):
        expected = 200 if any(verb.title() in one for one in BUTTONS[status]) else 409
        visit("actor").get(place(link, verb), expected)


def test_the_page_of_a_connection_tells_all_about_it(served: Served, visit: Visit) -> None:
    made = connected(served)
    page = visit().get(place(made.link))
    assert page.one("h1").words == "Acme & Sons"
    assert re.search(r"The last sync ended well 5 min (\d+ s )?ago; it is due in 9 min", page.words)
    facts = {
        next(one.every("dt")).words: next(one.every("dd")).words
        for one in page.every("div")
        if list(one.every("dt")) and one.parent and one.parent.name == "dl"
    }
    assert facts["status"] == "active"
    assert facts["scopes"] == "repo, read:org"
    assert facts["token"] == "sealed"
    assert facts["interval"] == "15 min"
    assert facts["failures"] == "0 since then"
    assert page.one(id="cursor").words.count("2030-01-31T12:00:00Z") == 2  # shown, and in the form
    assert "issue_created" in page.one(id="signals").words
    assert "the payload has no repository" in page.one(id="inbox").words
    assert "succeeded" in page.one(id="jobs").words
    (job,) = (one["href"] for one in page.one(id="jobs").every("a"))
    visit().get(str(job))


def test_a_failing_connection_says_why(served: Served, visit: Visit) -> None:
    async def fill(conn: Connection) -> Link:
        link = await account(conn, served)
        error = '{"code": "TRANSIENT", "message": "github answered 502 to GET /issues"}'
        await add_job(conn, link, status="failed", attempts=2, error=error)
        return link

    page = visit().get(place(on(served.settings, fill)))
    assert "Its last 2 runs ended badly; it is due in 9 min" in page.words
    assert "github answered 502 to GET /issues" in page.one(id="error").words
    assert "TRANSIENT" in page.one(id="error").words


def test_sync_now_asks_for_one_job_and_full_for_another(served: Served, visit: Visit) -> None:
    """C-70: a second one while it waits is the same."""
    link = make(served)
    ana = visit("actor")
    page = ana.follow(ana.submit(place(link), place(link), verb="sync"))
    assert "A sync is asked for." in page.words
    assert "queued" in page.one(id="jobs").words
    page = ana.follow(ana.submit(place(link), place(link), verb="sync"))
    assert "One was waiting or running already." in page.words
    page = ana.follow(ana.submit(place(link, "full"), place(link), verb="full"))
    assert "A full re-sync is asked for." in page.words
    jobs = "select job_type, status, priority from sync_jobs order by job_type"
    assert served.query(jobs) == [("full", "queued", 10), ("incremental", "queued", 10)]
    assert audited(served) == [("token:actor", "connection sync", str(link.id), str(link.tenant_id))] * 3


def test_a_connection_is_paused_resumed_and_disconnected(served: Served, visit: Visit) -> None:
    link = make(served)
    ana = visit("tenant")

    def said(verb: str, words: str) -> Page:
        page = ana.follow(ana.submit(place(link), place(link), verb=verb))
        assert words in page.words
        return page

    assert badges(said("pause", "The connection is paused."))[0] == "paused"
    assert badges(said("resume", "The connection goes on."))[0] == "new"
    question = ana.get(place(link, "disconnect"))
    assert question.one("h1").words == "Disconnect the account?"
    page = ana.follow(ana.submit(place(link, "disconnect"), place(link), verb="disconnect"))
    assert "The account is disconnected." in page.words
    assert "holdfast connect start github --tenant" in page.words
    rows = served.query("select status, access_token_ciphertext from connections")
    assert rows == [("revoked", None)]
    key = page.every("input", name="form_key")[0]["value"]
    response = ana.client.post(place(link), data={"form_key": key, "verb": "resume"})
    assert response.status_code == 409
    assert "connect the account anew" in read(response).words
    assert [row[1] for row in audited(served)] == [
        *("connection pause", "connection resume", "connection disconnect")
    ]


def test_the_cursor_is_seen_set_and_reset(served: Served, visit: Visit) -> None:
    link = make(served)
    ana = visit("actor")
    page = ana.follow(ana.submit(place(link), place(link), verb="cursor", cursor='{"page": 3}'))
    assert "The cursor is set." in page.words
    cursor = "select metadata #> '{sync,cursor}' from connections"
    assert served.query(cursor) == [({"page": 3},)]
    response = ana.submit(place(link), place(link), verb="cursor", cursor='{"page": ')
    assert response.status_code == 400
    wrong = read(response)
    assert "cursor: is no JSON" in wrong.one(role="alert").words
    assert wrong.one("textarea").words == '{"page":'
    assert "open" in wrong.one("details", id="edit-cursor").attributes
    page = ana.follow(ana.submit(place(link, "reset"), place(link), verb="reset"))
    assert "The cursor is forgotten" in page.words
    assert "it begins at the beginning" in page.one(id="cursor").words
    assert served.query(cursor) == [(None,)]


@pytest.mark.parametrize("seconds", ["59", "86401", "900.5", "-900", "soon", "9" * 19])
def test_an_interval_that_is_out_of_range_is_shown_again(served: Served, visit: Visit, seconds: str) -> None:
    """C-19: out-of-range values of a caller are refused, and nothing is written."""
    link = make(served)
    response = visit("actor").submit(place(link), place(link), verb="interval", interval=seconds)
    assert response.status_code == 400
    page = read(response)
    assert "interval_seconds: must be a whole number of seconds from 60 to 86400" in page.words
    assert page.one("input", name="interval")["value"] == seconds
    assert served.query("select metadata #> '{sync,interval_seconds}' from connections") == [(None,)]


def test_an_interval_is_set(served: Served, visit: Visit) -> None:
    link = make(served)
    ana = visit("actor")
    page = ana.follow(ana.submit(place(link), place(link), verb="interval", interval="120"))
    assert "It is synced every 120 seconds." in page.words
    assert "due in 1 min" in page.words, "the next run is not later than that"


@pytest.mark.parametrize("id", ["00000000-0000-4000-8000-00000000beef", "nonsense", "a%00b"])
def test_there_is_no_such_connection(visit: Visit, id: str) -> None:
    ana = visit()
    assert ana.client.get(f"/connectors/connections/{id}").status_code in (400, 404)
    assert ana.client.get(f"/connectors/signals/{id}").status_code in (400, 404)


def test_an_order_that_nobody_knows_is_refused(served: Served, visit: Visit) -> None:
    link = make(served)
    ana = visit("actor")
    response = ana.submit(place(link), place(link), verb="explode")
    assert response.status_code == 400
    ana.get(place(link, "explode"), 404)


def test_a_page_hears_of_what_changes(served: Served, visit: Visit) -> None:
    made = connected(served)
    ana = visit()
    for path in (place(made.link), LIST, INBOX, f"{SIGNALS}?provider=github"):
        shown = ana.get(path).one("html")["data-shown"]
        with events(ana.client, f"/live?path={quote(path, safe='')}&since={shown}") as heard:
            _change(served, made)
            name, mark = next(heard)
            assert (name, mark != shown) == ("changed", True), path


def _change(served: Served, made: Connected) -> None:
    async def change(conn: Connection) -> None:
        await deliver(conn, made.link, f"d-{uuid4()}")
        await conn.execute("update connections set display_name = %s", [str(uuid4())])
        await conn.execute(
            "insert into signals (id, tenant_id, provider_slug, connection_id, kind, occurred_at, payload)"
            " select gen_random_uuid(), tenant_id, provider_slug, id, 'code_pushed', now(), '{}'"
            " from connections"
        )

    on(served.settings, change)


# -- signals ---------------------------------------------------------------------------------------------


def test_signals_are_filtered_and_tell_their_payload_only_when_asked(served: Served, visit: Visit) -> None:
    made, other = connected(served), connected(served, provider="slack", name="Chat")
    served.query(
        "update signals set occurred_at = '2030-01-31T12:00Z' where connection_id = %s", other.link.id
    )
    ana = visit("reader")
    for query, many in (
        ("", 2),
        ("provider=slack", 1),
        ("kind=issue_created", 2),
        ("kind=code_pushed", 0),
        (f"connection={made.link.id}", 1),
        ("occurred_after=2030-01-31T11:59", 1),
        ("occurred_before=2030-01-31T11:59:00", 1),
        (f"tenant={B}", 0),
    ):
        page = ana.get(f"{SIGNALS}?{query}")
        assert len(accounts_on(page)) == many, query
        assert "It leaks" not in page.words
    page = ana.get(f"{SIGNALS}?connection={made.link.id}")
    assert f"k-{made.link.id}" in page.words
    (link,) = (one for one in page.every("a") if one.has("row-link"))
    one = ana.get(str(link["href"]))
    assert '"title": "It leaks"' in one.words
    assert "Acme & Sons" in one.words
    for query in ("connection=x", "occurred_after=now", "provider=nobody"):
        assert ana.get(f"{SIGNALS}?{query}", 400).every(role="alert")


# -- the inbox -------------------------------------------------------------------------------------------


def test_the_inbox_tells_what_has_become_of_every_webhook(served: Served, visit: Visit) -> None:
    async def fill(conn: Connection) -> Link:
        link = await account(conn, served)
        await deliver(conn, link, "one", done=True)
        await deliver(conn, link, "two", error="it is poisoned")
        await deliver(conn, link, "three")
        await deliver(conn, None, "four/with a slash")
        return link

    link = on(served.settings, fill)
    ana = visit()
    page = ana.get(INBOX)
    assert badges(page) == ["unmatched", "pending", "failed", "processed"]
    assert "it is poisoned" in page.words
    for status, count in (("unmatched", 1), ("pending", 1), ("failed", 1), ("processed", 1)):
        assert len(accounts_on(ana.get(f"{INBOX}?status={status}"))) == count
    assert len(accounts_on(ana.get(f"{INBOX}?connection={link.id}"))) == 3
    assert len(accounts_on(ana.get(f"{INBOX}?received_after=2099-01-31T12:00"))) == 0
    assert ana.get(f"{INBOX}?status=odd", 400).every(role="alert")
    (odd,) = (one for one in page.every("a") if one.has("row-link") and "slash" in one.words)
    whole = ana.get(str(odd["href"]))
    assert '"action": "opened"' in whole.words
    assert "x-github-event" in whole.words
    assert "x-hub-signature-256" not in whole.words
    assert "proved by signature" in whole.words


@pytest.mark.parametrize("odd", ["text", 7, [1], {}, {"message": None}, "<img src=x>"])
def test_what_others_wrote_there_is_shown_as_it_is(served: Served, visit: Visit, odd: Any) -> None:
    made = connected(served, name="<img src=x>")
    served.query(
        "update webhook_delivery set error = %s::text::jsonb, headers = %s::text::jsonb",
        *[json.dumps(odd)] * 2,
    )
    ana = visit()
    for path in (INBOX, f"/connectors/inbox/{made.addresses['delivery']}", place(made.link), LIST, SIGNALS):
        assert not [image for image in ana.get(path).every("img") if image["src"] == "x"], path


def test_one_webhook_is_replayed(served: Served, visit: Visit) -> None:
    made = connected(served)
    ana, bo = visit("actor"), visit("tenant")
    path = f"/connectors/inbox/{made.addresses['delivery']}"
    page = ana.follow(ana.submit(path, REPLAY))
    assert "1 delivery is to be processed once more." in page.words
    assert page.one("h1").words == "Webhook of github"
    assert badges(page) == ["pending"]
    served.query('update webhook_delivery set processed_at = now(), error = \'{"message": "no"}\'')
    page = bo.follow(bo.submit(INBOX, REPLAY))
    assert page.one("h1").words == "Inbox"
    assert badges(page) == ["pending"]
    assert served.query("select job_type from sync_jobs where status = 'queued'") == [("webhook",)]
    assert [row[1] for row in audited(served)] == ["webhook replay"] * 2
    key = bo.get(INBOX).every("input", name="form_key")[0]["value"]
    for more, status in (({"delivery": "gone"}, 404), ({}, 400), ({"provider": "x", "delivery": "y"}, 400)):
        data = {"form_key": key, "provider": "github", **more}
        assert bo.client.post(REPLAY, data=data).status_code == status


def test_all_webhooks_of_a_time_are_replayed_after_a_count(served: Served, visit: Visit) -> None:
    made = connected(served)

    async def fill(conn: Connection) -> None:
        await deliver(conn, made.link, "second", done=True)
        await deliver(conn, None, "nobody's", payload={})

    on(served.settings, fill)
    ana = visit("actor")
    assert ana.get(REPLAY).one("h1").words == "Which webhooks?"
    assert ana.get(f"{REPLAY}?provider=github").one("h1").words == "Which webhooks?"
    late = ana.get(f"{REPLAY}?provider=github&received_after=2099-01-31T12:00")
    assert "None came in this time." in late.words
    assert ana.get(f"{REPLAY}?provider=nobody&received_after=2099-01-31T12:00", 400).every(role="alert")
    path = f"{REPLAY}?provider=github&received_before=2099-01-31T12:00"
    assert ana.get(path).one("h1").words == "Replay 3 webhooks?"
    page = ana.follow(ana.submit(path, REPLAY))
    assert "2 deliveries are to be processed once more; 1 still fits no connection." in page.words
    assert badges(page) == ["unmatched", "pending", "pending"]
    mine = visit("other tenant").get(path)
    assert "None came in this time." in mine.words
