"""Reads a statement token by token: what all rules of the grammar share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from holdfast.apps.system.console.statements import COLUMNS, LEGACY, Column, Name
from holdfast.apps.system.console.words import Token, folded, refusal, shown, tokens

DEEPEST = 50  # conditions within one another
# Words that end a name: whoever forgets the name must not get a schema that is called like the next word.
RESERVED = frozenset(("ALL", "FROM", "IN", "INTO", "LIMIT", "ORDER", "OVERWRITE", "TO", "WHERE"))


class Reader:
    """A place in a text; `token` is the one that comes next."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0
        self._tokens = tokens(text)
        self.token = next(self._tokens)

    # -- looking and taking --------------------------------------------------------------------------

    def take(self) -> Token:
        """The token that comes next, after which the one behind it does; at the end it stays there."""
        taken = self.token
        self.token = next(self._tokens, taken)
        return taken

    def at(self, *keywords: str) -> bool:
        """Whether one of these keywords or signs comes next."""
        return self.token.keyword in keywords

    def took(self, *keywords: str) -> bool:
        """Whether one of these comes next; if so it is taken."""
        if self.at(*keywords):
            self.take()
            return True
        return False

    def need(self, *keywords: str, allowed: Sequence[str] = ()) -> str:
        """One of these, which must come next; `allowed` are the forms to tell if it does not."""
        if not self.at(*keywords):
            self.refuse(allowed=allowed or keywords)
        return self.take().keyword

    # -- names, texts and numbers --------------------------------------------------------------------

    def id(self, allowed: Sequence[str]) -> str:
        """The id of a job, bare or in quotes; whether it can be one is not the grammar's question."""
        if self.token.kind in ("string", "quoted") and not self.token.value.strip():
            self.refuse("the id is empty", allowed=allowed)
        if self.token.kind not in ("word", "number", "string", "quoted"):
            self.refuse(allowed=allowed)
        return self.take().value

    def name(self, allowed: Sequence[str]) -> str:
        """A name: bare, and then in small letters, or in double quotes, and then as it is."""
        if self.token.kind == "quoted":
            if not self.token.value:
                self.refuse("the name is empty", allowed=allowed)
            return self.take().value
        if self.token.kind != "word" or self.at(*RESERVED):
            self.refuse(allowed=allowed)
        return folded(self.take().value)

    def table(self, allowed: Sequence[str]) -> Name:
        """The name of a table, perhaps after that of its schema and a dot."""
        first = self.name(allowed)
        return Name(first, self.name(allowed)) if self.took(".") else Name(None, first)

    def location(self, allowed: Sequence[str]) -> str:
        """A place for files, in single quotes."""
        if self.token.kind != "string":
            self.refuse(allowed=allowed)
        if not self.token.value.strip():
            self.refuse("the location is empty", allowed=allowed)
        return self.take().value

    def column(self) -> Column:
        """A column of system.jobs, by its present name or an old one; of `parameters` perhaps one field."""
        token = self.token
        if token.kind not in ("word", "quoted"):
            self.refuse(allowed=("a column", "parameters ->> '<field>'"))
        asked = folded(token.value) if token.kind == "word" else token.value
        real = LEGACY.get(asked, asked)
        if real not in COLUMNS:
            self.refuse(f"there is no column {shown(asked)}", allowed=(*COLUMNS, *LEGACY))
        self.take()
        if not self.at("->>"):
            return Column(asked, real)
        if real != "parameters":
            self.refuse("only parameters have fields", allowed=("parameters ->> '<field>'",))
        self.take()
        if self.token.kind != "string":
            self.refuse(allowed=("the name of a field in single quotes",))
        return Column(asked, real, self.take().value)

    # -- refusing ------------------------------------------------------------------------------------

    def deeper(self, token: Token) -> None:
        """Goes one condition deeper, which has an end: nobody means fifty brackets."""
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse(f"conditions are nested too deeply: at most {DEEPEST} fit in one another", token)

    def refuse(
        self, message: str | None = None, token: Token | None = None, allowed: Sequence[str] = ()
    ) -> NoReturn:
        """Raises `SyntaxRefused` about a token, the next one if none is given."""
        token = token or self.token
        raise refusal(self.text, token.start, message or f"found {found(token)}", allowed)


def found(token: Token) -> str:
    """What stands there, for a message."""
    return "the end of the statement" if token.kind == "end" else shown(token.text)
