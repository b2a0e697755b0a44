"""Small pieces of SVG, escaped. No style attribute anywhere: what things look like is the stylesheet's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

Point = tuple[float, float]
Value = str | float | bool | None


def tag(name: str, *children: str | Markup, **attributes: Value) -> Markup:
    """An element. Underscores in the names of attributes are dashes, a trailing one is dropped.

    >>> tag("text", "a < b", class_="label", x=2.0)
    Markup('<text class="label" x="2">a &lt; b</text>')
    """
    told = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _plain(value))
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(escape(child) for child in children)
    if not inside and name not in ("g", "svg", "text", "a"):
        return Markup("<{}{}/>").format(Markup(name), told)  # noqa: S704  the names are ours
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), told, inside)  # noqa: S704


def number(value: float) -> str:
    """A coordinate: at most two decimals.

    >>> number(3.14159), number(2.0)
    ('3.14', '2')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rounded(points: Sequence[Point], radius: float = 7) -> str:
    """The `d` of a path through points with round corners.

    >>> rounded([(0, 0), (20, 0), (20, 20)], radius=5)
    'M0 0L15 0Q20 0 20 5L20 20'
    """
    first, *rest = points
    path = [f"M{_pair(first)}"]
    for before, corner, after in zip(points, rest, rest[1:], strict=False):
        near, far = _toward(corner, before, radius), _toward(corner, after, radius)
        path.append(f"L{_pair(near)}Q{_pair(corner)} {_pair(far)}")
    return "".join((*path, f"L{_pair(points[-1])}"))


def polyline(points: Iterable[Point]) -> str:
    """Points for a `polyline` or a `polygon`."""
    return " ".join(f"{number(x)},{number(y)}" for x, y in points)


def _toward(start: Point, end: Point, length: float) -> Point:
    (x, y), (to_x, to_y) = start, end
    whole = abs(to_x - x) + abs(to_y - y)  # the lines run along one axis
    share = min(length, whole / 2) / whole if whole else 0
    return x + (to_x - x) * share, y + (to_y - y) * share


def _pair(point: Point) -> str:
    return f"{number(point[0])} {number(point[1])}"


def _plain(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else number(value or 0)
