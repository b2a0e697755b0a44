"""`holdfast up`: everything on this machine, and a look at it."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import application, options

DEMO = "holdfast.demo:app"


def up(
    for_: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", help="Stop after this many seconds.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo/--no-demo", help="Add demo jobs now and then, or not.")
    ] = True,
    app: options.App = None,
) -> None:
    """Run Holdfast here: the database, a worker and demo jobs, shown live; Ctrl-C stops it all."""
    from holdfast.cli.stage import Stage

    spec = application.named(app) or DEMO
    found = application.find(spec)
    application.settle(found)
    stage = Stage(found, spec, feeds=demo and spec == DEMO, ends_after=for_)
    code = application.run(stage.run())
    if code:
        raise typer.Exit(code)
