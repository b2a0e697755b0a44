"""What the tests of single connectors share: an account, and a sync that goes on until nothing is left."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from holdfast.apps.connectors.protocol import Account, Connector, Page, Signal

TENANT = UUID("aaaaaaaa-0000-4000-8000-00000000000a")
CONNECTION = UUID("cccccccc-0000-4000-8000-00000000000c")


def account(provider: str, token: str | None, **more: Any) -> Account:
    """An account of that provider."""
    values = {"external_id": "1", "display_name": None, "scopes": (), "metadata": {}, **more}
    return Account(id=CONNECTION, tenant_id=TENANT, provider=provider, access_token=token, **values)


async def pages(connector: Connector, account: Account, cursor: Any = None, most: int = 200) -> list[Page]:
    """All pages from a cursor on; each cursor goes through JSON, as through the database."""
    found: list[Page] = []
    while not found or found[-1].has_more:
        assert len(found) < most, "a sync that does not end"
        page = await connector.sync(account, cursor)
        cursor = json.loads(json.dumps(page.next_cursor))
        found.append(page)
    return found


def signals(found: list[Page]) -> list[Signal]:
    return [signal for page in found for signal in page.signals]


def keys(found: list[Page], kind: str = "") -> list[str]:
    """The dedupe keys of all pages, each once, in order; `kind`: of that one only."""
    return sorted({one.dedupe_key or "" for one in signals(found) if one.kind == (kind or one.kind)})
