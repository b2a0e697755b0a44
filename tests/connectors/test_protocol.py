"""What a connector is, and that each of the built-in ones is one."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from connectors.polling import account
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.http import opened
from holdfast.apps.connectors.protocol import (
    Account,
    AuthRequest,
    Connector,
    ConnectorError,
    Delivery,
    Grant,
    Permanent,
    Provider,
    RateLimited,
    Transient,
    Unauthorized,
    Unsupported,
)
from holdfast.apps.connectors.providers import CONNECTORS, NAMES
from holdfast.db.settings import ProviderSettings

SECRET = "token-that-nobody-may-see"
REQUEST = AuthRequest(
    redirect_uri="https://x.example", state="s", scopes=(), code_challenge="c", code_verifier=SECRET
)


class Bare(Connector):
    provider = Provider(slug="bare", display_name="Bare", auth_type="webhook-only")


async def test_what_a_connector_does_not_do_is_unsupported() -> None:
    """C-35: missing parts raise `Unsupported`, which is permanent; ids have a default."""
    me = account("bare", None)
    delivery = Delivery(id="1", headers={}, payload=None, received_at=datetime.now(UTC))
    async with opened("bare") as http:
        bare = Bare(http, ProviderSettings(), max_items=7)
        for call in (
            bare.authorize_url(REQUEST),
            bare.exchange("code", REQUEST),
            bare.refresh("token"),
            bare.sync(me, None),
            bare.handle_webhook(me, delivery),
        ):
            with pytest.raises(Unsupported, match="Bare cannot"):
                await call
        await bare.revoke("token")
        assert bare.challenge({}) is None
        assert bare.external_ids({}, {}) == ()
        assert bare.delivery_id({}, b"body") == hashlib.sha256(b"body").hexdigest()
    assert issubclass(Unsupported, Permanent)


def test_no_token_stands_in_a_repr() -> None:
    """C-57: neither of accounts, nor of grants, nor of requests."""
    values: dict[str, Any] = {"external_id": "1", "access_token": SECRET}
    grant = Grant(**values, refresh_token=SECRET)
    for one in (grant, account("github", SECRET), REQUEST):
        assert SECRET not in repr(one)
    assert isinstance(account("github", SECRET), Account)


@pytest.mark.parametrize(
    "error",
    [
        Unauthorized(message="a"),
        RateLimited(message="a", retry_after_seconds=3, shared=True),
        RateLimited(message="a"),
        Transient(message="a"),
        Permanent(message="a"),
        Unsupported(message="a"),
    ],
)
def test_each_error_keeps_its_fields_and_survives_a_process(error: ConnectorError) -> None:
    """C-35: the errors of the contract, each with its message."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.fields) == (type(error), "a", error.fields)
    if isinstance(again, RateLimited):
        assert (again.retry_after_seconds, again.shared) in ((3, True), (None, False))


def test_each_connector_is_the_one_of_the_catalogue() -> None:
    """C-9: slug, type, scopes and webhooks are the same in both places."""
    catalogue = {provider.slug: provider for provider in PROVIDERS}
    assert set(catalogue) == set(NAMES)
    assert set(CONNECTORS) <= set(NAMES)
    for slug, kind in CONNECTORS.items():
        assert kind.provider == catalogue[slug]
        assert issubclass(kind, Connector)
        assert (kind.scheme is not None) == kind.provider.webhooks
        if kind.provider.auth_type == "oauth2":
            assert kind.api_url.startswith("https://")
            assert kind.auth_url.startswith("https://")


def test_an_unknown_slug_has_no_connector() -> None:
    assert "nobody" not in CONNECTORS
    assert "paging" not in CONNECTORS
    with pytest.raises(KeyError):
        CONNECTORS["nobody"]


def test_the_contract_needs_no_extra() -> None:
    """C-9: the catalogue can be read where httpx, PyJWT and cryptography are not installed."""
    program = (
        "import sys\n"
        "sys.modules['httpx'] = sys.modules['jwt'] = sys.modules['cryptography'] = None\n"
        "import holdfast.apps.connectors.protocol, holdfast.apps.connectors.signatures\n"
        "import holdfast.apps.connectors.normal, holdfast.apps.connectors.providers\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
