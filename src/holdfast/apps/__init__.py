"""The built-in systems, one folder each: tables, ledger, handlers. They never import one another."""
