"""What a provider's answers mean, over real HTTP."""

from __future__ import annotations

import gzip
import logging
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from connectors.servers.base import Asked, Reply, Server, route
from holdfast.apps.connectors import http
from holdfast.apps.connectors.http import Answer, granted, oauth_error, opened
from holdfast.apps.connectors.protocol import (
    ConnectorError,
    Permanent,
    RateLimited,
    Transient,
    Unauthorized,
)

SECRET = "token-that-nobody-may-see"


class Echo(Server):
    def __init__(self) -> None:
        super().__init__()
        self.elsewhere = "http://127.0.0.1:9/"

    @route("GET", "/echo")
    @route("POST", "/echo")
    def echo(self, request: Asked) -> Reply:
        said = {"query": dict(request.query), "form": request.form, "headers": dict(request.headers)}
        return Reply(said, headers={"Set-Cookie": "session=1"})

    @route("GET", "/empty")
    def empty(self, request: Asked) -> Reply:
        return Reply(None, 204)

    @route("GET", "/moved")
    def moved(self, request: Asked) -> Reply:
        return Reply(None, 301, {"Location": "/echo?moved=1"})

    @route("GET", "/round")
    def round(self, request: Asked) -> Reply:
        return Reply(None, 302, {"Location": "/round"})

    @route("GET", "/away")
    def away(self, request: Asked) -> Reply:
        return Reply(None, 302, {"Location": self.elsewhere})

    @route("GET", "/large")
    def large(self, request: Asked) -> Reply:
        body = gzip.compress(b'"' + b"x" * (http.LARGEST + 1) + b'"')
        return Reply(body, headers={"Content-Encoding": "gzip"})


@pytest.fixture
def server() -> Iterator[Echo]:
    with Echo() as server:
        yield server


async def asked(server: Server, path: str, method: str = "GET", **options: object) -> Answer:
    async with opened("example") as client:
        return await client.request(method, server.url + path, token=SECRET, **options)  # type: ignore[arg-type]


async def refused(server: Server, path: str = "/echo?key=hidden", **options: object) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        await asked(server, path, **options)
    return caught.value


async def test_a_good_answer_is_its_json_its_status_and_its_headers(server: Echo) -> None:
    """C-35: a connector is handed an HTTP that sends its token and leaves out what is None."""
    answer = await asked(server, "/echo", params={"a": 1, "b": None}, headers={"X-More": "yes"})
    assert answer.status == 200
    assert answer.data["query"] == {"a": "1"}
    assert answer.data["headers"]["authorization"] == f"Bearer {SECRET}"
    assert answer.data["headers"]["x-more"] == "yes"
    assert answer.headers["Set-Cookie"] == answer.headers["set-cookie"]
    posted = await asked(server, "/echo", "POST", form={"a": "ä&b", "b": None})
    assert posted.data["form"] == {"a": "ä&b"}
    assert (await asked(server, "/empty")).data is None


async def test_no_cookie_of_one_account_is_sent_with_another_ones_request(server: Echo) -> None:
    async with opened("example") as client:
        await client.request("GET", server.url + "/echo")
        second = await client.request("GET", server.url + "/echo")
    assert "cookie" not in second.data["headers"]


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (401, {}, Unauthorized),
        (429, {}, RateLimited),
        (403, {"X-RateLimit-Remaining": "0"}, RateLimited),
        (403, {"Retry-After": "60"}, RateLimited),
        (403, {"X-RateLimit-Remaining": "17"}, Permanent),
        (403, {}, Permanent),
        (400, {}, Permanent),
        (404, {}, Permanent),
        (422, {}, Permanent),
        (408, {}, Transient),
        (500, {}, Transient),
        (503, {"Retry-After": "5"}, Transient),
    ],
)
async def test_every_status_that_is_no_success_has_its_error(
    server: Echo, status: int, headers: dict[str, str], kind: type[ConnectorError]
) -> None:
    """C-36: 401, 429 and GitHub's 403 have their own; other 4xx do not get better, 5xx may."""
    server.fail_next(status, headers, {"message": "body of the provider"})
    error = await refused(server)
    assert type(error) is kind
    assert str(error) == f"example answered {status} to GET /echo"


@pytest.mark.parametrize("body", [b"{oops", b"<html>", b"\xff\xfe\xfa", b'{"a": NaN}', b"[" * 100_000])
async def test_an_answer_that_cannot_be_read_is_a_passing_fault(server: Echo, body: bytes) -> None:
    """C-36: unreadable answers may be readable next time."""
    server.fail_next(200, body=body)
    error = await refused(server)
    assert type(error) is Transient
    assert str(error) == "example answered GET /echo with something that nobody can read"


async def test_an_answer_that_is_too_large_is_not_read_to_its_end(server: Echo) -> None:
    """C-36: more than 8 MiB, unpacked, is a passing fault."""
    error = await refused(server, "/large")
    assert type(error) is Transient
    assert "too much" in str(error)


async def test_a_server_that_cannot_be_reached_is_a_passing_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """C-36: network faults, and an answer that does not come."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/echo?key=hidden"
        async with opened("example") as client:
            with pytest.raises(Transient, match=r"example could not be asked GET /echo \(ConnectError\)"):
                await client.request("GET", url)
            deaf.listen()
            monkeypatch.setattr(http, "WHOLE", 0.05)
            with pytest.raises(Transient, match=r"\(TimeoutError\)"):
                await client.request("GET", url)
            with pytest.raises(Permanent, match="has an address that is none"):
                await client.request("GET", "http://host:port/")


async def test_the_hint_is_seconds_or_a_date_or_the_reset_of_the_limit(server: Echo) -> None:
    """C-36: `Retry-After` may be seconds or a date."""
    soon = datetime.now(UTC) + timedelta(seconds=90)
    reset = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(soon.timestamp()))}
    for status, headers, least, most in (
        (429, {"Retry-After": "7"}, 7, 7),
        (429, {"Retry-After": "0.5"}, 0.5, 0.5),
        (429, {"Retry-After": format_datetime(soon, usegmt=True)}, 80, 92),
        (429, {"Retry-After": format_datetime(soon - timedelta(hours=1), usegmt=True)}, 0, 0),
        (403, reset, 80, 92),
        (403, {**reset, "Retry-After": "3"}, 3, 3),
        (429, {"Retry-After": "9999999999"}, 86400, 86400),
    ):
        server.fail_next(status, headers)
        error = await refused(server)
        assert isinstance(error, RateLimited)
        assert error.retry_after_seconds is not None, headers
        assert least <= error.retry_after_seconds <= most, headers
    for text in ("soon", "-5", "1e9", "NaN", ""):
        server.fail_next(429, {"Retry-After": text})
        error = await refused(server)
        assert isinstance(error, RateLimited)
        assert error.retry_after_seconds is None, text


async def test_the_hint_is_measured_by_the_providers_own_clock(server: Echo) -> None:
    """C-36: a date is compared with the answer's own date; ours may be wrong."""
    answer = Answer(
        provider="example",
        method="GET",
        path="/",
        status=429,
        headers=httpx.Headers(
            {"Date": "Sun, 01 Mar 2026 12:00:00 GMT", "Retry-After": "Sun, 01 Mar 2026 12:05:00 GMT"}
        ),
        data=None,
    )
    assert answer.retry_after == 300


async def test_a_redirect_is_followed_on_the_same_host_only(server: Echo) -> None:
    answer = await asked(server, "/moved")
    assert answer.data["query"] == {"moved": "1"}
    assert answer.data["headers"]["authorization"] == f"Bearer {SECRET}"
    with Echo() as other:
        server.elsewhere = other.url + "/echo"
        error = await refused(server, "/away")
        assert type(error) is Permanent
        assert other.requests == []
    assert type(await refused(server, "/round")) is Transient


async def test_an_expected_status_is_given_back_and_a_rate_limit_never_is(server: Echo) -> None:
    server.fail_next(410, body={"error": "gone"})
    answer = await asked(server, "/echo", expect=(410, 403, 429))
    assert (answer.status, answer.data) == (410, {"error": "gone"})
    server.fail_next(404, body=b"<html>not found</html>")
    assert (await asked(server, "/echo", expect=(404,))).data is None
    for status, headers in ((429, {}), (403, {"X-RateLimit-Remaining": "0"})):
        server.fail_next(status, headers)
        assert type(await refused(server, expect=(403, 429))) is RateLimited


async def test_neither_token_nor_query_nor_body_is_told_by_an_error_and_no_token_is_logged(
    server: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    """C-57: no token stands in a log line or an answer; neither does what else an address holds."""
    caplog.set_level(logging.DEBUG)
    for fault in (401, 429, 500, 404):
        server.fail_next(fault, body={"message": f"your {SECRET} is wrong"})
        error = await refused(server, "/echo?key=hidden")
        told = f"{error!r} {error} {error.__cause__!r} {error.fields}"
        assert "hidden" not in told
        assert SECRET not in told
    assert SECRET not in caplog.text
    told = [record.getMessage() for record in caplog.records if record.name.startswith("holdfast")]
    assert "hidden" not in str(told)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("invalid_grant", Permanent),
        ("invalid_client", Permanent),
        ("unauthorized_client", Permanent),
        ("token_revoked", Permanent),
        ("Token has been expired or revoked.", Permanent),
        ("forbidden", Permanent),
        ("access_denied", Permanent),
        ("unsupported_grant_type", Permanent),
        ("rate_limit", RateLimited),
        ("rate_limit_exceeded", RateLimited),
        ("too_many_requests", RateLimited),
        ("temporarily_unavailable", RateLimited),
        ("QUOTA_EXCEEDED", RateLimited),
        ("server_error", Transient),
        ("", Transient),
    ],
)
async def test_the_text_of_a_token_error_decides(server: Echo, text: str, kind: type[ConnectorError]) -> None:
    """C-59: by function and over HTTP, with an error's status and with status 200."""
    assert type(oauth_error(text)) is kind
    async with opened("example") as client:
        for status in (400, 401, 403) if not text else (200, 400, 401, 403):
            server.fail_next(status, body={"error": text, "error_description": f"of {SECRET}"})
            with pytest.raises(ConnectorError) as caught:
                await client.grant(server.url + "/echo", {"refresh_token": SECRET})
            assert type(caught.value) is kind
            assert SECRET not in str(caught.value)


async def test_a_token_endpoint_that_fails_otherwise_is_like_any_other(server: Echo) -> None:
    """C-59: without an error text it is the status that decides."""
    async with opened("example") as client:
        for status, headers, kind in ((429, {"Retry-After": "3"}, RateLimited), (503, {}, Transient)):
            server.fail_next(status, headers)
            with pytest.raises(kind):
                await client.grant(server.url + "/echo", {})
        for body in (b"{oops", [], {"access_token": None}, {}):
            server.fail_next(200, body=body)
            with pytest.raises(Transient):
                await client.grant(server.url + "/echo", {})
        server.fail_next(400, body=b"<html>")
        with pytest.raises(Transient, match="no reason that can be told"):
            await client.grant(server.url + "/echo", {})


def test_a_grant_is_read_with_what_is_there() -> None:
    """C-60: no refresh token in the answer is None, so that the old one is kept."""
    full = granted(
        {"access_token": "a", "refresh_token": "r", "expires_in": 3600, "scope": "x, y z"}, external_id="7"
    )
    assert (full.external_id, full.refresh_token, full.expires_in) == ("7", "r", 3600)
    assert full.scopes == ("x", "y", "z")
    bare = granted({"access_token": "a", "refresh_token": ""})
    assert (bare.external_id, bare.refresh_token, bare.expires_in, bare.scopes) == ("", None, None, ())
    for given, read in (("3599", 3599), (3599.9, 3599), (0, None), (-1, None), (True, None), ("x", None)):
        assert granted({"access_token": "a", "expires_in": given}).expires_in == read
    assert "'a'" not in repr(full)
