"""Settings: where they come from, what is refused, and that no secret is shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from holdfast.db.parsers import redacted
from holdfast.db.settings import Settings, describe, load
from holdfast.db.sync_settings import ProviderSettings, describe_provider
from holdfast.errors import SettingsError

ROOT = Path(__file__).parents[2]
URL = "postgresql://ada:secret@db.example/work"


def problems_of(**variables: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load(variables, dotenv=None)
    return caught.value.problems


@pytest.fixture
def dotenv(tmp_path: Path) -> Path:
    return tmp_path / ".env"


def test_nothing_set_gives_the_defaults():
    assert load({}, dotenv=None) == Settings()


def test_the_file_is_read_and_the_real_environment_beats_it(dotenv: Path):
    dotenv.write_text("HOLDFAST_CONCURRENCY=3\nHOLDFAST_SCHEMA=work\n")
    settings = load({"HOLDFAST_CONCURRENCY": "4"}, dotenv)
    assert (settings.concurrency, settings.schema) == (4, "work")


def test_a_missing_file_is_no_problem(dotenv: Path):
    assert load({}, dotenv) == Settings()


@pytest.mark.parametrize(
    ("line", "home"),
    [
        ("HOLDFAST_HOME=plain", "plain"),
        ("  export HOLDFAST_HOME = spaced out ", "spaced out"),
        ("HOLDFAST_HOME=plain # a comment", "plain"),
        ("HOLDFAST_HOME=a#b", "a#b"),
        ("HOLDFAST_HOME='a # $b\\n'", "a # $b\\n"),
        ('HOLDFAST_HOME="a # \\"b\\"" # a comment', 'a # "b"'),
        ("HOLDFAST_HOME=it's", "it's"),
        ("HOLDFAST_HOME=$HOME/x", "$HOME/x"),
    ],
)
def test_a_line_of_the_file_may_be_quoted_commented_and_exported(dotenv: Path, line: str, home: str):
    dotenv.write_text(f"\ufeff# a comment\n\n{line}\n", encoding="utf-8")
    assert load({}, dotenv).home == Path(home)


@pytest.mark.parametrize(
    "line", ["no equals sign", "1KEY=x", 'HOLDFAST_HOME="secret', "HOLDFAST_HOME='a' secret"]
)
def test_a_malformed_line_is_told_with_its_number_and_without_its_text(dotenv: Path, line: str):
    dotenv.write_text(f"# first\n{line}\n")
    with pytest.raises(SettingsError) as caught:
        load({"HOLDFAST_CONCURRENCY": "0"}, dotenv)
    assert len(caught.value.problems) == 2
    assert "line 2" in caught.value.problems[0]
    assert "secret" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_a_problem(dotenv: Path):
    dotenv.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load({}, dotenv)


@pytest.mark.parametrize("name", ["HOLDFAST_DATABASE_URL", "DATABASE_URL", "POBLYSH_DATABASE_URL"])
def test_the_database_has_three_spellings(name: str):
    assert load({name: URL}, dotenv=None).database_url == URL


def test_the_profile_has_two_spellings():
    assert load({"POBLYSH_PROFILE": "prod"}, dotenv=None).profile == "prod"
    assert load({"WORKER_TIMEOUT": "45s"}, dotenv=None).worker_timeout == 45


def test_of_two_spellings_ours_wins_and_a_difference_is_a_warning_without_values():
    """C-6, section 2.3"""
    same = load({"HOLDFAST_DATABASE_URL": URL, "DATABASE_URL": URL}, dotenv=None)
    other = load({"HOLDFAST_DATABASE_URL": URL, "DATABASE_URL": "postgresql://b:hidden@c/d"}, dotenv=None)
    assert (same.database_url, same.warnings) == (URL, ())
    assert other.database_url == URL
    assert len(other.warnings) == 1
    assert "DATABASE_URL is also set" in other.warnings[0]
    assert "hidden" not in other.warnings[0]


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_a_url_may_name_its_scheme_in_three_ways(scheme: str):
    url = URL.replace("postgresql", scheme)
    assert load({"HOLDFAST_DATABASE_URL": url}, dotenv=None).database_url == URL


@pytest.mark.parametrize(
    "url",
    [
        "mysql://ada:secret@db/x",
        "host=db password=secret",
        "postgresql://ada:sec/ret@db:port/x",
        "postgresql://ada:secret",
        "postgresql://ada:secret@db/x?colour=red",
        "postgresql+asyncpg://ada:secret@db/x",
    ],
)
def test_a_wrong_url_is_refused_and_its_password_not_shown(url: str):
    """C-6"""
    (problem,) = problems_of(HOLDFAST_DATABASE_URL=url)
    assert problem.startswith("HOLDFAST_DATABASE_URL ")
    assert "sec" not in problem.replace("special", "")


def test_set_but_empty_is_an_error():
    """C-6"""
    assert problems_of(HOLDFAST_DATABASE_URL=" ", HOLDFAST_HOME="") == (
        "HOLDFAST_DATABASE_URL is set but empty: unset it or fill it",
        "HOLDFAST_HOME is set but empty: unset it or fill it",
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", 10), ("2.5", 2.5), ("500ms", 0.5), ("10s", 10), ("2m", 120), ("1h", 3600), ("1.5 h", 5400)],
)
def test_a_duration_is_seconds_or_has_a_unit(text: str, seconds: float):
    assert load({"HOLDFAST_SHUTDOWN_TIMEOUT": text}, dotenv=None).shutdown_timeout == seconds


@pytest.mark.parametrize("text", ["0", "-1", "0ms", "1d", "ten", "1e3", "inf", "nan", "1,5", "\u0661"])
def test_a_duration_that_is_none_is_refused(text: str):
    (problem,) = problems_of(HOLDFAST_POLL_INTERVAL=text)
    assert problem.startswith("HOLDFAST_POLL_INTERVAL must be a duration above 0")


def test_all_problems_come_in_one_error_each_with_what_would_be_right():
    """C-6"""
    problems = problems_of(
        HOLDFAST_DB_MAX_CONNECTIONS="1",
        HOLDFAST_CONCURRENCY="many",
        HOLDFAST_PROFILE="production",
        HOLDFAST_DATABASE_POOLER="session",
        HOLDFAST_SCHEMA="Public; drop",
        HOLDFAST_LOG_LEVEL="loud",
        HOLDFAST_LOG_FORMAT="xml",
        HOLDFAST_POLL_INTERVAL="soon",
    )
    rights = [
        "at least 2",
        "at least 1",
        "local, test, dev, prod",
        "none, transaction",
        "a-z",
        "DEBUG",
        "text, json",
    ]
    assert len(problems) == 8
    for right in rights:
        assert any(right in problem for problem in problems), right


def test_words_are_read_in_any_case():
    settings = load({"HOLDFAST_LOG_LEVEL": "debug", "HOLDFAST_PROFILE": "PROD"}, dotenv=None)
    assert (settings.log_level, settings.profile) == ("DEBUG", "prod")


def test_a_worker_must_outlive_two_heartbeats_and_a_leader_one():
    problems = problems_of(
        HOLDFAST_HEARTBEAT_INTERVAL="10", HOLDFAST_WORKER_TIMEOUT="20s", HOLDFAST_LEADER_TERM="10s"
    )
    assert [problem.split()[0] for problem in problems] == ["HOLDFAST_WORKER_TIMEOUT", "HOLDFAST_LEADER_TERM"]


def test_a_setting_that_is_wrong_anyway_is_not_compared():
    assert len(problems_of(HOLDFAST_HEARTBEAT_INTERVAL="x", HOLDFAST_WORKER_TIMEOUT="1")) == 1


def test_a_schema_cannot_be_pinned_through_a_transaction_pooler():
    (problem,) = problems_of(HOLDFAST_SCHEMA="work", HOLDFAST_DATABASE_POOLER="transaction")
    assert "search_path" in problem


def test_an_unknown_name_is_a_warning_with_the_nearest_known_one():
    settings = load({"HOLDFAST_CONCURENCY": "3", "OTHER": "x"}, dotenv=None)
    assert settings.warnings == ("HOLDFAST_CONCURENCY is not a setting; the nearest is HOLDFAST_CONCURRENCY",)


def test_names_that_apps_read_are_left_alone():
    variables = {"HOLDFAST_API_TOKEN": "x", "HOLDFAST_OCR_LANGUAGE": "x"}
    assert load(variables, None, known=["HOLDFAST_API_TOKEN", "HOLDFAST_OCR_"]).warnings == ()


def test_settings_do_not_show_their_urls():
    settings = load({"HOLDFAST_DATABASE_URL": URL, "HOLDFAST_DATABASE_DIRECT_URL": URL}, dotenv=None)
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "postgresql://ada:***@db.example/work"),
        ("postgresql://ada@db:5432/work", "postgresql://ada@db:5432/work"),
        ("postgresql://ada:a@b/c:d@db/work", "postgresql://ada:***@db/work"),
        ("postgresql://ada:secret", "postgresql://ada:***"),
        ("postgresql://[::1]:5432/work", "postgresql://[::1]:5432/work"),
        ("postgresql://a:5432,b:5433/work", "postgresql://a:5432,b:5433/work"),
        ("postgresql:///work?password=secret&user=ada", "postgresql:///work?password=***&user=ada"),
        ("host=db password='my secret' user=ada", "host=db password=*** user=ada"),
    ],
)
def test_a_redacted_url_has_no_password_also_when_malformed(url: str, shown: str):
    assert redacted(url) == shown


def test_every_setting_is_described_and_documented():
    rows = describe()
    names = {f.name for f in dataclasses.fields(Settings)} - {"warnings", "providers"}
    assert {row.name for row in rows} == {f"HOLDFAST_{name.upper()}" for name in names}
    page = (ROOT / "docs" / "settings.md").read_text()
    for row in rows:
        default = f"`{row.default}`" if row.default else "unset"
        assert f"| `{row.name}` | {default} | {row.meaning} |" in page
    for variable, meaning in describe_provider():
        assert f"| `{variable}` | {meaning} |" in page


def test_what_belongs_to_one_provider_is_read_by_its_name():
    found = load(
        {
            "HOLDFAST_OAUTH_GITHUB_CLIENT_ID": "app",
            "HOLDFAST_OAUTH_GITHUB_CLIENT_SECRET": "hush-hush",
            "HOLDFAST_WEBHOOK_GOOGLE_DRIVE_SECRET": "a long secret",
            "HOLDFAST_WEBHOOK_GOOGLE_DRIVE_OLD_SECRETS": "older one, oldest one",
            "HOLDFAST_SYNC_BACKOFF_GITHUB_BASE_SECONDS": "10",
            "HOLDFAST_SYNC_BACKOFF_BASE_SECONDS": "7",
            "HOLDFAST_WEBHOOK_MAX_BYTES": "4096",
            "HOLDFAST_WEBHOOK_GMAIL_MAX_BYTES": "2048",
        },
        dotenv=None,
    )
    assert found.warnings == ()
    github, drive = found.provider("github"), found.provider("google_drive")
    assert (github.client_id, github.client_secret, github.backoff_base) == ("app", "hush-hush", 10)
    assert (drive.webhook_secret, drive.webhook_old_secrets) == ("a long secret", ("older one", "oldest one"))
    assert (found.sync_backoff_base_seconds, found.webhook_max_bytes) == (7, 4096)
    assert found.provider("gmail").webhook_max_bytes == 2048
    assert found.provider("slack") == ProviderSettings()
    assert "hush" not in repr(found)
    assert "secret'" not in repr(found)


def test_wrong_settings_of_connections_are_told_together():
    """C-6, C-18, section 4: also what contradicts another setting."""
    with pytest.raises(SettingsError) as caught:
        load(
            {
                "HOLDFAST_SYNC_TICK_SECONDS": "9",
                "HOLDFAST_SYNC_DEFAULT_INTERVAL_SECONDS": "7200",
                "HOLDFAST_SYNC_MAX_INTERVAL_SECONDS": "3600",
                "HOLDFAST_SYNC_JITTER_MIN": "0.5",
                "HOLDFAST_WEBHOOK_GITHUB_SECRET": "short",
                "HOLDFAST_OAUTH_REDIRECT_URIS": "http://example.org/back",
                "HOLDFAST_TRUSTED_PROXIES": "the office",
                "HOLDFAST_SYNC_SINGLE_FLIGHT": "maybe",
            },
            dotenv=None,
        )
    assert caught.value.problems == (
        "HOLDFAST_SYNC_TICK_SECONDS must lie between 10 and 300 seconds, not '9'",
        "HOLDFAST_SYNC_SINGLE_FLIGHT must be true or false, not 'maybe'",
        "HOLDFAST_OAUTH_REDIRECT_URIS must be https URLs without a fragment, with commas between, "
        "not 'http://example.org/back'",
        "HOLDFAST_TRUSTED_PROXIES must be networks like 10.0.0.0/8, with commas between, not 'the office'",
        "HOLDFAST_WEBHOOK_GITHUB_SECRET must have at least 8 characters",
        "HOLDFAST_SYNC_DEFAULT_INTERVAL_SECONDS (7200) must not be more than "
        "HOLDFAST_SYNC_MAX_INTERVAL_SECONDS (3600)",
        "HOLDFAST_SYNC_JITTER_MIN (0.5) must not be more than HOLDFAST_SYNC_JITTER_MAX (0.2)",
    )
