"""The app as a whole: who may serve it, who may work for it, and what its ledgers become under settings."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import Holdfast, Settings
from holdfast.apps.schedules import work
from holdfast.apps.schedules.app import app as schedules_app
from holdfast.apps.schedules.ledger import SESSIONS
from holdfast.errors import InvalidInput, SettingsError
from schedules.kit import Script, fitted


def test_an_unknown_extractor_stops_the_start(settings: Settings) -> None:
    """S-22: section 4; of a server as well as of a worker."""
    app = Holdfast(replace(settings, schedules_extractor="crystal_ball"))
    with pytest.raises(SettingsError, match="crystal_ball"):
        app.web()


async def test_who_only_serves_needs_no_program_that_reads(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """S-23: a server may be told of `ocr` as its workers are; a worker without tesseract does not start."""
    monkeypatch.setenv("PATH", str(tmp_path))
    app = Holdfast(replace(settings, schedules_extractor="ocr", schedules_object_store=f"file://{tmp_path}"))
    async with app:
        assert app.web()
        with pytest.raises(SettingsError, match="tesseract"):
            app.worker(ledgers=[SESSIONS])
        assert app.worker(ledgers=["tasks"])


def test_the_ledgers_follow_the_settings(settings: Settings) -> None:
    """S-9, S-12, S-10, S-15, S-47."""
    own = schedules_app(extractors={"script": lambda _: Script()})
    changed = {"lease_timeout_seconds": 60.0, "heartbeat_seconds": 4.0, "max_lost": 2, "user_order": True}
    found = Holdfast(fitted(settings, **changed), apps=[own])
    assert found.settings
    ledger = found.store(SESSIONS).ledger
    assert ledger.lease
    assert ledger.tries
    assert (ledger.lease.seconds, ledger.lease.every, ledger.tries.limit) == (60.0, 4.0, 2)
    statement = found.store(SESSIONS).sql.claim.decode()
    assert "older.user_id = t.user_id" in statement


async def test_in_production_no_session_is_read_as_the_sample_day(settings: Settings) -> None:
    """S-20: who runs a worker for something else must not write a show into somebody's record."""
    assert settings.database_url
    production = replace(settings, profile="prod", log_format="json", apps=("schedules",))
    async with Holdfast(replace(production, schedules_extractor="sample")) as app:
        assert SESSIONS not in [pump.ledger.name for pump in app.worker().pumps]
        with pytest.raises(InvalidInput, match="capture_session has no handler here"):
            app.worker(ledgers=[SESSIONS])
        for asked in (work.once(app), asyncio.to_thread(work.served, app)):
            with pytest.raises(SettingsError, match="left alone: HOLDFAST_SCHEDULES_EXTRACTOR is sample"):
                await asked
    async with Holdfast(replace(production, schedules_fixture_path=Path("day.json"))) as app:
        assert SESSIONS in [pump.ledger.name for pump in app.worker().pumps]
