"""Zoho Cliq is asked for nothing: here is what its bots send, as documented for their handlers."""

from __future__ import annotations

from typing import Any

ORGANISATION, CHAT, CHANNEL = "64396901", "CT_2230642524712404875_64396901-T", "P2230642524712404875"
USER = {"id": "130720038", "first_name": "Ada", "last_name": "Byron", "email": "ada@example.com"}
SENT = 1772366400123  # noon, and a little


def participation(operation: str, id: str = "1772366400123_51531973059", **more: Any) -> dict[str, Any]:
    """What the participation handler of a bot in a channel is given."""
    message = {"id": id, "text": "Deployed 1.4", "type": "text", "time": SENT, "sender": USER, **more}
    return {
        "operation": operation,
        "data": {"message": message, "time": SENT},
        "user": USER,
        "chat": {"id": CHAT, "title": "#ops", "type": "channel", "channel_id": CHANNEL},
        "access": {"organization": {"type": "company", "id": ORGANISATION}, "chat_id": CHAT},
    }


def to_the_bot(text: str = "status please") -> dict[str, Any]:
    """What a webhook bot sends when somebody writes to it: the text alone, inside `params`."""
    return {
        "name": "Ops",
        "type": "bot",
        "handler": {"type": "message_handler"},
        "timestamp": SENT,
        "params": {
            "message": text,
            "user": {**USER, "organization_id": ORGANISATION},
            "chat": {"id": CHAT, "title": "Ops", "type": "bot"},
            "access": {"chat_id": CHAT, "organization": {"id": ORGANISATION}},
        },
    }
