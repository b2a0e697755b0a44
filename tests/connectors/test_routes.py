"""The routes of connectors: what they show, what they refuse, and that nobody sees another's."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from psycopg import errors

from api.kit import A, B
from connectors.door import OTHER, SHOP_SECRET, TENANT, House, house
from connectors.kit import ACCESS, NOON, REFRESH, page, signal
from holdfast import Settings
from holdfast.apps.connectors import connections, signals
from holdfast.apps.connectors.connections import Link
from holdfast.db.pool import Connection

URL = "/api/connectors"


@pytest.fixture
async def here(settings: Settings, conn: Connection) -> AsyncIterator[House]:
    async with house(settings, conn) as here:
        yield here


async def keep(here: House, link: Link, *keys: str, **more: Any) -> None:
    """Signals of a connection."""
    async with here.conn.transaction():
        await connections.lock(here.conn, link.id)
        await signals.store(here.conn, link, [signal(key, **more) for key in keys])


# -- tenants and providers -------------------------------------------------------------------------------


async def test_a_tenant_is_made_and_found(here: House) -> None:
    """C-70: 201 with its address; the name is trimmed; the same id again is 409."""
    operator = here.client("actor")
    made = await operator.post(f"{URL}/tenants", json={"name": "  Acme "})
    assert (made.status_code, made.json()["name"]) == (201, "Acme")
    found = await operator.get(made.headers["location"], headers={"X-Tenant-Id": made.json()["id"]})
    assert found.json() == made.json()
    again = await operator.post(f"{URL}/tenants", json={"name": "x", "id": made.json()["id"]})
    assert (again.status_code, again.json()["code"]) == (409, "CONFLICT")
    assert (await operator.get(f"{URL}/tenants/{uuid4()}")).status_code == 404


@pytest.mark.parametrize("name", ["", "   ", "x" * 256, None, 7])
async def test_a_tenants_name_has_1_to_255_characters(here: House, name: Any) -> None:
    """Section 4: anything else names the field."""
    response = await here.client("actor").post(f"{URL}/tenants", json={"name": name})
    assert (response.status_code, response.json()["field"]) == (400, "name")
    assert await here.count("tenants") == 2


async def test_the_providers_are_for_everybody(here: House) -> None:
    """C-69: by name, with how they are connected; no token is needed."""
    found = (await here.client().get(f"{URL}/providers")).json()["providers"]
    names = [one["name"] for one in found]
    assert names == sorted(names)
    assert {"slack", "github", "jira", "google_drive", "google_calendar", "gmail", "zoho_cliq"} <= set(names)
    by_name = {one["name"]: one for one in found}
    assert by_name["github"]["scopes"] == ["repo", "read:org"]
    assert (by_name["zoho_cliq"]["auth_type"], by_name["zoho_mail"]["webhooks"]) == ("webhook-only", False)
    assert (by_name["shop"]["connectable"], by_name["jira"]["connectable"]) == (True, False)


# -- connections -----------------------------------------------------------------------------------------


async def test_a_connection_is_shown_with_its_health_and_without_its_tokens(here: House) -> None:
    """C-69: whether there are tokens and how they are sealed; not what they are."""
    link = await here.link(tenant=TENANT, provider="shop", display_name="The shop", scopes=["read"])
    bare = await here.link(tenant=TENANT, provider="ping", access=None, refresh=None, expires_in=None)
    here.script.syncs = [page("a", cursor=1)]
    await here.add(link)
    await here.work()
    answer = await here.client("tenant reader").get(f"{URL}/connections/{link.id}")
    told = answer.json()
    assert (told["provider"], told["display_name"], told["status"]) == ("shop", "The shop", "active")
    assert (told["has_access_token"], told["has_refresh_token"]) == (True, True)
    assert told["token_encryption_version"] == 1
    assert told["health"]["last_success"]
    assert (told["health"]["failures"], told["health"]["last_error"]) == (0, None)
    listed = (await here.client("tenant reader").get(f"{URL}/connections")).json()["connections"]
    assert [one["id"] for one in listed] == [str(link.id), str(bare.id)]
    assert listed[0] == told
    assert (listed[1]["has_access_token"], listed[1]["token_encryption_version"]) == (False, None)
    for mark in (ACCESS, REFRESH, "ciphertext"):
        assert mark not in answer.text


async def test_connections_are_filtered(here: House) -> None:
    """C-69: by provider, in any spelling, and by status."""
    one = await here.link(tenant=TENANT, provider="shop")
    two = await here.link(tenant=TENANT, provider="google_drive", status="error")
    client = here.client("tenant")

    async def listed(**params: str) -> list[str]:
        answer = (await client.get(f"{URL}/connections", params=params)).json()
        return [found["id"] for found in answer["connections"]]

    assert await listed(provider="shop") == [str(one.id)]
    assert await listed(provider="google-drive") == [str(two.id)]
    assert await listed(status="error") == [str(two.id)]
    assert await listed(provider="shop", status="error") == []


async def test_a_connection_can_be_worked_on_from_end_to_end(here: House) -> None:
    """C-70: every route once, in the order of a connection's life."""
    client = here.client("tenant")
    made = await client.post(f"{URL}/connections", json={"provider": "ping", "external_id": "bot"})
    assert made.status_code == 201
    url = made.headers["location"]

    async def ask(method: str, rest: str, status: int = 200, **more: Any) -> Any:
        response = await client.request(method, f"{url}{rest}", **more)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    asked = await ask("POST", "/sync", 202, json={"job_type": "incremental", "priority": 5})
    assert (asked["created"], asked["job"]["priority"], asked["job"]["status"]) == (True, 5, "queued")
    assert (await ask("POST", "/sync", 202))["job"]["id"] == asked["job"]["id"]
    assert (await ask("POST", "/sync", 202))["created"] is False
    assert (await ask("POST", "/full-sync", 202))["job"]["job_type"] == "full"
    assert (await ask("PUT", "/cursor", json={"cursor": {"n": 1}})) == {"cursor": {"n": 1}}
    assert (await ask("GET", "/cursor")) == {"cursor": {"n": 1}}
    assert "cursor" not in (await ask("POST", "/reset-cursor"))["metadata"]["sync"]
    changed = await ask("PATCH", "", json={"interval_seconds": 600, "external_ids": ["b2"]})
    assert changed["metadata"]["sync"]["interval_seconds"] == 600
    assert changed["metadata"]["webhook"]["external_ids"] == ["b2"]
    assert (await ask("POST", "/pause"))["status"] == "paused"
    assert (await ask("POST", "/sync", 409))["code"] == "CONFLICT"
    assert (await ask("POST", "/resume"))["status"] == "active"
    assert (await ask("POST", "/disconnect"))["status"] == "revoked"
    jobs = (await client.get(f"{URL}/jobs")).json()["jobs"]
    assert {job["error"]["code"] for job in jobs} == {"CANCELLED"}
    await ask("DELETE", "", 204)
    await ask("GET", "", 404)
    entries = (await here.client("admin").get("/api/audit", params={"limit": 100})).json()["entries"]
    assert {"connection create", "connection sync", "connection remove"} <= {one["action"] for one in entries}
    assert {one["who"] for one in entries} == {"token:tenant"}


# -- jobs, signals, deliveries ---------------------------------------------------------------------------


async def test_jobs_are_filtered_and_the_last_scheduled_comes_first(here: House) -> None:
    """C-69: `completed`, which others write, reads as succeeded."""
    one = await here.link(tenant=TENANT, provider="shop")
    two = await here.link(tenant=TENANT, provider="ping")
    ids = [
        await here.add(one, "full", run_at=NOON),
        await here.add(one, "incremental", run_at=NOON + timedelta(minutes=2)),
        await here.add(two, "incremental", run_at=NOON + timedelta(minutes=1)),
    ]
    ended = NOON + timedelta(hours=1)
    await here.conn.execute(
        "update sync_jobs set status = 'completed', started_at = %s, finished_at = %s where id = %s",
        (NOON, ended, ids[0]),
    )
    client = here.client("tenant reader")

    async def listed(**params: Any) -> list[int]:
        answer = (await client.get(f"{URL}/jobs", params=params)).json()
        return [list(map(str, ids)).index(job["id"]) for job in answer["jobs"]]

    assert await listed() == [1, 2, 0]
    assert await listed(status="succeeded") == [0]
    assert await listed(status="queued") == [1, 2]
    assert await listed(job_type="full") == [0]
    assert await listed(provider="ping") == [2]
    assert await listed(connection_id=str(one.id)) == [1, 0]
    assert await listed(started_after=NOON.isoformat()) == [0]
    assert await listed(started_after=(NOON + timedelta(seconds=1)).isoformat()) == []
    assert await listed(finished_after="2026-03-01T13:00:00Z") == [0]
    job = (await client.get(f"{URL}/jobs/{ids[0]}")).json()
    assert (job["status"], job["connection_id"]) == ("succeeded", str(one.id))


async def test_a_time_without_end_hides_no_jobs(here: House) -> None:
    """C-69: others may have written it."""
    link = await here.link(tenant=TENANT, provider="shop")
    await here.add(link)
    await here.conn.execute("update sync_jobs set scheduled_at = 'infinity', retry_after = '-infinity'")
    (job,) = (await here.client("tenant").get(f"{URL}/jobs")).json()["jobs"]
    assert (job["scheduled_at"][:4], job["retry_after"]) == ("9999", None)


async def test_signals_are_filtered_and_their_payload_is_asked_for(here: House) -> None:
    """C-69: both bounds count; payloads only with include_payload."""
    link = await here.link(tenant=TENANT, provider="shop")
    await keep(here, link, "a", "b")
    await keep(here, link, "c", kind="issue_closed")
    client = here.client("tenant reader")

    async def listed(**params: Any) -> list[str]:
        answer = (await client.get(f"{URL}/signals", params=params)).json()
        return sorted(one["dedupe_key"] for one in answer["signals"])

    assert await listed() == ["a", "b", "c"]
    assert await listed(kind="issue_closed") == ["c"]
    assert await listed(occurred_after=NOON.isoformat(), occurred_before=NOON.isoformat()) == ["a", "b", "c"]
    assert await listed(occurred_after=(NOON + timedelta(seconds=1)).isoformat()) == []
    assert await listed(connection_id=str(uuid4())) == []
    bare = (await client.get(f"{URL}/signals")).json()["signals"]
    whole = (await client.get(f"{URL}/signals", params={"include_payload": "true"})).json()["signals"]
    assert [one["payload"] for one in bare] == [None] * 3
    assert {one["payload"]["key"] for one in whole} == {"a", "b", "c"}
    assert (await client.get(f"{URL}/signals/{bare[0]['id']}")).json() == whole[0]


async def test_deliveries_are_shown_filtered_and_replayed(here: House) -> None:
    """C-54: by what has become of them; one of them with headers and payload."""
    link = await here.link(tenant=TENANT, provider="shop")
    for name in ("pending", "processed", "failed", "unmatched/1"):
        await here.deliver(link, name, {"name": name}, now=NOON)
    for text in (
        "update webhook_delivery set processed_at = now() where delivery_id in ('processed', 'failed')",
        "update webhook_delivery set error = '{\"code\": \"E\"}' where delivery_id = 'failed'",
        "update webhook_delivery set connection_id = null where delivery_id = 'unmatched/1'",
    ):
        await here.conn.execute(text.encode())
    client = here.client("tenant")
    for status in ("pending", "processed", "failed", "unmatched"):
        answer = (await client.get(f"{URL}/deliveries", params={"status": status})).json()
        (one,) = answer["deliveries"]
        assert (one["delivery_id"].partition("/")[0], one["status"]) == (status, status)
        assert "payload" not in one
    whole = (await client.get(f"{URL}/deliveries/shop/unmatched/1")).json()
    assert whole["payload"] == {"name": "unmatched/1"}
    assert whole["headers"] == {"x-fake-delivery": "unmatched/1"}
    done = await client.post(f"{URL}/deliveries/replay", json={"provider": "shop", "delivery_id": "failed"})
    assert done.json() == {"deliveries": 1, "unmatched": 0}
    times = {"received_after": NOON.isoformat(), "received_before": NOON.isoformat()}
    done = await client.post(f"{URL}/deliveries/replay", json={"provider": "shop", **times})
    assert done.json() == {"deliveries": 3, "unmatched": 1}


# -- bad input -------------------------------------------------------------------------------------------

SOME = "11111111-1111-4111-8111-111111111111"
BAD: list[tuple[str, str, Any, int, str | None]] = [
    ("GET", "connections?provider=nothing", None, 400, "provider"),
    ("GET", "jobs?provider=nothing", None, 400, "provider"),
    ("GET", "signals?provider=nothing", None, 400, "provider"),
    ("GET", "deliveries?provider=nothing", None, 400, "provider"),
    ("GET", "jobs?status=done", None, 400, "status"),
    ("GET", "jobs?job_type=half", None, 400, "job_type"),
    ("GET", "jobs?connection_id=x", None, 400, "connection_id"),
    ("GET", "jobs?started_after=yesterday", None, 400, "started_after"),
    ("GET", "jobs?finished_after=2026-03-01T12:00:00", None, 400, "finished_after"),
    ("GET", "signals?occurred_after=1772366400", None, 400, "occurred_after"),
    ("GET", "signals?occurred_before=never", None, 400, "occurred_before"),
    ("GET", "signals?include_payload=perhaps", None, 400, "include_payload"),
    ("GET", "connections?status=asleep", None, 400, "status"),
    ("GET", "connections?colour=red", None, 400, "colour"),
    ("GET", "deliveries?status=done", None, 400, "status"),
    ("GET", "connections/x", None, 400, "id"),
    ("GET", f"connections/{SOME}", None, 404, None),
    ("GET", f"jobs/{SOME}", None, 404, None),
    ("GET", f"signals/{SOME}", None, 404, None),
    ("GET", "deliveries/shop/nothing", None, 404, None),
    ("GET", "deliveries/nothing/nothing", None, 404, None),
    ("POST", f"connections/{SOME}/sync", {"job_type": "incremental"}, 404, None),
    ("POST", f"connections/{SOME}/sync", {"job_type": "half"}, 400, "job_type"),
    ("POST", f"connections/{SOME}/sync", {"priority": 40_000}, 400, "priority"),
    ("POST", f"connections/{SOME}/sync", {"priority": "high"}, 400, "priority"),
    ("POST", f"connections/{SOME}/sync", {"colour": "red"}, 400, "colour"),
    ("PATCH", f"connections/{SOME}", {}, 400, "interval_seconds"),
    ("PATCH", f"connections/{SOME}", {"interval_seconds": 900}, 404, None),
    *(
        ("PATCH", f"connections/{SOME}", {"interval_seconds": wrong}, 400, "interval_seconds")
        for wrong in (59, 86_401, "900", True, 900.5)
    ),
    ("PUT", f"connections/{SOME}/cursor", {}, 400, "cursor"),
    ("PUT", f"connections/{SOME}/cursor", {"cursor": "a\x00"}, 400, "cursor"),
    ("POST", "connections", {"provider": "shop", "external_id": "x"}, 400, "provider"),
    ("POST", "connections", {"provider": "nothing", "external_id": "x"}, 400, "provider"),
    ("POST", "connections", {"provider": "ping", "external_id": ""}, 400, "external_id"),
    ("POST", "connections", {"provider": "ping"}, 400, "external_id"),
    ("POST", "connect/ping", None, 400, "provider"),
    ("POST", "connect/nothing", None, 404, None),
    ("POST", "connect/shop", {"redirect_uri": "https://evil.example"}, 400, "redirect_uri"),
    ("POST", "deliveries/replay", {"provider": "shop"}, 400, "delivery_id"),
    ("POST", "deliveries/replay", {"provider": "nothing", "delivery_id": "x"}, 400, "provider"),
    ("POST", "deliveries/replay", {"provider": "shop", "delivery_id": "x"}, 404, None),
    ("GET", "webhook-secrets/nothing", None, 404, None),
]


async def test_each_bad_input_answers_as_its_table_row_says(here: House) -> None:
    """Section 4: the status, the field, and nothing is written."""
    before, client = await here.everything(), here.client("tenant")
    for method, path, body, status, field in BAD:
        response = await client.request(method, f"{URL}/{path}", json=body)
        assert response.status_code == status, (method, path, body, response.text)
        problem = response.json()
        assert response.headers["content-type"] == "application/problem+json"
        assert problem.get("field") == field, (path, problem)
        assert problem["trace_id"]
        if field:
            assert field in problem["details"], (path, problem)
    assert await here.everything() == before
    assert await here.count("oauth_states") == 0


async def test_the_token_is_looked_at_before_the_tenant(here: House) -> None:
    """C-72: no or a wrong token is 401, whatever the header says."""
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        for tenant in ({}, {"X-Tenant-Id": "no uuid"}, {"X-Tenant-Id": A}):
            response = await here.client(None, **headers, **tenant).get(f"{URL}/connections")
            assert response.status_code == 401


async def test_a_tenant_must_be_named_and_be_a_uuid(here: House) -> None:
    """C-72: by the header, for operators; the problem names it."""
    link = await here.link(tenant=TENANT, provider="shop")
    asked = [
        ("GET", "connections", None),
        ("GET", f"connections/{link.id}", None),
        ("GET", "jobs", None),
        ("GET", "signals", None),
        ("GET", "deliveries", None),
        ("GET", "deliveries/shop/x", None),
        ("GET", "webhook-secrets/shop", None),
        ("POST", f"connections/{link.id}/sync", None),
        ("POST", f"connections/{link.id}/pause", None),
        ("DELETE", f"connections/{link.id}", None),
        ("POST", "connect/shop", None),
        ("POST", "webhooks/shop", {}),
        ("POST", "deliveries/replay", {"provider": "shop", "delivery_id": "x"}),
    ]
    bearer = {"Authorization": f"Bearer {here.tokens['admin']}"}
    for headers in ({}, {"X-Tenant-Id": "acme"}):
        for method, path, body in asked:
            response = await here.client(None, **bearer, **headers).request(
                method, f"{URL}/{path}", json=body
            )
            assert (response.status_code, response.json().get("field")) == (400, "X-Tenant-Id"), path
            assert "X-Tenant-Id" in response.json()["details"]
    assert (await here.now(link)).status == "active"


# -- whose it is -----------------------------------------------------------------------------------------


@dataclass
class World:
    """Rows of B, as A sees them."""

    here: House
    link: Link
    job: str
    signal: str

    def marks(self, given: str) -> list[str]:
        """What no answer may have, but for what was said in the question."""
        marks = (B, str(self.link.id), self.job, self.signal, "secret-of-b", "delivery-of-b", "account-of-b")
        return [mark for mark in marks if mark not in given]


@pytest.fixture
async def world(here: House) -> World:
    await here.link(tenant=TENANT, provider="shop", external_id="mine")
    link = await here.link(
        tenant=OTHER, provider="shop", external_id="account-of-b", metadata={"note": "secret-of-b"}
    )
    job = await here.add(link, cursor="secret-of-b")
    await keep(here, link, "secret-of-b")
    await here.deliver(link, "delivery-of-b", {"note": "secret-of-b"})
    (row,) = await here.rows("select id from signals")
    return World(here, link, str(job), str(row["id"]))


def questions(world: World) -> list[tuple[str, str, Any]]:
    one = f"connections/{world.link.id}"
    posts = ("sync", "full-sync", "reset-cursor", "pause", "resume", "disconnect")
    return [
        *(("GET", name, None) for name in ("connections", "jobs", "signals", "deliveries")),
        *(("GET", f"{name}?provider=shop", None) for name in ("connections", "jobs", "deliveries")),
        ("GET", "signals?include_payload=true", None),
        ("GET", f"jobs?connection_id={world.link.id}", None),
        ("GET", f"signals?connection_id={world.link.id}", None),
        ("GET", f"deliveries?connection_id={world.link.id}", None),
        ("GET", one, None),
        ("GET", f"{one}/cursor", None),
        ("GET", f"jobs/{world.job}", None),
        ("GET", f"signals/{world.signal}", None),
        ("GET", "deliveries/shop/delivery-of-b", None),
        ("GET", f"tenants/{B}", None),
        *(("POST", f"{one}/{verb}", None) for verb in posts),
        ("PATCH", one, {"interval_seconds": 900}),
        ("PUT", f"{one}/cursor", {"cursor": 1}),
        ("DELETE", one, None),
        ("POST", "deliveries/replay", {"provider": "shop", "delivery_id": "delivery-of-b"}),
        ("POST", "deliveries/replay", {"provider": "shop", "received_after": "2020-01-01T00:00:00Z"}),
    ]


@pytest.mark.parametrize("confined", [True, False])
async def test_no_route_shows_another_tenants_row(world: World, confined: bool) -> None:
    """C-13: by the database itself, and by our own conditions where its policies are gone."""
    here = world.here
    if not confined:
        for table in ("connections", "sync_jobs", "signals", "webhook_delivery", "tenants"):
            await here.conn.execute(f"alter table {table} disable row level security".encode())
    before = await here.everything()
    thief = here.client("tenant")
    within = here.client("admin", **{"X-Tenant-Id": A})
    for client in (thief, within):
        for method, path, body in questions(world):
            response = await client.request(method, f"{URL}/{path}", json=body)
            words = response.text + str(response.headers)
            given = f"{path} {json.dumps(body)}"
            assert [mark for mark in world.marks(given) if mark in words] == [], (method, path)
            assert response.status_code < 500, (method, path, response.text)
            assert await here.everything() == before, (method, path)
    owner = here.client("other tenant")
    told = [
        (await owner.get(f"{URL}/{path}")).text for method, path, _ in questions(world) if method == "GET"
    ]
    assert sum("secret-of-b" in one or B in one for one in told) >= 10


async def test_what_is_theirs_and_what_is_not_there_are_told_in_the_same_words(world: World) -> None:
    """C-13: 404, and not 403."""
    thief = world.here.client("tenant")
    for method, path, body in questions(world):
        known = next((mark for mark in (str(world.link.id), world.job, world.signal) if mark in path), None)
        if known is None or "?" in path:
            continue
        theirs = await thief.request(method, f"{URL}/{path}", json=body)
        nothing = await thief.request(method, f"{URL}/{path.replace(known, SOME)}", json=body)
        assert theirs.status_code == nothing.status_code == 404, path
        words = [json.dumps(one.json() | {"trace_id": None}) for one in (theirs, nothing)]
        assert words[0].replace(known, SOME) == words[1]


async def test_a_job_or_signal_naming_another_tenants_connection_is_refused_by_the_database(
    world: World,
) -> None:
    """C-14: whoever writes it."""
    conn, link = world.here.conn, world.link
    for text in (
        "insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type)"
        " values (gen_random_uuid(), %(tenant)s, 'shop', %(link)s, 'full')",
        "insert into signals (id, tenant_id, provider_slug, connection_id, kind, occurred_at, payload)"
        " values (gen_random_uuid(), %(tenant)s, 'shop', %(link)s, 'issue_created', now(), '{}')",
        "insert into webhook_delivery (provider_slug, tenant_id, connection_id, delivery_id, body_sha256,"
        " verification) values ('shop', %(tenant)s, %(link)s, 'x', '', 'operator')",
    ):
        with pytest.raises(errors.ForeignKeyViolation):
            await conn.execute(text.encode(), {"tenant": TENANT, "link": link.id})


async def test_a_sync_of_theirs_cannot_be_enqueued_through_the_ledger_either(world: World) -> None:
    """C-14: /api/ledgers/sync_jobs knows no more than we do."""
    body = {
        "kind": "full",
        "extras": {"connection_id": str(world.link.id), "provider_slug": "shop"},
    }
    response = await world.here.client("tenant").post("/api/ledgers/sync_jobs/rows", json=body)
    assert 400 <= response.status_code < 500, response.text
    assert [mark for mark in world.marks(json.dumps(body)) if mark in response.text] == []


# -- secrets ---------------------------------------------------------------------------------------------


async def test_no_token_or_key_appears_in_any_log_or_answer(
    here: House, caplog: pytest.LogCaptureFixture
) -> None:
    """C-57: whatever is asked, and however it goes wrong."""
    caplog.set_level(logging.DEBUG)
    link = await here.link(tenant=TENANT, provider="shop")
    broken = await here.link(tenant=TENANT, provider="shop")
    await here.conn.execute(
        "update connections set access_token_ciphertext = 'plain-text-token' where id = %s", (broken.id,)
    )
    await here.add(broken)
    await here.work()
    client = here.client("tenant")
    answers: list[httpx.Response] = []
    for path in ("connections", f"connections/{link.id}", f"connections/{broken.id}", "jobs", "signals"):
        answers.append(await client.get(f"{URL}/{path}"))
    answers.append(await client.post(f"{URL}/connect/shop"))
    answers.append(await client.post(f"{URL}/connections/{link.id}/disconnect"))
    answers.append(await here.client("admin").get("/metrics"))
    answers.append(await here.client("admin").get("/api/audit"))
    words = "\n".join([caplog.text, *(one.text for one in answers)])
    assert here.service.settings.crypto_key
    for mark in (
        ACCESS,
        REFRESH,
        "plain-text-token",
        SHOP_SECRET,
        "c-secret-1",
        here.service.settings.crypto_key,
    ):
        assert mark not in words
    assert (await here.now(broken)).status == "error"
