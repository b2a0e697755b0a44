"""Outside accounts, kept in step. For those who write a connector: what it is, and what it answers with."""

from holdfast.apps.connectors.app import app
from holdfast.apps.connectors.protocol import (
    Account,
    AuthRequest,
    Connector,
    Delivery,
    Grant,
    Page,
    Permanent,
    Provider,
    RateLimited,
    Signal,
    Transient,
    Unauthorized,
    Unsupported,
    WebhookResult,
)

__all__ = [
    "Account",
    "AuthRequest",
    "Connector",
    "Delivery",
    "Grant",
    "Page",
    "Permanent",
    "Provider",
    "RateLimited",
    "Signal",
    "Transient",
    "Unauthorized",
    "Unsupported",
    "WebhookResult",
    "app",
]
