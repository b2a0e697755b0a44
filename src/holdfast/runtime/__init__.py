"""What moves in time: the worker that claims and runs, presence, the leader and its duties.

May use engine and db. Never writes a ledger's table but through its store.
"""
