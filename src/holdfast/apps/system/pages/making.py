"""Making a job: a form for each type, what is wrong beside its fields, and a question before the worst."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import FormData

from holdfast.api.auth import Here
from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.apps.system import orders
from holdfast.apps.system.backups import list_backups
from holdfast.apps.system.bench import Bench, bench_of
from holdfast.apps.system.fields import FINAL, Field, about_type, fields_of
from holdfast.apps.system.orders import Wish, must_maintain, scope_of
from holdfast.apps.system.pages import views
from holdfast.apps.system.parameters import SUBJECTS
from holdfast.apps.system.routes.common import Acting
from holdfast.apps.system.schemas import schemas_of
from holdfast.apps.system.types import TYPES, JobType, read_type
from holdfast.dashboard import forms
from holdfast.dashboard.dress import page, say, url
from holdfast.db.system_settings import backup_roots
from holdfast.engine import intake
from holdfast.errors import HoldfastError, InvalidInput, NotFound

router = APIRouter(include_in_schema=False)
LONGEST = 1024  # characters of a field
WHO, VALUE = "subject_kind", "subject_value"  # both are the one parameter `subject`
COMMON = ("key", "queue", "max_retries", "priority")
KINDS: Mapping[JobType, tuple[str, ...]] = {  # of tables that a type works on
    JobType.FLUSH: ("ledger",),
    JobType.RETENTION: ("ledger",),
    JobType.STREAM_EVICTION: ("stream",),
    JobType.CLEANUP: ("user",),
    JobType.COMPACT: ("ledger", "stream", "user"),
}


@dataclass(frozen=True, kw_only=True)
class Control:
    """A field of the form. `suggested`: one may write something else; `fault` is what is wrong with it."""

    field: Field
    value: str
    choices: tuple[str, ...] = ()
    suggested: tuple[str, ...] = ()
    example: str = ""
    fault: str | None = None

    @property
    def label(self) -> str:
        return self.field.name.replace("_", " ").capitalize()


@router.get("/system/new")
async def choose(request: Request, caller: Acting) -> HTMLResponse:
    """The page that asks what is to be done."""
    types = [(kind, about_type(kind), caller.may(scope_of(kind))) for kind in TYPES]
    return page(request, "system/new.html", caller, types=types, **views.HELPERS)


@router.get("/system/new/{type}")
async def ask(request: Request, type: str, caller: Acting, site: Here) -> HTMLResponse:
    """The form of a type; the address may fill some of it in."""
    kind = _kind(type, caller)
    given = {name: value[:LONGEST] for name, value in request.query_params.items()}
    return await _form(request, caller, site, kind, given)


@router.post("/system/new/{type}")
async def make(request: Request, type: str, caller: Acting, site: Here) -> Response:
    """Makes the job; one that cannot be taken back only after its form was confirmed."""
    kind, form = _kind(type, caller), await request.form()
    given = {name: value for name, value in forms.pairs_of(form) if name not in ("form_key", "sure")}
    try:
        wish = _wish(kind, form)
        if kind in FINAL and form.get("sure") != "yes":
            await orders.check(site, caller, kind, wish.parameters)
            return _confirm(request, caller, kind, wish, given)
        row = await orders.create(site, caller, wish)
    except HoldfastError as error:
        if error.status >= 500 and error.status != 503:
            raise
        return await _form(request, caller, site, kind, given, error)
    response = RedirectResponse(url(request, views.address("jobs", row.id)), 303)
    say(request, response, "The job is made.")
    return response


def _kind(type: str, caller: Caller) -> JobType:
    try:
        kind = read_type(type)
    except InvalidInput:
        raise NotFound(what="type of job", id=type[:100]) from None
    must_maintain(caller, scope_of(kind))
    return kind


# -- out of the form -------------------------------------------------------------------------------------


def _wish(kind: JobType, form: FormData) -> Wish:
    parameters: dict[str, Any] = {}
    for field in fields_of(kind):
        value = _value(field, form)
        if value is not None:
            parameters[field.name] = value
    common: dict[str, Any] = {name: forms.text(form, name, LONGEST) for name in COMMON}
    for name in ("max_retries", "priority"):
        if common[name] is not None:
            common[name] = intake.typed(name, "integer", common[name])
    return Wish(type=kind, parameters=parameters, **common)


def _value(field: Field, form: FormData) -> Any:
    """What a field of the form says; None where it says nothing."""
    if field.kind == "truth":  # a box that is not ticked is not sent
        return form.get(field.name) == "yes"
    if field.kind == "subject":
        value = forms.text(form, VALUE, LONGEST)
        return None if value is None else {str(form.get(WHO)): value}
    text = forms.text(form, field.name, LONGEST)
    return None if text is None else field.read(text)


# -- as a page -------------------------------------------------------------------------------------------


async def _form(
    request: Request,
    caller: Caller,
    site: Site,
    kind: JobType,
    given: Mapping[str, str],
    wrong: HoldfastError | None = None,
) -> HTMLResponse:
    controls = await _controls(bench_of(site), kind, given, again=wrong is not None)
    controls, left = _blamed(controls, wrong)
    fault = wrong.fields.get("message") if isinstance(wrong, InvalidInput) and left else None
    return page(
        request,
        "system/form.html",
        caller,
        status=wrong.status if wrong else 200,
        type=kind,
        about=about_type(kind),
        warning=views.WARNINGS.get(kind),
        controls=controls,
        common={name: given.get(name, "") for name in COMMON},
        filled=any(given.get(name) for name in COMMON),
        blamed=wrong.field if isinstance(wrong, InvalidInput) else None,
        fault=fault,
        wrong=wrong if left else None,
        subjects=SUBJECTS,
        who=given.get(WHO, ""),
        word=views.WORDS[kind],
        **views.HELPERS,
    )


def _blamed(
    controls: Sequence[Control], wrong: HoldfastError | None
) -> tuple[list[Control], HoldfastError | None]:
    """The controls with what is wrong beside its own; and what is left to be told above them all."""
    if not isinstance(wrong, InvalidInput):
        return [*controls], wrong
    name = wrong.field.split(".")[0].split("[")[0]
    found = [
        replace(one, fault=str(wrong.fields["message"])) if one.field.name == name else one
        for one in controls
    ]
    return found, None if any(one.fault for one in found) else wrong


async def _controls(bench: Bench, kind: JobType, given: Mapping[str, str], *, again: bool) -> list[Control]:
    found = [
        Control(field=field, value=_shown(field, given, again=again), choices=field.choices)
        for field in fields_of(kind)
    ]
    return [await _offered(bench, kind, one) for one in found]


def _shown(field: Field, given: Mapping[str, str], *, again: bool) -> str:
    """What stands in a field: what was sent, or else its default."""
    if field.kind == "subject":
        return given.get(VALUE, "")
    if field.name in given:
        return given[field.name]
    if field.default is None or (again and field.kind == "truth"):
        return ""
    return "yes" if field.default is True else "" if field.default is False else f"{field.default}"


async def _offered(bench: Bench, kind: JobType, one: Control) -> Control:
    """A control with what there is to choose from."""
    known = bench.registry.declared.values()
    match one.field.name:
        case "ledger" | "table":
            kinds = [word for word in KINDS[kind] if (word == "ledger") == (one.field.name == "ledger")]
            return replace(one, choices=tuple(sorted(each.name for each in known if each.kind in kinds)))
        case "schema" | "target_schema":
            async with bench.database.connection() as conn:
                return replace(one, suggested=await schemas_of(conn, bench.registry))
        case "backup_location" if kind is JobType.RESTORE:
            infos = await asyncio.to_thread(list_backups, bench.settings)
            return replace(one, suggested=tuple(info.name for info in infos if info.manifest))
        case "backup_location":
            return replace(one, example=f"a folder below {backup_roots(bench.settings)[0]}")
        case "tables":
            return replace(one, example="all; or names with commas between")
        case _:
            return one


def _confirm(
    request: Request, caller: Caller, kind: JobType, wish: Wish, given: Mapping[str, str]
) -> HTMLResponse:
    return page(
        request,
        "system/confirm.html",
        caller,
        type=kind,
        warning=views.WARNINGS[kind],
        parameters=wish.parameters,
        given=given,
        word=views.WORDS[kind],
        **views.HELPERS,
    )
