"""docs/api.md says what the API is: every request, every code, and examples that run."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import psycopg
import pytest

from holdfast import Holdfast, Settings
from holdfast.api import problems, tokens
from test_docs import blocks

PAGE = Path(__file__).parent.parent / "docs" / "api.md"


def test_every_request_is_in_the_table_and_no_other() -> None:
    listed = re.findall(r"^\| `([A-Z]+) (/\S+)` \|", PAGE.read_text(), re.MULTILINE)
    described = Holdfast(Settings()).web().openapi()["paths"]
    assert sorted(listed) == sorted(
        (method.upper(), path) for path, methods in described.items() for method in methods
    )


def test_every_code_of_the_api_alone_is_in_a_table_and_no_other() -> None:
    listed = set(re.findall(r"^\| ([A-Z_]+) \| \d+ \|", PAGE.read_text(), re.MULTILINE))
    folder = Path(problems.__file__).parent
    written = {
        code
        for file in folder.glob("*.py")
        for code in re.findall(r'(?:respond\(\s*\d+, |\bcode = )"([A-Z_]+)"', file.read_text())
    }
    known = set(re.findall(r"^\| `\w+` \| ([A-Z_]+) \|", (PAGE.parent / "errors.md").read_text(), re.M))
    assert listed == (written | set(problems.CODES.values())) - known


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str) -> Iterator[Any]:
    """Makes a module of a program, as if it lay in the working folder."""
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database_url)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    made: list[str] = []

    def load(name: str, code: str) -> ModuleType:
        file = tmp_path / f"{name}.py"
        file.write_text(code)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec
        assert spec.loader
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        made.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in made:
        del sys.modules[name]


async def token(url: str, scope: Any) -> str:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        return (await tokens.create(conn, "docs", scope))[1]


async def test_it_is_mounted_in_an_application_as_the_guide_says(load: Any, database_url: str) -> None:
    mounting, _ = blocks(PAGE, "python")
    shop = load("docs_shop", mounting)
    bearer = {"Authorization": f"Bearer {await token(database_url, 'read')}"}
    async with (
        shop.work,
        httpx.AsyncClient(transport=httpx.ASGITransport(shop.shop), base_url="http://shop") as client,
    ):
        assert (await client.get("/holdfast/api/ledgers")).status_code == 401
        found = (await client.get("/holdfast/api/ledgers", headers=bearer)).json()
        assert [one["name"] for one in found["ledgers"]] == [
            "job",
            "tasks",
            "sync_jobs",
            "capture_session",
            "schedule_notification",
            "system_jobs",
        ]
        assert (await client.get("/holdfast/readyz")).status_code == 200


async def test_an_app_adds_routes_as_the_guide_says(load: Any, database_url: str) -> None:
    _, adding = blocks(PAGE, "python")
    module = load("invoices", adding)
    readers, actors = [await token(database_url, scope) for scope in ("read", "act")]
    async with (
        module.app,
        httpx.AsyncClient(transport=httpx.ASGITransport(module.app.web()), base_url="http://shop") as client,
    ):

        async def status(method: str, path: str, text: str | None) -> int:
            headers = {"Authorization": f"Bearer {text}"} if text else {}
            return (await client.request(method, path, headers=headers)).status_code

        assert await status("GET", "/api/invoices/due", None) == 401
        assert await status("GET", "/api/invoices/due", readers) == 200
        assert await status("POST", "/api/invoices/send", readers) == 403
        assert await status("POST", "/api/invoices/send", actors) == 200
