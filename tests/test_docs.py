"""The docs say what the code does: examples run, tables are complete, links lead somewhere."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from holdfast import errors
from holdfast.apps.tasks.ledger import TASKS
from holdfast.db import settings
from holdfast.engine.lifecycle import MEANING, mermaid

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_example_of_the_readme_runs_and_sends_one_mail(database_url: str, tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 25
    env = {**os.environ, "HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", example], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    with psycopg.connect(database_url) as conn:
        assert conn.execute("select address from sent").fetchall() == [("ana@example.com",)]
        assert conn.execute("select status, attempts from tasks").fetchall() == [("completed", 1)]
        assert conn.execute("select count(*) from workers").fetchone() == (0,)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_of_a_page_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, str(page), "exec", flags=0x2000)  # top-level await is fine in a snippet


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


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


def test_the_diagram_of_tasks_is_drawn_from_its_edges() -> None:
    (diagram,) = blocks(ROOT / "docs" / "tasks.md", "mermaid")
    assert diagram == mermaid(TASKS.lifecycle)


def test_every_column_of_tasks_is_documented() -> None:
    page = (ROOT / "docs" / "tasks.md").read_text()
    for _, column in TASKS.columns():
        assert re.search(rf"^\| .*\b{column}\b", page, re.MULTILINE), column


def test_versions_are_pinned_and_no_file_names_a_place_to_download_from() -> None:
    """Issue 2: a constraints file without an index, and no lock file."""
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert pins
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[a-z0-9.+!]+( *;.*)?", pin) for pin in pins if pin), pins
    assert not [*ROOT.glob("*.lock"), *ROOT.glob("*lock.json"), *ROOT.glob("pylock*.toml")]
