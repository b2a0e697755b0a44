"""Pictures of schedules, drawn by a browser as a telephone would show them; and some that are none."""

from __future__ import annotations

import html
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
LIGHT = {"back": "#f4f5f7", "text": "#111", "card": "#fff", "line": "#ddd", "pale": "#555"}
DARK = {"back": "#111", "text": "#eee", "card": "#222", "line": "#333", "pale": "#bbb"}
STYLE = """
* { box-sizing: border-box }
body { margin: 0; font: 16px 'Liberation Sans', sans-serif; background: %(back)s; color: %(text)s }
.bar { display: flex; justify-content: space-between; padding: 8px 20px; font-size: 13px }
h1 { font-size: 20px; margin: 12px 16px }
.cards { columns: %(columns)s; column-gap: 90px }
.card { margin: 0 16px 16px; padding: 14px 16px; border: 1px solid %(line)s; border-radius: 12px;
        background: %(card)s; break-inside: avoid }
p { margin: 3px 0 } p:first-child { font-weight: bold } p + p + p { color: %(pale)s; font-size: 14px }
"""

Card = tuple[str, ...]
CARDS: tuple[Card, ...] = (
    ("08:00 – 10:30", "Marie Sjöberg Städservice", "Valebergsvägen 316, 427 38 Billdal"),  # noqa: RUF001
    ("11:00–13:00", "Askims skola", "Askims Kyrkväg 12, 436 51 Askim"),  # noqa: RUF001
    ("14:00 - 16:15", "Kontor Mölndal", "Kyrkogatan 3, 431 37 Mölndal"),
    ("22:30-01:00", "Bo Berg", "Storgatan 5", "Kållered"),
)


@dataclass(frozen=True)
class Drawing:
    """What is to be drawn."""

    cards: Sequence[Card] = CARDS
    heading: str = "Måndag 2 mars 2026"
    dark: bool = False
    columns: int = 1
    width: int = 390
    height: int = 640
    scroll: int = 0
    scale: float = 2
    format: str = "png"

    @property
    def page(self) -> str:
        """The page that shows it."""
        style = STYLE % ({**(DARK if self.dark else LIGHT), "columns": self.columns})
        cards = "".join(f"<div class=card>{''.join(map(_line, card))}</div>" for card in self.cards)
        bar = "<div class=bar><span>09:41</span><span>4G 87%</span></div>"
        heading = f"<h1>{html.escape(self.heading)}</h1>" if self.heading else ""
        return f"<!doctype html><style>{style}</style>{bar}{heading}<div class=cards>{cards}</div>"


def drawn(drawings: dict[str, Drawing]) -> dict[str, bytes]:
    """The pictures, by the same names."""
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium")
    found: dict[str, bytes] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        for name, drawing in drawings.items():
            size = {"width": drawing.width, "height": drawing.height}
            page = browser.new_page(viewport=size, device_scale_factor=drawing.scale)
            page.set_content(drawing.page)
            page.evaluate(f"scrollTo(0, {drawing.scroll})")
            found[name] = page.screenshot(type=drawing.format)  # type: ignore[arg-type]
            page.close()
        browser.close()
    return found


def huge_png(side: int) -> bytes:
    """A picture of few bytes that needs four for each of its pixels when it is opened."""
    packer = zlib.compressobj(1)
    row = bytes(1 + 4 * side)
    rows = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _line(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"
