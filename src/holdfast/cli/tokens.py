"""`holdfast token`: who may use the API and the dashboard."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, cast

import typer

from holdfast.cli import application, options, output, record
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.api.caller import Scope
    from holdfast.api.tokens import Token
    from holdfast.platform import Holdfast

commands = typer.Typer(help="Who may use the API and the dashboard.", no_args_is_help=True)


@commands.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is, for the record.")],
    scope: Annotated[str, typer.Option(metavar="SCOPE", help="What it allows: read, act or admin.")] = "read",
    tenant: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this tenant's rows; default: everybody's.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long it is good: 12h, 30d; default: for ever.")
    ] = None,
    by: options.By = None,
    json: options.Json = False,
) -> None:
    """Make a token, and print it: this once, for it is not kept."""
    seconds = options.seconds_of("--expires", expires)
    if seconds is not None and seconds <= 0:
        raise InvalidInput(field="--expires", message="must be more than 0 seconds")
    found = _settled()
    token, text = application.run(_create(found, name, scope, tenant, seconds, options.doer(by)))
    if json:
        output.data({**output.plain(token), "token": text})
        return
    output.line(text)
    output.flush()
    whose = f"for {token.tenant}" if token.tenant else "for all tenants"
    until = f", until {output.moment(token.expires, 'seconds')}" if token.expires else ""
    output.error(f"{token.id} may {token.scope} {whose}{until}; the token is shown this once")


@commands.command("list")
def list_tokens(json: options.Json = False) -> None:
    """List the tokens that there are, without their secrets."""
    now, tokens = application.run(_list(_settled()))
    if json:
        output.data([{**output.plain(token), "live": _state(token, now) == "live"} for token in tokens])
        return
    headings = ("ID", "NAME", "SCOPE", "TENANT", "STATE", "EXPIRES", "USED", "CREATED", "BY")
    output.table(
        headings,
        [
            (
                *(token.id, token.name, token.scope, token.tenant, _state(token, now)),
                *(token.expires, token.used, token.created, token.created_by),
            )
            for token in tokens
        ],
    )


@commands.command()
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id; `holdfast token list`.")],
    by: options.By = None,
    json: options.Json = False,
) -> None:
    """End a token for good, and every login that was made with it."""
    changed = application.run(_revoke(_settled(), id, options.doer(by)))
    if json:
        output.data({"id": id, "changed": changed})
    else:
        output.line(f"{id} is revoked" if changed else f"{id} was revoked already")


def _settled() -> Holdfast:
    from holdfast.platform import Holdfast

    found = Holdfast()
    application.settle(found)
    return found


def _state(token: Token, now: datetime) -> str:
    if token.revoked:
        return "revoked"
    return "expired" if token.expires and token.expires <= now else "live"


def _after(now: datetime, seconds: float) -> datetime:
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        message = "ends after the year 9999: leave it out for a token that is good for ever"
        raise InvalidInput(field="--expires", message=message) from None


async def _create(
    app: Holdfast, name: str, scope: str, tenant: str | None, seconds: float | None, by: str | None
) -> tuple[Token, str]:
    from holdfast.api import tokens
    from holdfast.runtime.overview import clock

    async with app, app.database.connection() as conn, conn.transaction():
        until = None if seconds is None else _after(await clock(conn), seconds)
        who = record.who(by)
        token, text = await tokens.create(
            conn, name, cast("Scope", scope), tenant=tenant, expires=until, by=who
        )
        detail = {"name": name, "scope": scope, "of": tenant}
        await record.note(conn, by, "token create", row_id=token.id, detail=detail)
        return token, text


async def _list(app: Holdfast) -> tuple[datetime, list[Token]]:
    from holdfast.api import tokens
    from holdfast.runtime.overview import clock

    async with app, app.database.connection() as conn:
        return await clock(conn), list(await tokens.every(conn))


async def _revoke(app: Holdfast, id: str, by: str | None) -> bool:
    from holdfast.api import tokens

    async with app, app.database.connection() as conn, conn.transaction():
        changed = await tokens.revoke(conn, id)
        await record.note(conn, by, "token revoke", row_id=id, detail={"changed": changed})
        return changed
