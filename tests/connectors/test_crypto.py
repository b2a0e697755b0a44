"""Sealed tokens: what they look like, who can open them, where keys come from, and what a new key changes."""

from __future__ import annotations

import base64
import logging
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.connectors import connections, crypto, tenants
from holdfast.apps.connectors.crypto import Keyring, rekey
from holdfast.db.pool import Connection
from holdfast.db.settings import ProviderSettings, Settings
from holdfast.errors import DecryptionError, SettingsError

SECRET, OTHER, THIRD = bytes(range(32)), b"o" * 32, b"t" * 32
TOKEN = "gho_16C7e42F292c6912E7710c838347Ae178B4a"
SCOPE: Any = {"tenant_id": UUID(int=0xABC), "provider": "github", "external_id": "octo"}
RING = Keyring(lambda: SECRET)
HERE = Settings(profile="test")
UTF8 = st.characters(codec="utf-8")
HOME = Path("/nowhere")  # nothing is looked for there by these tests


def text(secret: bytes) -> str:
    return base64.b64encode(secret).decode()


def ring(*secrets: bytes) -> Keyring:
    return Keyring(lambda: secrets[0], secrets[1:])


# -- the bytes -----------------------------------------------------------------------------------------


def test_sealed_is_a_version_a_nonce_the_ciphertext_and_its_tag() -> None:
    """C-56: 29 bytes and the text; anybody with the key can check it by AES-256-GCM alone."""
    sealed = RING.seal(TOKEN, **SCOPE)
    assert sealed.data[:1] == b"\x01"
    assert len(sealed.data) == 29 + len(TOKEN)
    bound = b"00000000-0000-0000-0000-000000000abc|github|octo"
    assert AESGCM(SECRET).decrypt(sealed.data[1:13], sealed.data[13:], bound) == TOKEN.encode()
    assert sealed.key_id == RING.current_id


def test_the_same_text_twice_gives_different_bytes() -> None:
    """C-56"""
    assert len({RING.seal(TOKEN, **SCOPE).data for _ in range(100)}) == 100


@given(st.text(UTF8), st.uuids(), st.text(UTF8, min_size=1))
def test_what_was_sealed_is_opened_for_the_same_account(word: str, tenant: UUID, account: str) -> None:
    """C-56: also an empty text, and whatever an account is called."""
    scope: Any = {"tenant_id": tenant, "provider": "github", "external_id": account}
    assert RING.open(RING.seal(word, **scope).data, **scope) == word


@pytest.mark.parametrize(
    "other",
    [
        {"tenant_id": UUID(int=1)},
        {"provider": "slack"},
        {"external_id": "Octo"},
        {"external_id": "octo "},
        {"provider": "github|octo", "external_id": ""},
    ],
)
def test_a_token_moved_to_another_row_does_not_decrypt(other: dict[str, Any]) -> None:
    """C-57"""
    data = RING.seal(TOKEN, **SCOPE).data
    with pytest.raises(DecryptionError):
        RING.open(data, **(SCOPE | other))


def test_flipping_any_single_bit_does_not_decrypt() -> None:
    """C-57: of the version, the nonce, the ciphertext and the tag."""
    data = RING.seal(TOKEN, **SCOPE).data
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            with pytest.raises(DecryptionError):
                RING.open(bytes(changed), **SCOPE)


def test_a_token_that_was_cut_or_grew_does_not_decrypt() -> None:
    """C-57"""
    data = RING.seal(TOKEN, **SCOPE).data
    for length in range(len(data)):
        with pytest.raises(DecryptionError):
            RING.open(data[:length], **SCOPE)
    with pytest.raises(DecryptionError):
        RING.open(data + b"\x00", **SCOPE)


@pytest.mark.parametrize("plain", [TOKEN.encode(), b"", b"\x01" + TOKEN.encode() * 2, b"\x00" * 60])
def test_a_plain_token_is_not_accepted(plain: bytes) -> None:
    """C-57"""
    with pytest.raises(DecryptionError):
        RING.open(plain, **SCOPE)


def test_bytes_that_are_sealed_and_no_text_are_not_accepted() -> None:
    """C-57"""
    nonce = b"n" * 12
    bound = b"00000000-0000-0000-0000-000000000abc|github|octo"
    with pytest.raises(DecryptionError):
        RING.open(b"\x01" + nonce + AESGCM(SECRET).encrypt(nonce, b"\xff\xfe", bound), **SCOPE)


def test_every_failure_says_the_same_and_shows_nothing() -> None:
    """C-57: one generic error, without a cause that could tell more."""
    data = RING.seal(TOKEN, **SCOPE).data
    said = set[str]()
    for attempt in (b"", data[:-1], b"\x02" + data[1:], ring(OTHER).seal(TOKEN, **SCOPE).data):
        with pytest.raises(DecryptionError) as caught:
            RING.open(attempt, **SCOPE)
        assert caught.value.__cause__ is None
        said.add(str(caught.value))
    (one,) = said
    assert not any(word in one for word in (TOKEN, text(SECRET), "key", "tag", "tenant"))


def test_neither_keys_nor_tokens_show_in_a_repr() -> None:
    """C-57"""
    sealed = RING.seal(TOKEN, **SCOPE)
    assert repr(sealed) == f"Sealed(key_id='{RING.current_id}')"
    shown = repr(RING) + str(vars(RING))
    assert TOKEN not in shown
    assert text(SECRET) not in shown


# -- old keys ------------------------------------------------------------------------------------------


def test_old_keys_still_read_and_new_secrets_use_the_current_one() -> None:
    """C-62"""
    before, after = ring(SECRET), ring(OTHER, THIRD, SECRET)
    data = before.seal(TOKEN, **SCOPE).data
    assert after.open(data, **SCOPE) == TOKEN
    assert after.seal(TOKEN, **SCOPE).key_id == after.current_id != before.current_id
    with pytest.raises(DecryptionError):
        before.open(after.seal(TOKEN, **SCOPE).data, **SCOPE)


def test_the_id_of_a_key_is_the_same_everywhere_and_tells_nothing_of_it() -> None:
    """C-62"""
    assert ring(SECRET).current_id == ring(SECRET, OTHER).current_id == RING.current_id
    assert ring(OTHER).current_id != RING.current_id
    assert len(RING.current_id) == 16
    assert RING.current_id not in SECRET.hex()


# -- where keys come from ------------------------------------------------------------------------------


def elsewhere(**changes: Any) -> Settings:
    return replace(HERE, profile="production", **changes)


def test_the_key_of_the_settings_seals_and_old_ones_open() -> None:
    """C-61, C-62"""
    made = Keyring.of(elsewhere(crypto_key=text(SECRET), crypto_old_keys=(text(OTHER), text(THIRD))), HOME)
    assert made.current_id == RING.current_id
    for secret in (SECRET, OTHER, THIRD):
        assert made.open(ring(secret).seal(TOKEN, **SCOPE).data, **SCOPE) == TOKEN


WRONG = {
    "": "HOLDFAST_CRYPTO_KEY is missing",
    "  ": "HOLDFAST_CRYPTO_KEY is missing",
    text(SECRET)[:-2] + "!=": "HOLDFAST_CRYPTO_KEY has characters that base64 has not",
    text(SECRET).replace("A", "-"): "HOLDFAST_CRYPTO_KEY has characters that base64 has not",
    "ключ": "HOLDFAST_CRYPTO_KEY has characters that base64 has not",
    text(SECRET).rstrip("="): "HOLDFAST_CRYPTO_KEY is base64 with wrong padding",
    text(SECRET) + "=": "HOLDFAST_CRYPTO_KEY is base64 with wrong padding",
    "=" + text(SECRET)[1:]: "HOLDFAST_CRYPTO_KEY is base64 with wrong padding",
    "====": "HOLDFAST_CRYPTO_KEY is base64 with wrong padding",
    text(SECRET[:31]): "HOLDFAST_CRYPTO_KEY must be 32 bytes, and is 31",
    text(SECRET + b"x"): "HOLDFAST_CRYPTO_KEY must be 32 bytes, and is 33",
    text(SECRET[:16]): "HOLDFAST_CRYPTO_KEY must be 32 bytes, and is 16",
}


@pytest.mark.parametrize("key", WRONG, ids=range(len(WRONG)))
@pytest.mark.parametrize("profile", ["local", "production"])
def test_a_wrong_key_stops_the_start_and_is_not_shown(key: str, profile: str) -> None:
    """C-61: missing, bad characters, bad padding and wrong length are told apart."""
    with pytest.raises(SettingsError) as caught:
        Keyring.of(replace(HERE, profile=profile, crypto_key=key), HOME)
    assert WRONG[key] in str(caught.value)
    assert len(caught.value.problems) == 1
    assert not key.strip("= ") or key.strip("= ") not in str(caught.value)


def test_all_wrong_keys_are_told_together() -> None:
    """C-61, C-62"""
    keys = ("", text(SECRET), "abc")
    with pytest.raises(SettingsError) as caught:
        Keyring.of(replace(HERE, crypto_key="short", crypto_old_keys=keys), HOME)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "HOLDFAST_CRYPTO_KEY is base64 with wrong padding, perhaps it was cut",
        "HOLDFAST_CRYPTO_OLD_KEYS, key 1 is missing",
        "HOLDFAST_CRYPTO_OLD_KEYS, key 3 is base64 with wrong padding, perhaps it was cut",
    ]


@pytest.mark.parametrize("profile", ["local", "test"])
def test_at_home_a_missing_key_is_made_once_and_kept(
    tmp_path: Path, profile: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C-61: in the data folder, for its owner's eyes, and when it is needed."""
    caplog.set_level(logging.INFO)
    home = tmp_path / "not yet" / "there"
    here = replace(HERE, profile=profile)
    first = Keyring.of(here, home)
    assert not home.exists()
    data = first.seal(TOKEN, **SCOPE).data
    (file,) = home.iterdir()
    assert file.name == "crypto.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(base64.b64decode(file.read_text())) == 32
    again = Keyring.of(here, home)
    assert again.open(data, **SCOPE) == TOKEN
    assert again.current_id == first.current_id
    assert "made a key for tokens in" in caplog.text
    assert file.read_text().strip() not in caplog.text


def test_of_many_who_make_the_key_together_all_have_the_same(tmp_path: Path) -> None:
    """C-61"""
    barrier = threading.Barrier(16)

    def make(_: int) -> str:
        made = Keyring.of(HERE, tmp_path)
        barrier.wait(20)
        return made.current_id

    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(make, range(16)))) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["crypto.key"]


def test_a_key_file_that_was_spoilt_is_told_and_left_alone(tmp_path: Path) -> None:
    """C-61: a new one would make every token unreadable."""
    file = tmp_path / "crypto.key"
    file.write_bytes(b"\xff\x00 no key")
    with pytest.raises(SettingsError, match=r"crypto\.key has characters that base64 has not"):
        Keyring.of(HERE, tmp_path).seal(TOKEN, **SCOPE)
    assert file.read_bytes() == b"\xff\x00 no key"


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """C-61"""
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"crypto\.key: .*: mend that, or set HOLDFAST_CRYPTO_KEY"):
        Keyring.of(HERE, tmp_path / "file" / "home").seal(TOKEN, **SCOPE)


def test_elsewhere_a_missing_key_stops_whoever_needs_it_and_nobody_else(tmp_path: Path) -> None:
    """C-61: no provider is set up, so there may be no token at all."""
    made = Keyring.of(elsewhere(), tmp_path)
    with pytest.raises(SettingsError, match="HOLDFAST_CRYPTO_KEY is missing"):
        made.seal(TOKEN, **SCOPE)
    with pytest.raises(SettingsError, match="HOLDFAST_CRYPTO_KEY is missing"):
        made.open(RING.seal(TOKEN, **SCOPE).data, **SCOPE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("provider", [{"client_id": "c"}, {"webhook_secret": "s"}])
def test_elsewhere_a_missing_key_stops_the_start_when_a_provider_is_set_up(provider: dict[str, str]) -> None:
    """C-61"""
    configured = {"github": ProviderSettings(**provider), "slack": ProviderSettings()}
    with pytest.raises(SettingsError, match="HOLDFAST_CRYPTO_KEY is missing"):
        Keyring.of(elsewhere(providers=configured), HOME)
    unused = {"slack": ProviderSettings()}
    Keyring.of(elsewhere(providers=unused), HOME)


# -- a new key -----------------------------------------------------------------------------------------


class World:
    """Connections with tokens under several keys."""

    def __init__(self, conn: Connection, tenant: UUID) -> None:
        self.conn, self.tenant = conn, tenant

    async def add(self, name: str, access: bytes | None, refresh: bytes | None, key_id: str | None) -> UUID:
        scope = self.scope(name)

        def sealed(secret: bytes | None) -> bytes | None:
            return None if secret is None else ring(secret).seal(f"{name} {TOKEN}", **scope).data

        link = await connections.create(
            self.conn, **scope, access=sealed(access), refresh=sealed(refresh), key_id=key_id
        )
        return link.id

    def scope(self, name: str) -> Any:
        return {"tenant_id": self.tenant, "provider": "github", "external_id": name}

    async def tokens(self, keyring: Keyring) -> dict[str, tuple[str | None, str | None, str | None]]:
        """What this keyring reads, by the account's name."""
        found: dict[str, tuple[str | None, str | None, str | None]] = {}
        for link in (await connections.listing(self.conn, self.tenant, limit=1000)).items:
            scope = self.scope(link.external_id)
            read = [
                None if one is None else keyring.open(one, **scope) for one in (link.access, link.refresh)
            ]
            found[link.external_id] = (read[0], read[1], link.key_id)
        return found


@pytest.fixture
async def world(conn: Connection) -> World:
    return World(conn, (await tenants.create(conn, "one")).id)


async def test_rekey_leaves_none_of_the_old_keys_in_use(world: World) -> None:
    """C-62: in batches, also what a row says wrongly about its key; a second time there is nothing to do."""
    now = ring(THIRD, OTHER, SECRET)
    old, other, current = ring(SECRET).current_id, ring(OTHER).current_id, now.current_id
    for place in range(7):
        await world.add(f"old {place}", SECRET, SECRET, old)
    await world.add("other", OTHER, None, other)
    await world.add("half", None, SECRET, None)
    await world.add("mixed", THIRD, SECRET, current)
    await world.add("done", THIRD, THIRD, current)
    await world.add("none", None, None, None)
    before = await world.tokens(now)
    told: list[int] = []
    assert await rekey(world.conn, now, batch=3, tell=told.append) == 10
    assert told[-1] == 10
    assert told == sorted(told)
    after = await world.tokens(ring(THIRD))
    assert {name: row[:2] for name, row in after.items()} == {name: row[:2] for name, row in before.items()}
    assert {row[2] for name, row in after.items() if name != "none"} == {current}
    assert after["none"] == (None, None, None)
    assert await rekey(world.conn, now) == 0


async def test_rekey_passes_over_what_no_key_opens_and_says_which(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """C-57, C-62: it stays as it is, and holds up nobody."""
    lost = await world.add("lost", b"gone" * 8, SECRET, "x")
    await world.add("fine", SECRET, SECRET, "y")
    before = await connections.get_by_id(world.conn, lost)
    assert await rekey(world.conn, ring(OTHER, SECRET), batch=1) == 1
    assert await connections.get_by_id(world.conn, lost) == before
    assert f"connection {lost}: no key opens its tokens" in caplog.text
    assert TOKEN not in caplog.text


async def test_a_rekey_that_is_cut_off_keeps_what_it_has_done(world: World) -> None:
    """C-62: each batch is a transaction, and whoever begins again goes on."""
    for place in range(4):
        await world.add(f"old {place}", SECRET, None, None)

    def stop(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    now = ring(OTHER, SECRET)
    with pytest.raises(KeyboardInterrupt):
        await rekey(world.conn, now, batch=1, tell=stop)
    assert [row[2] for row in (await world.tokens(now)).values()].count(now.current_id) == 2
    assert await rekey(world.conn, now, batch=1) == 2


async def test_a_token_in_a_row_is_sealed_and_good_in_that_row_only(world: World) -> None:
    """C-57: bytes copied by SQL from one tenant's row to another's."""
    mine = await world.add("octo", SECRET, None, None)
    other = (await tenants.create(world.conn, "two")).id
    stolen = await connections.create(
        world.conn, tenant_id=other, provider="github", external_id="octo", id=uuid4()
    )
    await world.conn.execute(
        "update connections set access_token_ciphertext = (select access_token_ciphertext from connections"
        " where id = %s) where id = %s",
        [mine, stolen.id],
    )
    moved = await connections.get_by_id(world.conn, stolen.id)
    assert moved is not None
    assert moved.access is not None
    assert TOKEN.encode() not in moved.access
    with pytest.raises(DecryptionError):
        RING.open(moved.access, tenant_id=other, provider="github", external_id="octo")
    assert RING.open(moved.access, **world.scope("octo")).endswith(TOKEN)


def test_the_module_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """C-56: without the library there is a sentence, and no trace of imports."""
    import sys

    from holdfast.errors import MissingExtra

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(MissingExtra, match=r"holdfast\[connectors\]"):
        crypto.Keyring(lambda: SECRET).seal(TOKEN, **SCOPE)
