"""docs/your-own-table.md, walked through word by word: its SQL, its module, its commands, its client."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg

PAGE = (Path(__file__).parent.parent / "docs" / "your-own-table.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_guide_leads_from_a_table_to_delivered_parcels(empty_database_url: str, tmp_path: Path) -> None:
    table, remedy, insert = blocks("sql")
    module, client = blocks("python")
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


def squeezed(text: str) -> str:
    return " ".join(text.split())
