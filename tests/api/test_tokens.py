"""Tokens and sessions: how they are made, kept, and ended."""

from __future__ import annotations

import asyncio
import hashlib
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from api.kit import PEOPLE, A, Served, on
from holdfast import Settings
from holdfast.api import tokens
from holdfast.api.caller import Caller
from holdfast.db.pool import Connection
from holdfast.errors import InvalidInput, NotFound


def test_a_token_is_made_used_and_revoked(served: Served) -> None:
    admin = served.client("admin")
    made = admin.post("/api/tokens", json={"name": "deploy", "scope": "act"})
    assert made.status_code == 201
    text = made.json()["token"]
    assert re.fullmatch(r"hf_[a-z0-9]{8}_[A-Za-z0-9_-]{43}", text)
    assert made.json()["created_by"] == "token:admin"
    client = served.client(None, Authorization=f"Bearer {text}")
    me = {"who": "token:deploy", "scope": "act", "tenant": None, "operator": True}
    assert client.get("/api/me").json() == me
    listed = {one["id"]: one for one in admin.get("/api/tokens").json()["tokens"]}
    assert listed[made.json()["id"]]["used"] is not None
    assert text not in admin.get("/api/tokens").text
    gone = admin.delete(f"/api/tokens/{made.json()['id']}")
    assert gone.json()["revoked"] is not None
    assert client.get("/api/me").status_code == 401
    assert admin.delete(f"/api/tokens/{made.json()['id']}").json()["revoked"] == gone.json()["revoked"]
    assert admin.delete("/api/tokens/nothing").status_code == 404
    entries = admin.get("/api/audit").json()["entries"]
    assert [(e["action"], e["row_id"], e["who"]) for e in entries[::-1]] == [
        ("token create", made.json()["id"], "token:admin"),
        ("token revoke", made.json()["id"], "token:admin"),
        ("token revoke", made.json()["id"], "token:admin"),
    ]


def test_only_a_hash_of_the_secret_is_stored(served: Served) -> None:
    text = served.tokens["admin"]
    _, key, secret = text.split("_", 2)
    ((stored,),) = served.query("select hash from holdfast_token where id = %s", key)
    assert bytes(stored) == hashlib.sha256(secret.encode()).digest()
    everything = str(served.query("select to_jsonb(t)::text from holdfast_token as t"))
    assert secret not in everything


def test_a_token_ends_when_it_expires(served: Served) -> None:
    admin = served.client("admin")
    later = datetime.now(UTC) + timedelta(hours=1)
    body = {"name": "short", "tenant": A, "expires": later.isoformat()}
    made = admin.post("/api/tokens", json=body).json()
    client = served.client(None, Authorization=f"Bearer {made['token']}")
    assert client.get("/api/me").json()["tenant"] == A
    served.query("update holdfast_token set expires_at = now() where id = %s", made["id"])
    assert client.get("/api/me").status_code == 401


def test_a_use_is_noted_once_a_minute(served: Served) -> None:
    client = served.client("reader")
    used = "select used_at, xmin::text from holdfast_token where name = 'reader'"
    client.get("/api/me")
    first = served.query(used)
    client.get("/api/me")
    assert served.query(used) == first
    served.query("update holdfast_token set used_at = now() - interval '61 s' where name = 'reader'")
    client.get("/api/me")
    assert served.query(used)[0][0] > first[0][0]


def test_what_makes_no_token(served: Served) -> None:
    admin = served.client("admin")
    wrong = [
        {},
        {"name": ""},
        {"name": " x"},
        {"name": "x" * 101},
        {"name": "a\nb"},
        {"name": "jwt:ana"},
        {"name": "x", "scope": "everything"},
        {"name": "x", "scope": "admin", "tenant": A},
        {"name": "x", "tenant": ""},
        {"name": "x", "tenant": "\x00"},
        {"name": "x", "expires": "tomorrow"},
        {"name": "x", "expires": 5},
        {"name": "x", "hash": "x"},
    ]
    for body in wrong:
        response = admin.post("/api/tokens", json=body)
        assert (response.status_code, response.json()["code"]) == (400, "INVALID_INPUT"), body
    assert len(admin.get("/api/tokens").json()["tokens"]) == len(PEOPLE)


async def test_a_name_that_only_a_program_could_give(conn: Connection) -> None:
    for name in ("", "a\x00", "a:b", " a", "a" * 101):
        with pytest.raises(InvalidInput):
            await tokens.create(conn, name, "read")
    with pytest.raises(NotFound):
        await tokens.revoke(conn, "nothing")


# -- sessions --------------------------------------------------------------------------------------------


async def test_a_session_lasts_until_it_is_closed_or_its_token_ends(conn: Connection) -> None:
    token, text = await tokens.create(conn, "ana", "act", tenant=A)
    caller = await tokens.verify(conn, text)
    assert caller == Caller(who="token:ana", scope="act", tenant=A, bound=True, token_id=token.id)
    first, second = [await tokens.open_session(conn, caller, 12) for _ in range(2)]
    assert await tokens.find_session(conn, first) == caller
    await tokens.close_session(conn, first)
    assert await tokens.find_session(conn, first) is None
    assert await tokens.find_session(conn, second) == caller
    await tokens.revoke(conn, token.id)
    assert await tokens.find_session(conn, second) is None
    assert await tokens.find_session(conn, "") is None


async def test_a_session_ends_in_time(conn: Connection) -> None:
    jwt = Caller(who="jwt:ana", scope="read")
    text = await tokens.open_session(conn, jwt, 1)
    assert await tokens.find_session(conn, text) == jwt
    await conn.execute("update holdfast_session set expires_at = now()")
    assert await tokens.find_session(conn, text) is None
    brief = await tokens.open_session(conn, jwt, 1, until=datetime.now(UTC))
    assert await tokens.find_session(conn, brief) is None
    await tokens.open_session(conn, jwt, 1)
    ((left,),) = await (await conn.execute("select count(*) from holdfast_session")).fetchall()
    assert left == 1


async def test_a_tenant_that_an_operator_chose_for_a_request_is_not_in_the_session(conn: Connection) -> None:
    text = await tokens.open_session(conn, Caller(who="jwt:ana", scope="read", tenant=A), 1)
    assert await tokens.find_session(conn, text) == Caller(who="jwt:ana", scope="read")


def test_a_cookie_reads_and_does_not_act(served: Served) -> None:
    client = served.client(None, Cookie=f"holdfast_session={served.session('admin')}")
    assert client.get("/api/me").json()["who"] == "token:admin"
    key = served.enqueue()
    for method, path in (
        ("POST", f"/api/ledgers/tasks/rows/{key}/cancel"),
        ("PUT", "/api/ledgers/tasks/pause"),
        ("DELETE", "/api/tokens/x"),
    ):
        assert client.request(method, path).status_code == 401, path
    both = served.client("reader", Cookie=f"holdfast_session={served.session('admin')}")
    assert both.get("/api/me").json()["who"] == "token:reader"
    assert served.client(None, Cookie="holdfast_session=x").get("/api/me").status_code == 401


# -- the token of this machine ---------------------------------------------------------------------------


async def test_the_machines_own_token_is_made_once_and_kept_private(conn: Connection, tmp_path: Path) -> None:
    home = tmp_path / "home"
    text = await tokens.create_first(conn, home)
    file = home / "token"
    assert text
    assert file.read_text() == f"{text}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert await tokens.create_first(conn, home) is None
    assert await tokens.is_kept(conn, home)
    caller = await tokens.verify(conn, text)
    assert caller
    assert (caller.who, caller.scope, caller.bound) == ("token:local", "admin", False)
    assert caller.token_id
    await tokens.revoke(conn, caller.token_id)
    assert not await tokens.is_kept(conn, home)
    assert await tokens.create_first(conn, home) is None, "a token that was revoked does not come back"
    assert [path.name for path in home.iterdir()] == ["token"]
    for content in (b"\xff\xfe nonsense", b""):
        file.write_bytes(content)
        assert not await tokens.is_kept(conn, home)


async def test_programs_that_start_together_make_one_token(settings: Settings, tmp_path: Path) -> None:
    async def start(conn: Connection) -> str | None:
        return await tokens.create_first(conn, tmp_path)

    texts = await asyncio.gather(*(asyncio.to_thread(on, settings, start) for _ in range(4)))
    assert sorted(text is None for text in texts) == [False, True, True, True]
