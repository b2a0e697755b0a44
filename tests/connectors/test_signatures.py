"""How a webhook proves who sent it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from connectors.servers import github, slack
from connectors.servers.base import Asked, Reply, Server, route
from holdfast.apps.connectors import signatures
from holdfast.apps.connectors.protocol import Transient
from holdfast.apps.connectors.signatures import (
    SENSITIVE,
    InvalidSignature,
    Keys,
    Scheme,
    accepted,
    derived_secret,
    kept,
    verify,
    verify_oidc,
)

SECRET, OLD = "It's a Secret to Everybody", "the one before"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT = int(NOW.timestamp())
TENANT = "aaaaaaaa-0000-4000-8000-00000000000a"


def judged(scheme: Scheme, headers: dict[str, str], body: bytes, *secrets: str, now: datetime = NOW) -> str:
    """What the check says: the way of verification, or the reason of its refusal."""
    try:
        return verify(scheme, headers, body, secrets or (SECRET,), now=now, tolerance=300)
    except InvalidSignature as error:
        return error.reason


def test_a_refusal_does_not_say_what_was_wrong() -> None:
    """C-67: 401 INVALID_SIGNATURE; the reason is for our own figures."""
    with pytest.raises(InvalidSignature, match=r"^the signature is not right$") as caught:
        verify("github", {}, b"", (SECRET,), now=NOW, tolerance=300)
    assert (caught.value.code, caught.value.status) == ("INVALID_SIGNATURE", 401)


def standard(body: bytes, key: bytes, *, at: int = AT, extra: str = "") -> dict[str, str]:
    signature = hmac.new(key, f"msg_1.{at}.".encode() + body, hashlib.sha256).digest()
    text = f"{extra} v1,{base64.b64encode(signature).decode()}".strip()
    return {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": text}


def test_the_example_of_githubs_documentation_verifies() -> None:
    """C-47: `sha256=` and the hexadecimal HMAC of the raw body."""
    expected = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"x-hub-signature-256": f"sha256={expected}"}
    assert judged("github", headers, b"Hello, World!") == "signature"
    assert judged("github", headers, b"Hello, World?") == "wrong"


def test_the_example_of_slacks_documentation_verifies() -> None:
    """C-47: `v0=` and the hexadecimal HMAC of version, time and raw body."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554"
        b"%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "x-slack-request-timestamp": "1531420618",
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    now = datetime.fromtimestamp(1531420618, UTC)
    assert judged("slack", headers, body, "8f742231b10e8888abcd99yyyzzz85a5", now=now) == "signature"


@pytest.mark.parametrize("scheme", ["github", "slack", "standard"])
def test_one_changed_byte_of_a_body_or_of_its_signature_is_refused(scheme: Scheme) -> None:
    """C-47: each single byte counts."""
    if scheme == "github":
        headers, body = github.signed({"action": "opened"}, SECRET, "issues")
    elif scheme == "slack":
        headers, body = slack.signed({"type": "event_callback"}, SECRET, AT)
    else:
        body = b'{"type": "x"}'
        headers = standard(body, SECRET.encode())
    assert judged(scheme, headers, body) == "signature"
    for place in range(len(body)):
        changed = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        assert judged(scheme, headers, changed) == "wrong"
    name = next(name for name in headers if "signature" in name)
    for place in range(len(headers[name])):
        letter = "0" if headers[name][place] != "0" else "1"
        text = headers[name][:place] + letter + headers[name][place + 1 :]
        assert judged(scheme, {**headers, name: text}, body) in ("wrong", "malformed")
    assert judged(scheme, headers, body + b" ") == "wrong"
    assert judged(scheme, headers, body, "another secret") == "wrong"


def test_a_slack_request_300_s_old_passes_and_one_of_301_s_does_not() -> None:
    """C-47: the bound is included, in both directions."""
    for offset, expected in ((300, "signature"), (-300, "signature"), (301, "replay"), (-301, "replay")):
        headers, body = slack.signed({}, SECRET, AT - offset)
        assert judged("slack", headers, body) == expected
    body = b"{}"
    assert judged("standard", standard(body, SECRET.encode(), at=AT - 300), body) == "signature"
    assert judged("standard", standard(body, SECRET.encode(), at=AT - 301), body) == "replay"


@pytest.mark.parametrize(
    ("scheme", "headers", "reason"),
    [
        ("github", {}, "missing"),
        ("github", {"x-hub-signature": "sha1=" + "0" * 40}, "missing"),
        ("github", {"x-hub-signature-256": "  "}, "missing"),
        ("github", {"x-hub-signature-256": "0" * 64}, "malformed"),
        ("github", {"x-hub-signature-256": "sha256=" + "0" * 63}, "malformed"),
        ("github", {"x-hub-signature-256": "sha256=" + "g" * 64}, "malformed"),
        ("github", {"x-hub-signature-256": "sha256=" + "٣" * 64}, "malformed"),
        ("slack", {"x-slack-signature": "v0=" + "0" * 64}, "missing"),
        ("slack", {"x-slack-request-timestamp": str(AT)}, "missing"),
        (
            "slack",
            {"x-slack-request-timestamp": "now", "x-slack-signature": "v0=" + "0" * 64},
            "malformed",
        ),
        ("slack", {"x-slack-request-timestamp": str(AT), "x-slack-signature": "v1=00"}, "malformed"),
        ("bearer", {}, "missing"),
        ("bearer", {"authorization": "Basic eA=="}, "malformed"),
        ("bearer", {"authorization": "Bearer "}, "malformed"),
        ("bearer", {"authorization": "Bearer wrong"}, "wrong"),
        ("channel_token", {}, "missing"),
        ("channel_token", {"x-goog-channel-token": "wrong"}, "wrong"),
        ("standard", {"webhook-id": "1", "webhook-timestamp": str(AT)}, "missing"),
        (
            "standard",
            {"webhook-id": "1", "webhook-timestamp": str(AT), "webhook-signature": "v2,eA== v1,???"},
            "malformed",
        ),
        (
            "standard",
            {"webhook-id": "1", "webhook-timestamp": "x", "webhook-signature": "v1," + "A" * 43 + "="},
            "malformed",
        ),
    ],
)
def test_each_fault_of_a_signature_has_its_reason(
    scheme: Scheme, headers: dict[str, str], reason: str
) -> None:
    """C-55: the figures tell missing, malformed, wrong and replayed signatures apart."""
    assert judged(scheme, headers, b"{}") == reason


def test_shared_secrets_are_accepted_as_they_are() -> None:
    """C-47: bearer for Jira and Zoho Cliq, the channel's token for Drive and Calendar."""
    assert judged("bearer", {"authorization": f"bearer {SECRET}"}, b"") == "shared_secret"
    assert judged("channel_token", {"x-goog-channel-token": SECRET}, b"") == "shared_secret"


def test_old_and_derived_secrets_verify_and_an_empty_one_never_does() -> None:
    """C-48: a tenant's derived secret and the operator's own both verify; another tenant's does not."""
    derived = derived_secret(SECRET, TENANT, "github")
    expected = hmac.new(SECRET.encode(), f"{TENANT}|github".encode(), hashlib.sha256).hexdigest()
    assert derived == expected
    other = derived_secret(SECRET, TENANT.replace("a", "b"), "github")
    secrets = accepted([SECRET, OLD, ""], TENANT, "github")
    assert secrets == (SECRET, derived, OLD, derived_secret(OLD, TENANT, "github"))
    for secret in secrets:
        headers, body = github.signed({}, secret, "push")
        assert judged("github", headers, body, *secrets) == "signature"
    for secret in (other, derived_secret(SECRET, TENANT, "slack"), "x"):
        headers, body = github.signed({}, secret, "push")
        assert judged("github", headers, body, *secrets) == "wrong"
    headers, body = github.signed({}, "", "push")
    assert judged("github", headers, body, "") == "wrong"


def test_standard_webhooks_take_several_signatures_and_encoded_secrets() -> None:
    """C-47: for connectors of one's own; secrets rotate without a gap."""
    body, key = b'{"a": 1}', bytes(range(32))
    secret = "whsec_" + base64.b64encode(key).decode()
    old = "v1," + base64.b64encode(b"\x00" * 32).decode()
    assert judged("standard", standard(body, key), body, secret) == "signature"
    assert judged("standard", standard(body, key, extra=old), body, OLD, secret) == "signature"
    assert judged("standard", standard(body, key, extra="v1a,eA=="), body, secret) == "signature"
    assert judged("standard", standard(body, b"another"), body, secret) == "wrong"


def test_the_example_of_standard_webhooks_verifies() -> None:
    """C-47: the published example of the specification's libraries."""
    body = b'{"test": 2432232314}'
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    now = datetime.fromtimestamp(1614265330, UTC)
    assert judged("standard", headers, body, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", now=now) == "signature"


def test_every_secret_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """C-47: how long a check takes does not tell which secret was right."""
    compared: list[bytes] = []
    real = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return real(one, other)

    monkeypatch.setattr(signatures.hmac, "compare_digest", counting)
    for secret in (SECRET, OLD, "third"):
        compared.clear()
        headers, body = github.signed({}, secret, "push")
        judged("github", headers, body, SECRET, OLD, "third")
        assert len(compared) == 3


def test_no_dropped_header_is_among_those_that_are_kept() -> None:
    """C-52: names become lower case; what proves or opens something is left out."""
    listed = [
        "authorization",
        "cookie",
        "set-cookie",
        "proxy-authorization",
        "www-authenticate",
        "authentication-info",
        "x-api-key",
        "x-auth-token",
        "x-csrf-token",
        "x-xsrf-token",
        "x-webhook-secret",
        "x-hub-signature",
        "x-hub-signature-256",
        "x-slack-signature",
        "x-goog-channel-token",
        "webhook-signature",
    ]
    assert set(listed) <= SENSITIVE
    others = ["X-Other-Signature", "x-gitlab-token", "X-Zoho-Secret", "svix-signature", "apikey"]
    given = {name.title(): "hidden" for name in listed} | dict.fromkeys(others, "hidden")
    fine = {"X-GitHub-Event": "push", "X-Goog-Channel-ID": "7", "Content-Type": "application/json"}
    assert kept(given | fine) == {name.lower(): value for name, value in fine.items()}


# -- Google's tokens -------------------------------------------------------------------------------------

AUDIENCE = "https://hooks.example/connectors/webhooks/gmail"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
FOREIGN = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Certificates(Server):
    def __init__(self) -> None:
        super().__init__()
        self.names = ["one"]

    @route("GET", "/certs")
    def certificates(self, request: Asked) -> Reply:
        public: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
        return Reply({"keys": [{**public, "kid": name, "use": "sig", "alg": "RS256"} for name in self.names]})


@pytest.fixture
def google() -> Iterator[Certificates]:
    with Certificates() as server:
        yield server


def token(key: Any = KEY, kid: str | None = "one", algorithm: str = "RS256", **claims: Any) -> dict[str, str]:
    """The header of a push from Google."""
    now = int(time.time())
    said = {"iss": "https://accounts.google.com", "aud": AUDIENCE, "iat": now, "exp": now + 3600, **claims}
    said = {name: value for name, value in said.items() if value is not None}
    headers = {"kid": kid} if kid else None
    return {"authorization": "Bearer " + jwt.encode(said, key, algorithm=algorithm, headers=headers)}


async def oidc(headers: dict[str, str], keys: Keys, audience: str | None = AUDIENCE) -> str:
    try:
        return await verify_oidc(headers, audience=audience, keys=keys)
    except InvalidSignature as error:
        return error.reason


async def test_googles_token_passes_for_exactly_our_audience_and_its_issuers(google: Certificates) -> None:
    """C-47: exact audience, issuer from a list, RS256 by one of Google's keys, not expired."""
    keys, now = Keys(google.url + "/certs"), int(time.time())
    assert await oidc(token(), keys) == "oidc"
    assert await oidc(token(iss="accounts.google.com"), keys) == "oidc"
    for claims in (
        {"aud": AUDIENCE + "/"},
        {"aud": None},
        {"iss": "https://accounts.google.com.evil.example"},
        {"iss": None},
        {"exp": None},
        {"iat": now + 7200, "exp": now + 9000},
    ):
        assert await oidc(token(**claims), keys) == "wrong", claims
    assert await oidc(token(exp=now - 3600), keys) == "replay"
    assert await oidc(token(FOREIGN), keys) == "wrong"
    assert await oidc(token(kid="two"), keys) == "wrong"
    assert await oidc(token(kid=None), keys) == "malformed"
    assert await oidc(token("x" * 32, algorithm="HS256"), keys) == "malformed"
    assert await oidc({"authorization": "Bearer a.b.c"}, keys) == "malformed"
    assert await oidc({"authorization": "Bearer abc"}, keys) == "malformed"
    assert await oidc({}, keys) == "missing"
    assert await oidc(token(), keys, audience=None) == "wrong"
    assert len(google.requests) == 1


async def test_keys_are_fetched_again_for_a_new_name_but_not_for_each_wrong_one(google: Certificates) -> None:
    """C-47: a key that Google has just begun to use is found; made-up names do not make us ask each time."""
    clock = [1000.0]
    keys = Keys(google.url + "/certs", lambda: clock[0])
    assert await oidc(token(), keys) == "oidc"
    google.names.append("two")
    for _ in range(5):
        assert await oidc(token(kid="two"), keys) == "wrong"
    assert len(google.requests) == 1
    clock[0] += signatures.PAUSE + 1
    assert await oidc(token(kid="two"), keys) == "oidc"
    clock[0] += signatures.CACHED + 1
    assert await oidc(token(), keys) == "oidc"
    assert len(google.requests) == 3


async def test_keys_that_cannot_be_fetched_prove_nothing_either_way(google: Certificates) -> None:
    """C-47: nobody knows whether the token is right, so the sender shall try again."""
    clock = [1000.0]
    keys = Keys(google.url + "/certs", lambda: clock[0])
    for body in (b"{oops", {"keys": []}, {"no": "keys"}):
        google.fail_next(200, body=body)
        with pytest.raises(Transient):
            await verify_oidc(token(), audience=AUDIENCE, keys=keys)
        with pytest.raises(Transient):  # and it is not asked again at once
            await verify_oidc(token(), audience=AUDIENCE, keys=keys)
        clock[0] += signatures.PAUSE + 1
    assert len(google.requests) == 3
    assert await oidc(token(), keys) == "oidc"
