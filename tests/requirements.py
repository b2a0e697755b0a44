"""What tests say that they prove: the docstrings of all of them, and the requirements that these name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


@cache
def docstrings() -> dict[str, str]:
    """The docstring of every test, by its place and its name."""

    def found() -> Iterator[tuple[str, str]]:
        for path in sorted(TESTS.rglob("test_*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith(
                    "test_"
                ):
                    yield f"{path.relative_to(TESTS)}::{node.name}", ast.get_docstring(node) or ""

    return dict(found())


def numbers(letter: str, text: str) -> set[int]:
    """The requirements of one letter that a docstring names.

    >>> sorted(numbers("C", "C-28..C-30, proofs; C-41: and S-3"))
    [28, 29, 30, 41]
    """
    named = {int(number) for number in re.findall(rf"(?<!\w){letter}-(\d+)\b", text)}
    for first, last in re.findall(rf"(?<!\w){letter}-(\d+)\.\.{letter}-(\d+)\b", text):
        named |= set(range(int(first), int(last) + 1))
    return named


def words(proof: str) -> str:
    """A proof's sentence as the name of its test."""
    return re.sub(r"[^a-z0-9]+", "_", proof.lower().replace("'", ""))


def names() -> set[str]:
    """What the tests are called."""
    return {test.partition("::test_")[2] for test in docstrings()}
