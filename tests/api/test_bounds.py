"""What a tenant may ask of a row, so that no tenant's rows crowd out the others'."""

from __future__ import annotations

import dataclasses

from api.kit import A, Served, api_of, served_app
from holdfast import Holdfast, Settings

ROWS = "/api/ledgers/job/rows"
REFUSED = [
    ({"priority": 2**31 - 1}, "priority", "must lie between -100 and 100"),
    ({"priority": 101}, "priority", "must lie between -100 and 100"),
    ({"priority": -101}, "priority", "must lie between -100 and 100"),
    ({"limit": 26}, "limit", "must be at most 25"),
]


def test_a_tenants_token_has_bounds_and_an_operators_has_none(served: Served) -> None:
    tenant, operator = served.client("tenant"), served.client("actor", **{"X-Tenant-Id": A})
    for more, field, message in REFUSED:
        refused = tenant.post(ROWS, json={"kind": "mail", **more})
        problem = refused.json()
        assert (refused.status_code, problem["code"], problem["field"]) == (400, "INVALID_INPUT", field), more
        assert message in problem["detail"], more
        assert operator.post(ROWS, json={"kind": "mail", **more}).status_code == 201, more
    for more in ({"priority": -100}, {"priority": 100, "limit": 25}):
        assert tenant.post(ROWS, json={"kind": "mail", **more}).status_code == 201, more
    items = [{"kind": "mail"}, {"kind": "mail", "priority": 101}]
    batch = tenant.post(f"{ROWS}/batch", json={"items": items})
    assert (batch.status_code, batch.json()["field"]) == (400, "items[1].priority")


def test_a_tenants_row_may_go_without_backoff_only_where_a_smallest_wait_is_set(settings: Settings) -> None:
    row = {"kind": "mail", "backoff": "none"}
    for seconds, status in ((0.5, 201), (0.0, 400)):
        own = dataclasses.replace(settings, min_retry_seconds=seconds)
        with served_app(own, api_of(Holdfast(own))) as served:
            answer = served.client("tenant").post(ROWS, json=row)
            assert answer.status_code == status, answer.text
            assert served.client("actor", **{"X-Tenant-Id": A}).post(ROWS, json=row).status_code == 201
    assert answer.json()["field"] == "backoff"
