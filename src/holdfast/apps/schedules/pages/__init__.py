"""The pages of schedules in the dashboard. May use the app's actions and record. SQL only in queries.py."""

from holdfast.apps.schedules.pages import captures, days, notifications

ROUTERS = (captures.router, days.router, notifications.router)
