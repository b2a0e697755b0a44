"""The SQL console of the app `system`: a text becomes one statement, and the statement is done.

Owns its grammar and the query that a SELECT becomes. May use the app's types and its actions. Never sends a
console's text to the server: names come from a table of ours, values are parameters.
"""

from holdfast.apps.system.console.grammar import parse
from holdfast.apps.system.console.run import READS, Answer, Context, Session, Target, execute, perform
from holdfast.apps.system.console.statements import FORMS, Statement
from holdfast.apps.system.console.wiring import context_of
from holdfast.apps.system.console.words import caret, unfinished

__all__ = [
    "FORMS",
    "READS",
    "Answer",
    "Context",
    "Session",
    "Statement",
    "Target",
    "caret",
    "context_of",
    "execute",
    "parse",
    "perform",
    "unfinished",
]
