"""Measures Holdfast and the hand-written limit by turns, and prints medians and their ratio.

usage: python -m benchmarks.run [--short] [--rounds N] [--check]

Machines are noisy, so only the ratios of one run mean something. A round runs every measure once for the
limit and once for Holdfast, on fresh tables of one embedded PostgreSQL with fsync and synchronous commit
on. `--check` fails when a ratio is below its bar.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType

import psycopg

from benchmarks import holdfast_, limit
from holdfast.db import embedded, migrate

BATCH = 500
# The least share of the limit that we accept; latency is limit / ours, so that more is better throughout.
BARS = {"enqueue one": 0.4, "enqueue bulk": 0.4, "drain": 0.5, "latency p50": 0.25}


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--short", action="store_true", help="small numbers, one round: does it still run?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="fail below the bars")
    options = parser.parse_args()
    sizes = {"one": 300, "bulk": 5000, "drain": 5000, "latency": 30}
    if not options.short:
        sizes = {"one": 3000, "bulk": 100_000, "drain": 50_000, "latency": 200}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as home:
        Path(home).chmod(0o755)  # the server of root runs as somebody else, who must get here
        rounds = 1 if options.short else options.rounds
        with embedded.acquire(Path(home)) as lease:
            results = [one_round(lease.url, sizes) for _ in range(rounds)]
    report(results, check=options.check)


def one_round(url: str, sizes: dict[str, int]) -> dict[str, tuple[float, float]]:
    """One measure after another: (limit, ours)."""
    measures: dict[str, Callable[[ModuleType, str], Awaitable[float]]] = {
        "enqueue one": lambda side, at: side.enqueue_one(at, sizes["one"]),
        "enqueue bulk": lambda side, at: side.enqueue_bulk(at, sizes["bulk"]),
        "drain": lambda side, at: drained(side, at, sizes["drain"]),
        "latency p50": lambda side, at: quick(side, at, sizes["latency"]),
    }
    found: dict[str, tuple[float, float]] = {}
    for name, measure in measures.items():
        pair = [asyncio.run(fresh(url, side, measure)) for side in (limit, holdfast_)]
        found[name] = (pair[0], pair[1])
        print(json.dumps({"measure": name, "limit": pair[0], "holdfast": pair[1]}), flush=True)
    return found


async def fresh(url: str, side: ModuleType, measure: Callable[[ModuleType, str], Awaitable[float]]) -> float:
    """The measure on a new database, so that no run pays for the rows of another."""
    return await measure(side, await target(url))


async def target(url: str) -> str:
    """The URL of a new database with all tables."""
    name = "bench"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
        await admin.execute(f"drop database if exists {name} with (force)")
        await admin.execute(f"create database {name}")
    at = psycopg.conninfo.make_conninfo(url, dbname=name)
    parts = psycopg.conninfo.conninfo_to_dict(at)
    found = f"postgresql://{parts['user']}:{parts['password']}@/{name}?host={parts['host']}"
    await asyncio.to_thread(migrate.upgrade, found)
    return found


async def drained(side: ModuleType, url: str, count: int) -> float:
    await limit.enqueue_bulk(url, count)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await conn.execute("vacuum analyze tasks")
        await conn.execute("checkpoint")
    return await side.drain(url, count, BATCH)


async def quick(side: ModuleType, url: str, count: int) -> float:
    return statistics.median(await side.latency(url, count, 0.02)) * 1000


def report(results: list[dict[str, tuple[float, float]]], *, check: bool) -> None:
    print(f"\n{'measure':<14}{'limit':>12}{'holdfast':>12}{'ratio':>8}{'bar':>6}")
    low: list[str] = []
    for name, bar in BARS.items():
        hand = statistics.median(result[name][0] for result in results)
        ours = statistics.median(result[name][1] for result in results)
        ratio = hand / ours if name.startswith("latency") else ours / hand
        unit = " ms" if name.startswith("latency") else " /s"
        number = "{:,.2f}" if name.startswith("latency") else "{:,.0f}"
        print(
            f"{name:<14}{number.format(hand) + unit:>12}{number.format(ours) + unit:>12}{ratio:>8.2f}{bar:>6}"
        )
        if ratio < bar:
            low.append(f"{name}: {ratio:.2f} of the limit, the bar is {bar}")
    if check and low:
        sys.exit("below the bar:\n  " + "\n  ".join(low))


if __name__ == "__main__":
    main()
