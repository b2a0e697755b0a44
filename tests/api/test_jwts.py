"""JSON Web Tokens: the two ways in, and the ways that are none."""

from __future__ import annotations

import base64
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import hashes, hmac, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from api.kit import A, B, Served, api_of, served_app
from holdfast import Holdfast, Settings
from holdfast.api import jwts, limits
from holdfast.db.settings import load
from holdfast.errors import SettingsError

SECRET = "a secret that is shared by two, and long enough"
ISSUER, AUDIENCE = "https://login.example", "holdfast"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CLAIMS: dict[str, Any] = {"sub": "ana", "scope": "act", "operator": True, "iss": ISSUER, "aud": AUDIENCE}
TENANT_A = {"tenant": A, "operator": None}
KEY_SETTINGS = ("jwt_jwks_url", "jwt_issuer", "jwt_audience")
PEM = KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


class Keys(BaseHTTPRequestHandler):
    """An issuer's JWKS."""

    asked = 0
    broken: tuple[int, bytes] | None = None

    def do_GET(self) -> None:
        type(self).asked += 1
        keys = {"keys": [json.loads(RSAAlgorithm.to_jwk(KEY.public_key())) | {"kid": "one", "use": "sig"}]}
        status, body = self.broken or (200, json.dumps(keys).encode())
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def jwks() -> Iterator[str]:
    Keys.asked, Keys.broken = 0, None
    server = HTTPServer(("127.0.0.1", 0), Keys)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/keys"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def settings(settings: Settings, jwks: str) -> Settings:
    return dataclasses.replace(
        settings, jwt_secret=SECRET, jwt_jwks_url=jwks, jwt_issuer=ISSUER, jwt_audience=AUDIENCE
    )


@pytest.fixture
def served(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(limits, "FAILURES", 100_000)
    with served_app(settings, api_of(Holdfast(settings))) as served:
        yield served


def claims(**more: Any) -> dict[str, Any]:
    made = CLAIMS | {"exp": int(time.time()) + 600} | more
    return {name: value for name, value in made.items() if value is not None}


def shared(**more: Any) -> str:
    return jwt.encode(claims(**more), SECRET, "HS256")


def signed(key: Any = KEY, kid: str | None = "one", **more: Any) -> str:
    return jwt.encode(claims(**more), key, "RS256", headers={"kid": kid} if kid else None)


def ask(served: Served, text: str, **headers: str) -> httpx.Response:
    return served.client(None, Authorization=f"Bearer {text}", **headers).get("/api/me")


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_both_ways_are_ways(served: Served) -> None:
    for text in (shared(), signed()):
        me = {"who": "jwt:ana", "scope": "act", "tenant": None, "operator": True}
        assert ask(served, text).json() == me
    assert ask(served, signed(**TENANT_A)).json()["tenant"] == A
    assert ask(served, signed(**TENANT_A)).json()["operator"] is False
    assert ask(served, signed(**TENANT_A), **{"X-Tenant-Id": B}).status_code == 403
    assert Keys.asked == 1


def test_scopes_are_read_in_every_form(served: Served) -> None:
    forms = {
        "read": ["read", "openid read", "holdfast:read", ["read"], ["other", "holdfast:read"]],
        "act": ["act", "read act", "holdfast:act openid", ["read", "act"]],
        "admin": ["admin", "read admin act", ["holdfast:admin"]],
    }
    for scope, claimed in forms.items():
        for form in claimed:
            assert ask(served, signed(scope=form)).json()["scope"] == scope, form
    for form in (None, "", "write", "reader", [], ["other:admin"], {"act": True}, 5, "holdfast:holdfast:act"):
        assert ask(served, signed(scope=form)).status_code == 401, form


def test_what_a_stranger_could_try(served: Served) -> None:
    now = int(time.time())
    header, body, signature = signed().split(".")
    none = f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(claims())}."
    mac = hmac.HMAC(PEM, hashes.SHA256())
    confused = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'one'})}.{part(claims())}"
    mac.update(confused.encode())
    forged = f"{confused}.{base64.urlsafe_b64encode(mac.finalize()).rstrip(b'=').decode()}"
    tries = {
        "alg none": none,
        "alg None": none.replace(none.split(".")[0], part({"alg": "None"})),
        "HS256 by the public key": forged,
        "RS256 by a stranger": signed(STRANGER),
        "RS256 by a stranger under no kid": signed(STRANGER, None),
        "an unknown kid": signed(STRANGER, "two"),
        "no kid": signed(KEY, None),
        "RS512": jwt.encode(claims(), KEY, "RS512", headers={"kid": "one"}),
        "HS512": jwt.encode(claims(), SECRET * 2, "HS512"),
        "HS256 by another secret": jwt.encode(claims(), SECRET[::-1], "HS256"),
        "HS256 by the kid": jwt.encode(claims(), "one".ljust(32), "HS256", headers={"kid": "one"}),
        "no signature": f"{header}.{body}.",
        "another body": f"{header}.{part(claims(scope='admin'))}.{signature}",
        "expired": signed(exp=now - 60),
        "no exp": signed(exp=None),
        "exp that is a word": f"{header}.{part(claims(exp='never'))}.{signature}",
        "not yet": signed(nbf=now + 600),
        "another audience": signed(aud="somebody else"),
        "no audience": signed(aud=None),
        "another issuer": signed(iss="https://evil.example"),
        "no issuer": signed(iss=None),
        "no subject": signed(sub=None),
        "an empty subject": signed(sub=""),
        "a subject with a line break": signed(sub="ana\nroot"),
        "a long subject": signed(sub="a" * 300),
        "a tenant that is no text": signed(tenant=["x"], operator=None),
        "an empty tenant": signed(tenant="", operator=None),
        "neither a tenant nor an operator": signed(operator=None),
        "neither a tenant nor an operator, by the secret": shared(operator=None),
        "no operator": signed(operator=False),
        "a tenant and an operator": signed(tenant=A),
        "an operator that is a word": signed(operator="true"),
        "an operator that is a number": signed(operator=1),
        "an array as a header": f"{part([1])}.{body}.{signature}",
        "five parts": "a.b.c.d.e",
        "a bomb": f"{part({'alg': 'RS256', 'kid': 'one'})}.{'x' * 9000}.{signature}",
        "deep": f"{base64.urlsafe_b64encode(b'[' * 3000).decode()}.{body}.{signature}",
    }
    for name, text in tries.items():
        response = ask(served, text)
        assert response.status_code == 401, (name, response.text)
        assert response.json()["code"] == "NOT_ALLOWED", name


def test_keys_without_an_issuer_and_an_audience_stop_the_start(settings: Settings) -> None:
    for missing in ("jwt_issuer", "jwt_audience"):
        variables = {f"HOLDFAST_{name.upper()}": getattr(settings, name) for name in KEY_SETTINGS}
        del variables[f"HOLDFAST_{missing.upper()}"]
        with pytest.raises(SettingsError, match="HOLDFAST_JWT_ISSUER and HOLDFAST_JWT_AUDIENCE"):
            load(variables, dotenv=None)
        with pytest.raises(SettingsError, match="jwt_issuer and jwt_audience"):
            Holdfast(dataclasses.replace(settings, **{missing: None})).web()


def test_unknown_kids_do_not_make_us_ask_the_issuer_again_and_again(served: Served) -> None:
    for number in range(20):
        assert ask(served, signed(STRANGER, f"kid {number}")).status_code == 401
    assert Keys.asked <= 2


def test_an_issuer_that_does_not_answer_is_a_503(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwts, "PAUSE", 0.0)
    for broken in ((500, b""), (302, b""), (200, b"<html>"), (200, b'{"keys": []}')):
        Keys.broken = broken
        response = ask(served, signed())
        assert (response.status_code, response.json()["code"]) == (503, "UNAVAILABLE"), broken
        assert ask(served, shared()).status_code == 200
        assert served.client("reader").get("/api/me").status_code == 200
    Keys.broken = None
    assert ask(served, signed()).status_code == 200


def test_an_issuer_that_does_not_answer_is_not_asked_for_every_token(served: Served) -> None:
    """Or whoever brings junk would take a thread, and wait for it, each time."""
    Keys.broken = (500, b"")
    assert ask(served, signed()).status_code == 503
    Keys.broken = None
    assert ask(served, signed()).status_code == 503
    assert ask(served, shared()).status_code == 200


def test_a_way_that_is_not_set_up_is_none(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    only_keys = dataclasses.replace(settings, jwt_secret=None)
    with served_app(only_keys, api_of(Holdfast(only_keys))) as served:
        assert (ask(served, signed()).status_code, ask(served, shared()).status_code) == (200, 401)
        assert ask(served, jwt.encode(claims(), "x" * 32, "HS256")).status_code == 401
    only_secret = dataclasses.replace(settings, jwt_jwks_url=None, jwt_audience=None, jwt_issuer=None)
    with served_app(only_secret, api_of(Holdfast(only_secret))) as served:
        assert (ask(served, signed()).status_code, ask(served, shared()).status_code) == (401, 200)
        assert ask(served, shared(aud=None, iss=None)).status_code == 200
    neither = dataclasses.replace(settings, jwt_secret=None, jwt_jwks_url=None)
    with served_app(neither, api_of(Holdfast(neither))) as served:
        assert (ask(served, signed()).status_code, ask(served, shared()).status_code) == (401, 401)
