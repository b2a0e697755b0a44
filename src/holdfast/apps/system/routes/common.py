"""What the routes share: who may ask, names in addresses, and what a problem looks like."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Depends, Path

from holdfast.api.auth import Known
from holdfast.api.caller import Caller
from holdfast.apps.system.orders import must_maintain
from holdfast.errors import IdempotencyConflict, SyntaxRefused

TAG = "maintenance"
WORDS = {
    404: "There is no such job, or no such table",
    409: "The job is in another state, its key is taken, or its target is there already",
}


def reading(found: Known) -> Caller:
    """An operator who may read."""
    must_maintain(found, "read")
    return found


def acting(found: Known) -> Caller:
    """An operator who may act. What cannot be taken back asks for more, when it is known."""
    must_maintain(found, "act")
    return found


def administering(found: Known) -> Caller:
    """An administrator."""
    must_maintain(found, "admin")
    return found


Reading = Annotated[Caller, Depends(reading)]
Acting = Annotated[Caller, Depends(acting)]
Administering = Annotated[Caller, Depends(administering)]
JobId = Annotated[str, Path(description="The job's id, like FL-4fK2mZ0q.", min_length=1, max_length=100)]


@contextmanager
def detailed() -> Generator[None]:
    """Lets a problem tell programs what its sentence tells people."""
    try:
        yield
    except SyntaxRefused as error:
        raise SyntaxRefused(**error.fields, details={"position": error.position}) from None
    except IdempotencyConflict as error:
        status = str(error.fields["detail"]).rpartition(", ")[2]
        told = {"id": str(error.fields["id"]), "status": status}
        raise IdempotencyConflict(**error.fields, details=told) from None
