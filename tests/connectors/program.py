"""A worker for sync jobs as a process of its own: what the tests freeze and kill.

Its connector does what the name of the account says, and leaves a line in `runs` before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import psycopg

from connectors import kit
from connectors.kit import FAKE, page
from holdfast import Holdfast
from holdfast.apps.connectors.app import app as connectors_app
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.connectors.protocol import Account, Connector, Delivery, Page, WebhookResult
from runtime.support import Gate, one

RUNS = "create table runs (n bigint generated always as identity, event text not null, pid int not null)"


class Local(Connector):
    """Kills its process, or waits at the test's gate the first time, or simply answers."""

    provider = FAKE

    async def sync(self, account: Account, cursor: Any) -> Page:
        await self._behave(account)
        return page(f"by-{os.getpid()}", cursor=str(os.getpid()))

    async def handle_webhook(self, account: Account, delivery: Delivery) -> WebhookResult:
        await self._behave(account)
        return WebhookResult(signals=(kit.signal(delivery.id),))

    async def _behave(self, account: Account) -> None:
        url = os.environ["HOLDFAST_DATABASE_URL"]
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
            first = not await one(conn, "select exists (select from runs)")
            await conn.execute("insert into runs (event, pid) values ('begin', %s)", (os.getpid(),))
            if account.external_id == "kills":
                os.kill(os.getpid(), signal.SIGKILL)
            if account.external_id == "waits" and first:
                await conn.execute(Gate.WAIT)


async def main() -> int:
    async with Holdfast(apps=[connectors_app(Local)]) as app:
        return await app.work(ledgers=[SYNC_JOBS.name], concurrency=1)


if __name__ == "__main__":
    abandoned = asyncio.run(main())
    sys.stdout.flush()
    os._exit(1 if abandoned else 0)
