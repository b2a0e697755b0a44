"""`holdfast serve`: the API and the dashboard over HTTP."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import application, options, output
from holdfast.db.settings import Settings
from holdfast.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from socket import socket

    from holdfast.platform import Holdfast

EXTRA = "server"
PARTS = ("fastapi", "jinja2", "jwt", "prometheus_client", "python_multipart", "uvicorn")  # what it installs
LOGIN = "with this token; programs send it as `Authorization: Bearer TOKEN`"
CREATE_TOKEN = "`holdfast token create NAME --scope admin` makes one"  # noqa: S105
EXPOSED = (
    "holdfast: others on the network can reach this. Tokens protect it, but nothing is encrypted: "
    "put a proxy with TLS before it, or listen on 127.0.0.1"
)


def serve(
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Listen on this address; default: HOLDFAST_HOST.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="And this port; 0: a free one; default: HOLDFAST_PORT."),
    ] = None,
    app: options.App = None,
) -> None:
    """Serve the API and the dashboard until SIGTERM or Ctrl-C."""
    if port is not None and not 0 <= port <= 65535:
        raise InvalidInput(field="--port", message=f"must lie between 0 and 65535, not {port}")
    if host is not None:
        _must_be_host(host)
    found = application.load(app)
    application.settle(found, chatty=True)
    settings = found.settings
    must_be_installed()
    from holdfast.cli.server import listen

    with listen(settings.host if host is None else host, settings.port if port is None else port) as bound:
        application.run(_serve(found, bound), tidy=False)


def _must_be_host(text: str) -> None:
    """Refuses what the setting HOLDFAST_HOST would refuse."""
    (rule,) = (field.metadata["spec"] for field in fields(Settings) if field.name == "host")
    try:
        rule.parse(text)
    except ValueError as error:
        raise InvalidInput(field="--host", message=str(error)) from None


def must_be_installed() -> None:
    """Refuses to go on without the parts that serving needs: not everybody has them."""
    if not all(find_spec(name) for name in PARTS):
        raise MissingExtra(what="serving the API and the dashboard", extra=EXTRA)


async def _serve(app: Holdfast, bound: socket) -> None:
    """Serves until somebody wants it to stop."""
    from holdfast.cli.server import Server, address, is_loopback
    from holdfast.runtime.worker import stopping_on_signals

    async with app:
        told = await doorway(app, address(bound))
        server = Server(app, bound)
        with stopping_on_signals(server.stop, "open requests are cut off"):
            output.said(f"Holdfast {version('holdfast')} serves the dashboard and the API")
            for name, value in told.items():
                output.said(f"  {name:9} {value}")
            if app.settings.profile == "local" and not is_loopback(bound):
                output.error(EXPOSED)
            await server.run_here()
    output.said("stopped")


async def doorway(app: Holdfast, url: str, *, creates_token: bool = False) -> dict[str, str]:
    """Return where the server is and how to log in, line by line.

    A token is printed at one moment only: when the embedded database gets its first one.
    """
    from holdfast.api import tokens

    lines, settings = {"dashboard": url, "API": f"{url}/docs"}, app.settings
    own = settings.profile == "local" and settings.database_url is None  # a database of this machine's user
    async with app.database.connection() as conn:
        if own and creates_token and (text := await tokens.create_first(conn, settings.home)):
            return lines | {"token": text, "log in": LOGIN}
        if own and await tokens.is_kept(conn, settings.home):
            return lines | {"token": f"is in {settings.home / 'token'}"}
        if await tokens.every(conn) or settings.jwt_secret or settings.jwt_jwks_url:
            return lines | {"token": CREATE_TOKEN}
        return lines | {"token": f"there is none yet: {CREATE_TOKEN}"}
