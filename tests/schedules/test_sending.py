"""Senders over real HTTP: what an answer means, what goes along, and that no secret is told (S-50, S-51)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import socket
import traceback
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from connectors.servers.base import Asked, Reply, Server, route
from holdfast.apps.connectors import signatures
from holdfast.apps.schedules.senders import Passing, Permanent, deliver
from holdfast.apps.schedules.sending import LARGEST, TelegramSender, WebhookSender, address
from holdfast.engine.outcomes import Done, Fail, Retry
from schedules.test_senders import NOTICE, TOLD

TOKEN = "123456:AAE-hidden_token"
SECRET = "hidden-secret"
HIDDEN = ("hidden", TOKEN, base64.b64encode(b"ada:hidden-password").decode())


class Hook(Server):
    """A receiver of webhooks that takes everything."""

    @route("POST", "/hidden-path")
    @route("GET", "/hidden-path")
    def take(self, request: Asked) -> Reply:
        return Reply({"taken": True})


class Telegram(Server):
    """Telegram's Bot API, as far as sendMessage."""

    @route("POST", f"/bot{TOKEN}/sendMessage")
    def send(self, request: Asked) -> Reply:
        data = request.json
        said = {"message_id": 1, "chat": {"id": data["chat_id"], "type": "private"}, "text": data["text"]}
        return Reply({"ok": True, "result": said})

    def refuse(self, status: int, description: str, **parameters: object) -> None:
        body = {"ok": False, "error_code": status, "description": description}
        self.fail_next(status, body=body | ({"parameters": parameters} if parameters else {}))


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        yield server


@pytest.fixture
def telegram() -> Iterator[Telegram]:
    with Telegram() as server:
        yield server


def webhook(server: Server, secret: str | None = None) -> WebhookSender:
    return WebhookSender(f"{server.url}/hidden-path?key=hidden", secret=secret)


def bot(server: Server) -> TelegramSender:
    return TelegramSender(TOKEN, url=server.url)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncGenerator[str]:
    """A server that answers each request with these bytes, and then says no more and hangs on."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(answer)
        await writer.drain()
        await over.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        server.close()
        await server.wait_closed()


# -- webhooks ----------------------------------------------------------------------------------------------


async def test_a_webhook_gets_the_message_as_json_with_its_id_as_idempotency_key(hook: Hook) -> None:
    """S-50: a crash after the send may repeat it, and then the key is the same."""
    for _ in range(2):
        assert await deliver(webhook(hook), NOTICE, 10) == Done()
    first, second = hook.requests
    assert (first.method, first.path, first.query) == ("POST", "/hidden-path", {"key": "hidden"})
    assert first.json == TOLD
    assert first.headers["content-type"] == "application/json"
    assert first.headers["idempotency-key"] == NOTICE.id == second.headers["idempotency-key"]
    assert "webhook-signature" not in first.headers


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_an_answer_2xx_is_sent(hook: Hook, status: int) -> None:
    """S-50"""
    hook.fail_next(status)
    assert await deliver(webhook(hook), NOTICE, 10) == Done()


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
async def test_an_answer_that_may_change_is_a_passing_failure(hook: Hook, status: int) -> None:
    """S-51"""
    hook.fail_next(status)
    reason = f"the webhook at 127.0.0.1 answered {status}"
    assert await deliver(webhook(hook), NOTICE, 10) == Retry(reason, code="send_failed")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 422])
async def test_any_other_refusal_is_permanent(hook: Hook, status: int) -> None:
    """S-51"""
    hook.fail_next(status, {"Retry-After": "5"})
    reason = f"the webhook at 127.0.0.1 answered {status}"
    assert await deliver(webhook(hook), NOTICE, 10) == Fail(reason, code="send_refused")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(hook: Hook, status: int) -> None:
    """S-51: the message would go to somebody whom nobody has set."""
    with Hook() as other:
        hook.fail_next(status, {"Location": f"{other.url}/hidden-path"})
        outcome = await deliver(webhook(hook), NOTICE, 10)
    reason = f"the webhook at 127.0.0.1 answered {status}, and redirects are not followed"
    assert outcome == Fail(reason, code="send_refused")
    assert (len(hook.requests), other.requests) == (1, [])


@pytest.mark.parametrize(
    ("wish", "after"),
    [
        ("7", 7.0),
        ("2.5", 2.5),
        ("0", 1.0),
        ("99999", 3600.0),
        ("9" * 40, None),
        ("soon", None),
        ("-3", None),
        ("", None),
    ],
)
async def test_a_receivers_wish_to_wait_is_obeyed_within_bounds(
    hook: Hook, wish: str, after: float | None
) -> None:
    """S-51"""
    hook.fail_next(429, {"Retry-After": wish})
    outcome = await deliver(webhook(hook), NOTICE, 10)
    assert isinstance(outcome, Retry)
    assert outcome.after == after


@pytest.mark.parametrize(("seconds", "after"), [(90, 90.0), (-90, 1.0), (90000, 3600.0)])
async def test_a_date_to_wait_for_is_seen_from_the_receivers_clock(
    hook: Hook, seconds: int, after: float
) -> None:
    """S-51: its clock is a year late, and that does not matter."""
    then = datetime.now(UTC) - timedelta(days=365)
    date = format_datetime(then, usegmt=True)
    hook.fail_next(
        503, {"Date": date, "Retry-After": format_datetime(then + timedelta(seconds=seconds), usegmt=True)}
    )
    outcome = await deliver(webhook(hook), NOTICE, 10)
    assert isinstance(outcome, Retry)
    assert outcome.after == after


async def test_a_receiver_that_is_not_there_is_a_passing_failure() -> None:
    """S-51"""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: refuses everybody
        sender = WebhookSender(f"http://127.0.0.1:{nobody.getsockname()[1]}/hidden-path")
        assert await deliver(sender, NOTICE, 10) == Retry(
            "the webhook at 127.0.0.1 could not be reached (ConnectError)", code="send_failed"
        )


async def test_a_receiver_without_tls_is_a_passing_failure(hook: Hook) -> None:
    """S-51"""
    outcome = await deliver(WebhookSender(hook.url.replace("http", "https") + "/hidden-path"), NOTICE, 10)
    assert outcome == Retry(
        "the webhook at 127.0.0.1 could not be reached (ConnectError)", code="send_failed"
    )
    assert hook.requests == []


async def test_a_receiver_that_says_nothing_is_given_up_after_the_timeout() -> None:
    """S-50: by the limit of the send, and by the sender's own when it is used without one."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        outcome = await deliver(WebhookSender(url), NOTICE, 0.05)
        assert outcome == Retry("the send took longer than 0.05 s", code="send_timed_out")
        with pytest.raises(Passing, match=r"could not be reached \(ReadTimeout\)"):
            await WebhookSender(url, patience=0.05).send(NOTICE)


async def test_something_that_does_not_speak_http_is_a_passing_failure() -> None:
    async with answering(b"220 mail.example ESMTP\r\n\r\n") as url:
        outcome = await deliver(WebhookSender(url), NOTICE, 10)
    assert outcome == Retry(
        "the webhook at 127.0.0.1 could not be reached (RemoteProtocolError)", code="send_failed"
    )


async def test_a_receiver_that_falls_silent_after_its_status_has_taken_the_message() -> None:
    """S-50: to try again would only repeat it."""
    async with answering(b"HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\nha") as url:
        assert await deliver(WebhookSender(url), NOTICE, 10) == Done()


@pytest.mark.parametrize(
    "secret", [SECRET, "whsec_" + base64.b64encode(b"twenty-four hidden bytes").decode()]
)
async def test_a_secret_signs_id_time_and_body(hook: Hook, secret: str) -> None:
    """S-50: by hand here, and by the verifier of the connectors, which others wrote for other senders."""
    await webhook(hook, secret).send(NOTICE)
    (asked,) = hook.requests
    name, stamp = asked.headers["webhook-id"], asked.headers["webhook-timestamp"]
    key = b"twenty-four hidden bytes" if secret != SECRET else SECRET.encode()
    mac = hmac.new(key, f"{name}.{stamp}.".encode() + asked.body, hashlib.sha256).digest()
    assert name == NOTICE.id
    assert asked.headers["webhook-signature"] == "v1," + base64.b64encode(mac).decode()
    assert abs(int(stamp) - datetime.now(UTC).timestamp()) < 60
    now = datetime.now(UTC)
    signatures.verify("standard", asked.headers, asked.body, [secret], now=now, tolerance=60)
    with pytest.raises(signatures.InvalidSignature):
        signatures.verify("standard", asked.headers, asked.body + b" ", [secret], now=now, tolerance=60)


@pytest.mark.parametrize(
    ("id", "header"),
    [("a b", "a%20b"), ("a\r\nX-Evil: 1", "a%0D%0AX-Evil:%201"), ("ö%", "%C3%B6%25"), ("x|y:z", "x%7Cy:z")],
)
async def test_an_id_that_a_foreign_writer_gave_goes_into_a_header_safely(
    hook: Hook, id: str, header: str
) -> None:
    """S-50: the table is shared, so an id may be any text."""
    await webhook(hook, SECRET).send(replace(NOTICE, id=id))
    (asked,) = hook.requests
    assert asked.headers["idempotency-key"] == header == asked.headers["webhook-id"]
    assert "x-evil" not in asked.headers
    assert asked.json["notification_id"] == id


async def test_a_user_and_a_password_in_the_address_are_sent_as_such(hook: Hook) -> None:
    url = hook.url.replace("://", "://ada:hidden-password@") + "/hidden-path"
    assert await deliver(WebhookSender(url), NOTICE, 10) == Done()
    (asked,) = hook.requests
    assert asked.headers["authorization"] == "Basic " + base64.b64encode(b"ada:hidden-password").decode()
    assert asked.headers["host"] == hook.url.removeprefix("http://")


async def test_the_proxy_of_the_environment_is_used_but_not_for_what_is_excepted(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Hook() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        proxy.fail_next(418)
        outcome = await deliver(WebhookSender("http://bot.example/messages"), NOTICE, 10)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert await deliver(webhook(hook), NOTICE, 10) == Done()
    assert outcome == Fail("the webhook at bot.example answered 418", code="send_refused")
    (asked,) = proxy.requests
    assert asked.headers["host"] == "bot.example"


@pytest.mark.parametrize(
    "url", ["bot.example", "ftp://bot.example/", "https://", "https://[::1", "https://xn--/"]
)
def test_what_is_no_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match=r"^is no address that can be asked$") as caught:
        address(url)
    assert url not in str(caught.value)


# -- telegram ----------------------------------------------------------------------------------------------


async def test_telegram_says_the_message_in_the_chat_of_the_user(telegram: Telegram) -> None:
    """S-50"""
    assert await deliver(bot(telegram), NOTICE, 10) == Done()
    (asked,) = telegram.requests
    assert asked.path == f"/bot{TOKEN}/sendMessage"
    assert asked.json == {"chat_id": 42, "text": NOTICE.message}
    assert asked.headers["idempotency-key"] == NOTICE.id


async def test_an_own_bot_api_may_lie_below_a_path(telegram: Telegram) -> None:
    await deliver(TelegramSender(TOKEN, url=telegram.url + "/api/"), NOTICE, 10)
    assert telegram.requests[0].path == f"/api/bot{TOKEN}/sendMessage"


async def test_a_flood_is_a_passing_failure_with_telegrams_own_wait(telegram: Telegram) -> None:
    """S-51: `parameters.retry_after`."""
    telegram.refuse(429, "Too Many Requests: retry after 35", retry_after=35)
    assert await deliver(bot(telegram), NOTICE, 10) == Retry(
        "Telegram answered 429: Too Many Requests: retry after 35", after=35.0, code="send_failed"
    )


@pytest.mark.parametrize("odd", [True, "35", None, [], {}])
async def test_a_wait_that_is_no_number_is_left_to_the_backoff(telegram: Telegram, odd: object) -> None:
    """S-51"""
    telegram.refuse(429, "Too Many Requests", retry_after=odd)
    outcome = await deliver(bot(telegram), NOTICE, 10)
    assert isinstance(outcome, Retry)
    assert outcome.after is None


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "Forbidden: bot was blocked by the user"),
        (400, "Bad Request: chat not found"),
        (401, "Unauthorized"),
        (404, "Not Found"),
    ],
)
async def test_a_refusal_by_telegram_is_permanent(telegram: Telegram, status: int, said: str) -> None:
    """S-51"""
    telegram.refuse(status, said)
    assert await deliver(bot(telegram), NOTICE, 10) == Fail(
        f"Telegram answered {status}: {said}", code="send_refused"
    )


@pytest.mark.parametrize("body", [b"", b"<html>log in first</html>", b"[]", b'{"ok": 1}', b"[" * LARGEST * 2])
async def test_an_answer_that_telegram_does_not_give_is_not_taken_for_sent(
    telegram: Telegram, body: bytes
) -> None:
    """S-51: somebody in between answered."""
    telegram.fail_next(200, body=body)
    assert await deliver(bot(telegram), NOTICE, 10) == Retry(
        "Telegram answered 200 with something that nobody can read", code="send_failed"
    )


@pytest.mark.parametrize("body", [b"", b"<html>bad gateway</html>", b'{"description": 7, "parameters": 7}'])
async def test_telegrams_own_faults_are_passing_whatever_it_says(telegram: Telegram, body: bytes) -> None:
    """S-51"""
    telegram.fail_next(502, {"Retry-After": "4"}, body=body)
    assert await deliver(bot(telegram), NOTICE, 10) == Retry(
        "Telegram answered 502", after=4.0, code="send_failed"
    )


async def test_an_answer_without_end_is_read_no_further_than_anybody_needs() -> None:
    """S-51: what comes after the first bytes is not waited for."""
    head = f"HTTP/1.1 502 Bad Gateway\r\nContent-Length: {4 * LARGEST}\r\n\r\n".encode()
    async with answering(head + b"x" * LARGEST) as url:
        outcome = await deliver(TelegramSender(TOKEN, url=url), NOTICE, 10)
    assert outcome == Retry("Telegram answered 502", code="send_failed")


# -- secrets -----------------------------------------------------------------------------------------------


async def test_neither_reasons_nor_logs_nor_traces_tell_a_secret(
    hook: Hook, telegram: Telegram, caplog: pytest.LogCaptureFixture
) -> None:
    """S-50: also when a program hears every library at its finest, and when a receiver quotes what it got."""
    caplog.set_level(logging.DEBUG)
    for library in ("httpx", "httpcore", "asyncio"):
        caplog.set_level(logging.DEBUG, library)
    private = hook.url.replace("://", "://ada:hidden-password@") + "/hidden-path?key=hidden"
    gone = "http://ada:hidden-password@127.0.0.1:1/hidden-path"
    said: list[str] = []
    for sender in (
        WebhookSender(private, secret=SECRET),
        WebhookSender(gone, secret=SECRET),
        TelegramSender(TOKEN, url="http://127.0.0.1:1"),
        bot(telegram),
    ):
        said.append(repr(sender) + str(await deliver(sender, NOTICE, 10)))
    telegram.refuse(400, f"Bad Request: no bot {TOKEN}")
    hook.fail_next(500, body={"you sent": private})
    for sender in (webhook(hook, SECRET), bot(telegram)):
        try:
            await sender.send(NOTICE)
        except (Passing, Permanent) as error:
            said.append("".join(traceback.format_exception(error)))
    assert len(said) == 6
    assert "Telegram answered 400" in said[-1]
    heard = "\n".join([*said, caplog.text])
    assert [secret for secret in HIDDEN if secret in heard] == []
