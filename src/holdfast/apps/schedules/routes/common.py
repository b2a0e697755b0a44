"""What the routes share: names in addresses, and what a problem looks like."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from holdfast.apps.schedules.answers import IsoDate
from holdfast.engine.intake import INT8

TAG = "schedules"
WORDS = {
    404: "There is no such thing, or it is another user's",
    409: "Something else has its place, it is in another state, or the record contradicts itself",
}

UserId = Annotated[int, Path(description="The user's number.", ge=INT8.start, lt=INT8.stop)]
DayDate = Annotated[IsoDate, Path(description="The day, like 2030-01-31.")]
