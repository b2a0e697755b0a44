"""What the tests of the pages share: somebody who is logged in, and a reader of HTML that looks closely."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx

from api.kit import B, Served

PATIENCE = 20.0
VOID = {"wbr", "input", "meta", "link", "img", "br", "hr", "path", "circle", "rect", "polygon"}
BLOCKS = {"td", "th", "li", "dt", "dd", "p", "div", "text", "h1", "h2", "h3"}
CONTROLS = {"input", "select", "textarea"}


@dataclass
class Element:
    """An element of a page: its attributes, its text, and what it is in."""

    name: str
    attributes: dict[str, str | None]
    parent: Element | None
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def __getitem__(self, name: str) -> str | None:
        return self.attributes.get(name)

    def every(self, name: str | None = None, /, **wanted: str) -> Iterator[Element]:
        """The elements inside, and inside those."""
        for child in self.children:
            fits = name in (None, child.name)
            if fits and all(child.attributes.get(key.rstrip("_")) == value for key, value in wanted.items()):
                yield child
            yield from child.every(name, **wanted)

    def inside(self, name: str) -> Element | None:
        """The nearest element of this name around."""
        one = self.parent
        while one is not None and one.name != name:
            one = one.parent
        return one

    def has(self, word: str) -> bool:
        return word in (self["class"] or "").split()

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


class Page(HTMLParser):
    """A page, read: `root` is its tree. What is wrong with it is told by `faults`."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {}, None)
        self._open = self.root
        self.faults: list[str] = []
        self.feed(text)
        self.close()
        if self._open is not self.root:
            self.faults.append(f"<{self._open.name}> is never closed")
        self._check()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.faults.append(f"<{tag}> has an attribute twice: {names}")
        element = Element(tag, dict(attrs), self._open)
        self._open.children.append(element)
        if tag not in VOID:
            self._open = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.children.append(Element(tag, dict(attrs), self._open))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if tag != self._open.name:
            self.faults.append(f"</{tag}> closes <{self._open.name}>")
            return
        assert self._open.parent is not None
        if tag in BLOCKS:
            self.handle_data(" ")
        self._open = self._open.parent

    def handle_data(self, data: str) -> None:
        one: Element | None = self._open
        while one is not None:
            one.text += data
            one = one.parent

    def every(self, name: str | None = None, /, **wanted: str) -> list[Element]:
        return list(self.root.every(name, **wanted))

    def one(self, name: str | None = None, /, **wanted: str) -> Element:
        (found,) = self.every(name, **wanted)
        return found

    @property
    def words(self) -> str:
        return self.root.words

    def _check(self) -> None:
        ids = [element["id"] for element in self.every() if element["id"]]
        self.faults += [f"the id {one} is there twice" for one in {i for i in ids if ids.count(i) > 1}]
        for element in self.every():
            self.faults += _faults(element, ids)
        titles = [title.words for title in self.every("title") if title.inside("head")]
        if len(titles) != 1 or not titles[0]:
            self.faults.append("the page has no title")
        if len(self.every("h1")) != 1:
            self.faults.append("the page has not one h1")
        if len(self.every("main")) != 1:
            self.faults.append("the page has not one main")


def _faults(element: Element, ids: list[str | None]) -> Iterator[str]:
    name, attributes = element.name, element.attributes
    if "style" in attributes or any(key.startswith("on") for key in attributes):
        yield f"<{name}> has a style or a script of its own"
    if name == "script" and (not attributes.get("src") or element.words):
        yield "a script stands in the page"
    if name == "style":
        yield "a style stands in the page"
    for place in ("src", "href", "action"):
        if re.match(r"\s*(https?:)?//|\s*javascript:", attributes.get(place) or "", re.IGNORECASE):
            yield f"<{name} {place}> leads elsewhere: {attributes[place]}"
    labelled = element.inside("label") is not None or attributes.get("aria-label")
    if name in CONTROLS and attributes.get("type") not in ("hidden", "submit") and not labelled:
        yield f"<{name} name={attributes.get('name')}> has no label"
    if name == "img" and attributes.get("alt") is None:
        yield "an img has no alt"
    if name == "svg" and not any(child.name == "title" and child.words for child in element.children):
        yield "an svg has no title"
    key = [field for field in element.every("input") if field["name"] == "form_key"]
    if name == "form" and attributes.get("method") == "post" and not key:
        yield f"the form to {attributes.get('action')} has no key"
    if name == "table" and not list(element.every("caption")):
        yield "a table has no caption"
    for one in (attributes.get("aria-labelledby") or "").split():
        if one not in ids:
            yield f"aria-labelledby names {one}, which is not there"


class Visitor:
    """Somebody with a browser that runs no scripts."""

    def __init__(self, served: Served, who: str | None, root: str = "") -> None:
        self.served, self.root = served, root
        headers = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
        self.client = httpx.Client(base_url=served.url, headers=headers, timeout=30)
        served.clients.append(self.client)
        if who is not None:
            done = self.submit("/login", "/login", token=served.tokens[who])
            assert done.status_code == 303, done.text

    def get(self, path: str, status: int = 200, **headers: str) -> Page:
        """A page, which must be right in itself."""
        response = self.client.get(self.root + path, headers=headers)
        assert response.status_code == status, (path, response.status_code, response.text[:2000])
        assert response.headers["content-type"].startswith("text/html")
        assert "default-src 'self'" in response.headers["content-security-policy"]
        return read(response)

    def submit(self, page: str, action: str, **fields: Any) -> httpx.Response:
        """Sends a form of a page, as it is there, with some fields filled in."""
        found = read(self.client.get(self.root + page))
        forms = [one for one in found.every("form", method="post") if one["action"] == self.root + action]
        assert forms, f"{page} has no form to {action}"
        hidden = [field for field in forms[0].every("input") if field["type"] == "hidden"]
        data = {str(field["name"]): field["value"] or "" for field in hidden}
        return self.client.post(self.root + action, data=data | fields)

    def follow(self, response: httpx.Response) -> Page:
        """The page that an answer leads to."""
        assert response.status_code == 303, response.text
        return self.get(response.headers["location"].removeprefix(self.root))


def read(response: httpx.Response) -> Page:
    page = Page(response.text)
    assert page.faults == [], (str(response.url), page.faults)
    return page


@contextmanager
def events(client: httpx.Client, path: str) -> Iterator[Iterator[tuple[str, str]]]:
    """The server-sent events at an address, as names and data."""
    with client.stream("GET", path, headers={"Accept": "text/event-stream"}) as response:
        assert response.status_code == 200, response.read()
        yield _events(response)


def _events(response: httpx.Response) -> Iterator[tuple[str, str]]:
    name, deadline = "", time.monotonic() + PATIENCE
    for line in response.iter_lines():
        assert time.monotonic() < deadline, "no event came in time"
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, line.removeprefix("data: ")
            deadline = time.monotonic() + PATIENCE


def populate(served: Served) -> dict[str, str]:
    """A row of everything that may look different."""
    dead = served.bury(served.enqueue("job", "report"))
    return {
        "queued": served.enqueue("job", "report", payload={"month": "2030-01"}, queue="paper"),
        "later": served.enqueue("job", "report", delay=3600),
        "dead": dead,
        "other": served.enqueue("job", "secret", tenant=B),
        "task": served.enqueue("tasks", "email", payload=["a", 1]),
    }


def row(id: str, ledger: str = "job") -> str:
    return f"/ledgers/{ledger}/rows/{id}"
