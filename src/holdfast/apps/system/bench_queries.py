"""The SQL of the bench: locks of targets, and limits that a long run does without."""

from typing import LiteralString

PATIENT: LiteralString = "select set_config('idle_in_transaction_session_timeout', '0', true)"
LOCK: LiteralString = "select pg_try_advisory_xact_lock(hashtextextended(%(target)s, 0))"
HELD: LiteralString = "select 1"
UNLIMITED: LiteralString = "select set_config('statement_timeout', '0', false)"

HOLD: LiteralString = """
select 1 from {table}
where {key} = %(id)s and {owner} = %(owner)s and {fence} = %(fence)s and {state} = any(%(states)s)
for no key update
"""
