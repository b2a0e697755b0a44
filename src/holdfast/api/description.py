"""The OpenAPI description: FastAPI's own, and what it does not know: problems as they really are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from holdfast.api.answers import Fault, Problem
from holdfast.api.problems import MEDIA_TYPE, TITLES

TEXT = """
Everything that there is to know and to do about the rows of any ledger.

Bring a token: `Authorization: Bearer hf_…`. It may read, act or admin; a tenant's token sees that tenant's
rows alone. Errors are `application/problem+json` with a stable `code` and the `trace_id` that the log has.
"""
TAGS = [
    {"name": "ledgers", "description": "Tables whose rows are work."},
    {"name": "rows", "description": "The work itself."},
    {"name": "orders", "description": "What a person may say about rows: cancel them, let them run again."},
    {"name": "waiting", "description": "For the end of a row, or for whatever changes."},
    {"name": "system", "description": "How everything does."},
    {"name": "record", "description": "Who did what."},
    {"name": "tokens", "description": "Who may do what."},
    {"name": "connectors", "description": "Outside accounts, kept in step."},
    {"name": "schedules", "description": "Days of work, as they are known and have been."},
    {
        "name": "maintenance",
        "description": "The platform's own data: archived, deleted, backed up, restored.",
    },
    {"name": "health", "description": "For whoever restarts it, or sends it traffic."},
]
REFERENCE = {"$ref": "#/components/schemas/Problem"}
# What a problem brings beside its body.
HEADERS = {
    "401": {"WWW-Authenticate": {"schema": {"type": "string"}, "description": "How to say who one is."}},
    "429": {"Retry-After": {"schema": {"type": "string"}, "description": "Seconds to be quiet."}},
}
CONFLICTS = ("enqueue", "batch", "cancel", "requeue")  # operations that a row's state or key can forbid
FASTAPIS = ("HTTPValidationError", "ValidationError")


def operation_id(route: APIRoute) -> str:
    """A name for clients: the tag and the function."""
    return f"{route.tags[0]}-{route.name}" if route.tags else route.name


def problems(words: Mapping[int, str], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """How an operation may fail, in an app's own words, beside what every operation may answer."""
    content: dict[str, Any] = {MEDIA_TYPE: {"schema": REFERENCE}}
    return {
        status: {"description": words[status], "content": content, "headers": HEADERS.get(str(status), {})}
        for status in statuses
    }


def describe(app: FastAPI) -> None:
    """Gives the application its description, made when it is first asked for."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _make(app)
        return app.openapi_schema

    app.openapi = openapi


def _make(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
        servers=app.servers,
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for name in FASTAPIS:
        schemas.pop(name, None)
    for model in (Problem, Fault):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
        schema.pop("$defs", None)
        schemas[model.__name__] = schema
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            if method != "get" and operation.get("security"):
                operation["security"] = [{"bearer": []}]  # a cookie reads only
            responses = operation["responses"]
            responses.pop("422", None)
            for status in _statuses(path, operation):
                responses.setdefault(status, _problem(status))
    return made


def _statuses(path: str, operation: dict[str, Any]) -> Iterator[str]:
    """The problems that an operation can answer with."""
    if path == "/healthz":
        return
    yield "503"
    parameters = [one for one in operation.get("parameters", ()) if one["name"] != "X-Tenant-Id"]
    if operation.get("security"):
        yield from ("400", "401", "403", "429")
    elif parameters or "requestBody" in operation:
        yield "400"
    if "requestBody" in operation:
        yield "413"
    if any(one["in"] == "path" for one in parameters):
        yield "404"
    if operation.get("operationId", "").split("-")[-1] in CONFLICTS and "{ledger}" in path:
        yield "409"


def _problem(status: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "description": TITLES[int(status)],
        "content": {MEDIA_TYPE: {"schema": REFERENCE}},
    }
    return told | ({"headers": HEADERS[status]} if status in HEADERS else {})
