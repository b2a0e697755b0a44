"""What goes wrong at the routes of the connectors: each code with its status, its shape, and nothing more.

The codes are the API's own; `docs/readings.md` says why they are not those of the text.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import pytest

from api.kit import A
from connectors.door import PING, SECRET, TENANT, House, body_of, house, signature
from holdfast import Settings, logs
from holdfast.api.problems import TITLES
from holdfast.apps.connectors import actions, oauth
from holdfast.apps.connectors.protocol import Permanent
from holdfast.db import pool as pools
from holdfast.db.pool import Connection

URL = "/api/connectors"
SHAPE = {"type", "title", "status", "code", "detail", "trace_id"}
BODY = body_of({"account": "acme"})
SLACK = f"{URL}/webhooks/slack/{A}"  # asks for a time as well, so that nothing here is right by chance


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request that goes wrong, and what must come back beside the common shape."""

    status: int
    code: str
    ask: Callable[[House], Awaitable[httpx.Response]]
    more: frozenset[str] = frozenset()
    headers: frozenset[str] = frozenset()
    details: dict[str, Any] | None = None
    words: str = field(default="", repr=False)


def case(
    status: int, code: str, *more: str, headers: tuple[str, ...] = (), **rest: Any
) -> Callable[..., Case]:
    def found(ask: Callable[[House], Awaitable[httpx.Response]]) -> Case:
        return Case(
            status=status,
            code=code,
            ask=ask,
            more=frozenset(more),
            headers=frozenset(headers),
            **rest,
        )

    return found


WHO = ("www-authenticate",)
FIELD = ("field", "details")


@case(400, "INVALID_INPUT", *FIELD, words="provider: ")
async def _a_filter_that_is_not_right(here: House) -> httpx.Response:
    return await here.client("tenant").get(f"{URL}/connections", params={"provider": "nothing"})


@case(400, "INVALID_INPUT", *FIELD, "errors", words="limit: ")
async def _a_query_that_is_not_right(here: House) -> httpx.Response:
    return await here.client("tenant").get(f"{URL}/connections", params={"limit": 101})


@case(400, "INVALID_INPUT", *FIELD, details={"error_type": "csrf_validation_failed"})
async def _an_unknown_state(here: House) -> httpx.Response:
    return await here.client().get(f"{URL}/callback/shop", params={"state": "x", "code": "c"})


@case(400, "INVALID_INPUT", *FIELD, words="X-Tenant-Id: is missing")
async def _no_tenant(here: House) -> httpx.Response:
    client = here.client("reader")
    del client.headers["X-Tenant-Id"]
    return await client.get(f"{URL}/connections")


@case(401, "NOT_ALLOWED", headers=WHO)
async def _no_token(here: House) -> httpx.Response:
    return await here.client().get(f"{URL}/connections")


@case(401, "NOT_ALLOWED", headers=WHO)
async def _no_secret_for_webhooks(here: House) -> httpx.Response:
    return await here.deliver_to(f"{URL}/webhooks/jira/{A}", BODY)


@case(401, "INVALID_SIGNATURE", headers=WHO, words="the signature is not right")
async def _a_wrong_signature(here: House) -> httpx.Response:
    return await here.deliver_to(f"{URL}/webhooks/shop/{A}", BODY, **signature(BODY, "another secret"))


@case(403, "NOT_ALLOWED")
async def _a_reader_that_acts(here: House) -> httpx.Response:
    return await here.client("reader").post(f"{URL}/connections/{uuid4()}/pause")


@case(403, "NOT_ALLOWED")
async def _a_tenant_that_asks_for_all(here: House) -> httpx.Response:
    return await here.client("tenant").get(f"{URL}/jobs", params={"all_tenants": "true"})


@case(404, "NOT_FOUND", words="no connection with the id ")
async def _an_unknown_connection(here: House) -> httpx.Response:
    return await here.client("tenant").get(f"{URL}/connections/{uuid4()}")


@case(404, "NOT_FOUND", words="no provider with the id nothing")
async def _an_unknown_provider(here: House) -> httpx.Response:
    return await here.client("tenant").post(f"{URL}/connect/nothing")


@case(405, "METHOD_NOT_ALLOWED", headers=("allow",))
async def _a_method_that_is_not_there(here: House) -> httpx.Response:
    return await here.client("tenant").delete(f"{URL}/connections")


@case(409, "CONFLICT", words="tenant: ")
async def _a_tenant_that_is_there(here: House) -> httpx.Response:
    return await here.client("admin").post(f"{URL}/tenants", json={"id": A, "name": "A again"})


@case(409, "CONFLICT", words="connection: it is revoked and cannot pause")
async def _a_pause_of_what_is_gone(here: House) -> httpx.Response:
    link = await here.link(tenant=TENANT, provider="shop", status="revoked")
    return await here.client("tenant").post(f"{URL}/connections/{link.id}/pause")


@case(409, "ILLEGAL_EDGE", words="cannot requeue sync_jobs ")
async def _a_requeue_of_what_waits(here: House) -> httpx.Response:
    job = await here.add(await here.link(tenant=TENANT, provider="shop"))
    return await here.client("tenant").post(f"/api/ledgers/sync_jobs/rows/{job}/requeue")


@case(409, "IDEMPOTENCY_CONFLICT", words="sync_jobs: the key 'incremental' is taken by ")
async def _a_requeue_beside_a_sibling(here: House) -> httpx.Response:
    link = await here.link(tenant=TENANT, provider="shop")
    old = await here.add(link)
    await here.conn.execute("update sync_jobs set status = 'failed' where id = %s", (old,))
    sibling = await here.add(link)
    answer = await here.client("tenant").post(f"/api/ledgers/sync_jobs/rows/{old}/requeue")
    assert str(sibling) in answer.json()["detail"]
    return answer


@case(413, "TOO_LARGE")
async def _a_body_that_is_too_large(here: House) -> httpx.Response:
    return await here.deliver_to(SLACK, b"x" * 2049)


@case(429, "TOO_MANY_REQUESTS", "retry_after", headers=("retry-after",))
async def _too_many_webhooks(here: House) -> httpx.Response:
    for _ in range(3):
        assert (await here.deliver_to(SLACK, b"x")).status_code == 401
    return await here.deliver_to(SLACK, b"x")


@case(501, "WEBHOOKS_NOT_SUPPORTED", words="there is no connector for jira yet")
async def _webhooks_that_nobody_reads(here: House) -> httpx.Response:
    await _without_jira(here)
    return await here.client("actor").post(f"{URL}/webhooks/jira", json={})


@case(501, "NOT_SUPPORTED", words="there is no connector for jira yet")
async def _an_account_that_nobody_can_connect(here: House) -> httpx.Response:
    await _without_jira(here)
    return await here.client("tenant").post(f"{URL}/connect/jira")


async def _without_jira(here: House) -> None:
    await here.client().get(f"{URL}/providers")  # makes the desk
    service = here.api.state.connectors_desk.service
    known = {slug: kind for slug, kind in service.known.items() if slug != "jira"}
    object.__setattr__(service, "known", known)


@case(502, "PROVIDER_ERROR", "details", details={"provider": "shop"}, words="shop answered 400")
async def _a_provider_that_refuses(here: House) -> httpx.Response:
    here.trade.grants_given = [Permanent(message="shop answered 400 to POST /token")]
    state = httpx.URL(await oauth.start(here.service, TENANT, "shop")).params["state"]
    return await here.client().get(f"{URL}/callback/shop", params={"state": state, "code": "c"})


@case(503, "DATABASE_UNAVAILABLE")
async def _nothing_free(here: House) -> httpx.Response:
    pool = here.app.database.pool
    async with pools.acquire(pool), pools.acquire(pool):
        pool.timeout = 0.2  # only now: a start may take longer on a busy machine
        return await here.client("tenant").get(f"{URL}/connections")


CASES = {name.removeprefix("_"): one for name, one in list(globals().items()) if isinstance(one, Case)}


@pytest.fixture
async def here(settings: Settings, conn: Connection) -> AsyncIterator[House]:
    small = {"db_max_connections": 2, "webhook_max_bytes": 2048, "webhook_rate_per_minute": 3}
    async with house(settings, conn, **small) as here:
        yield here


def told(answer: httpx.Response) -> dict[str, Any]:
    """The problem of an answer, which has the shape of all problems."""
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem.keys() >= SHAPE, problem
    assert problem["type"] == f"urn:holdfast:problem:{problem['code'].lower()}"
    assert (problem["status"], problem["title"]) == (answer.status_code, TITLES[answer.status_code])
    assert problem["detail"]
    assert problem["trace_id"] == answer.headers["x-trace-id"]
    assert len(problem["trace_id"]) == 32
    return problem


@pytest.mark.parametrize("name", CASES)
async def test_each_problem_has_its_code_its_status_and_its_shape(here: House, name: str) -> None:
    """C-67: application/problem+json, no key that is not said here, and no header that is missing."""
    expected = CASES[name]
    answer = await expected.ask(here)
    problem = told(answer)
    assert (answer.status_code, problem["code"]) == (expected.status, expected.code), problem
    assert problem.keys() == SHAPE | expected.more, problem
    assert problem["detail"].startswith(expected.words)
    if expected.details is not None:
        assert problem["details"] == expected.details
    elif "field" in expected.more:
        assert problem["details"].keys() == {problem["field"]}
    special = {"www-authenticate", "retry-after", "allow"}
    assert special & answer.headers.keys() == expected.headers


async def test_how_long_to_wait_is_said_twice_and_alike(here: House) -> None:
    """C-67: `retry_after` and the header `Retry-After`, in whole seconds of the minute that is left."""
    answer = await CASES["too_many_webhooks"].ask(here)
    wait = answer.json()["retry_after"]
    assert answer.headers["retry-after"] == str(wait)
    assert isinstance(wait, int)
    assert 1 <= wait <= 60


async def test_what_nobody_foresaw_is_500_tells_nothing_and_is_found_in_the_log(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-67: a generic text; the log has the rest under the same trace id."""

    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"a bug that quotes {SECRET}")

    monkeypatch.setattr(actions, "pause", broken)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(logs.Origin())
    handler.setFormatter(logs.JsonLines())
    log = logging.getLogger("holdfast.api")
    log.addHandler(handler)
    try:
        answer = await here.client("tenant").post(f"{URL}/connections/{uuid4()}/pause")
    finally:
        log.removeHandler(handler)
    problem = told(answer)
    assert (answer.status_code, problem["code"]) == (500, "INTERNAL")
    assert problem.keys() == SHAPE
    assert problem["detail"] == "the server's log tells more under this trace id"
    assert SECRET not in answer.text
    (line,) = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert line["trace_id"] == problem["trace_id"]
    assert line["level"] == "ERROR"
    assert "RuntimeError" in line["message"]


async def test_a_trace_that_the_caller_brings_is_the_problems(here: House) -> None:
    """C-67: so that both sides look for the same id."""
    trace = uuid4().hex
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    answer = await here.client("tenant", **headers).get(f"{URL}/connections/{uuid4()}")
    assert told(answer)["trace_id"] == trace


async def test_a_problem_of_the_public_door_names_no_tenant_and_no_secret(here: House) -> None:
    """C-67: of all that goes wrong there."""
    for name in ("a_wrong_signature", "no_secret_for_webhooks", "too_many_webhooks", "an_unknown_state"):
        text = (await CASES[name].ask(here)).text
        assert A not in text
        assert SECRET not in text
        assert PING.slug not in text
