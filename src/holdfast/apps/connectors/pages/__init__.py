"""The pages of connectors in the dashboard. May use the app's actions and lists. SQL only in queries.py."""

from holdfast.apps.connectors.pages import connection, connections, inbox, signals

ROUTERS = (connections.router, connection.router, signals.router, inbox.router)
