"""`holdfast explain`: why a row is not running, in one sentence and with the facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli import application, options, output

if TYPE_CHECKING:
    from holdfast.engine.values import Row
    from holdfast.platform import Holdfast
    from holdfast.runtime.explain import Explanation


def explain(
    ledger: options.LedgerName,
    id: options.RowId,
    tenant: options.Tenant = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Say why a row is not running, or what it is doing."""
    found = application.load(app)
    found.store(ledger)
    application.settle(found)
    row, why = application.run(_explain(found, ledger, id, tenant))
    if json:
        about = {"ledger": ledger, "id": row.id, "state": row.state}
        output.data({**about, "code": why.code, "sentence": why.sentence, "facts": why.facts})
        return
    output.line(output.readable(why.sentence))
    output.facts([(name.replace("_", " "), value) for name, value in why.facts.items()])


async def _explain(app: Holdfast, ledger: str, id: str, tenant: str | None) -> tuple[Row, Explanation]:
    from holdfast.runtime.explain import explain

    store = app.store(ledger)
    async with app, app.database.connection() as conn:
        row = await store.get(conn, id, tenant=tenant)
        return row, await explain(conn, store, row, app.settings)
