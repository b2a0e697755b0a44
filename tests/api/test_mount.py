"""The API as a part of somebody's own: mounted below a path, and with an app's own routes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

from api.kit import Served, api_of, make_tokens, on, served_app, serving, streaming
from holdfast import Holdfast, Settings
from holdfast.errors import InvalidInput
from holdfast.runtime.app import App

SHOP = App(name="shop", web="api.shop_web")
LEDGERS = ("job", "tasks", "sync_jobs", "capture_session", "schedule_notification", "system_jobs")


def mounting(holdfast: Holdfast) -> FastAPI:
    """Somebody's own application, which opens ours and has the API below a path."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with holdfast:
            yield

    own = FastAPI(lifespan=lifespan)
    own.mount("/holdfast", api_of(holdfast))
    return own


def test_mounted_in_a_users_own_application(settings: Settings) -> None:
    holdfast = Holdfast(settings)
    own = mounting(holdfast)

    @own.get("/")
    async def home() -> dict[str, str]:
        receipt = await holdfast.enqueue("tasks", "demo")
        return {"id": str(receipt.id)}

    with served_app(settings, own) as served:
        key = served.client(None).get("/").json()["id"]
        client = served.client("actor")
        assert client.get(f"/holdfast/api/ledgers/tasks/rows/{key}").json()["id"] == key
        assert client.get(f"/api/ledgers/tasks/rows/{key}").status_code == 404
        made = client.post("/holdfast/api/ledgers/tasks/rows", json={"kind": "x"})
        assert client.get(made.headers["location"]).json()["kind"] == "x"
        assert client.get("/holdfast/readyz").status_code == 200
        assert client.get("/holdfast/nowhere").json()["code"] == "NOT_FOUND"
        assert client.patch("/holdfast/api/me").headers["allow"] == "GET"
        described = client.get("/holdfast/openapi.json").json()
        assert described["servers"] == [{"url": "/holdfast"}]
        assert "/api/me" in described["paths"]
        with streaming(client, f"/holdfast/api/ledgers/tasks/stream?id={key}") as stream:
            assert stream.until("row").data["id"] == key


def test_a_cookie_acts_nowhere_below_a_mounted_api(settings: Settings) -> None:
    with served_app(settings, mounting(Holdfast(settings))) as served:
        client = served.client(None, Cookie=f"holdfast_session={served.session('admin')}")
        assert client.get("/holdfast/api/me").status_code == 200
        assert client.put("/holdfast/api/ledgers/tasks/pause").status_code == 401


def test_behind_a_proxy_that_says_where_it_is(settings: Settings) -> None:
    texts = on(settings, make_tokens)
    with serving(api_of(Holdfast(settings)), root_path="/queue") as url:
        client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {texts['actor']}"})
        with client:
            made = client.post("/api/ledgers/tasks/rows", json={"kind": "x"})
            assert made.headers["location"].startswith("/queue/api/ledgers/tasks/rows/")
            assert client.get("/openapi.json").json()["servers"] == [{"url": "/queue"}]


def test_an_app_adds_its_own_routes_by_declaring_them(settings: Settings) -> None:
    with served_app(settings, api_of(Holdfast(settings, apps=[SHOP]))) as served:
        nobody, reader, actor = served.client(None), served.client("reader"), served.client("actor")
        assert nobody.get("/api/shop/parcels").status_code == 401
        assert reader.get("/api/shop/parcels").json() == {"ledgers": [*LEDGERS]}
        assert reader.post("/api/shop/parcels").status_code == 403
        assert actor.post("/api/shop/parcels").json() == {"by": "token:actor"}
        assert nobody.post("/hooks/shop", content=b"12345").json() == {"bytes": 5}
        assert nobody.post("/hooks/shop", content=b"x" * 3_000_000).status_code == 413
        paths = nobody.get("/openapi.json").json()["paths"]
        assert paths["/api/shop/parcels"]["get"]["security"]
        assert {"401", "403", "429", "503"} <= set(paths["/api/shop/parcels"]["get"]["responses"])
        assert "security" not in paths["/hooks/shop"]["post"]


def test_a_form_acts_by_its_cookie_unless_another_site_sends_it(settings: Settings) -> None:
    with served_app(settings, api_of(Holdfast(settings, apps=[SHOP]))) as served:
        cookie = f"holdfast_session={served.session('actor')}"
        host = served.url.removeprefix("http://")
        ours: list[dict[str, str]] = [
            {},
            {"Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "none"},
            {"Origin": f"http://{host}"},
        ]
        others = [
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "cross-site", "Origin": f"http://{host}"},
            {"Origin": "https://evil.example"},
            {"Origin": f"http://{host}.evil.example"},
            {"Origin": "null"},
        ]
        for headers in ours:
            done = served.client(None, Cookie=cookie, **headers).post("/hooks/acting")
            assert (done.status_code, done.json()) == (200, {"by": "token:actor"}), headers
        for headers in others:
            assert served.client(None, Cookie=cookie, **headers).post("/hooks/acting").status_code == 401, (
                headers
            )
        reading = served.client(None, Cookie=f"holdfast_session={served.session('reader')}")
        assert reading.post("/hooks/acting").status_code == 403


def test_the_whole_face_has_the_apps_page_as_well(settings: Settings) -> None:
    with served_app(settings, Holdfast(settings, apps=[SHOP]).web()) as served:
        assert served.client("reader").get("/shop").json() == {"page": "shop"}
        assert served.client(None).get("/shop").status_code in (303, 401)
        assert served.client("reader").get("/api/shop/parcels").status_code == 200
        assert served.client("reader").get("/api/me").status_code == 200


async def test_it_opens_what_is_not_open_and_leaves_open_what_is(settings: Settings) -> None:
    app = Holdfast(settings)
    served = api_of(app)
    async with served.router.lifespan_context(served):
        assert app.database
    with pytest.raises(InvalidInput):
        _ = app.database
    async with app:
        async with served.router.lifespan_context(served):
            pass
        assert app.database


def test_without_the_extra_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['fastapi'] = None\n"
        "import holdfast, holdfast.errors\n"
        "try: holdfast.Holdfast().web()\n"
        "except holdfast.errors.MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "the API needs the extra 'server': pip install 'holdfast[server]'\n", done.stderr


def test_served_by_its_lifespan_alone(served: Served) -> None:
    assert served.client("reader").get("/api/overview").status_code == 200
