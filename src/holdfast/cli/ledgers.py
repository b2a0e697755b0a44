"""`holdfast ledger`: what ledgers there are, and how their rows live. Needs no database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from holdfast.cli import application, options, output

if TYPE_CHECKING:
    from holdfast.engine.ledger import Ledger
    from holdfast.runtime.handlers import Handlers

commands = typer.Typer(help="What ledgers there are, and how their rows live.", no_args_is_help=True)


@commands.command("list")
def list_ledgers(app: options.App = None, json: options.Json = False) -> None:
    """List the ledgers, with the kinds that your application handles."""
    found = application.load(app)
    ledgers = [store.ledger for store in found.stores.values()]
    if json:
        output.data([_brief(ledger, found.handlers) for ledger in ledgers])
        return
    rows = [
        (ledger.name, ledger.table, " ".join(ledger.states), " ".join(found.handlers.kinds(ledger.name)))
        for ledger in ledgers
    ]
    output.table(("LEDGER", "TABLE", "STATES", "HANDLED KINDS"), rows)


@commands.command()
def show(ledger: options.LedgerName, app: options.App = None, json: options.Json = False) -> None:
    """Show a ledger: its columns by role, its lanes and its edges."""
    found = application.load(app)
    declared = found.store(ledger).ledger
    edges = [(edge.verb, edge.frm, edge.via, edge.to) for edge in declared.edges]
    if json:
        output.data(
            {
                **_brief(declared, found.handlers),
                "ends": declared.ends,
                "roles": _roles(declared),
                "lanes": [{"name": lane.name, "order": lane.order} for lane in declared.lanes],
                "edges": [{"verb": v, "from": frm, "via": via, "to": to} for v, frm, via, to in edges],
            }
        )
        return
    output.facts([("ledger", declared.name), ("table", declared.table), *_roles(declared).items()])
    output.table(("LANE", "ORDER"), [(lane.name, ", ".join(lane.order)) for lane in declared.lanes])
    output.table(
        ("VERB", "FROM", "TO"),
        [(verb, ", ".join(frm) or "nothing", " → ".join((*via, to))) for verb, frm, via, to in edges],
    )


@commands.command()
def diagram(ledger: options.LedgerName, app: options.App = None, json: options.Json = False) -> None:
    """Print a ledger's lifecycle as a Mermaid state diagram."""
    from holdfast.engine.lifecycle import mermaid

    text = mermaid(application.load(app).store(ledger).ledger.lifecycle)
    output.data({"ledger": ledger, "mermaid": text}) if json else output.line(text.rstrip())


def _brief(ledger: Ledger, handlers: Handlers) -> dict[str, Any]:
    kinds = handlers.kinds(ledger.name)
    return {"name": ledger.name, "table": ledger.table, "states": ledger.states, "handled": kinds}


def _roles(ledger: Ledger) -> dict[str, Any]:
    """The columns by what they are for; roles that the ledger does not have are left out."""
    attempts, rule, lease = ledger.attempts, ledger.idempotency, ledger.lease
    roles: dict[str, Any] = {
        "key": f"{ledger.key.column} {ledger.key.type}",
        "state": f"{ledger.state} {ledger.state_type}",
        "kind": ledger.kind,
        "payload": ledger.payload if isinstance(ledger.payload, str | None) else ", ".join(ledger.payload),
        "owner": ledger.owner,
        "fence": ledger.fence or (ledger.owner and f"{ledger.owner} (a token of each claim)") or "a row lock",
        "due": ledger.due and ledger.due.column,
        "attempts": attempts and f"{attempts.column} counts {attempts.counts}, limit {attempts.limit}",
        "priority": ledger.priority,
        "queue": ledger.queue,
        "tenant": ledger.tenant and ledger.tenant.name,
        "unique": rule and f"{', '.join((*rule.scope, rule.column))}: a repeat is {REPEATS[rule.repeat]}",
        "journal": ledger.journal and ledger.journal.table,
        "lease": f"{lease.column}, {lease.seconds:g} s" if lease else HEARTBEAT if ledger.owner else None,
        "times": ledger.times.kind,
    }
    return {name: value for name, value in roles.items() if value is not None}


HEARTBEAT = "the worker's heartbeat"
REPEATS = {"touch": "touched", "return": "returned", "refuse": "refused", "ignore": "ignored"}
