"""Server-rendered pages over any ledger, live by server-sent events. Never touches the database itself."""
