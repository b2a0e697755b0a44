"""The doorbell's wire: LISTEN on a connection of its own, for ever. Never carries data, only that it rang."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence

import psycopg
from psycopg.sql import SQL, Identifier

from holdfast.db.database import Database
from holdfast.db.pool import Connection
from holdfast.errors import DatabaseAuthError, DatabaseUnavailable

LISTEN = "listen {channel}"
FIRST_WAIT = 0.1  # seconds, doubled up to
LAST_WAIT = 5.0


async def listen(
    database: Database,
    channels: Sequence[str],
    ring: Callable[[str], None],
    *,
    log: logging.Logger,
) -> None:
    """Call `ring(channel)` for every notification, until cancelled.

    After each connect every channel rings once, because something may have been missed. Returns only when
    LISTEN cannot work here, having said so: polling, which goes on anyway, is then all there is.
    """
    polling = f"polling every {database.settings.poll_interval:g} s"
    if database.listen_url is None:
        log.warning(
            "no LISTEN through a transaction pooler: %s; HOLDFAST_DATABASE_DIRECT_URL would help", polling
        )
        return
    wait, lost = FIRST_WAIT, False
    while True:
        began = time.monotonic()
        try:
            async with await database.connect_direct("doorbell") as connection:
                await _subscribe(connection, channels)
                if lost:
                    log.info("the doorbell works again")
                lost = False
                await _wait_for_rings(connection, channels, ring)
        except (psycopg.ProgrammingError, psycopg.NotSupportedError) as refusal:
            log.warning("the server refuses LISTEN (%s): %s", refusal, polling)
            return
        except (psycopg.Error, DatabaseUnavailable, DatabaseAuthError) as loss:
            if not lost:  # said once an outage
                log.warning("the doorbell's connection is lost (%s): %s until it is back", loss, polling)
            lost = True
        if time.monotonic() - began > LAST_WAIT:
            wait = FIRST_WAIT
        await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311
        wait = min(wait * 2, LAST_WAIT)


async def _subscribe(connection: Connection, channels: Sequence[str]) -> None:
    for channel in channels:
        await connection.execute(SQL(LISTEN).format(channel=Identifier(channel)))


async def _wait_for_rings(
    connection: Connection, channels: Sequence[str], ring: Callable[[str], None]
) -> None:
    for channel in channels:
        ring(channel)
    async for notification in connection.notifies():
        ring(notification.channel)
