"""A million events, verified by the command as a process: the answer is right, and the memory stays small."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.db.pool import Connection
from runtime.support import PATH, shown

JOBS, EVENTS_OF_EACH = 100_000, 10
GROWTH = 24 * 1024  # KiB that a million events may take more than a handful do

# The command, which at its end tells the peak of its own memory. (What the kernel tells a parent of its
# child begins with the parent's own size.)
MEASURED = """
import re, sys
from holdfast.cli.program import main
code = main(sys.argv[1:])
status = open("/proc/self/status").read()
print(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1], file=sys.stderr)
sys.exit(code)
"""

# Jobs that failed once, were tried again, told how far they were, and succeeded: ten events each, a second
# apart, but for the claim of a failed job, whose two hops have one time.
FILL_JOBS = """
insert into job (id, org_id, type, status, attempt, fence, created_at, updated_at, started_at, finished_at)
select gen_random_uuid(), lpad(to_hex(n %% 5), 32, '0')::uuid, 'soak', 'succeeded', 1, 2,
    start, start + interval '8 s', start + interval '1 s', start + interval '8 s'
from generate_series(1, %(jobs)s) as n,
    lateral (select timestamptz '2030-01-01Z' + n * interval '1 ms') as moment (start)
"""

FILL_EVENTS = """
insert into job_event (job_id, ts, prev_status, next_status, detail_json)
select j.id, j.created_at + make_interval(secs => e.second), e.prev, e.next,
    jsonb_strip_nulls(jsonb_build_object(
        'verb', e.verb, 'attempt', e.attempt, 'fence', e.fence,
        'worker', case when e.verb <> 'enqueue' then 'w' || e.fence end,
        'progress', case when e.verb = 'progress' then 10 * e.second end,
        'error', case when e.verb = 'retry' then '{"code": "BROKEN", "message": "it broke"}'::jsonb end
    ))
from job as j, (values
    (1, 0, null, 'queued', 'enqueue', 0, 0),
    (2, 1, 'queued', 'running', 'claim', 0, 1),
    (3, 2, 'running', 'running', 'progress', 0, 1),
    (4, 3, 'running', 'failed', 'retry', 1, 1),
    (5, 4, 'failed', 'queued', 'claim', 1, 2),
    (6, 4, 'queued', 'running', 'claim', 1, 2),
    (7, 5, 'running', 'running', 'progress', 1, 2),
    (8, 6, 'running', 'running', 'progress', 1, 2),
    (9, 7, 'running', 'running', 'progress', 1, 2),
    (10, 8, 'running', 'succeeded', 'finish', 1, 2)
) as e (place, second, prev, next, verb, attempt, fence)
order by e.place, j.created_at
"""


@dataclass(frozen=True)
class Verified:
    """What a run of the command told, how long it took, and how large it was at most, in KiB."""

    code: int
    told: dict[str, Any]
    seconds: float
    peak: int


def verified(database_url: str) -> Verified:
    settings = {"HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_PROFILE": "test", "PYTHONPATH": PATH}
    command = [sys.executable, "-c", MEASURED, "job", "verify", "--all", "--json"]
    began = time.monotonic()
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, check=False)
    seconds = time.monotonic() - began
    return Verified(done.returncode, json.loads(done.stdout), seconds, int(done.stderr))


async def fill(conn: Connection, jobs: int) -> None:
    """So many jobs, each with its events. A superuser need not have each foreign key looked up."""
    async with conn.transaction():
        await conn.execute("delete from job")
        await conn.execute("set local session_replication_role = replica")
        await conn.execute("set local statement_timeout = 0")
        await conn.execute(FILL_JOBS, {"jobs": jobs})
        await conn.execute(FILL_EVENTS)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize("jobs", [2_000, pytest.param(JOBS, marks=pytest.mark.soak)])
async def test_a_large_record_is_verified_in_little_memory(
    conn: Connection,
    database_url: str,
    jobs: int,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """J-32, J-34: memory does not grow with the record; so time alone decides how much can be verified."""
    events = jobs * EVENTS_OF_EACH
    await fill(conn, 10)
    small = await asyncio.to_thread(verified, database_url)
    assert (small.code, small.told["rows"], small.told["events"], small.told["lies"]) == (0, 10, 100, [])
    await fill(conn, jobs)
    large = await asyncio.to_thread(verified, database_url)
    truth = {"ledger": "job", "rows": jobs, "events": events, "true": True, "found": 0, "lies": []}
    assert (large.code, large.told) == (0, truth)
    assert large.peak - small.peak < GROWTH
    if request.node.get_closest_marker("soak"):
        rate = events / (large.seconds - small.seconds)
        peaks = f"{large.peak / 1024:.0f} MiB at most, {small.peak / 1024:.0f} MiB for ten jobs"
        shown(capsys, f"{events:,} events in {large.seconds:.1f} s: {rate:,.0f} events/s; {peaks}")
