"""A shop whose work the browser's tests watch: its handlers, and rows that tell a story in pictures."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from typing import Any

from api.kit import A, B, Served, on
from holdfast import Backoff, Context, Fail, Holdfast, Settings

PATIENCE = 30.0


class Gates:
    """Named gates, closed until somebody opens them. Handlers wait at them, in any thread."""

    def __init__(self) -> None:
        self._gates: dict[str, threading.Event] = defaultdict(threading.Event)
        self._all = False

    def open(self, name: str) -> None:
        self._gates[name].set()

    def open_all(self) -> None:
        self._all = True
        for gate in list(self._gates.values()):
            gate.set()

    async def passed(self, name: str) -> None:
        while not self._all and not await asyncio.to_thread(self._gates[name].wait, 0.05):
            pass


def shop(settings: Settings, gates: Gates) -> Holdfast:
    """The application. A film waits at two gates, named for its title."""
    app = Holdfast(settings)

    @app.handler("film:cut", ledger="job", timeout=PATIENCE)
    async def cut(film: dict[str, Any], ctx: Context) -> dict[str, int]:
        await ctx.progress(10, "reading")
        await gates.passed(f"{film['title']} 1")
        await ctx.progress(60, "cutting")
        await gates.passed(f"{film['title']} 2")
        return {"minutes": 94}

    @app.handler("invoice:print", ledger="job", backoff=Backoff(base=0.3, cap=0.6), limit=2)
    async def print_invoice(invoice: dict[str, Any], ctx: Context) -> dict[str, int] | Fail:
        await ctx.progress(50, "printing")
        await asyncio.sleep(invoice.get("seconds", 0.02))
        if invoice.get("jam"):
            raise OSError(f"the printer of tray {invoice['jam']} is jammed")
        return {"pages": 2} if invoice["number"] else Fail("there is no such invoice", code="NO_INVOICE")

    @app.handler("mail:send", ledger="tasks")
    async def send(mail: dict[str, Any]) -> str:
        await asyncio.sleep(0.02)
        if mail.get("bounce"):
            raise ConnectionError("mx.example did not answer")
        return "sent"

    @app.handler("thumbnail", ledger="tasks")
    async def thumbnail(image: dict[str, Any]) -> None:
        await gates.passed(image["name"])

    return app


# A job of some hours ago whose record is written by hand: it waited long, failed once, and ended well.
STORY = """
with job as (
    insert into job (id, org_id, type, status, attempt, max_attempts, requested_by, payload, fence,
        created_at, updated_at, run_at, started_at, finished_at, idempotency_key, priority)
    values ('019a9bde-73f2-7c41-9a56-5d0f3c1e0b77', %(org)s, 'invoice:print', 'succeeded', 1, 5, 'ana',
        '{"number": 17, "copies": 2, "to": "Acme & Sons"}', 2, now() - interval '150 min',
        now() - interval '20 min', now() - interval '20 min 9 s', now() - interval '20 min 19.5 s',
        now() - interval '20 min', 'invoice-17', 10)
    returning id
)
insert into job_event (job_id, ts, prev_status, next_status, detail_json)
select job.id, now() - e.ago, e.prev, e.next, e.told::jsonb
from job, (values
    (interval '150 min', null, 'queued', '{"verb": "enqueue", "by": "ana"}'),
    ('20 min 19.5 s', 'queued', 'running', '{"verb": "claim", "worker": "press-2"}'),
    ('20 min 18 s', 'running', 'running', '{"verb": "progress", "stage": "reading", "progress": 20}'),
    ('20 min 15 s', 'running', 'running', '{"verb": "progress", "stage": "printing", "progress": 60}'),
    ('20 min 13 s', 'running', 'failed', '{"verb": "retry", "worker": "press-2",
        "error": {"code": "OSError", "message": "the printer of tray 2 is jammed"}}'),
    ('20 min 8 s', 'failed', 'queued', '{"verb": "claim", "worker": "press-1"}'),
    ('20 min 8 s', 'queued', 'running', '{"verb": "claim", "worker": "press-1"}'),
    ('20 min 6 s', 'running', 'running', '{"verb": "progress", "stage": "printing", "progress": 60}'),
    ('20 min', 'running', 'succeeded', '{"verb": "finish", "worker": "press-1", "result": {"pages": 2}}')
) as e (ago, prev, next, told)
"""
STORY_ID = "019a9bde-73f2-7c41-9a56-5d0f3c1e0b77"

# What an hour of work leaves in the numbers.
HOUR = """
insert into holdfast_pulse (minute, ledger, kind, fact, label, count, sum)
select date_trunc('minute', now()) - make_interval(mins => %(ago)s), %(ledger)s, '', %(fact)s, %(label)s,
    %(count)s, 0
on conflict do nothing
"""


def an_hour_of_work(served: Served) -> None:
    """Fills the last hour's numbers, always alike."""
    chance = random.Random(7)
    waits, runs = ("0.005", "0.01", "0.025", "0.05", "0.1", "0.5"), ("0.05", "0.1", "0.25", "0.5", "1", "2.5")

    async def fill(conn: Any) -> None:
        for ledger, scale in (("job", 24), ("tasks", 140)):
            for ago in range(1, 60):
                wave = 1 + 0.6 * ((ago % 30) / 30) + chance.uniform(-0.25, 0.25)
                done = int(scale * wave * (0.35 if 20 < ago < 26 else 1))
                bad = int(done * (0.5 if 20 < ago < 26 else chance.uniform(0, 0.08)))
                dead = bad // 4
                facts = [("moved", "finish", done), ("moved", "retry", bad), ("dead", "", dead)]
                facts += [("failed", "OSError" if ledger == "job" else "ConnectionError", bad)]
                facts += [("failed", "NO_INVOICE" if ledger == "job" else "TIMEOUT", dead)]
                facts += [("waited", label, done // (n + 2)) for n, label in enumerate(waits)]
                facts += [("ran", label, done // (n + 2)) for n, label in enumerate(runs)]
                for fact, label, count in facts:
                    if count:
                        params = {"ago": ago, "ledger": ledger, "fact": fact, "label": label, "count": count}
                        await conn.execute(HOUR, params)
        await conn.execute(STORY, {"org": A})

    on(served.settings, fill)


def a_busy_day(served: Served) -> None:
    """Rows of every state: done, failed, dead, called off, held up, and waiting."""
    for number in range(1, 19):
        served.enqueue("job", "invoice:print", payload={"number": number}, tenant=A if number % 3 else B)
        served.enqueue("tasks", "mail:send", payload={"to": f"customer-{number}@example.com"})
    jams = [
        served.enqueue("job", "invoice:print", payload={"number": 7, "jam": tray}) for tray in (1, 2, 2, 3)
    ]
    nothing = served.enqueue("job", "invoice:print", payload={"number": 0})
    bounced = served.enqueue("tasks", "mail:send", payload={"to": "gone@example.com", "bounce": True})
    later = [
        served.enqueue("job", "invoice:print", payload={"number": n}, delay=3600, key=f"invoice-{n}")
        for n in (40, 41, 42)
    ]
    client = served.client()
    client.post(f"/api/ledgers/job/rows/{later[0]}/cancel", json={"reason": "paid in cash"})
    for row in (*jams, nothing):
        assert client.get(f"/api/ledgers/job/rows/{row}/wait", params={"seconds": 30}).json()["ended"]
    assert bounced
    served.enqueue("job", "film:cut", payload={"title": "The Tide"})
    served.enqueue("job", "film:cut", payload={"title": "Kelp"}, tenant=B)
    for name in ("harbour.png", "anchor.png"):
        served.enqueue("tasks", "thumbnail", payload={"name": name})
