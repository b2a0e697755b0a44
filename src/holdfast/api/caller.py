"""Who asks: a name for the record, what they may do, and whose rows they may see. Plain, frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Scope = Literal["read", "act", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)  # each may do what those before it may


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Somebody whose token, or session, or JWT is known.

    `tenant` is whose rows are meant, None for everybody's. `bound`: the tenant comes from the token itself,
    and no header changes it; an operator chooses one for a request by `X-Tenant-Id`.
    """

    who: str
    scope: Scope
    tenant: str | None = None
    bound: bool = False
    token_id: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether this scope is within what the caller may do.

        >>> Caller(who="ana", scope="act").may("read")
        True
        """
        return SCOPES.index(scope) <= SCOPES.index(self.scope)
