"""Seals tokens, so that a row of the database tells none, and opens them again for the row they belong to.

AES-256-GCM. Sealed is one version byte, twelve random bytes, and the text with its tag; tenant, provider and
account are bound in, so that sealed bytes are good in their own row only. Never shows a key or a token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from psycopg.rows import class_row

from holdfast.apps.connectors import queries
from holdfast.db.settings import Settings
from holdfast.engine.store import Connection
from holdfast.errors import DecryptionError, MissingExtra, SettingsError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

log = logging.getLogger("holdfast.connectors")

VERSION = b"\x01"
KEY, NONCE, TAG = 32, 12, 16  # bytes
LEAST = len(VERSION) + NONCE + TAG
FILE = "crypto.key"
SETTING, OLD_SETTING = "HOLDFAST_CRYPTO_KEY", "HOLDFAST_CRYPTO_OLD_KEYS"
MAKE = "make one by `openssl rand -base64 32`"
NOBODY = UUID(int=0)


@dataclass(frozen=True)
class Sealed:
    """What may be stored, and the id of the key that sealed it."""

    data: bytes = field(repr=False)
    key_id: str


class Keyring:
    """The key that seals, and the older ones that still open. Made when it is first needed, if it may be."""

    def __init__(self, find: Callable[[], bytes], old: Sequence[bytes] = ()) -> None:
        self._find = find
        self._old = tuple(old)

    @classmethod
    def of(cls, settings: Settings, home: Path) -> Keyring:
        """The keys of the settings; a wrong one stops the start, and so does none where one will be needed.

        In the profiles local and test a missing key is made once, in a file of the home folder.
        """
        problems: list[str] = []
        key = _read(settings.crypto_key, SETTING, problems) if settings.crypto_key is not None else None
        old = [
            _read(text, f"{OLD_SETTING}, key {place}", problems)
            for place, text in enumerate(settings.crypto_old_keys, 1)
        ]
        if problems:
            raise SettingsError(title="the keys of the connectors are wrong:", problems=problems)
        if key is not None:
            return cls(lambda: key, [one for one in old if one])
        if settings.profile in ("local", "test"):
            return cls(lambda: _kept(home / FILE), [one for one in old if one])
        if any(one.client_id or one.webhook_secret for one in settings.providers.values()):
            raise _missing()
        return cls(_none, [one for one in old if one])

    @property
    def current_id(self) -> str:
        """The id of the key that seals."""
        return self._current.id

    def seal(self, text: str, *, tenant_id: UUID, provider: str, external_id: str) -> Sealed:
        """The text, sealed for one account of one tenant. The same twice gives different bytes."""
        nonce = secrets.token_bytes(NONCE)
        told = self._current.cipher.encrypt(nonce, text.encode(), _scope(tenant_id, provider, external_id))
        return Sealed(VERSION + nonce + told, self._current.id)

    def open(self, data: bytes, *, tenant_id: UUID, provider: str, external_id: str) -> str:
        """The text that was sealed for this account, or `DecryptionError`, which never says why."""
        return self.opened(data, _scope(tenant_id, provider, external_id))[0]

    def opened(self, data: bytes, scope: bytes) -> tuple[str, str]:
        """The text, and the id of the key that had sealed it."""
        from cryptography.exceptions import InvalidTag

        data = bytes(data)
        for key in (self._current, *self._older):
            if len(data) < LEAST or not data.startswith(VERSION):
                break
            try:
                nonce, told = data[1 : 1 + NONCE], data[1 + NONCE :]
                return key.cipher.decrypt(nonce, told, scope).decode(), key.id
            except (InvalidTag, UnicodeDecodeError):
                continue
        raise DecryptionError

    @cached_property
    def _current(self) -> _Key:
        return _Key(self._find())

    @cached_property
    def _older(self) -> tuple[_Key, ...]:
        return tuple(map(_Key, self._old))


class _Key:
    """One key. Its id tells it from others and nothing about it."""

    def __init__(self, secret: bytes) -> None:
        self.cipher = _cipher(secret)
        self.id = hashlib.sha256(b"holdfast crypto key\x00" + secret).hexdigest()[:16]


def _cipher(secret: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise MissingExtra(what="a sealed token", extra="connectors") from None
    return AESGCM(secret)


def _scope(tenant_id: UUID, provider: str, external_id: str) -> bytes:
    return f"{tenant_id}|{provider}|{external_id}".encode()


# -- where keys come from --------------------------------------------------------------------------------


def _read(text: str, name: str, problems: list[str]) -> bytes | None:
    """The key that a setting spells, or one more problem, which never repeats what was written."""
    text = text.strip()
    if not text:
        problems.append(f"{name} is missing: {MAKE}")
    elif not re.fullmatch(r"[A-Za-z0-9+/=]+", text):
        problems.append(f"{name} has characters that base64 has not: {MAKE}")
    elif len(text) % 4 or not re.fullmatch(r"[^=]+={0,2}", text):
        problems.append(f"{name} is base64 with wrong padding, perhaps it was cut: {MAKE}")
    else:
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            problems.append(f"{name} is base64 with wrong padding, perhaps it was cut: {MAKE}")
            return None
        if len(key) == KEY:
            return key
        problems.append(f"{name} must be {KEY} bytes, and is {len(key)}: {MAKE}")
    return None


def _missing() -> SettingsError:
    told = f"{SETTING} is missing, and tokens are never stored as they are: {MAKE}"
    return SettingsError(title="the connectors have no key:", problems=[told])


def _none() -> bytes:
    raise _missing()


def _kept(file: Path) -> bytes:
    """The key of this machine, made by whoever asks first."""
    problems: list[str] = []
    key = None
    try:
        if not file.exists():
            _make(file)
        key = _read(file.read_text(errors="replace"), str(file), problems)
    except OSError as error:
        problems.append(f"{file}: {error.strerror}: mend that, or set {SETTING}")
    if key is None:
        raise SettingsError(title="the key of the connectors is wrong:", problems=problems)
    return key


def _make(file: Path) -> None:
    """Complete before it has its name, and a name is given once: of two who begin together, one wins."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(base64.b64encode(secrets.token_bytes(KEY)) + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        Path(file).hardlink_to(unfinished)
        log.info("made a key for tokens in %s: keep it, no token can be read without it", file)
    except FileExistsError:
        pass
    finally:
        Path(unfinished).unlink()


# -- a new key -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Row:
    id: UUID
    tenant_id: UUID
    provider: str
    external_id: str
    access: bytes | None
    refresh: bytes | None
    key_id: str | None


async def rekey(
    conn: Connection, keyring: Keyring, *, batch: int = 500, tell: Callable[[int], Any] | None = None
) -> int:
    """Seals every token with the current key, and answers how many connections that were.

    In batches, each a transaction of its own. What no key opens stays as it is, with a line in the log.
    `tell` hears after each batch how many there were so far.
    """
    after, done = NOBODY, 0
    while True:
        async with conn.transaction():
            async with conn.cursor(row_factory=class_row(_Row)) as cursor:
                await cursor.execute(queries.SEALED, {"after": after, "limit": batch})
                rows = await cursor.fetchall()
            if not rows:
                return done
            renewed = [new for row in rows if (new := _renewed(keyring, row)) is not None]
            if renewed:
                ids, access, refresh = map(list, zip(*renewed, strict=True))
                params = {"ids": ids, "access": access, "refresh": refresh, "key_id": keyring.current_id}
                await conn.execute(queries.RESEAL, params)
        after, done = rows[-1].id, done + len(renewed)
        if tell:
            tell(done)


def _renewed(keyring: Keyring, row: _Row) -> tuple[UUID, bytes | None, bytes | None] | None:
    """The tokens of a row under the current key; None when they are so already, or cannot be read."""
    place: Any = {"tenant_id": row.tenant_id, "provider": row.provider, "external_id": row.external_id}
    scope = _scope(**place)
    try:
        # The row's word for its key is not enough: both tokens are looked at.
        opened = [None if data is None else keyring.opened(data, scope) for data in (row.access, row.refresh)]
    except DecryptionError:
        log.warning("connection %s: no key opens its tokens, they stay as they are", row.id)
        return None
    current = keyring.current_id
    if row.key_id == current and all(one is None or one[1] == current for one in opened):
        return None
    access, refresh = (None if one is None else keyring.seal(one[0], **place).data for one in opened)
    return row.id, access, refresh
