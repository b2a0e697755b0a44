"""What the tests of `doctor` share: damage, examine, run what it prints, examine again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from psycopg import AsyncConnection
from psycopg.sql import SQL

from holdfast.apps.tasks.ledger import TASKS
from holdfast.engine import doctor
from holdfast.engine.doctor import Diagnosis, Finding
from holdfast.engine.ledger import Ledger

Connection = AsyncConnection[Any]


async def examine(conn: Connection, ledger: Ledger) -> Diagnosis:
    """What doctor finds, whatever the version of the server under test."""
    found = await doctor.examine(conn, ledger)
    version = tuple(doctor.server(conn.info.server_version))
    return replace(found, findings=tuple(one for one in found.findings if one not in version))


async def run(conn: Connection, *statements: str) -> None:
    for statement in statements:
        await conn.execute(SQL(statement))  # pyright: ignore[reportArgumentType]


async def mend(conn: Connection, diagnosis: Diagnosis) -> None:
    """Runs the remedy as psql would: one statement after the other, each committed."""
    await run(conn, *(one for one in diagnosis.remedy().split(";\n") if one.strip()))


async def broken(conn: Connection, *damage: str, ledger: Ledger = TASKS) -> list[Finding]:
    """Does the damage, examines, runs the remedy, and proves that nothing is left to mend."""
    await run(conn, *damage)
    diagnosis = await examine(conn, ledger)
    await mend(conn, diagnosis)
    cured = await examine(conn, ledger)
    assert cured.healthy, cured.findings
    assert all(lane.served for lane in cured.lanes)
    assert cured.remedy() == ""
    return ailing(diagnosis)


def only(findings: Sequence[Finding], severity: str = "missing") -> Finding:
    (finding,) = findings
    assert finding.severity == severity
    assert finding.promise_lost
    return finding


def ailing(diagnosis: Diagnosis) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.severity != "fine"]
