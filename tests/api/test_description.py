"""The OpenAPI description: complete, and in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from api.kit import api_of
from holdfast import Holdfast, Settings


@pytest.fixture
def described(settings: Settings) -> dict[str, Any]:
    return api_of(Holdfast(settings)).openapi()


# What an app declares as open: it proves its callers itself.
OPEN = (
    "/api/connectors/providers",
    "/api/connectors/callback/{provider}",
    "/api/connectors/webhooks/{provider}/{tenant_id}",
)
APPS = ("/api/connectors", "/api/schedules", "/api/system")


def operations(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_it_is_openapi_3_1_and_has_no_stranger_in_it(described: dict[str, Any]) -> None:
    assert described["openapi"].startswith("3.1")
    assert described["info"]["title"] == "Holdfast"
    assert not [name for name in described["components"]["schemas"] if "ValidationError" in name]
    tags = {tag["name"] for tag in described["tags"]}
    assert {tag for _, _, operation in operations(described) for tag in operation["tags"]} == tags


def test_everything_is_said_in_words(described: dict[str, Any]) -> None:
    silent: list[str] = []
    for method, path, operation in operations(described):
        where = f"{method} {path}"
        silent += [where] if not (operation.get("summary") and operation.get("description")) else []
        for parameter in operation.get("parameters", ()):
            silent += [f"{where} {parameter['name']}"] if not parameter.get("description") else []
        for status, response in operation["responses"].items():
            silent += [f"{where} {status}"] if not response["description"] else []
    for name, schema in described["components"]["schemas"].items():
        silent += [name] if not schema.get("description") else []
        for field, about in schema.get("properties", {}).items():
            silent += [f"{name}.{field}"] if not about.get("description") else []
    assert silent == []


def test_names_of_operations_are_unique(described: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(described)]
    assert len(set(names)) == len(names)


def test_problems_are_described_as_they_are(described: dict[str, Any]) -> None:
    for method, path, operation in operations(described):
        responses = operation["responses"]
        assert "422" not in responses
        problems = {status: one for status, one in responses.items() if status >= "400"}
        for status, response in problems.items():
            assert list(response["content"]) == ["application/problem+json"], (method, path, status)
        if path == "/healthz":
            assert problems == {}
            continue
        assert "503" in problems
        if path not in ("/readyz", *OPEN):
            assert {"400", "401", "403", "429"} <= set(problems), (method, path)
        for status, header in (("401", "WWW-Authenticate"), ("429", "Retry-After")):
            assert status not in problems or header in responses[status]["headers"], (method, path)
        assert ("413" in problems) == ("requestBody" in operation), (method, path)
        # A body of an app's own may name something as well, and a tenant may be none of its users.
        assert ("404" in problems) == ("{" in path) or path.startswith(APPS), (method, path)
        assert "404" in problems or "{" not in path, (method, path)
    conflicts = {
        path
        for _, path, operation in operations(described)
        if "409" in operation["responses"] and not path.startswith(APPS)
    }
    rows = "/api/ledgers/{ledger}/rows"
    assert conflicts == {rows, f"{rows}/batch", f"{rows}/{{id}}/cancel", f"{rows}/{{id}}/requeue"}


def test_only_a_bearer_changes_something(described: dict[str, Any]) -> None:
    for method, path, operation in operations(described):
        if path in ("/healthz", "/readyz", *OPEN):
            assert "security" not in operation
            continue
        ways = [way for one in operation["security"] for way in one]
        assert ways == (["bearer", "session"] if method == "get" else ["bearer"]), (method, path)
