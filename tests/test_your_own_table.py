"""docs/your-own-table.md, walked through word by word: its SQL, its module, its commands, its client."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg

from runtime.test_explain import joins

PAGE = (Path(__file__).parent.parent / "docs" / "your-own-table.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_guide_leads_from_a_table_to_delivered_parcels(empty_database_url: str, tmp_path: Path) -> None:
    table, remedy, insert, _ = blocks("sql")
    module, client, _ = blocks("python")
    before, after, _ = blocks("text")
    (tmp_path / "shop.py").write_text(module)
    (tmp_path / "client.py").write_text(client)
    env = {**os.environ, "HOLDFAST_DATABASE_URL": empty_database_url, "HOLDFAST_HOME": str(tmp_path)}

    def run(*command: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, *command], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    def holdfast(*command: str, code: int = 0) -> str:
        return run("-m", "holdfast.cli", *command, "--app", "shop:app", code=code)

    with psycopg.connect(empty_database_url, autocommit=True) as conn:
        conn.execute(table)
        assert squeezed(holdfast("doctor", "parcels", code=1)) == squeezed(before + remedy)
        assert holdfast("doctor", "parcels", "--sql", code=1).strip() == remedy.strip()
        for statement in remedy.split(";\n"):
            if statement.strip():
                conn.execute(statement)
        assert squeezed(holdfast("doctor", "parcels")) == squeezed(after)

        for statement in insert.split(";\n"):
            if statement.strip():
                conn.execute(statement)
        run("client.py")
        holdfast("enqueue", "parcels", "deliver", '{"street": "High Street 1"}', "--key", "order-19")
        holdfast("cancel", "parcels", "4")
        holdfast("worker", "--ledger", "parcels", "--until-idle")

        rows = conn.execute("select reference, phase, tries from parcels order by no").fetchall()
        assert rows[0] == ("order-17", "delivered", 1)
        assert rows[1] == ("order-18", "delivered", 1)
        assert ("order-19", "delivered", 1) in rows
        assert [phase for _, phase, _ in rows].count("called_off") == 1
        assert "called_off" in holdfast("list", "parcels")


def test_the_outbox_of_the_guide_is_drained_beside_another_program(
    empty_database_url: str, tmp_path: Path
) -> None:
    """The other program holds one letter; the rest is sent, put off or returned, and every try is noted."""
    *_, tables = blocks("sql")
    *_, module = blocks("python")
    (tmp_path / "post.py").write_text(module)
    env = {**os.environ, "HOLDFAST_DATABASE_URL": empty_database_url, "HOLDFAST_HOME": str(tmp_path)}

    def holdfast(*command: str) -> str:
        line = [sys.executable, "-m", "holdfast.cli", *command, "--app", "post:app"]
        done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def work() -> None:
        holdfast("worker", "--ledger", "letters", "--until-idle")

    with psycopg.connect(empty_database_url, autocommit=True) as conn:

        def letters() -> list[tuple[str, str, bool]]:
            query = "select address, status, sent_at is not null from letters order by no"
            return conn.execute(query).fetchall()

        conn.execute(tables)
        assert "every search has its index" in holdfast("doctor", "letters")
        conn.execute("insert into letters (address, words) values ('Elm Street 5', 'Hello')")
        conn.execute("insert into letters (address, words) values ('Mars 1', 'Hello'), ('', 'Hello')")
        conn.execute("insert into letters (address, words) values ('Oak Road 9', 'Hello')")
        with psycopg.connect(empty_database_url) as other:
            picked = other.execute(
                "select no from letters where status = 'waiting' order by written_at limit 1"
                " for update skip locked"
            ).fetchall()
            assert picked == [(1,)]
            work()
            assert letters() == [
                ("Elm Street 5", "waiting", False),
                ("Mars 1", "waiting", False),
                ("", "returned", False),
                ("Oak Road 9", "sent", True),
            ]
            other.execute("update letters set status = 'sent', sent_at = now() where no = 1")
        tries = "select letter, trouble, again_at > tried_at + '59 s' from letter_tries order by letter"
        noted = [
            (2, "retry: the rocket is late", True),
            (3, "failed: it has no address", None),
            (4, None, None),
        ]
        assert conn.execute(tries).fetchall() == noted

        for _ in range(2):
            conn.execute("update letter_tries set again_at = now() where again_at is not null")
            work()
        assert letters()[1] == ("Mars 1", "returned", False)
        mars = "select count(*), count(again_at) from letter_tries where letter = 2"
        assert conn.execute(mars).fetchone() == (3, 2)
        holdfast("requeue", "letters", "2")
        assert conn.execute(mars).fetchone() == (3, 0)
        work()
        assert letters()[1] == ("Mars 1", "waiting", False)
        asyncio.run(work_is_served(empty_database_url, "letters"))
        assert "it is passed over until its next try is due" in holdfast("explain", "letters", "2")


async def work_is_served(url: str, ledger: str) -> None:
    """A worker for this ledger is there, and does nothing."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await joins(conn, "idle", [ledger], ledger=ledger)


def squeezed(text: str) -> str:
    return " ".join(text.split())
