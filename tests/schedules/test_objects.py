"""Pictures by their keys, out of a folder and out of a bucket on a server that checks every signature."""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.apps.schedules import objects
from holdfast.apps.schedules.objects import Folder, Objects, open_store
from holdfast.apps.schedules.values import Refusal
from holdfast.errors import MissingExtra, SettingsError
from schedules.buckets import ACCESS, SECRET, Server, serving

ODD = [
    "plain.png",
    "a/b/c.png",
    "a b/ö å.png",
    "x%20y.png",
    "h#1?.png",
    "plus+eq=&.png",
    "tilde~*.png",
    "😀'.png",
]
QUICK = (0.0, 0.0, 0.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with serving() as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    """A store of each kind, with the odd keys in it, and something beside it that is not its own."""
    (tmp_path / "beside.png").write_bytes(b"of somebody else")
    if request.param == "folder":
        for key in ODD:
            path = tmp_path / "store" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(f"the bytes of {key}".encode())
        return open_store((tmp_path / "store").as_uri(), QUICK)
    server: Server = request.getfixturevalue("server")
    server.objects = {key: f"the bytes of {key}".encode() for key in ODD}
    return open_store(server.url, QUICK)


async def refusal(store: Objects, key: str) -> str:
    with pytest.raises(Refusal) as caught:
        await store.get(key)
    assert caught.value.stage == "ocr"
    assert caught.value.__context__ is None or caught.value.__suppress_context__  # it may quote secrets
    return caught.value.code


@pytest.mark.parametrize("key", ODD)
async def test_folder_and_s3_stores_give_the_same_bytes(store: Objects, key: str) -> None:
    """S-23: whatever signs are in the key."""
    assert await store.get(key) == f"the bytes of {key}".encode()


@pytest.mark.parametrize("key", ["none.png", "a/none.png", "a", "a/b", "plain.png/below", "n" * 300])
async def test_a_key_that_is_not_there_fails_as_image_not_found(store: Objects, key: str) -> None:
    """S-23; bad input: image key not in the store. A folder is no picture."""
    assert await refusal(store, key) == "image_not_found"


@pytest.mark.parametrize(
    "key",
    [
        "../beside.png",
        "a/../../beside.png",
        "a/../plain.png",
        "..",
        ".",
        "",
        "/",
        "/plain.png",
        "/etc/hostname",
        "a//b/c.png",
        "a/b/",
        "./plain.png",
        "plain.png\0",
        "pla\nin.png",
        "\ud800.png",
        "x" * 1025,
    ],
    ids=lambda key: ascii(key[:20]),
)
async def test_a_folder_store_refuses_keys_that_leave_it(store: Objects, key: str) -> None:
    """S-23; bad input: a key with `..`, or absolute. A bucket refuses what a folder would, unasked."""
    assert await refusal(store, key) == "image_key_invalid"


async def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    """S-23: one that stays within is followed, and the folder itself may be one."""
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "beside.png").write_bytes(b"of somebody else")
    (tmp_path / "store").symlink_to(real)
    (real / "picture.png").write_bytes(b"ours")
    (real / "in.png").symlink_to(real / "picture.png")
    (real / "out.png").symlink_to(tmp_path / "beside.png")
    (real / "up").symlink_to(tmp_path)
    (real / "loop.png").symlink_to(real / "loop.png")
    (real / "dangling.png").symlink_to(tmp_path / "none.png")
    store = Folder(tmp_path / "store", QUICK)
    assert await store.get("in.png") == b"ours"
    assert await refusal(store, "out.png") == "image_key_invalid"
    assert await refusal(store, "up/beside.png") == "image_key_invalid"
    assert await refusal(store, "loop.png") == "image_not_found"
    assert await refusal(store, "dangling.png") == "image_not_found"


async def test_a_pipe_in_the_folder_holds_nobody_up(tmp_path: Path) -> None:
    """S-23: reading one would wait for a writer for ever."""
    os.mkfifo(tmp_path / "pipe.png")
    async with asyncio.timeout(5):
        assert await refusal(Folder(tmp_path), "pipe.png") == "image_not_found"


async def test_a_picture_that_is_too_large_is_refused(
    store: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-23: before it is read into memory."""
    monkeypatch.setattr(objects, "LARGEST", len("the bytes of plain.png") - 1)
    assert await refusal(store, "plain.png") == "image_unreadable"


@pytest.mark.parametrize("fault", [500, 502, 503, 429, "cut"])
async def test_a_passing_fault_is_tried_three_times_more(
    server: Server, fault: int | str, caplog: pytest.LogCaptureFixture
) -> None:
    """S-18: and each time a line says so, without what the store has said."""
    server.objects = {"plain.png": b"whole"}
    server.faults = [fault] * 3
    with caplog.at_level(logging.WARNING, "holdfast.schedules"):
        assert await open_store(server.url, QUICK).get("plain.png") == b"whole"
    assert len(server.asked) == 4
    assert len(caplog.records) == 3
    assert ACCESS not in caplog.text
    assert SECRET not in caplog.text


async def test_the_fourth_passing_fault_is_the_end(server: Server) -> None:
    """S-18."""
    server.objects = {"plain.png": b"whole"}
    server.faults = [503] * 9
    assert await refusal(open_store(server.url, QUICK), "plain.png") == "store_unavailable"
    assert len(server.asked) == 4


async def test_the_waits_are_those_that_were_given_and_by_default_1_4_and_16_seconds(server: Server) -> None:
    """S-18."""
    assert objects.WAITS == (1, 4, 16)
    assert open_store(server.url).waits == open_store("file:///folder").waits == objects.WAITS  # type: ignore[attr-defined]
    server.objects = {"plain.png": b"whole"}
    server.faults = [503, 503]
    begun = time.monotonic()
    await open_store(server.url, (0.05, 0.15)).get("plain.png")
    assert time.monotonic() - begun >= 0.2


async def test_a_store_that_cannot_be_reached_is_a_passing_fault(server: Server, tmp_path: Path) -> None:
    """S-18: nobody listens, or the folder is not mounted."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # so that nobody else listens there
        closed = Server(port=silent.getsockname()[1])
        assert await refusal(open_store(closed.url, QUICK), "plain.png") == "store_unavailable"
    assert await refusal(Folder(tmp_path / "mount", QUICK), "plain.png") == "store_unavailable"


async def test_a_folder_that_is_mounted_meanwhile_is_read_at_the_next_try(tmp_path: Path) -> None:
    """S-18."""

    class Mounting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            (tmp_path / "mount").mkdir()
            (tmp_path / "mount" / "plain.png").write_bytes(b"whole")

    mounting, log = Mounting(), logging.getLogger("holdfast.schedules")
    log.addHandler(mounting)
    try:
        assert await Folder(tmp_path / "mount", QUICK).get("plain.png") == b"whole"
    finally:
        log.removeHandler(mounting)


async def test_no_fault_that_lasts_is_tried_again(server: Server) -> None:
    """S-18."""
    store = open_store(server.url, (60,))
    async with asyncio.timeout(20):
        assert await refusal(store, "none.png") == "image_not_found"
        server.faults = [403]
        assert await refusal(store, "none.png") == "store_refused"
    assert server.asked == ["none.png"] * 2


async def test_requests_are_signed_by_the_aws_variables(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-23: with the region of the address; a wrong secret is refused, and nothing of it is told."""
    server.objects = {"plain.png": b"whole"}
    assert await open_store(server.url, QUICK).get("plain.png") == b"whole"
    assert server.regions == ["auto"]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(Refusal) as caught:
        await open_store(server.url, QUICK).get("plain.png")
    assert caught.value.code == "store_refused"
    assert all(secret not in str(caught.value) for secret in (ACCESS, "wrong-secret"))


async def test_the_address_goes_before_the_aws_variables(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-23: a variable for another store must not lead our pictures' reader astray."""
    server.objects = {"plain.png": b"whole"}
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert await open_store(server.url, QUICK).get("plain.png") == b"whole"
    assert server.regions == ["auto"]


async def test_a_public_bucket_is_read_without_credentials(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-23."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    server.objects, server.open = {"plain.png": b"whole"}, True
    assert await open_store(f"{server.url}&anonymous=true", QUICK).get("plain.png") == b"whole"
    assert server.regions == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/folder",
        "file://host/folder",
        "file:folder",
        "file:///folder?a=b",
        "http://127.0.0.1/bucket",
        "s3://",
        "s3://key:secret@bucket",
        "s3://bucket/prefix",
        "s3://bucket?endpoint=ftp://host",
        "s3://bucket?endpoint=https://key:secret@host",
        "s3://bucket?endpoint=host",
        "s3://bucket?secret_access_key=secret",
        "s3://bucket?anonymous=perhaps",
    ],
)
def test_an_address_that_is_none_stops_the_start(url: str) -> None:
    """S-23: `SettingsError`, which repeats nothing that could be a secret."""
    with pytest.raises(SettingsError, match="HOLDFAST_SCHEDULES_OBJECT_STORE") as caught:
        open_store(url)
    assert "key:secret" not in str(caught.value)


def test_a_bucket_without_its_library_says_which_extra_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-23: and a folder does without."""
    real = builtins.__import__

    def missing(name: str, *args: Any, **named: Any) -> Any:
        if name.startswith("obstore"):
            raise ImportError(name)
        return real(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert isinstance(open_store("file:///folder"), Folder)
    with pytest.raises(MissingExtra, match=r"holdfast\[schedules\]"):
        open_store("s3://bucket")
