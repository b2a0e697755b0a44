"""A TCP proxy in front of the database, which loses the response to one statement of one kind of session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CHUNK = 65_536


@asynccontextmanager
async def losing_response(
    url: str, *, session: bytes, statement: bytes
) -> AsyncGenerator[tuple[str, asyncio.Event]]:
    """A URL whose sessions named `session` break after the server has run `statement`, once.

    The event is set when the response was lost.
    """
    given = conninfo_to_dict(url)
    host, port = str(given["host"]), int(given.get("port") or 5432)
    lost = asyncio.Event()
    serving: set[asyncio.Task[None]] = set()

    async def upstream() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await upstream()
        named, cutting = False, asyncio.Event()

        async def to_server() -> None:
            nonlocal named
            while data := await reader.read(CHUNK):
                named = named or session in data
                if named and statement in data and not lost.is_set():
                    cutting.set()
                server_writer.write(data)
                await server_writer.drain()
            server_writer.close()

        async def to_client() -> None:
            while data := await server_reader.read(CHUNK):
                if cutting.is_set():  # the server has run the statement: this is its response
                    lost.set()
                    break
                writer.write(data)
                await writer.drain()
            writer.close()

        both = [asyncio.ensure_future(to_server()), asyncio.ensure_future(to_client())]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        for end in (writer, server_writer):
            end.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        given |= {"host": "127.0.0.1", "port": server.sockets[0].getsockname()[1]}
        yield make_conninfo("", **given), lost
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
