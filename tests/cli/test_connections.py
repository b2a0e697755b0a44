"""Slow, half-sent and too many requests: proper ones get their answer, and the log stays small."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from cli.kit import COMMAND, Query, Run
from conftest import Eventually
from holdfast.cli.connections import Listener

ServeLimited = Callable[..., tuple[str, Path]]
HALF_A_HEADER = b"GET /api/me HTTP/1.1\r\nHost: x\r\nX-Sl"
HALF_A_FORM = b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n%s\r\ntoken=hf_" % (
    b"Content-Type: application/x-www-form-urlencoded\r\n"
)
HALF_A_BODY = b"POST /api/ledgers/job/rows HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
SMALL_LOG = 20_000  # bytes
FLOOD = 600  # connections, with far fewer descriptors on the other side


@pytest.fixture
def serve(environment: dict[str, str], folder: Path) -> Iterator[ServeLimited]:
    """`serve(descriptors, **settings)`: a server that may open so many files; gives its URL and its log."""
    started: list[subprocess.Popen[str]] = []

    def serve(descriptors: int, **more: str) -> tuple[str, Path]:
        log = folder / "serve.log"
        limited = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *COMMAND, "serve"]
        with log.open("w") as errors:
            process = subprocess.Popen(
                limited, env=environment | more, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        started.append(process)
        assert process.stdout
        while (line := process.stdout.readline()) and not line.startswith("  dashboard"):
            pass
        assert line, log.read_text()
        return line.split()[-1], log

    yield serve
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def opened(url: str, sent: bytes) -> socket.socket:
    """A connection on which so much was sent."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(sent)
    return connection


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes the connection."""
    found = b""
    while piece := connection.recv(4096):
        found += piece
    return found


def test_half_sent_requests_shut_no_proper_one_out(serve: ServeLimited) -> None:
    """They are kept until others need their place: nothing here waits for a time-out."""
    url, log = serve(256, HOLDFAST_API_REQUEST_SECONDS="1h")
    flood: list[socket.socket] = []
    try:
        for number in range(FLOOD):
            flood.append(opened(url, HALF_A_HEADER if number % 2 else HALF_A_FORM))
            if number % 100 == 99:
                assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
        assert httpx.get(f"{url}/readyz", timeout=60).status_code == 200
        assert b" 503 " in received(flood[0])
    finally:
        for connection in flood:
            connection.close()
    assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
    told = log.read_text()
    assert "open connections limited to" in told
    assert told.count("connection limit of") == 1
    assert "Traceback" not in told
    assert len(told) < SMALL_LOG


def unread(url: str) -> socket.socket:
    """A connection that asks for far more than the system buffers, and reads nothing."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(30)
    connection.connect((host, int(port)))
    connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 30)
    return connection


def test_clients_that_do_not_read_shut_no_other_out(serve: ServeLimited, eventually: Eventually) -> None:
    """At the limit they give way, as soon as the server has filled the buffers of the system."""
    url, log = serve(256, HOLDFAST_API_CONNECTIONS="20", HOLDFAST_API_REQUEST_SECONDS="1h")

    def is_healthy() -> bool:
        try:
            return httpx.get(f"{url}/healthz", timeout=60).status_code == 200
        except httpx.TransportError:
            return False

    flood = [unread(url) for _ in range(20)]
    eventually(is_healthy)
    assert all(is_healthy() for _ in range(5))
    for connection in flood:
        connection.close()
    assert "Traceback" not in log.read_text()


def test_a_client_that_reads_nothing_for_a_while_is_closed(
    serve: ServeLimited, eventually: Eventually
) -> None:
    url, log = serve(256, HOLDFAST_API_REQUEST_SECONDS="1s")
    with unread(url) as connection:
        eventually(lambda: "client read nothing for 1 s" in log.read_text())
        assert received(connection).count(b"HTTP/1.1 200 OK") < 30
    assert "Traceback" not in log.read_text()


def test_a_client_that_reads_slowly_gets_all_of_a_response_that_was_long_since_written(
    serve: ServeLimited,
) -> None:
    """It takes several times as long as a request may take to arrive."""
    url, log = serve(256, HOLDFAST_API_CONNECTIONS="16", HOLDFAST_API_REQUEST_SECONDS="1s")
    with unread(url) as connection:
        connection.settimeout(60)
        found = b""
        began = time.monotonic()
        while found.count(b"HTTP/1.1 200 OK") < 30 or time.monotonic() - began < 3:
            piece = connection.recv(100_000)
            assert piece, found[-200:]
            found += piece
            if time.monotonic() - began < 3:
                time.sleep(0.01)  # the client is slow: that is the point
    assert "read nothing" not in log.read_text()


def test_a_request_to_upgrade_is_answered_as_any_other_and_not_logged(serve: ServeLimited) -> None:
    url, log = serve(4096)
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert httpx.get(f"{url}/healthz", headers=upgrade, timeout=60).status_code == 200
    assert log.read_text() == ""


def test_a_request_that_does_not_arrive_is_timed_out_and_one_that_has_is_not(
    serve: ServeLimited, holdfast: Run, query: Query
) -> None:
    url, log = serve(1024, HOLDFAST_API_REQUEST_SECONDS="1s")
    query("insert into job (org_id, type) values (gen_random_uuid(), 'x')")
    ((row,),) = query("select id::text from job")
    token = holdfast("token", "create", "ana").out.strip()
    proof = f"Host: x\r\nAuthorization: Bearer {token}\r\n"
    stream = opened(url, f"GET /api/ledgers/job/stream?id={row} HTTP/1.1\r\n{proof}\r\n".encode())
    poll = opened(url, f"GET /api/ledgers/job/rows/{row}/wait?seconds=60 HTTP/1.1\r\n{proof}\r\n".encode())
    second = opened(url, f"GET /api/me HTTP/1.1\r\n{proof}\r\n".encode() + HALF_A_HEADER)
    halves = [opened(url, half) for half in (HALF_A_HEADER, HALF_A_FORM, HALF_A_BODY)]
    silent = opened(url, b"")
    with stream, poll, silent:
        for half in (*halves, second):
            with half:
                told = received(half)
            assert told.count(b"HTTP/1.1 200 OK\r\n") == (half is second), told
            assert told.count(b"HTTP/1.1 408 Request Timeout\r\n") == 1, told
            assert b'"code": "REQUEST_TIMEOUT"' in told
        assert received(silent) == b""
        # Far more than the time-out has passed for both: they have lasted, and tell of what happens now.
        assert holdfast("cancel", "job", row).code == 0
        assert b"event: end" in received(stream)
        poll.settimeout(30)
        assert b" 200 OK" in poll.recv(4096)
    told = log.read_text()
    assert told.count("did not arrive within 1 s") == 1
    assert "Traceback" not in told


def test_without_descriptors_a_connection_is_closed_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with Listener() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        clients = [socket.socket() for _ in range(3)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            for client in clients[:2]:
                client.settimeout(30)
                client.connect(listener.getsockname())
                with pytest.raises(BlockingIOError):
                    listener.accept()
                assert client.recv(1) == b""
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        clients[2].connect(listener.getsockname())
        listener.accept()[0].close()
    for client in clients:
        client.close()
    assert [line.message for line in caplog.records if "descriptors" in line.message] == [
        "out of file descriptors; closed a new connection (1 times since the last report)"
    ]
