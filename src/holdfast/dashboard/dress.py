"""How every page is dressed: templates, the menu, headers that keep a browser safe, and the key of its forms.

An app's page says `dress.page(request, "parcels/list.html", caller, …)` and extends `base.html`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from fastapi import Request
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import FormData
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, Response

from holdfast.api.auth import COOKIE, SAFE
from holdfast.api.caller import Caller
from holdfast.api.reads import Reads
from holdfast.api.routes import address
from holdfast.api.site import Site
from holdfast.api.web import Link
from holdfast.dashboard import charts, phrases
from holdfast.dashboard.tones import MEANING, Tone, tone
from holdfast.engine.ledger import Ledger
from holdfast.errors import InvalidInput, NotAllowed

HERE = Path(__file__).parent
STATIC, TEMPLATES = HERE / "static", HERE / "templates"
VISIT, THEME, SAID = "holdfast_visit", "holdfast_theme", "holdfast_said"  # cookies, beside the session's
THEMES = ("light", "dark")
AGAIN = "x-holdfast-live"  # the header of a page that is fetched to be looked at again
SAID_SECONDS, THEME_SECONDS = 30, 365 * 86_400
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

FILTERS: dict[str, Any] = {
    name: getattr(phrases, name)
    for name in (
        "ago",
        "breakable",
        "brief",
        "clip",
        "count",
        "duration",
        "moment",
        "note",
        "pretty",
        "prose",
        "rows",
        "sentence",
        "short",
        "stamp",
    )
}


def _tone(ledger: Ledger, state: str) -> Tone:
    return tone(ledger.lifecycle, state)


GLOBALS: dict[str, Any] = {"tone": _tone, "MEANING": MEANING, "charts": charts}

Query = dict[str, Any] | Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class Entry:
    """A line of the menu."""

    title: str
    path: str
    here: bool
    ledger: bool = False


class Wardrobe:
    """The templates of the dashboard and of all apps, and what their menu has. One for each application."""

    def __init__(self, site: Site, folders: Sequence[str], links: Sequence[Link]) -> None:
        self.site = site
        self.links = tuple(links)
        places = (str(TEMPLATES), *folders)  # ours first: `base.html` is always this one
        self._environment = Environment(
            loader=ChoiceLoader([FileSystemLoader(place) for place in places]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(FILTERS)
        self._environment.globals.update(GLOBALS)

    def render(self, name: str, context: Mapping[str, Any]) -> str:
        """A template, filled."""
        return self._environment.get_template(name).render(context)

    def menu(self, caller: Caller | None, path: str) -> list[Entry]:
        """What a caller may go to."""
        if caller is None:
            return []
        seen = self.site.seen_by(caller)
        ledgers = [Link(name, f"/ledgers/{name}") for name in seen]
        links = [one for one in self.links if one.ledger is None or one.ledger in seen]
        after = [Link("Workers", "/workers"), Link("Audit", "/audit")] if not caller.bound else []
        after += [Link("Tokens", "/tokens")] if caller.may("admin") and not caller.bound else []
        found = [Entry("Overview", "/", path == "/")]
        found += [Entry(one.title, one.path, _within(path, one.path), ledger=True) for one in ledgers]
        further = (*links, *after, Link("API", "/docs"))
        return found + [Entry(one.title, one.path, _within(path, one.path)) for one in further]


def page(
    request: Request,
    template: str,
    caller: Caller | None,
    *,
    status: int = 200,
    shown: Any = None,
    **context: Any,
) -> HTMLResponse:
    """A page as a response. `shown` is the fingerprint of what it shows, where it is watched; see `live`."""
    wardrobe: Wardrobe = request.app.state.wardrobe
    fresh = None if _key(request) else secrets.token_urlsafe(24)
    said = request.cookies.get(SAID) if AGAIN not in request.headers else None
    path = local(request)
    told: dict[str, Any] = {
        "caller": caller,
        "url": partial(url, request),
        "static": partial(_static, request),
        "menu": wardrobe.menu(caller, request_path(request)),
        "form_key": Markup('<input type="hidden" name="form_key" value="{}">').format(
            form_key(request, fresh)
        ),
        "theme": _theme(request),
        "made": datetime.now(UTC),
        "path": path,
        "said": _read_said(said),
        "live": url(request, "/live", {"path": path}) if shown is not None else None,
        "shown": digest(shown) if shown is not None else None,
        "acts": caller is not None and caller.may("act"),
        "operates": caller is not None and not caller.bound and caller.tenant is None,
    }
    if taken := told.keys() & context.keys():
        raise ValueError(f"every page has these names already: {', '.join(sorted(taken))}")
    response = HTMLResponse(wardrobe.render(template, told | context), status, headers=dict(HEADERS))
    if fresh:
        put(request, response, VISIT, fresh)
    if said:
        response.delete_cookie(SAID, path=root(request) or "/")
    return response


def reads(request: Request) -> Reads:
    """The site's read model."""
    return request.app.state.reads


def digest(shown: Any) -> str:
    """A fingerprint of anything that JSON, or `str`, can tell."""
    text = json.dumps(shown, default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


# -- addresses -------------------------------------------------------------------------------------------


def root(request: HTTPConnection) -> str:
    """Where the application is mounted: empty, or a path without a slash at its end, as an address has it.

    A browser compares the path of a cookie with the address as it sends it, so that this one is encoded, too.
    """
    return quote(str(request.scope.get("root_path", "")).rstrip("/"), safe="/~:@!$&'()*+=-._")


def request_path(request: HTTPConnection) -> str:
    """The path of a request below the root."""
    return address(request.scope) or "/"


def local(request: HTTPConnection) -> str:
    """The address of a request below the root, with its query."""
    text = str(request.scope.get("query_string", b""), "latin-1")
    path = quote(request_path(request), safe="/~:@!$&'()*+,;=-._")
    return f"{path}?{text}" if text else path


def url(request: HTTPConnection, path: str, query: Query | None = None) -> str:
    """A link to a path below the root."""
    pairs: Iterable[tuple[str, Any]] = query.items() if isinstance(query, dict) else query or ()
    text = urlencode([(name, value) for name, value in pairs if value not in (None, "")])
    return f"{root(request)}{path}" + (f"?{text}" if text else "")


def safe_path(path: str | None) -> str:
    """An address below the root to go on to: nothing that leads to another host.

    >>> safe_path("/ledgers/job?state=failed"), safe_path("//evil.example"), safe_path("https://evil.example")
    ('/ledgers/job?state=failed', '/', '/')
    """
    if not path or not path.startswith("/") or path.startswith(("//", "/\\")) or not path.isprintable():
        return "/"
    return path


def _within(path: str, menu: str) -> bool:
    return path == menu or path.startswith(f"{menu}/")


def _static(request: HTTPConnection, name: str) -> str:
    return url(request, f"/static/{name}", {"v": _version(name)})


@lru_cache(maxsize=64)
def _version(name: str) -> str:
    """Changes with the file, so that a browser may keep what it has."""
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:8]


# -- cookies ---------------------------------------------------------------------------------------------


def put(request: Request, response: Response, name: str, value: str, *, seconds: int | None = None) -> None:
    """Sets a cookie that no script reads and no other site sends."""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=root(request) or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def say(request: Request, response: Response, text: str) -> None:
    """Lets the next page say something, once."""
    put(request, response, SAID, quote(text[:500]), seconds=SAID_SECONDS)


def _read_said(text: str | None) -> str | None:
    return unquote(text)[:500] if text else None


def _theme(request: Request) -> str | None:
    chosen = request.cookies.get(THEME)
    return chosen if chosen in THEMES else None


# -- the key of a form -----------------------------------------------------------------------------------


def form_key(request: HTTPConnection, fresh: str | None = None) -> str:
    """What every form brings back: only our own pages know it, as it comes from a cookie that none reads."""
    key = _key(request) or fresh or ""
    return hmac.new(key.encode(), b"a form of the dashboard", hashlib.sha256).hexdigest()


async def guard(request: Request) -> None:
    """Refuses a form that does not bring its key. For every page: it looks at what changes something."""
    if request.method in SAFE:
        return
    given = (await _form(request)).get("form_key")
    if not _key(request) or not isinstance(given, str):
        raise NotAllowed(message="the form came without its key: open the page again")
    if not hmac.compare_digest(given.encode(), form_key(request).encode()):
        raise NotAllowed(message="the form is not from this session: open the page again")


async def _form(request: Request) -> FormData:
    """What a form brought, as text that can be written again: a body says itself how it is to be read.

    The routes behind `guard` are given the same form, and need not ask again.
    """
    try:
        form = await request.form()
        for name, value in form.multi_items():
            f"{name}{value if isinstance(value, str) else ''}".encode()
    except ValueError:  # the error of every codec
        raise InvalidInput(field="body", message="is no form that can be read: send it as UTF-8") from None
    return form


def _key(request: HTTPConnection) -> str | None:
    return request.cookies.get(COOKIE) or request.cookies.get(VISIT)
