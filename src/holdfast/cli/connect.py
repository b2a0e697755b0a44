"""`holdfast connect`: tenants' accounts at outside providers, and how they are kept in step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import accounts, application, connecting, found, options, output, progress, record
from holdfast.cli.connecting import opened, uuid_of
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from uuid import UUID

commands = typer.Typer(help="Accounts at outside providers, kept in step.", no_args_is_help=True)
tenants = typer.Typer(help="Whose accounts they are.", no_args_is_help=True)
commands.add_typer(tenants, name="tenant")

ProviderName = Annotated[
    str, typer.Argument(metavar="PROVIDER", help="The provider; `holdfast connect providers`.")
]
OfTenant = Annotated[
    str, typer.Option("--tenant", metavar="ID", help="Whose it is; `holdfast connect tenant list`.")
]


# -- providers and tenants -------------------------------------------------------------------------------


@commands.command()
def providers(app: options.App = None, json: options.Json = False) -> None:
    """List the providers, and whether what they need is set."""
    told = application.run(_providers(connecting.load(app)))
    if json:
        output.data(told)
        return
    headings = ("PROVIDER", "NAME", "BY", "WEBHOOKS", "READY", "SCOPES")
    output.table(
        headings,
        [
            (
                *(one["name"], one["display_name"], one["auth_type"], connecting.word(one["webhooks"])),
                *(connecting.word(one["connectable"]), " ".join(one["scopes"])),
            )
            for one in told
        ],
    )


async def _providers(app: Any) -> list[dict[str, Any]]:
    from holdfast.apps.connectors.catalogue import PROVIDERS

    async with opened(app) as (service, _):
        slugs = sorted({*(one.slug for one in PROVIDERS), *service.known})
        return [connecting.told_provider(service, service.provider(slug)) for slug in slugs]


@tenants.command("add")
def add_tenant(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people call it.")],
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="UUID", help="Its id, where you have one; else a random one."),
    ] = None,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Make a tenant, and print its id."""
    made = application.run(_add_tenant(connecting.load(app), name, uuid_of("--id", id), by))
    output.data(made) if json else output.line(str(made.id))


async def _add_tenant(app: Any, name: str, id: UUID | None, by: str | None) -> Any:
    from holdfast.apps.connectors import actions

    async with opened(app) as (_, conn):
        return await actions.create_tenant(conn, connecting.caller(by), name, id)


@tenants.command("list")
def list_tenants(
    limit: found.Limit = found.PAGE,
    cursor: found.Cursor = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """List the tenants, the first made first."""
    page = application.run(_list_tenants(connecting.load(app), limit, cursor))
    rows = [(one.id, one.created_at, one.name) for one in page.items]
    found.show(
        "tenants", ("ID", "CREATED", "NAME"), rows, [output.plain(one) for one in page.items], page, json
    )


async def _list_tenants(app: Any, limit: int, cursor: str | None) -> Any:
    from holdfast.apps.connectors import listing

    async with opened(app) as (_, conn):
        return await listing.tenants(conn, limit=limit, cursor=cursor)


# -- connecting ------------------------------------------------------------------------------------------


@commands.command()
def start(
    provider: ProviderName,
    tenant: OfTenant,
    redirect_uri: Annotated[
        str | None,
        typer.Option("--redirect-uri", metavar="URL", help="One of HOLDFAST_OAUTH_REDIRECT_URIS."),
    ] = None,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Print the address where a person allows the connection; good once, for some minutes."""
    whose = uuid_of("--tenant", tenant)
    url = application.run(_start(connecting.load(app), provider, whose, redirect_uri, options.doer(by)))
    if json:
        output.data({"authorize_url": url})
        return
    output.line(url)
    output.flush()
    output.error("open it in a browser; the provider leads back to `holdfast serve`")


async def _start(app: Any, provider: str, tenant: Any, redirect_uri: str | None, by: str | None) -> str:
    from holdfast.apps.connectors import oauth

    async with opened(app) as (service, conn):
        url = await oauth.start(service, tenant, provider, redirect_uri)
        await record.note(conn, by, "connection begin", detail={"provider": provider, "of": str(tenant)})
        return url


@commands.command()
def add(
    provider: ProviderName,
    tenant: OfTenant,
    external_id: Annotated[
        str, typer.Option("--external-id", metavar="ID", help="What the provider calls the account.")
    ],
    name: Annotated[str | None, typer.Option("--name", help="What people call it.")] = None,
    token_from_stdin: Annotated[
        bool, typer.Option("--token-from-stdin", help="Read a personal token from standard input.")
    ] = False,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Connect an account without OAuth: by a personal token, or one that only sends webhooks."""
    whose = uuid_of("--tenant", tenant)
    token = connecting.token() if token_from_stdin else None
    told = application.run(
        _add(connecting.load(app), provider, whose, external_id, name, token, connecting.caller(by))
    )
    output.data(told) if json else output.line(told["id"])


async def _add(
    app: Any, provider: str, tenant: Any, external_id: str, name: str | None, token: str | None, who: Any
) -> dict[str, Any]:
    from holdfast.apps.connectors import actions, personal
    from holdfast.apps.connectors.catalogue import slug_of

    account: Any = {"provider": provider, "external_id": external_id, "display_name": name}
    async with opened(app) as (service, conn):
        if token is not None:
            link, _ = await personal.connect_by_token(service, conn, who, tenant, **account, token=token)
        elif (known := service.provider(slug_of(provider))).auth_type != "webhook-only":
            way = f"`holdfast connect start {known.slug}`, or give --token-from-stdin"
            raise InvalidInput(field="PROVIDER", message=f"{known.slug} is connected by OAuth: {way}")
        else:
            link = await actions.register(service, conn, who, tenant, **account)
        return connecting.told(link, await actions.health(service, conn, link))


@commands.command("webhook-secret")
def webhook_secret(
    provider: ProviderName,
    tenant: OfTenant,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Print the secret that a tenant gives the provider to sign its webhooks with."""
    whose = uuid_of("--tenant", tenant)
    told = application.run(_webhook_secret(connecting.load(app), provider, whose, options.doer(by)))
    if json:
        output.data(told)
        return
    output.line(told["secret"])
    output.flush()
    output.error(f"webhooks go to {told['path']} of `holdfast serve`, signed the way of {told['scheme']}")


async def _webhook_secret(app: Any, provider: str, tenant: Any, by: str | None) -> dict[str, Any]:
    from holdfast.apps.connectors import tenants as stored

    async with opened(app) as (service, conn):
        await stored.get(conn, tenant)
        told = connecting.secret_of(service, provider, tenant)
        await record.note(
            conn, by, "webhook secret", detail={"provider": told["provider"], "of": str(tenant)}
        )
        return told


# -- keys ------------------------------------------------------------------------------------------------


@commands.command()
def rekey(by: options.By = None, app: options.App = None, json: options.Json = False) -> None:
    """Seal every stored token with the present HOLDFAST_CRYPTO_KEY."""
    done = application.run(_rekey(connecting.load(app), options.doer(by), quiet=json))
    if json:
        output.data(done)
        return
    output.line(f"{done['connections']:,} connections were sealed anew")
    if done["unreadable"]:
        output.error(f"{done['unreadable']:,} cannot be read by any key: connect those accounts anew")


async def _rekey(app: Any, by: str | None, *, quiet: bool) -> dict[str, int]:
    from holdfast.apps.connectors import crypto

    async with opened(app) as (service, conn):
        total = await connecting.sealed_otherwise(conn, service.keyring.current_id)
        entry = await record.note(conn, by, "connectors rekey", detail={})
        with progress.told("sealed anew", total, quiet=quiet) as tell:
            done = await crypto.rekey(conn, service.keyring, tell=tell)
        await record.settle(conn, entry, done)
        left = await connecting.sealed_otherwise(conn, service.keyring.current_id)
        return {"connections": done, "unreadable": left}


commands.command("list")(accounts.list_connections)
commands.command("show")(accounts.show)
commands.command("sync")(accounts.sync)
commands.command("pause")(accounts.pause)
commands.command("resume")(accounts.resume)
commands.command("disconnect")(accounts.disconnect)
commands.command("interval")(accounts.interval)
commands.command("cursor")(accounts.cursor)
commands.command("signals")(found.signals)
commands.command("inbox")(found.inbox)
commands.command("replay")(found.replay)
