"""The docs say what the code does: examples run, tables are complete, links lead somewhere."""

import fcntl
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from conftest import HOME
from holdfast import Backoff, Ledger, Settings, errors
from holdfast.apps.jobs.ledger import JOB
from holdfast.db import settings
from holdfast.engine.lifecycle import MEANING, mermaid
from holdfast.platform import APPS

ROOT = Path(__file__).parent.parent
GUIDES = {
    "job": ROOT / "docs" / "jobs.md",
    "tasks": ROOT / "docs" / "tasks.md",
    "sync_jobs": ROOT / "docs" / "connectors.md",
    "capture_session": ROOT / "docs" / "schedules.md",
    "schedule_notification": ROOT / "docs" / "schedules.md",
    "system_jobs": ROOT / "docs" / "operations.md",
}
LEDGERS = [ledger for app in APPS for ledger in app.ledgers]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@contextmanager
def shop_roles(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Drop the logins that docs/jobs.md creates. They belong to the server: one test at a time has them."""
    with (Path(os.environ[HOME]) / "roles.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            for role in ("shop_worker", "shop_server"):
                if conn.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone():
                    conn.execute(SQL("drop owned by {0}; drop role {0}").format(Identifier(role)))


def test_the_example_of_the_readme_runs_and_tells_what_happened(database_url: str, tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 25
    (printed,) = blocks(ROOT / "README.md", "text")
    assert run("-c", example, url=database_url, folder=tmp_path) == printed
    with psycopg.connect(database_url) as conn:
        assert conn.execute("select status::text, attempt from job").fetchall() == [("succeeded", 0)]
        assert conn.execute("select count(*) from workers").fetchone() == (0,)


def run(*command: str, url: str, folder: Path, code: int = 0) -> str:
    env = {**os.environ, "HOLDFAST_DATABASE_URL": url, "HOLDFAST_HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, *command], env=env, cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert code or "Traceback" not in done.stderr
    return done.stdout


def test_the_guide_to_jobs_runs_as_it_is_written(database_url: str, tmp_path: Path) -> None:
    """Every program of docs/jobs.md, in its order, and every statement; and the record is true afterwards."""
    page = ROOT / "docs" / "jobs.md"
    programs = {code.split()[1]: code for code in blocks(page, "python")}
    assert list(programs) == ["shop.py", "enqueue.py", "people.py", "tenants.py"]
    for name, code in programs.items():
        (tmp_path / name).write_text(code)
    add_by_hand, delete_jobs, evict, invoices, logins, roles, revoke = blocks(page, "sql")
    first_output = blocks(page, "text")[0]

    def python(*command: str, code: int = 0, url: str = database_url) -> str:
        return run(*command, url=url, folder=tmp_path, code=code)

    def holdfast(*command: str, code: int = 0, url: str = database_url) -> str:
        return python("-m", "holdfast.cli", *command, code=code, url=url)

    with psycopg.connect(database_url, autocommit=True) as conn:

        def statuses(where: LiteralString = "true") -> dict[str, int]:
            counts = conn.execute(
                SQL("select status::text, count(*) from job where {} group by 1").format(SQL(where))
            )
            return dict(counts.fetchall())

        assert python("shop.py") == first_output
        python("enqueue.py")
        assert statuses("queue = 'paper' and max_attempts = 2 and backoff_policy = 'fixed'") == {"queued": 1}
        assert statuses() == {"succeeded": 1, "queued": 12}
        conn.execute(add_by_hand)
        (command,) = re.findall(r"^ID=\$\(holdfast (enqueue job .*)\)$", page.read_text(), re.MULTILINE)
        holdfast(*shlex.split(command.replace("18}", "0}")))  # there is no such invoice
        holdfast("worker", "--app", "shop:app", "--until-idle")
        assert statuses() == {"succeeded": 13, "queued": 1, "dead_letter": 1}
        assert python("people.py").endswith("1 requeued; canceled by ana\n")
        conn.execute(invoices)
        python("tenants.py")
        assert conn.execute("select number from invoices").fetchall() == [(23,)]
        assert "the record is true" in holdfast("job", "verify", "--all")

        with shop_roles(conn):
            conn.execute(logins)
            holdfast("enqueue", "job", "invoice:print", "{}", "--tenant", str(UUID(int=7)))
            worker = re.sub(r"//[^@]*@", "//shop_worker:change%20me@", database_url)
            holdfast("worker", "--app", "shop:app", "--until-idle", url=worker)
            server = re.sub(r"//[^@]*@", "//shop_server:change%20me%2C%20too@", database_url)
            assert not holdfast("list", "job", url=server).splitlines()[1:]
            python("tenants.py", code=1, url=server)  # it may enqueue, and work it may not
            assert statuses("type = 'invoice:store'") == {"succeeded": 1, "queued": 1}
        conn.execute("alter table job disable trigger trg_job__edges")
        conn.execute("update job set status = 'succeeded', finished_at = now() where status = 'canceled'")
        conn.execute("alter table job enable trigger trg_job__edges")
        assert "the row says succeeded, its events end in canceled" in holdfast(
            "job", "verify", "--all", code=6
        )

        conn.execute(delete_jobs.replace("1 year", "0"))
        assert statuses("finished_at is not null") == {}
        conn.execute(evict.replace("2 years", "0"))
        assert conn.execute("select count(*) from job_event").fetchone() == (0,)
        assert "the row is queued, and has no event at all" in holdfast("job", "verify", "--all", code=6)

        assert re.findall(r"^create role (\w+) nologin;$", roles, re.MULTILINE) == [
            "holdfast_tenant",
            "holdfast_worker",
        ]
        with conn.transaction(force_rollback=True):
            conn.execute("create role anon nologin; create role authenticated nologin")
            conn.execute("grant all on all tables in schema public to anon, authenticated")
            conn.execute(revoke)
            left = """
                select table_name, grantee from information_schema.table_privileges
                where grantee in ('anon', 'authenticated') and table_name <> 'invoices'
            """
            assert conn.execute(left).fetchall() == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_of_a_page_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, str(page), "exec", flags=0x2000)  # top-level await is fine in a snippet


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_a_heading_twice(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert headings
    assert [heading for heading in headings if headings.count(heading) > 1] == []


def test_the_command_line_page_has_every_exit_code_once() -> None:
    table = (ROOT / "docs" / "cli.md").read_text().split("| exit code | meaning |")[1].split("\n\n")[0]
    codes = re.findall(r"^\| (\d+) \|", table, re.MULTILINE)
    assert codes == ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "130"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        name, _, heading = target.partition("#")
        found = page.parent / name if name else page
        assert found.exists(), f"{page.name}: {target}"
        headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE) if heading else []
        known = [re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings]
        assert not heading or heading in known, f"{page.name}: {target}"


def test_the_tests_named_by_the_promise_table_exist() -> None:
    for target in re.findall(r"`(tests/[\w./]+)`", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    for row in settings.describe():
        assert row.name in page


def test_every_verb_is_in_the_glossary_with_its_meaning() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    for verb, meaning in MEANING.items():
        assert re.search(rf"^\| {verb} \| [^|]+ \| {re.escape(meaning)} \|$", page, re.MULTILINE), verb


def test_every_error_is_documented_with_its_code_status_and_exit_code() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    kinds = {
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.HoldfastError)
    } - {errors.HoldfastError, errors.Problems}
    for kind in kinds:
        assert f"| `{kind.__name__}` | {kind.code} | {kind.status} | {kind.exit_code} |" in page


@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda ledger: ledger.name)
def test_the_diagram_of_a_ledger_is_drawn_from_its_edges(ledger: Ledger) -> None:
    page = GUIDES[ledger.name]
    of_page = [one for one in LEDGERS if GUIDES[one.name] == page]
    assert blocks(page, "mermaid") == [mermaid(one.lifecycle) for one in of_page]


@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda ledger: ledger.name)
def test_every_column_of_a_ledger_is_documented(ledger: Ledger) -> None:
    page = GUIDES[ledger.name].read_text()
    for _, column in ledger.columns():
        assert re.search(rf"^\| .*\b{column}\b", page, re.MULTILINE), column


def test_every_state_of_a_job_is_explained() -> None:
    page = GUIDES["job"].read_text()
    for state in JOB.states:
        assert re.search(rf"^\| {state} \| \S", page, re.MULTILINE), state


def test_the_waits_of_a_job_are_those_of_the_settings() -> None:
    page = GUIDES["job"].read_text()
    backoff = Backoff(base=Settings.job_backoff_base, cap=Settings.job_backoff_cap, jitter=0)
    waits = [f"{backoff.delay(attempt, policy='exp'):g}" for attempt in range(7)]
    assert f"| {', '.join(waits[:5])} s, each ± {Settings.job_backoff_jitter:.0%}".replace("%", " %") in page
    assert f"further ones {waits[5]} s, then {waits[6]} s |" in page


def test_versions_are_pinned_and_no_file_names_a_place_to_download_from() -> None:
    """Issue 2: a constraints file without an index, and no lock file."""
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert pins
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[a-z0-9.+!]+( *;.*)?", pin) for pin in pins if pin), pins
    assert not [*ROOT.glob("*.lock"), *ROOT.glob("*lock.json"), *ROOT.glob("pylock*.toml")]
