"""The settings of schedules: their defaults, what is refused, and that no secret is shown.

Section 2.3 and the settings' row of section 4 of the requirements.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.db.settings import Settings, load
from holdfast.errors import SettingsError

PREFIX = "HOLDFAST_SCHEDULES_"
TOKEN = "123456:ABC-hidden_token"


def loaded(**variables: str) -> Settings:
    return load({PREFIX + name: text for name, text in variables.items()}, dotenv=None)


def problems_of(**variables: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        loaded(**variables)
    return caught.value.problems


def test_the_defaults_are_those_of_the_document() -> None:
    found = loaded()
    assert (found.schedules_poll_seconds, found.schedules_idle_timeout_seconds) == (5, 25)
    assert (found.schedules_idle_log_every, found.schedules_concurrency) == (12, 4)
    assert (found.schedules_lease_timeout_seconds, found.schedules_heartbeat_seconds) == (300, 10)
    assert (found.schedules_max_lost, found.schedules_user_order) == (5, False)
    assert (found.schedules_extractor, found.schedules_fixture_path) == ("fixture", None)
    assert (found.schedules_noise_seed, found.schedules_object_store) == (0, None)
    assert (found.schedules_summary_threshold, found.schedules_timezone) == (3, None)
    assert found.schedules_company_words == ("ab", "hb", "stadservice", "stadtjanst", "stadning")
    assert (found.schedules_delivery, found.schedules_delivery_poll_seconds) == ("off", 3)
    assert (found.schedules_delivery_batch, found.schedules_delivery_max_attempts) == (20, 5)
    assert found.schedules_delivery_timeout_seconds == 10
    assert found.schedules_telegram_url == "https://api.telegram.org"


def test_each_setting_is_read() -> None:
    found = loaded(
        POLL_SECONDS="500ms",
        IDLE_TIMEOUT_SECONDS="0",
        LEASE_TIMEOUT_SECONDS="1m",
        HEARTBEAT_SECONDS="19.9",
        USER_ORDER="true",
        EXTRACTOR="my-own_2",
        FIXTURE_PATH="days/default.json",
        NOISE_SEED="17",
        OBJECT_STORE="s3://captures?endpoint=https://r2.example&region=auto",
        TIMEZONE="Europe/Stockholm",
        COMPANY_WORDS="Städservice, gmbh",
        DELIVERY="WEBHOOK",
        DELIVERY_URL="https://bot.example/messages?to=all",
        DELIVERY_SECRET="a long secret",
        DELIVERY_BATCH="100",
    )
    assert (found.schedules_poll_seconds, found.schedules_idle_timeout_seconds) == (0.5, 0)
    assert (found.schedules_lease_timeout_seconds, found.schedules_heartbeat_seconds) == (60, 19.9)
    assert (found.schedules_user_order, found.schedules_extractor) == (True, "my-own_2")
    assert found.schedules_fixture_path == Path("days/default.json")
    assert (found.schedules_noise_seed, found.schedules_timezone) == (17, "Europe/Stockholm")
    assert found.schedules_object_store == "s3://captures?endpoint=https://r2.example&region=auto"
    assert found.schedules_company_words == ("Städservice", "gmbh")
    assert (found.schedules_delivery, found.schedules_delivery_batch) == ("webhook", 100)
    assert found.schedules_delivery_url == "https://bot.example/messages?to=all"


def test_company_words_may_be_none() -> None:
    assert loaded(COMPANY_WORDS="none").schedules_company_words == ()


def test_the_poll_has_the_name_that_the_other_service_knows_too() -> None:
    """Section 2.3: it is called `WORKER_POLL_SECONDS` there."""
    assert load({"WORKER_POLL_SECONDS": "7"}, dotenv=None).schedules_poll_seconds == 7
    both = load({"WORKER_POLL_SECONDS": "7", PREFIX + "POLL_SECONDS": "8"}, dotenv=None)
    assert both.schedules_poll_seconds == 8
    assert "WORKER_POLL_SECONDS is also set" in both.warnings[0]
    with pytest.raises(SettingsError, match="WORKER_POLL_SECONDS must be a duration above 0"):
        load({"WORKER_POLL_SECONDS": "0"}, dotenv=None)


def test_wrong_settings_of_schedules_stop_the_start_all_at_once() -> None:
    """S-12, and the row of section 4: each bad input answers as its table row says."""
    assert problems_of(
        POLL_SECONDS="0",
        IDLE_TIMEOUT_SECONDS="-1",
        HEARTBEAT_SECONDS="100",
        MAX_LOST="0",
        EXTRACTOR="Big Words",
        NOISE_SEED="x",
        SUMMARY_THRESHOLD="0",
        TIMEZONE="Mars/Olympus",
        COMPANY_WORDS="a b, c",
        DELIVERY="pigeon",
        DELIVERY_POLL_SECONDS="999ms",
        DELIVERY_BATCH="101",
        DELIVERY_MAX_ATTEMPTS="0",
    ) == (
        "HOLDFAST_SCHEDULES_POLL_SECONDS must be a duration above 0, like 10, 2.5, 500ms, 10s, 2m or 1h, "
        "not '0'",
        "HOLDFAST_SCHEDULES_IDLE_TIMEOUT_SECONDS must be a whole number of at least 0, not '-1'",
        "HOLDFAST_SCHEDULES_MAX_LOST must be a whole number of at least 1, not '0'",
        "HOLDFAST_SCHEDULES_EXTRACTOR must be a name like sample, fixture, noise or ocr, not 'Big Words'",
        "HOLDFAST_SCHEDULES_NOISE_SEED must be a whole number of at least 0, not 'x'",
        "HOLDFAST_SCHEDULES_SUMMARY_THRESHOLD must be a whole number of at least 1, not '0'",
        "HOLDFAST_SCHEDULES_TIMEZONE must be a time zone like Europe/Stockholm, not 'Mars/Olympus'",
        "HOLDFAST_SCHEDULES_COMPANY_WORDS must be words of letters, with commas between, or none, "
        "not 'a b, c'",
        "HOLDFAST_SCHEDULES_DELIVERY must be one of off, log, file, webhook, telegram, own, not 'pigeon'",
        "HOLDFAST_SCHEDULES_DELIVERY_POLL_SECONDS must be at least 1 s, not '999ms'",
        "HOLDFAST_SCHEDULES_DELIVERY_BATCH must be a whole number from 1 to 100, not '101'",
        "HOLDFAST_SCHEDULES_DELIVERY_MAX_ATTEMPTS must be a whole number of at least 1, not '0'",
        "HOLDFAST_SCHEDULES_HEARTBEAT_SECONDS (100s) must be less than a third of "
        "HOLDFAST_SCHEDULES_LEASE_TIMEOUT_SECONDS (300s), or a pause costs a session its lease",
    )


@pytest.mark.parametrize("zone", ["Europe", "../etc/passwd", "/etc/passwd", "Mars", "a\0b", "Å"])
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    """Also a folder of zones, and a way out of it."""
    (problem,) = problems_of(TIMEZONE=zone)
    assert problem.startswith("HOLDFAST_SCHEDULES_TIMEZONE must be a time zone")


def test_an_empty_list_of_company_words_is_a_slip_of_the_pen() -> None:
    assert problems_of(COMPANY_WORDS=" ") == (
        "HOLDFAST_SCHEDULES_COMPANY_WORDS is set but empty: unset it or fill it",
    )


@pytest.mark.parametrize(("beat", "good"), [("99.9", True), ("100", False), ("101", False)])
def test_the_heartbeat_is_below_a_third_of_the_lease(beat: str, good: bool) -> None:
    """S-12"""
    if good:
        assert loaded(HEARTBEAT_SECONDS=beat).schedules_heartbeat_seconds == float(beat)
    else:
        assert len(problems_of(HEARTBEAT_SECONDS=beat)) == 1


def test_a_wrong_setting_is_not_compared_as_well() -> None:
    assert len(problems_of(LEASE_TIMEOUT_SECONDS="never", HEARTBEAT_SECONDS="200")) == 1
    assert len(problems_of(DELIVERY="webhook", DELIVERY_URL="nowhere")) == 1
    assert len(problems_of(EXTRACTOR="ocr", OBJECT_STORE="nowhere")) == 1


@pytest.mark.parametrize(
    "store", ["file:///srv/captures", "file:///", "s3://captures", "s3://a-1.b?region=eu"]
)
def test_an_object_store_is_a_folder_or_a_bucket(store: str) -> None:
    assert loaded(EXTRACTOR="ocr", OBJECT_STORE=store).schedules_object_store == store


@pytest.mark.parametrize(
    "store",
    ["file://srv/captures", "file:captures", "/srv", "s3://", "s3://key:hidden@bucket", "https://x/hidden"],
)
def test_any_other_object_store_is_refused_and_not_repeated(store: str) -> None:
    """Somebody may have put a password into it."""
    (problem,) = problems_of(OBJECT_STORE=store)
    assert problem.startswith("HOLDFAST_SCHEDULES_OBJECT_STORE must be a folder like file:///srv/captures or")
    assert "hidden" not in problem


@pytest.mark.parametrize(
    ("way", "needed"),
    [("file", "DELIVERY_FILE"), ("webhook", "DELIVERY_URL"), ("telegram", "TELEGRAM_TOKEN")],
)
def test_a_delivery_that_lacks_what_it_needs_stops_the_start(way: str, needed: str) -> None:
    assert problems_of(DELIVERY=way) == (f"HOLDFAST_SCHEDULES_DELIVERY={way} needs {PREFIX}{needed}",)


def test_ocr_needs_to_know_where_the_images_are() -> None:
    assert problems_of(EXTRACTOR="ocr") == (
        "HOLDFAST_SCHEDULES_EXTRACTOR=ocr needs HOLDFAST_SCHEDULES_OBJECT_STORE",
    )


def test_a_send_ends_before_the_server_ends_its_transaction() -> None:
    """The row is locked during the send, in a transaction in which nothing else happens."""
    assert problems_of(DELIVERY="log", DELIVERY_TIMEOUT_SECONDS="300") == (
        "HOLDFAST_SCHEDULES_DELIVERY_TIMEOUT_SECONDS (300s) must be less than "
        "HOLDFAST_DB_IDLE_IN_TRANSACTION_SECONDS (300s): a message is locked while it is sent",
    )
    assert loaded(DELIVERY_TIMEOUT_SECONDS="300").schedules_delivery == "off"  # nobody sends
    assert loaded(DELIVERY="log", DELIVERY_TIMEOUT_SECONDS="299").schedules_delivery == "log"


@pytest.mark.parametrize(
    "url",
    ["bot.example/hidden", "ftp://bot.example/hidden", "https://", "https://x:hidden/", "https://x/#hidden"],
)
def test_a_wrong_address_of_a_webhook_is_refused_and_not_repeated(url: str) -> None:
    """Such addresses are often secrets."""
    (problem,) = problems_of(DELIVERY_URL=url)
    assert problem == (
        "HOLDFAST_SCHEDULES_DELIVERY_URL must be a URL like https://bot.example/messages, without a fragment"
    )


@pytest.mark.parametrize(
    "token", ["hidden", "123456:", "123:hidden/../x", "x:hiddenhidden", "1:hidden hidden"]
)
def test_a_wrong_token_is_refused_and_not_repeated(token: str) -> None:
    (problem,) = problems_of(TELEGRAM_TOKEN=token)
    assert problem.startswith("HOLDFAST_SCHEDULES_TELEGRAM_TOKEN must be a bot's token")
    assert "hidden" not in problem


def test_settings_of_schedules_do_not_show_their_secrets() -> None:
    found = loaded(
        DELIVERY="telegram",
        TELEGRAM_TOKEN=TOKEN,
        DELIVERY_URL="https://bot.example/hidden-path",
        DELIVERY_SECRET="hidden-secret",
    )
    assert found.schedules_telegram_token == TOKEN
    assert "hidden" not in repr(found)
