"""What is around the pages: the reference, problems, files, a prefix, and the pages of apps."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.applications import Starlette
from starlette.routing import Mount

from api.kit import Served, served_app
from dashboard.conftest import Visit
from dashboard.kit import Visitor, events, row
from holdfast import Holdfast, Settings
from holdfast.api.auth import Reader
from holdfast.api.web import Link, Web
from holdfast.dashboard import dress
from holdfast.dashboard.live import Look, shown
from holdfast.runtime.app import App
from ledgers import PARCELS, PARCELS_DDL

# -- around the pages ------------------------------------------------------------------------------------


def test_the_reference_has_every_operation_with_an_example(served: Served) -> None:
    nobody = Visitor(served, None)
    page = nobody.get("/docs")
    described = nobody.client.get("/openapi.json").json()
    operations = {
        (method.upper(), path)
        for path, item in described["paths"].items()
        for method in item
        if method in ("get", "post", "put", "patch", "delete")
    }
    articles = page.every("article")
    shown = {(a.words.split()[0], a.words.split()[1]) for a in articles}
    assert shown == operations
    assert all("curl" in article.words for article in articles)
    enqueue = next(a for a in articles if a.words.startswith("POST /api/ledgers/{ledger}/rows "))
    assert f"{served.url}/api/ledgers/" in enqueue.words
    assert "Authorization: Bearer $HOLDFAST_TOKEN" in enqueue.words
    assert "idempotency" in enqueue.words.lower() or "key" in enqueue.words
    assert not page.every("script", src="")


def test_problems_are_pages_for_people_and_json_for_programs(served: Served, visit: Visit) -> None:
    ana = visit()
    page = ana.get("/nothing/here", 404)
    assert "There is no such thing" in page.words
    assert "trace" in page.words
    ana.get("/ledgers/nope", 404)
    ana.get(row("not-a-uuid"), 400)
    ana.get(row("00000000-0000-4000-8000-000000000000"), 404)
    response = ana.client.get("/api/ledgers/nope")
    assert response.headers["content-type"] == "application/problem+json"
    response = ana.client.get("/nothing/here", headers={"Accept": "application/json"})
    assert response.headers["content-type"] == "application/problem+json"
    assert ana.client.put("/ledgers/job").status_code in (403, 405)


def test_a_database_that_is_away_is_told_on_a_page(served: Served, visit: Visit, postgres: str) -> None:
    import psycopg

    ana = visit()
    name = served.query("select current_database()")[0][0]
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(f"alter database {name} allow_connections false".encode())
        server.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
        try:
            page = ana.get("/", 503)
        finally:
            server.execute(f"alter database {name} allow_connections true".encode())
    assert "Not available at the moment" in page.words


def test_files_may_be_kept_by_a_browser_and_change_their_address_with_their_content(visit: Visit) -> None:
    ana = visit()
    page = ana.get("/")
    links = [str(link["href"]) for link in page.every("link")] + [str(s["src"]) for s in page.every("script")]
    assert len(links) == 4
    for link in links:
        response = ana.client.get(link)
        assert response.status_code == 200
        assert re.search(r"\?v=[0-9a-f]{8}$", link)
        assert "no-store" not in response.headers.get("cache-control", "")
        assert response.headers["x-content-type-options"] == "nosniff"
    assert ana.client.get("/static/../dress.py").status_code == 404
    assert ana.client.get("/static/%2e%2e/dress.py").status_code == 404


def test_the_script_of_live_pages_is_small() -> None:
    assert len((dress.STATIC / "live.js").read_text().splitlines()) < 150


def mounted(app: Holdfast, path: str) -> Starlette:
    """Somebody else's application, which has ours below a path."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with app:
            yield

    return Starlette(routes=[Mount(path, app.web())], lifespan=lifespan)


def test_below_a_prefix_every_link_stays_below_it(settings: Settings) -> None:
    with served_app(settings, mounted(Holdfast(settings), "/ops/holdfast")) as served:
        response = Visitor(served, None).client.get("/ops/holdfast/ledgers/job?state=queued")
        assert response.headers["location"] == "/ops/holdfast/login?next=%2Fledgers%2Fjob%3Fstate%3Dqueued"
        ana = Visitor(served, "admin", "/ops/holdfast")
        assert ana.client.cookies.jar._cookies["127.0.0.1"].keys() == {"/ops/holdfast"}  # type: ignore[attr-defined]
        done = ana.client.post(
            "/ops/holdfast/api/ledgers/tasks/rows",
            json={"kind": "x"},
            headers={"Authorization": f"Bearer {served.tokens['admin']}"},
        )
        task = done.json()["id"]
        for path in ("/", "/workers", "/ledgers/tasks", row(task, "tasks"), "/audit", "/tokens", "/docs"):
            page = ana.get(path)
            for element in page.every():
                for key in ("href", "src", "action", "data-live-url"):
                    link = element[key] or ""
                    assert not link.startswith("/") or link.startswith("/ops/holdfast/"), (path, link)
        done = ana.submit(row(task, "tasks"), row(task, "tasks"), verb="cancel")
        assert done.headers["location"] == f"/ops/holdfast{row(task, 'tasks')}"
        assert "failed" in ana.follow(done).one(id="heading").words


def test_a_prefix_that_an_address_must_encode_is_encoded(settings: Settings) -> None:
    root = "/w%C3%B6rk%20it%3B"
    with served_app(settings, mounted(Holdfast(settings), "/wörk it;")) as served:
        nobody = Visitor(served, None)
        response = nobody.client.get(f"{root}/workers")
        assert response.headers["location"] == f"{root}/login?next=%2Fworkers"
        cookie = nobody.client.get(f"{root}/login").headers["set-cookie"]
        assert f"; Path={root};" in cookie
        ana = Visitor(served, "admin", root)
        for path in ("/", "/workers", "/ledgers/tasks", "/docs"):
            for element in ana.get(path).every():
                for key in ("href", "src", "action", "data-live-url"):
                    link = element[key] or ""
                    assert not link.startswith("/") or link.startswith(f"{root}/"), (path, link)
        ana.follow(ana.submit("/", "/theme", theme="dark"))
        assert ana.get("/").one("html")["data-theme"] == "dark"


def test_the_package_has_its_templates_and_files() -> None:
    package = files("holdfast.dashboard")
    for folder in ("templates", "static"):
        found = {one.name for one in (package / folder).iterdir()}
        assert found == {one.name for one in (dress.HERE / folder).iterdir()}
    named = {
        name
        for module in dress.HERE.glob("*.py")
        for name in re.findall(r'"(\w+\.html)"', module.read_text())
    }
    assert {"overview.html", "again.html", "problem.html"} <= named
    for name in named:
        assert (package / "templates" / name).is_file(), name


# -- the pages of apps -----------------------------------------------------------------------------------

pages = APIRouter()


async def _parcels_shown(look: Look) -> Any:
    async with look.site.connection() as conn:
        return await (await conn.execute("select count(*) from parcels")).fetchall()


@pages.get("/shelf")
@shown(_parcels_shown)
async def shelf(request: Request, caller: Reader) -> HTMLResponse:
    return dress.page(request, "shop/shelf.html", caller, shown=[], parcels=["<b>one</b>"])


@pages.post("/shelf")
async def tidy(request: Request, caller: Reader) -> HTMLResponse:
    return dress.page(request, "shop/shelf.html", caller, parcels=[])


@pages.get("/broken")
async def broken(caller: Reader) -> HTMLResponse:
    raise RuntimeError("the secret word is xyzzy")


yard = APIRouter()


@yard.get("/{number}")
@shown(_parcels_shown)
async def gate(request: Request, caller: Reader, number: str) -> HTMLResponse:
    return dress.page(request, "shop/shelf.html", caller, parcels=[number])


pages.include_router(yard, prefix="/yard")
WEB = Web(
    pages=(pages,), links=(Link("Shelf", "/shelf"),), templates=str(Path(__file__).parent / "templates")
)
SHOP = App(name="shop", ledgers=(PARCELS,), web="dashboard.test_around")


def test_an_app_adds_pages_in_the_same_dress(settings: Settings) -> None:
    with served_app(settings, Holdfast(settings, apps=[SHOP]).web()) as served:
        served.query(PARCELS_DDL)
        ana = Visitor(served, "reader")
        page = ana.get("/shelf")
        assert "<b>one</b>" in page.one("main").text
        menu = {link.words: link["aria-current"] for link in page.one("nav", class_="menu").every("a")}
        assert menu["Shelf"] == "page"
        assert page.one("html")["data-live-url"] == "/live?path=%2Fshelf"
        assert Visitor(served, None).client.get("/shelf").status_code == 303
        assert ana.client.post("/shelf").status_code == 403, "forms of apps need their key, too"
        assert ana.submit("/shelf", "/shelf").status_code == 200
        with events(ana.client, "/live?path=/yard/7&since=") as told:
            first = next(told)
            served.enqueue("parcels", "express")
            assert next(told) != first


def test_an_unexpected_error_is_a_page_that_tells_no_secret(settings: Settings) -> None:
    with served_app(settings, Holdfast(settings, apps=[SHOP]).web()) as served:
        page = Visitor(served, "reader").get("/broken", 500)
        assert "Something unexpected went wrong" in page.words
        assert "xyzzy" not in page.words
