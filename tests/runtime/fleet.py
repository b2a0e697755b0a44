"""The application of the fleet's worker processes: an effect for each job, and every tenth run fails once."""

from __future__ import annotations

from holdfast import Context, Holdfast

app = Holdfast()


@app.handler("effect", ledger="job")
async def effect(number: int, ctx: Context) -> int:
    """Writes in the transaction that finishes the job; as the worker: the table has no tenants."""
    if number % 10 == 0 and ctx.attempt == 1:
        raise ConnectionError("the first run of every tenth fails")
    conn = await ctx.transaction(confined=False)
    await conn.execute("insert into effects (task, note) values (%s, %s)", (ctx.job.id, ctx.job.owner))
    return number
