"""The SQL of the pages: what things are called, who cools down, and how many deliveries a range has."""

from collections.abc import Iterable
from typing import LiteralString

from holdfast.apps.connectors.queries import where
from holdfast.apps.connectors.sql import DELIVERY_CONDITIONS

TENANT_NAMES: LiteralString = "select id, name from tenants where id = any(%(ids)s)"

ACCOUNT_NAMES: LiteralString = """
select id, coalesce(nullif(display_name, ''), external_id) as name from connections where id = any(%(ids)s)
"""

COOLING: LiteralString = """
select slug, least(cooldown_until, '9999-12-31 23:59:59.999999Z') as until
from providers
where cooldown_until > clock_timestamp()
"""


def count_deliveries(given: Iterable[str]) -> LiteralString:
    """How many deliveries are meant, as far as anybody wants to count."""
    some: LiteralString = "select count(*) from (select from webhook_delivery where "
    return some + where(DELIVERY_CONDITIONS, given) + " limit %(most)s) as meant"
