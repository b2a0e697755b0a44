"""The app at work: which connectors it knows, and what it does by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from connectors import kit
from connectors.kit import FAKE, Script, Stage, fake
from holdfast import Holdfast, Settings
from holdfast.apps.connectors.app import app as connectors_app
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.protocol import Provider, Unsupported
from holdfast.apps.connectors.service import Connectors, NoConnector
from holdfast.apps.connectors.work import work
from holdfast.db.pool import Connection
from holdfast.db.settings import ProviderSettings
from holdfast.errors import NotFound


@pytest.fixture
async def stage(settings: Settings, conn: Connection) -> AsyncIterator[Stage]:
    async with kit.stage(settings, conn) as stage:
        yield stage


async def test_a_connector_is_made_with_its_providers_settings(settings: Settings, conn: Connection) -> None:
    """C-35, section 2.3: where its API is, and how many items one run may bring."""
    own = ProviderSettings(api_url="http://127.0.0.1:1/api/", client_id="me")
    settings = replace(settings, providers={"fake": own}, sync_max_items=7)
    async with kit.stage(settings, conn) as stage, stage.service.connector("fake") as connector:
        assert (connector.settings, connector.max_items) == (own, 7)
        assert connector.api == "http://127.0.0.1:1/api"


async def test_a_connector_of_ones_own_takes_the_place_of_a_built_in_one(settings: Settings) -> None:
    """C-35: the others stay."""
    mine = fake(Script(), replace(FAKE, slug="github", display_name="Mine"))
    app = Holdfast(replace(settings, crypto_key=kit.KEY), apps=[connectors_app(mine)])
    service = Connectors.of(app)
    assert service.known["github"] is mine
    assert service.provider("github").display_name == "Mine"
    assert set(service.known) >= {"github", "slack"}
    assert service.known["slack"].provider.slug == "slack"


async def test_a_provider_without_a_connector_is_known_and_cannot_be_asked(stage: Stage) -> None:
    """Section 7: it stays in the catalogue."""
    service = Connectors(ground=stage.app, keyring=stage.service.keyring, known={})
    assert [service.provider(one.slug) for one in PROVIDERS] == list(PROVIDERS)
    with pytest.raises(NoConnector, match="there is no connector for 'slack'") as refused:
        async with service.connector("slack"):
            pass
    assert isinstance(refused.value, Unsupported)
    assert refused.value.code == "NO_CONNECTOR"


def test_a_provider_that_nobody_knows_is_not_found(settings: Settings) -> None:
    """Section 4."""
    service = Connectors.of(Holdfast(replace(settings, crypto_key=kit.KEY)))
    with pytest.raises(NotFound):
        service.provider("myspace")
    assert isinstance(service.provider("gmail"), Provider)


async def test_the_app_has_a_handler_for_each_type_and_five_duties(stage: Stage) -> None:
    """C-21, C-33, C-49, C-58, C-78."""
    found = work(stage.app)
    assert {(one.ledger, one.kind) for one in found.handlers} == {
        ("sync_jobs", "full"),
        ("sync_jobs", "incremental"),
        ("sync_jobs", "webhook"),
    }
    assert all(
        one.timeout and one.timeout > stage.app.settings.sync_max_run_seconds for one in found.handlers
    )
    assert {one.name for one in found.duties} == {
        "schedule",
        "refresh tokens",
        "settle refreshes",
        "retain connectors",
        "stranded deliveries",
    }
