"""The pages of system jobs in the dashboard. May use the app's orders and its log. Never SQL."""

from holdfast.apps.system.pages import jobs, kept, making

ROUTERS = (making.router, kept.router, jobs.router)
