"""Measures the overview on a full database against an empty one, over HTTP, in one run.

usage: python -m benchmarks.overview [--short]    (make bench-overview)

Both are asked by turns, a second and a half apart, since an answer is kept for a second. What is printed
are medians in milliseconds, their ratio, and how often the server read a ledger from end to end meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import psycopg
import uvicorn

from holdfast import Holdfast, Settings
from holdfast.api import tokens
from holdfast.db import embedded, migrate

# Most rows have ended; some need a person, some wait for tomorrow.
FILL = (
    """
    insert into tasks (type, payload, status, priority, created_at, completed_at, attempts, next_retry_at)
    select 'email:send', '{"to": "ana"}',
        (case when n %% 1000 = 0 then 'dead_letter' when n %% 50 = 0 then 'pending'
            else 'completed' end)::task_status,
        n %% 5, now() - make_interval(secs => n), case when n %% 50 > 0 then now() end, 1,
        case when n %% 50 = 0 and n %% 1000 > 0 then now() + interval '1 day' end
    from generate_series(1, %(rows)s) as n
    """,
    """
    insert into job (org_id, type, status, created_at, finished_at, run_at)
    select lpad(to_hex(n %% 10), 32, '0')::uuid, 'mock', s::job_status, now() - make_interval(secs => n),
        case when s <> 'queued' then now() end, now() + interval '1 day'
    from (
        select n, case when n %% 1000 = 0 then 'dead_letter' when n %% 10 = 0 then 'queued'
            else 'succeeded' end as s
        from generate_series(1, %(rows)s) as n
    ) as made
    """,
)
SCANS = "select coalesce(sum(seq_scan), 0) from pg_stat_user_tables where relname in ('job', 'tasks')"
PAGES = {"API": "/api/overview", "page": "/"}


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer rows: does it still run?")
    options = parser.parse_args()
    rows, looks = (1_000_000, 3) if options.short else (5_000_000, 15)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as home:
        Path(home).chmod(0o755)  # the server of root runs as somebody else, who must get here
        with embedded.acquire(Path(home)) as lease:
            asyncio.run(measure(lease.url, Path(home), rows, looks))


async def measure(url: str, home: Path, rows: int, looks: int) -> None:
    async with AsyncExitStack() as stack:
        sites = {
            size: await stack.enter_async_context(site(url, home, size, count))
            for size, count in (("empty", 0), ("full", rows))
        }
        took: dict[tuple[str, str], list[float]] = {}
        before = await scans(url)
        for _ in range(looks):
            await asyncio.sleep(1.5)
            for size, client in sites.items():
                for name, path in PAGES.items():
                    began = time.perf_counter()
                    answer = await client.get(path)
                    took.setdefault((size, name), []).append(1000 * (time.perf_counter() - began))
                    answer.raise_for_status()
                    await asyncio.sleep(1.1)
        read = await scans(url) - before
    for name in PAGES:
        empty, full = (statistics.median(took[size, name]) for size in ("empty", "full"))
        worst = max(took["full", name])
        told = {"measure": f"overview, {name}", "rows": rows, "empty ms": empty, "full ms": full}
        print(json.dumps(told | {"worst ms": worst, "ratio": empty / full, "full scans": read}), flush=True)


@asynccontextmanager
async def site(url: str, home: Path, name: str, rows: int) -> AsyncIterator[httpx.AsyncClient]:
    """A database with so many rows, served on loopback; and somebody who may look."""
    target = await database(url, name, rows)
    app = Holdfast(Settings(database_url=target, home=home / name))
    server = uvicorn.Server(uvicorn.Config(app.web(), port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 (uvicorn has no signal for it)
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with app.database.connection() as conn:
        _, text = await tokens.create(conn, "benchmark", "read")
    base, bearer = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {text}"}
    async with httpx.AsyncClient(base_url=base, headers=bearer, timeout=60) as client:
        yield client
    server.should_exit = True
    await serving


async def database(url: str, name: str, rows: int) -> str:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
        await admin.execute(f"create database {name}_overview")
    parts = psycopg.conninfo.conninfo_to_dict(url)
    target = f"postgresql://{parts['user']}:{parts['password']}@/{name}_overview?host={parts['host']}"
    await asyncio.to_thread(migrate.upgrade, target)
    async with await psycopg.AsyncConnection.connect(target, autocommit=True) as conn:
        for statement in FILL:
            await conn.execute(statement, {"rows": rows // 2})
        await conn.execute("vacuum (analyze) tasks")
        await conn.execute("vacuum (analyze) job")
    return target


async def scans(url: str) -> int:
    """How often a ledger of the full database was read from end to end."""
    parts = psycopg.conninfo.conninfo_to_dict(url)
    target = psycopg.conninfo.make_conninfo(url, dbname="full_overview", password=str(parts["password"]))
    async with await psycopg.AsyncConnection.connect(target, autocommit=True) as conn:
        ((count,),) = await (await conn.execute(SCANS)).fetchall()
    return int(count)


if __name__ == "__main__":
    main()
