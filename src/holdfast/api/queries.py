"""The SQL of tokens, sessions, the audit, and of looking at rows that somebody waits for."""

from typing import LiteralString

# -- tokens ----------------------------------------------------------------------------------------------

SHOWN: LiteralString = """
select id, name, scope, tenant, created_at as created, created_by, expires_at as expires,
    revoked_at as revoked, used_at as used
from holdfast_token
"""

TOKENS: LiteralString = SHOWN + "order by created_at desc, id limit %(limit)s"

ONE_TOKEN: LiteralString = SHOWN + "where id = %(id)s"

# `live`: neither revoked nor expired. `stale`: its last use was noted more than a minute ago.
PROOF: LiteralString = """
select id, name, scope, tenant, hash,
    revoked_at is null and coalesce(expires_at > clock_timestamp(), true) as live,
    coalesce(used_at < clock_timestamp() - make_interval(mins => 1), true) as stale
from holdfast_token
where id = %(id)s
"""

GRANT: LiteralString = """
insert into holdfast_token (id, name, hash, scope, tenant, created_by, expires_at)
values (%(id)s, %(name)s, %(hash)s, %(scope)s, %(tenant)s, %(by)s, %(expires)s)
"""

REVOKE: LiteralString = """
update holdfast_token set revoked_at = now() where id = %(id)s and revoked_at is null returning id
"""

USED: LiteralString = """
update holdfast_token set used_at = now()
where id = %(id)s and coalesce(used_at < now() - make_interval(mins => 1), true)
"""

# Two programs that start together shall make one token for this machine.
LOCAL_LOCK: LiteralString = "select pg_advisory_xact_lock(hashtextextended('holdfast local token', 0))"

# -- sessions --------------------------------------------------------------------------------------------

ADD_SESSION: LiteralString = """
insert into holdfast_session (hash, token_id, who, scope, tenant, expires_at)
values (%(hash)s, %(token)s, %(who)s, %(scope)s, %(tenant)s,
    least(%(until)s::timestamptz, now() + make_interval(hours => %(hours)s)))
"""

# A session ends with its token.
SESSION: LiteralString = """
select s.hash, s.who, s.scope, s.tenant, s.token_id
from holdfast_session as s left join holdfast_token as t on t.id = s.token_id
where s.hash = %(hash)s and s.expires_at > clock_timestamp()
    and (s.token_id is null
        or (t.revoked_at is null and coalesce(t.expires_at > clock_timestamp(), true)))
"""

END_SESSION: LiteralString = "delete from holdfast_session where hash = %(hash)s"

FORGET_SESSIONS: LiteralString = "delete from holdfast_session where expires_at < now()"

# -- audit -----------------------------------------------------------------------------------------------

NOTE: LiteralString = """
insert into holdfast_audit (who, action, ledger, row_id, tenant, rows, detail, trace_id)
values (%(who)s, %(action)s, %(ledger)s, %(row_id)s, %(tenant)s, %(rows)s, %(detail)s, %(trace_id)s)
returning id
"""

SETTLE: LiteralString = """
update holdfast_audit set rows = %(rows)s, detail = detail || %(detail)s where id = %(id)s
"""

ENTRIES: LiteralString = """
select id, at, who, action, ledger, row_id, tenant, rows, detail, trace_id
from holdfast_audit
where id < coalesce(%(before)s, 9223372036854775807)
order by id desc
limit %(limit)s
"""
