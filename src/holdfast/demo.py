"""The application that `holdfast up` runs: a few handlers that behave like real ones, and work for them."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args
from uuid import UUID

from holdfast import Backoff, Context, Fail, Holdfast, Item

app = Holdfast()

PEOPLE = ("ana", "bo", "chen", "dara", "emeka", "freja")
# The same in every run, so that `holdfast list job --tenant …` can be tried.
ORGANISATIONS = (
    UUID("00000000-0000-4000-8000-00000000000a"),
    UUID("00000000-0000-4000-8000-00000000000b"),
    UUID("00000000-0000-4000-8000-00000000000c"),
)
StageName = Literal["extracting", "analyzing", "indexing"]
STAGES: tuple[StageName, ...] = get_args(StageName)
ONE_FAILS_OF = 6

_numbers = itertools.count(1)  # of the jobs that were made


@dataclass
class Email:
    to: str
    subject: str = "Welcome"


@dataclass
class Report:
    month: str
    pages: int = 6


@dataclass
class Image:
    name: str
    width: int = 640


@dataclass
class Charge:
    customer: str
    cents: int


@dataclass
class Delivery:
    url: str


@dataclass
class Process:
    source: str = "drive://inbox"
    fail_at_stage: StageName | None = None
    seconds: float = 1.5


@app.handler("mock_process", ledger="job", timeout=60, limit=2)
async def mock_process(process: Process, ctx: Context) -> dict[str, str | int]:
    """Goes through its stages and says so; where it is told to fail, it does, until no retry is left."""
    for done, stage in enumerate(STAGES):
        await ctx.progress(round(100 * done / len(STAGES)), stage)
        await asyncio.sleep(max(0.0, process.seconds) / len(STAGES))
        if stage == process.fail_at_stage:
            raise RuntimeError(f"{process.source} failed while {stage}")
    await ctx.progress(100)
    return {"source": process.source, "stages": len(STAGES), "run": ctx.attempt}


@app.handler("email:send", timeout=10)
async def send_email(email: Email) -> str:
    """Waits for a mail server."""
    await asyncio.sleep(random.uniform(0.1, 0.8))  # noqa: S311
    return f"sent to {email.to}"


@app.handler("report:build", timeout=60)
async def build_report(report: Report, ctx: Context) -> None:
    """Takes a while, and says how far it has come."""
    for page in range(report.pages):
        await asyncio.sleep(0.5)
        await ctx.progress(round(100 * (page + 1) / report.pages), f"page {page + 1} of {report.pages}")


@app.handler("image:resize", place="process", timeout=30)
def resize_image(image: Image) -> str:
    """Computes, in a process of its own, so that nothing else waits for it."""
    return hashlib.pbkdf2_hmac("sha256", image.name.encode(), b"pixels", image.width * 500).hex()


@app.handler("payment:charge", backoff=Backoff(base=0.5, cap=4), limit=6)
async def charge(payment: Charge) -> None:
    """Fails every other time, and is tried again after a while that grows."""
    await asyncio.sleep(0.2)
    if random.random() < 0.5:  # noqa: S311
        raise ConnectionError(f"the bank did not answer for {payment.customer}")


@app.handler("webhook:deliver")
async def deliver(delivery: Delivery) -> Fail:
    """Can never work, says so, and is not tried again."""
    await asyncio.sleep(0.1)
    return Fail(f"410 Gone: {delivery.url}")


@app.handler("legacy:import", backoff=Backoff(base=0.3, cap=1))
def import_legacy() -> None:
    """Crashes on every run, and ends in the dead letters."""
    raise ValueError("line 7: not a date: 31.02.1999")


def jobs(count: int) -> list[Item]:
    """Some work for `job`: of several organisations, one in six bound to fail."""
    return [_job(next(_numbers)) for _ in range(count)]


def _job(number: int) -> Item:
    source = f"drive://{_person()}"
    # A file is processed once a minute, however often somebody asks.
    key = f"{source} {datetime.now(UTC):%Y-%m-%d %H:%M}" if number % 3 == 0 else None
    fails = random.choice(STAGES) if number % ONE_FAILS_OF == 2 else None  # noqa: S311
    seconds = round(random.uniform(0.6, 3.0), 1)  # noqa: S311
    return Item(
        kind="mock_process",
        payload=Process(source, fails, seconds),
        tenant=ORGANISATIONS[number % len(ORGANISATIONS)],
        priority=10 if number % 5 == 0 else 0,
        key=key,
    )


def items(count: int) -> list[Item]:
    """Some work for `tasks`, most of it harmless."""
    makers = (_email, _email, _email, _report, _image, _charge, _charge, _trouble)
    return [random.choice(makers)() for _ in range(count)]  # noqa: S311


def _email() -> Item:
    return Item(kind="email:send", payload=Email(_person()), priority=random.choice((0, 0, 5)))  # noqa: S311


def _report() -> Item:
    return Item(kind="report:build", payload=Report(f"2026-{random.randint(1, 12):02}"))  # noqa: S311


def _image() -> Item:
    return Item(kind="image:resize", payload=Image(f"{_person()}.png", random.choice((320, 640, 1280))))  # noqa: S311


def _charge() -> Item:
    return Item(kind="payment:charge", payload=Charge(_person(), random.randint(100, 9900)))  # noqa: S311


def _trouble() -> Item:
    if random.random() < 0.5:  # noqa: S311
        return Item(kind="legacy:import", delay=1)
    return Item(kind="webhook:deliver", payload=Delivery("https://gone.example/hook"))


def _person() -> str:
    return random.choice(PEOPLE)  # noqa: S311
