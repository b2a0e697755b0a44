"""The routes of connectors, one module a noun. May use the API's dependencies. Never SQL."""
