"""The connectors that come with it, one module each. None knows of another.

They are found by name, so that a provider whose module is absent is a line of the catalogue without a
connector, and hurts no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from holdfast.apps.connectors.protocol import Connector

NAMES: Mapping[str, str] = {
    "github": "GitHub",
    "gmail": "Gmail",
    "google_calendar": "GoogleCalendar",
    "google_drive": "GoogleDrive",
    "jira": "Jira",
    "slack": "Slack",
    "zoho_cliq": "ZohoCliq",
    "zoho_mail": "ZohoMail",
}


@cache
def _load(slug: str) -> type[Connector]:
    return getattr(import_module(f"{__name__}.{slug}"), NAMES[slug])


class _Known(Mapping[str, type[Connector]]):
    """The connectors by slug; a module is imported when its connector is first asked for."""

    def __getitem__(self, slug: str) -> type[Connector]:
        if slug not in self:
            raise KeyError(slug)
        return _load(slug)

    def __contains__(self, slug: object) -> bool:
        return slug in NAMES and find_spec(f"{__name__}.{slug}") is not None

    def __iter__(self) -> Iterator[str]:
        return (slug for slug in NAMES if slug in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


CONNECTORS: Mapping[str, type[Connector]] = _Known()
