"""The reference of the API, made from its OpenAPI description: a page without any script."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from holdfast.api import auth
from holdfast.api.caller import Caller
from holdfast.dashboard.dress import page, root
from holdfast.dashboard.live import TROUBLE

open_router = APIRouter(include_in_schema=False)
METHODS = ("get", "post", "put", "patch", "delete")
Schema = Mapping[str, Any]
DEEP = 3  # levels of an example that are written out


@dataclass(frozen=True)
class Parameter:
    """A parameter, or a field of a body or of an answer."""

    name: str
    place: str
    type: str
    required: bool
    meaning: str


@dataclass(frozen=True)
class Answer:
    """What may come back."""

    status: str
    meaning: str
    type: str
    fields: tuple[Parameter, ...]


@dataclass(frozen=True)
class Operation:
    """One thing that the API does."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    body: tuple[Parameter, ...]
    answers: tuple[Answer, ...]
    open: bool
    example: str


@dataclass(frozen=True)
class Group:
    """The operations of one tag."""

    name: str
    description: str
    operations: tuple[Operation, ...]


@open_router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """The whole reference."""
    description = request.app.openapi()
    base = f"{request.url.scheme}://{request.url.netloc}{root(request)}"
    return page(
        request,
        "docs.html",
        await known(request),
        groups=groups(description, base),
        info=description.get("info", {}),
    )


async def known(request: Request) -> Caller | None:
    """Who looks, on a page that is for everybody."""
    try:
        return await auth.identify(request)
    except TROUBLE:
        return None


def groups(description: Schema, base: str) -> list[Group]:
    """The operations by their first tag, in the order that the description gives its tags."""
    found: dict[str, list[Operation]] = {}
    for path, item in description.get("paths", {}).items():
        for method in METHODS:
            if method in item:
                tags: list[str] = item[method].get("tags") or ["other"]
                found.setdefault(tags[0], []).append(
                    _operation(description, base, method, path, item[method])
                )
    told = {tag["name"]: tag.get("description", "") for tag in description.get("tags", ())}
    order = [*(name for name in told if name in found), *(name for name in found if name not in told)]
    return [Group(name, told.get(name, ""), tuple(found[name])) for name in order]


def _operation(description: Schema, base: str, method: str, path: str, told: Schema) -> Operation:
    body = _schema(told.get("requestBody", {}))
    parameters = tuple(_parameters(description, told.get("parameters", ())))
    return Operation(
        id=f"{method}{path.replace('/', '-').replace('{', '').replace('}', '')}".strip("-"),
        method=method.upper(),
        path=path,
        summary=told.get("summary", ""),
        description=told.get("description", ""),
        parameters=parameters,
        body=tuple(_fields(description, body)),
        answers=tuple(_answers(description, told.get("responses", {}))),
        open=not told.get("security"),
        example=_curl(description, base, method, path, told, body),
    )


def _parameters(description: Schema, told: Iterable[Schema]) -> Iterable[Parameter]:
    for one in told:
        one = _followed(description, one)
        kind = _type(description, one.get("schema", {}))
        meaning = str(one.get("description") or one.get("schema", {}).get("description") or "")
        yield Parameter(one["name"], one["in"], kind, bool(one.get("required")), meaning)


def _answers(description: Schema, told: Mapping[str, Schema]) -> Iterable[Answer]:
    for status, one in sorted(told.items()):
        one = _followed(description, one)
        schema = _schema(one)
        fields = tuple(_fields(description, schema)) if status.startswith("2") else ()
        yield Answer(status, one.get("description", ""), _type(description, schema), fields)


def _schema(told: Schema) -> Schema:
    """The schema of the first kind of content."""
    for content in told.get("content", {}).values():
        return content.get("schema", {})
    return {}


def _followed(description: Schema, told: Schema) -> Schema:
    """What a reference means."""
    while "$ref" in told:
        target: Any = description
        for part in told["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        told = target
    return told


def _fields(description: Schema, schema: Schema) -> Iterable[Parameter]:
    schema = _followed(description, schema)
    if schema.get("type") == "array":
        schema = _followed(description, schema.get("items", {}))
    required = schema.get("required", ())
    for name, one in schema.get("properties", {}).items():
        meaning = str(one.get("description") or _followed(description, one).get("description") or "")
        yield Parameter(name, "body", _type(description, one), name in required, meaning)


def _type(description: Schema, schema: Schema) -> str:
    """A type in few words."""
    if "$ref" in schema:
        found = _followed(description, schema)
        return schema["$ref"].rsplit("/", 1)[-1] if found.get("properties") else _type(description, found)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(description, one) for one in schema[several]))
    if "enum" in schema:
        return " | ".join(str(word) for word in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"list of {_type(description, schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or ("any" if schema else ""))


def _curl(description: Schema, base: str, method: str, path: str, told: Schema, body: Schema) -> str:
    """How it is said by curl. The address stands last, so that nothing before it is overlooked."""
    lines = ["curl" if method == "get" else f"curl -X {method.upper()}"]
    if told.get("security"):
        lines.append('-H "Authorization: Bearer $HOLDFAST_TOKEN"')
    if body:
        example = json.dumps(_example(description, body), ensure_ascii=False).replace("'", "'\\''")
        lines += ["-H 'Content-Type: application/json'", f"-d '{example}'"]
    wanted = [one for one in told.get("parameters", ()) if one.get("in") == "query" and one.get("required")]
    query = "&".join(f"{one['name']}=…" for one in wanted)
    lines.append(f"'{base}{path}{'?' + query if query else ''}'")
    return " \\\n  ".join(lines)


def _example(description: Schema, schema: Schema, depth: int = 0) -> Any:
    """A value that fits: what the schema gives as an example, or its required fields."""
    schema = _followed(description, schema)
    for given in ("example", "default", "const"):
        if schema.get(given) is not None:
            return schema[given]
    if schema.get("examples"):
        return schema["examples"][0]
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return _example(description, schema[several][0], depth)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object" if depth < DEEP:
            required = schema.get("required") or list(schema.get("properties", {}))[:1]
            properties = schema.get("properties", {})
            return {
                name: _example(description, properties[name], depth + 1)
                for name in required
                if name in properties
            }
        case "array" if depth < DEEP:
            return [_example(description, schema.get("items", {}), depth + 1)]
        case "string":
            return "…"
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case _:
            return {}
