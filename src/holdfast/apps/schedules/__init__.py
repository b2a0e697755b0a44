"""Schedules: captures of a person's work schedule become versioned days, events and messages.

Owns the schema `schedule_ingest`. May use the engine, the runtime and what the extra `schedules` installs.
Never adds a column to a table that it shares with other services.

For those who write an extractor or a sender: what it gets, and what it answers with.
"""

from holdfast.apps.schedules.app import app
from holdfast.apps.schedules.objects import Objects, open_store
from holdfast.apps.schedules.senders import Passing, Permanent, Sender
from holdfast.apps.schedules.values import Extractor, Image, Notice, Refusal, Session

__all__ = [
    "Extractor",
    "Image",
    "Notice",
    "Objects",
    "Passing",
    "Permanent",
    "Refusal",
    "Sender",
    "Session",
    "app",
    "open_store",
]
