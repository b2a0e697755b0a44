"""The examples in the docstrings of the connectors are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from holdfast.apps import connectors

MODULES = [
    module.name
    for module in pkgutil.walk_packages(connectors.__path__, f"{connectors.__name__}.")
    if not module.ispkg
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
