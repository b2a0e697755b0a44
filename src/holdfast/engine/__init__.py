"""What a ledger is, and the SQL that it becomes. May use psycopg.sql and msgspec.

Owns the declaration (`ledger`), the lifecycle (`lifecycle`), the statements (`sql`, `statements`), the
one door to a ledger's table (`store`), the pure decision about the end of a run (`decide`) and the
comparison of a declaration with a live table (`doctor`). Never opens a connection, never reads the
environment or the clock of this machine.
"""
