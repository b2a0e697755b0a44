"""The routes of system jobs, one module a noun. May use the API's dependencies. Never SQL."""
