"""How much one caller may ask for."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from api.kit import Served, api_of, served_app
from holdfast import Holdfast, Settings
from holdfast.api.limits import KNOWN, Buckets, Limits, Places
from holdfast.api.problems import TooMany, Unavailable


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_fills_again_in_time() -> None:
    clock = Clock()
    limits = Limits(rate=5, clock=clock)
    for _ in range(10):
        limits.call("ana")
    with pytest.raises(TooMany) as refused:
        limits.call("ana")
    assert refused.value.wait == pytest.approx(0.2)
    limits.call("ben")
    clock.now += 0.2
    limits.call("ana")
    with pytest.raises(TooMany):
        limits.call("ana")
    clock.now += 100
    for _ in range(10):
        limits.call("ana")
    with pytest.raises(TooMany):
        limits.call("ana")


def test_callers_who_were_silent_longest_are_forgotten_first() -> None:
    buckets = Buckets(0.001, 2, Clock())
    for _ in range(2):
        buckets.take("first")
    assert buckets.wait("first") > 0
    for number in range(KNOWN - 1):
        buckets.take(str(number))
    assert buckets.wait("first") > 0
    buckets.take("one more")
    assert buckets.wait("first") == 0
    assert len(buckets._levels) == KNOWN


def test_places_are_given_back_whatever_happens() -> None:
    places = Places(1, "streams")
    with suppress(ValueError), places.one("ana"):
        with pytest.raises(Unavailable):
            places.one("bo").__enter__()
        raise ValueError
    with places.one("bo"):
        assert places.taken == 1
    assert places.taken == 0


def test_one_caller_takes_a_quarter_of_the_places_at_most() -> None:
    places = Places(8, "streams")
    with places.one("ana"), places.one("ana"):
        with pytest.raises(Unavailable, match="all 2 places of one caller"):
            places.one("ana").__enter__()
        with places.one("bo"):
            assert places.taken == 3
    with places.one("ana"):
        assert places.taken == 1


@pytest.fixture
def slow(settings: Settings) -> Iterator[Served]:
    """A server that lets everybody ask twice at once, and then once in a second."""
    settings = dataclasses.replace(settings, api_rate=1, api_body_bytes=2000)
    with served_app(settings, api_of(Holdfast(settings))) as served:
        yield served


def test_who_asks_too_often_is_told_when_to_come_again(slow: Served) -> None:
    client = slow.client("reader")
    answers = [client.get("/api/me") for _ in range(6)]
    assert answers[0].status_code == 200
    refused = [one for one in answers if one.status_code == 429]
    assert refused
    assert refused[0].json()["code"] == "TOO_MANY_REQUESTS"
    assert 1 <= int(refused[0].headers["retry-after"]) <= 2
    assert slow.client("actor").get("/api/me").status_code == 200
    assert [client.get("/healthz").status_code for _ in range(5)] == [200] * 5


def test_wrong_credentials_are_refused_and_good_ones_of_the_same_address_are_not(slow: Served) -> None:
    wrong = slow.client(None, Authorization="Bearer hf_xxxxxxxx_" + "x" * 43)
    statuses = [wrong.get("/api/me").status_code for _ in range(15)]
    assert statuses[:10] == [401] * 10
    assert set(statuses[11:]) == {429}
    assert slow.client("admin").get("/api/me").status_code == 200
    assert slow.client(None).get("/api/me").status_code == 401


def test_wrong_session_cookies_are_counted_like_wrong_tokens(served: Served) -> None:
    wrong = served.client(None, Cookie="holdfast_session=" + "x" * 43)
    statuses = [wrong.get("/api/me").status_code for _ in range(15)]
    assert statuses[:10] == [401] * 10
    assert set(statuses[11:]) == {429}
    good = served.client(None, Cookie=f"holdfast_session={served.session('admin')}")
    assert good.get("/api/me").status_code == 200


def test_a_body_that_is_too_large_is_refused(slow: Served) -> None:
    client = slow.client("actor")
    path = "/api/ledgers/tasks/rows"
    told = client.post(path, json={"kind": "a", "payload": "x" * 3000})
    assert (told.status_code, told.json()["code"]) == (413, "TOO_LARGE")

    def pieces() -> Iterator[bytes]:
        yield b'{"kind": "a", "payload": "'
        for _ in range(30):
            yield b"x" * 100
        yield b'"}'

    counted = slow.client("admin").post(path, content=pieces(), headers={"Content-Type": "application/json"})
    assert (counted.status_code, counted.json()["code"]) == (413, "TOO_LARGE")


@pytest.mark.parametrize("length", ["-1", "x", "99999999999999999999999999"])
def test_a_length_that_is_a_lie_hurts_nobody(slow: Served, length: str) -> None:
    host, port = slow.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        head = f"POST /api/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
        raw.sendall(head.encode())
        answer = raw.recv(1000)
    assert answer.split(b" ")[1] in (b"400", b"413")
    assert slow.client("admin").get("/api/me").status_code == 200
