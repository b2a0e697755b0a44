"""`holdfast serve` and `holdfast token`: a real server, real tokens, and an end in good order."""

from __future__ import annotations

import json
import logging
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from queue import Queue

import httpx
import pytest

from cli.kit import Query, Run, Start
from conftest import Eventually

LOCAL = {"HOLDFAST_PROFILE": "local"}
CREATE = "`holdfast token create NAME --scope admin` makes one"
SECONDS = (
    10  # within which a server must end, whatever is open; far less on a machine with nothing else to do
)
POLLED = """
select 1 from pg_stat_activity
where query like '%as mark%' and pid <> pg_backend_pid() and datname = current_database()
"""
BLOCKER = "import sys\nsys.modules['uvicorn'] = None\n"


def intro(process: subprocess.Popen[str], last: str) -> dict[str, str]:
    """What the server says when it starts, up to the line that begins with `last`."""
    told: dict[str, str] = {}
    assert process.stdout
    while last not in told:
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        name, _, value = line.strip().partition("  " if "  " in line.strip() else " ")
        told[name] = value.strip()
    return told


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit code and what it said, after it was asked to stop."""
    began = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < SECONDS
    assert "Traceback" not in err
    return process.returncode, out, err


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def admin_token(holdfast: Run) -> str:
    return holdfast("token", "create", "ana", "--scope", "admin").out.strip()


def test_serve_makes_and_prints_no_token(start: Start, folder: Path, query: Query) -> None:
    process = start("serve", env=LOCAL)
    told = intro(process, "token")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", told["dashboard"])
    assert told["token"] == f"there is none yet: {CREATE}"
    assert httpx.get(f"{told['dashboard']}/api/me", timeout=30).status_code == 401
    assert httpx.get(f"{told['dashboard']}/healthz", timeout=30).status_code == 200
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (0, "stopped\n", "")
    assert query("select count(*) from holdfast_token") == [(0,)]
    assert not (folder / "home" / "token").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_open_streams_and_long_polls_do_not_keep_it_from_ending(
    start: Start, holdfast: Run, query: Query, eventually: Eventually, number: signal.Signals
) -> None:
    token = admin_token(holdfast)
    query("insert into job (org_id, type) values (gen_random_uuid(), 'x')")
    ((row,),) = query("select id::text from job")
    process = start("serve", env=LOCAL)
    told = intro(process, "token")
    ways = {
        "stream": "/api/ledgers/job/stream",
        "live": "/live?path=/",
        "wait": f"/api/ledgers/job/rows/{row}/wait?seconds=60",
    }
    began: Queue[str] = Queue()
    answers: Queue[tuple[str, int | str]] = Queue()

    def read(name: str) -> None:
        try:
            url = told["dashboard"] + ways[name]
            with httpx.stream("GET", url, headers=bearer(token), timeout=60) as answer:
                began.put(name)
                answer.read()
                answers.put((name, answer.status_code))
        except httpx.HTTPError as error:
            answers.put((name, repr(error)))

    for name in ways:
        threading.Thread(target=read, args=(name,)).start()
    assert {began.get(timeout=20), began.get(timeout=20)} == {"stream", "live"}
    eventually(lambda: query(POLLED))
    process.send_signal(number)
    assert ended(process) == (0, "stopped\n", "")
    # Streams are closed as they should be, and whoever waits is told to come again.
    assert dict(answers.get(timeout=20) for _ in ways) == {"stream": 200, "live": 200, "wait": 503}


def test_a_second_signal_ends_it_at_once(
    start: Start, holdfast: Run, query: Query, eventually: Eventually
) -> None:
    token = admin_token(holdfast)
    query("insert into job (org_id, type) values (gen_random_uuid(), 'x')")
    ((row,),) = query("select id::text from job")
    process = start("serve", env=LOCAL)
    told = intro(process, "token")
    host, port = told["dashboard"].removeprefix("http://").split(":")

    def wait() -> None:
        url = f"{told['dashboard']}/api/ledgers/job/rows/{row}/wait?seconds=60"
        with pytest.raises(httpx.HTTPError):
            httpx.get(url, headers=bearer(token), timeout=60)

    def closed() -> bool:
        with socket.socket() as knock:
            return knock.connect_ex((host, int(port))) != 0

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: query(POLLED))
    process.send_signal(signal.SIGTERM)
    eventually(closed)
    process.send_signal(signal.SIGTERM)
    code, _, err = ended(process)
    waiting.join()
    assert (code, err) == (143, "second SIGTERM: dying at once; open requests are cut off\n")


def test_a_taken_port_is_one_sentence(holdfast: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = holdfast("serve", "--port", port)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"holdfast: 127.0.0.1:{port}: is taken by another process: "
        "stop that one, or say --port 0 for a free port\n"
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "a..b"])
def test_an_address_of_another_machine_is_one_sentence(holdfast: Run, host: str) -> None:
    done = holdfast("serve", "--host", host)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"holdfast: {host}")
    assert done.err.endswith("is no address of this machine\n")


def test_whoever_opens_it_to_the_network_is_warned(start: Start) -> None:
    process = start("serve", "--host", "0.0.0.0", env=LOCAL)
    told = intro(process, "token")
    assert told["dashboard"].startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    code, _, err = ended(process)
    assert code == 0
    assert err.startswith("holdfast: others on the network can reach this. Tokens protect it, but nothing")
    assert len(err.splitlines()) == 1


def test_ipv6_is_served(start: Start) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    process = start("serve", "--host", "::1", env=LOCAL)
    told = intro(process, "token")
    assert told["dashboard"].startswith("http://[::1]:")
    assert httpx.get(f"{told['dashboard']}/healthz", timeout=30).status_code == 200


def test_without_the_extra_serve_says_what_to_install_and_up_goes_on(
    start: Start, folder: Path, query: Query
) -> None:
    (folder / "without").mkdir()
    (folder / "without" / "sitecustomize.py").write_text(BLOCKER)
    lacking = {"PYTHONPATH": str(folder / "without")}
    process = start("serve", env=lacking)
    out, err = process.communicate(timeout=60)
    sentence = "serving the API and the dashboard needs the extra 'server': pip install 'holdfast[server]'"
    assert (process.returncode, out, err) == (2, "", f"holdfast: {sentence}\n")
    process = start("up", "--for", "1", env=lacking)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert f"  dashboard is not here: {sentence}\n" in out


def test_requests_are_logged_when_we_debug_and_only_then(start: Start) -> None:
    for level in ("DEBUG", "INFO"):
        process = start("serve", env={"HOLDFAST_LOG_LEVEL": level, "HOLDFAST_LOG_FORMAT": "json"})
        told = intro(process, "token")
        httpx.get(f"{told['dashboard']}/healthz", timeout=30)
        process.send_signal(signal.SIGTERM)
        code, _, err = ended(process)
        lines = [json.loads(line) for line in err.splitlines()]
        assert code == 0
        assert ("GET /healthz" in err) is (level == "DEBUG")
        assert all(line["level"] for line in lines)


# -- tokens -----------------------------------------------------------------------------------------------


def test_the_life_of_a_token(holdfast: Run, start: Start, query: Query) -> None:
    process = start("serve")
    told = intro(process, "token")
    assert told["token"] == f"there is none yet: {CREATE}"
    done = holdfast("token", "create", "ana", "--scope", "act")
    assert done.code == 0
    text = done.out.strip()
    name = text.split("_")[1]
    assert done.err == f"{name} may act for all tenants; the token is shown this once\n"
    with httpx.Client(base_url=told["dashboard"], headers=bearer(text), timeout=30) as client:
        me = client.get("/api/me").json()
        assert (me["who"], me["scope"], me["tenant"]) == ("token:ana", "act", None)
        assert client.put("/api/ledgers/tasks/pause").is_success
        assert client.get("/api/tokens").status_code == 403
        assert holdfast("token", "revoke", name).out == f"{name} is revoked\n"
        assert client.get("/api/me").status_code == 401
    assert holdfast("token", "revoke", name).out == f"{name} was revoked already\n"
    assert holdfast("token", "revoke", name, "--json").data == {"id": name, "changed": False}
    (listed,) = holdfast("token", "list", "--json").data
    assert (listed["id"], listed["name"], listed["live"]) == (name, "ana", False)
    assert "hash" not in listed
    assert text not in json.dumps(listed)
    heading, line = holdfast("token", "list").out.splitlines()
    assert heading.split() == ["ID", "NAME", "SCOPE", "TENANT", "STATE", "EXPIRES", "USED", "CREATED", "BY"]
    assert line.split()[:4] == [name, "ana", "act", "revoked"]
    noted = query(
        "select action, row_id, detail->'changed' from holdfast_audit where ledger is null order by id"
    )
    revoked = [("token revoke", name, True), *[("token revoke", name, False)] * 2]
    assert noted == [("token create", name, None), *revoked]
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0
    assert intro(start("serve"), "token")["token"] == CREATE


def test_a_token_of_a_tenant_that_expires(
    holdfast: Run, start: Start, query: Query, eventually: Eventually
) -> None:
    org = "00000000-0000-4000-8000-00000000000a"
    told = intro(start("serve"), "token")
    made = holdfast(
        "token", "create", "bo", "--tenant", org, "--expires", "30d", "--by", "ana", "--json"
    ).data
    assert set(made) == {
        *("id", "name", "scope", "tenant", "created", "created_by", "expires", "revoked", "used", "token"),
    }
    assert (made["scope"], made["tenant"], made["created_by"]) == ("read", org, "cli:ana")
    assert query("select expires_at - created_at from holdfast_token")[0][0].days in (29, 30)
    me = httpx.get(f"{told['dashboard']}/api/me", headers=bearer(made["token"]), timeout=30)
    assert me.json()["tenant"] == org
    query("update holdfast_token set expires_at = now()")
    me = httpx.get(f"{told['dashboard']}/api/me", headers=bearer(made["token"]), timeout=30)
    assert me.status_code == 401
    assert holdfast("token", "list").out.splitlines()[1].split()[4] == "expired"


def test_a_token_that_is_not_there_is_not_found(holdfast: Run) -> None:
    done = holdfast("token", "revoke", "nobody12")
    assert (done.code, done.out, done.err) == (4, "", "holdfast: no token with the id nobody12\n")


def test_the_log_of_requests_does_not_tell_what_stands_behind_the_question_mark() -> None:
    """C-57: the code of an authorisation comes there."""
    from holdfast.cli.server import _without_query  # pyright: ignore[reportPrivateUsage]

    told = logging.makeLogRecord(
        {
            "msg": '%s - "%s %s HTTP/%s" %d',
            "args": ("127.0.0.1:1", "GET", "/api/connectors/callback/github?code=SECRET", "1.1", 400),
        }
    )
    assert _without_query(told)
    assert told.getMessage() == '127.0.0.1:1 - "GET /api/connectors/callback/github HTTP/1.1" 400'
