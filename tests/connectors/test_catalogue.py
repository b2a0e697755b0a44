"""The catalogue of providers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from conftest import Connect
from holdfast.apps.connectors import catalogue
from holdfast.apps.connectors.catalogue import PROVIDERS, slug_of
from holdfast.apps.connectors.protocol import Provider
from holdfast.db.pool import Connection
from holdfast.errors import Conflict, InvalidInput, NotFound

EIGHT = [
    "github",
    "gmail",
    "google_calendar",
    "google_drive",
    "jira",
    "slack",
    "zoho_cliq",
    "zoho_mail",
]
ASANA = Provider(slug="asana", display_name="Asana", auth_type="oauth2")


async def rows(conn: Connection) -> dict[str, tuple[str, str, datetime, datetime]]:
    found = await conn.execute("select slug, display_name, auth_type, created_at, updated_at from providers")
    return {slug: tuple(rest) for slug, *rest in await found.fetchall()}


def test_the_eight_are_asked_for_these_scopes_and_all_but_one_take_webhooks() -> None:
    """C-9"""
    assert sorted(provider.slug for provider in PROVIDERS) == EIGHT
    assert {p.slug: p.scopes for p in PROVIDERS} == {
        "slack": ("channels:read", "channels:history", "reactions:read"),
        "github": ("repo", "read:org"),
        "jira": ("read:jira-work", "read:jira-user"),
        "google_drive": ("drive.readonly",),
        "google_calendar": ("calendar.readonly",),
        "gmail": ("gmail.readonly",),
        "zoho_mail": ("ZohoMail.messages.READ",),
        "zoho_cliq": (),
    }
    assert {p.slug for p in PROVIDERS if p.auth_type != "oauth2"} == {"zoho_cliq"}
    assert {p.slug for p in PROVIDERS if not p.webhooks} == {"zoho_mail"}


async def test_all_are_listed_by_their_slugs(conn: Connection) -> None:
    """C-8"""
    await catalogue.upsert(conn, ASANA)
    found = await catalogue.list_all(conn)
    assert [provider.slug for provider in found] == ["asana", *EIGHT]
    assert sorted(found[1:], key=lambda p: p.slug) == sorted(PROVIDERS, key=lambda p: p.slug)
    assert found[0] == ASANA


async def test_a_provider_is_found_by_its_slug_also_with_hyphens(conn: Connection) -> None:
    """C-8, C-10"""
    for text in ("google_drive", "google-drive", " google-drive "):
        found = await catalogue.get_by_slug(conn, text)
        assert (found.slug, found.display_name) == ("google_drive", "Google Drive")
    assert slug_of("zoho-mail") == "zoho_mail"


@pytest.mark.parametrize("slug", ["nobody", "", "GitHub", "git\x00hub", "x" * 100, "a;b", "é", "\ud800"])
async def test_a_provider_that_is_not_there_is_not_found(conn: Connection, slug: str) -> None:
    """The row of "Bad input" about a provider in a path."""
    with pytest.raises(NotFound) as caught:
        await catalogue.get_by_slug(conn, slug)
    assert str(caught.value) == f"provider {slug!r} not found"
    assert caught.value.status == 404


def test_a_slug_that_is_no_text_is_refused() -> None:
    """C-10"""
    with pytest.raises(InvalidInput, match=r"^provider: must be a text"):
        slug_of(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_a_second_provider_github_is_a_conflict_and_the_transaction_goes_on(conn: Connection) -> None:
    """C-7 and the row of "Bad input" about what exists: 23505 is told as `Conflict`."""
    async with conn.transaction():
        await catalogue.create(conn, ASANA)
        for again in (ASANA, replace(ASANA, slug="github", display_name="Mine")):
            with pytest.raises(Conflict, match=f"^provider: there is a '{again.slug}' already$"):
                await catalogue.create(conn, again)
    assert (await catalogue.get_by_slug(conn, "github")).display_name == "GitHub"
    assert len(await catalogue.list_all(conn)) == 9


async def test_an_upsert_inserts_or_brings_up_to_date_and_moves_updated_at(conn: Connection) -> None:
    """C-8"""
    await catalogue.upsert(conn, ASANA)
    name, kind, created, updated = (await rows(conn))["asana"]
    assert (name, kind, created) == ("Asana", "oauth2", updated)
    await catalogue.upsert(conn, replace(ASANA, display_name="Asana 2", auth_type="webhook-only"))
    name, kind, still, moved = (await rows(conn))["asana"]
    assert (name, kind, still) == ("Asana 2", "webhook-only", created)
    assert moved > updated


async def test_an_upsert_of_what_is_there_waits_for_nobody(conn: Connection, connect: Connect) -> None:
    """Traps: who notes a limit comes from a connection, and who connects goes there; they must not meet."""
    await catalogue.upsert(conn, ASANA)
    before, noting = await rows(conn), await connect()
    async with noting.transaction():
        await catalogue.cool_down(noting, "asana", datetime.now(UTC))
        async with conn.transaction():
            await conn.execute("set local lock_timeout = '1s'")
            await catalogue.upsert(conn, ASANA)
    assert (await rows(conn))["github"] == before["github"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"slug": ""}, "slug"),
        ({"slug": "Asana"}, "slug"),
        ({"slug": "a|b"}, "slug"),
        ({"slug": "a-b"}, "slug"),
        ({"slug": "x" * 64}, "slug"),
        ({"display_name": " "}, "display_name"),
        ({"display_name": "a\x00"}, "display_name"),
        ({"auth_type": ""}, "auth_type"),
    ],
)
async def test_a_line_that_makes_no_sense_is_refused(
    conn: Connection, wrong: dict[str, str], field: str
) -> None:
    """C-8: a slug is part of what tokens are sealed for, and of paths."""
    with pytest.raises(InvalidInput) as caught:
        await catalogue.upsert(conn, replace(ASANA, **wrong))
    assert caught.value.field == field
    assert "asana" not in await rows(conn)


async def test_upserting_the_eight_providers_leaves_eight_rows_with_the_latest_values(
    conn: Connection,
) -> None:
    """C-9"""
    await conn.execute("delete from providers where slug like 'g%'")
    await conn.execute("update providers set display_name = 'old', auth_type = 'old'")
    for _ in range(2):
        await catalogue.seed(conn)
        found = {slug: (name, kind) for slug, (name, kind, *_) in (await rows(conn)).items()}
        assert found == {p.slug: (p.display_name, p.auth_type) for p in PROVIDERS}


async def test_seeding_takes_the_users_own_providers_along_and_theirs_count(conn: Connection) -> None:
    """C-9"""
    mine = Provider(slug="github", display_name="GitHub Enterprise", auth_type="oauth2")
    await catalogue.seed(conn, [ASANA, mine])
    found = await rows(conn)
    assert len(found) == 9
    assert (found["asana"][0], found["github"][0]) == ("Asana", "GitHub Enterprise")


async def test_a_seeding_that_fails_changes_nothing(conn: Connection) -> None:
    """C-9"""
    await conn.execute("update providers set display_name = 'old'")
    with pytest.raises(InvalidInput):
        await catalogue.seed(conn, [replace(ASANA, slug="z z")])
    assert {name for name, *_ in (await rows(conn)).values()} == {"old"}


async def rest(conn: Connection, slug: str) -> datetime | None:
    """Until when a provider wants no calls."""
    found = await conn.execute("select cooldown_until from providers where slug = %s", (slug,))
    ((until,),) = await found.fetchall()
    return until


async def test_a_provider_rests_until_the_latest_time_that_was_said(conn: Connection) -> None:
    """C-42"""
    assert await rest(conn, "github") is None
    now = datetime.now(UTC)
    later, sooner = now + timedelta(hours=2), now + timedelta(hours=1)
    await catalogue.cool_down(conn, "github", later)
    await catalogue.cool_down(conn, "github", sooner)
    assert await rest(conn, "github") == later
    assert await rest(conn, "slack") is None


async def test_a_rest_without_a_zone_is_refused(conn: Connection) -> None:
    """C-42"""
    with pytest.raises(InvalidInput, match="time zone"):
        await catalogue.cool_down(conn, "github", datetime(2030, 1, 1))  # noqa: DTZ001
