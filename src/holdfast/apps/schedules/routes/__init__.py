"""The routes of schedules, one module a noun. May use the API's dependencies. Never SQL."""
