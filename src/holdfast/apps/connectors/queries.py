"""The SQL of tenants, providers, connections and signals.

What others have written is read so that one odd row does not hide the rest: times without end are bounded,
and metadata that is no object counts as empty.
"""

from collections.abc import Iterable, Mapping
from typing import LiteralString


def where(conditions: Mapping[str, LiteralString], given: Iterable[str]) -> LiteralString:
    """The conditions that are asked for, whole: a statement without the others has the better plan."""
    return " and ".join([conditions[name] for name in given]) or "true"


# -- tenants ---------------------------------------------------------------------------------------------

ADD_TENANT: LiteralString = """
insert into tenants (id, name) values (%(id)s, %(name)s)
returning id, name, created_at
"""

ONE_TENANT: LiteralString = """
select id, name,
    greatest(least(created_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') as created_at
from tenants
where id = %(id)s
"""

# -- providers -------------------------------------------------------------------------------------------

PROVIDERS: LiteralString = 'select slug, display_name, auth_type from providers order by slug collate "C"'

ONE_PROVIDER: LiteralString = "select slug, display_name, auth_type from providers where slug = %(slug)s"

ADD_PROVIDER: LiteralString = """
insert into providers (slug, display_name, auth_type) values (%(slug)s, %(display_name)s, %(auth_type)s)
"""

UPSERT_PROVIDER: LiteralString = (
    ADD_PROVIDER
    + """
on conflict (slug) do update set display_name = excluded.display_name, auth_type = excluded.auth_type
"""
)

# A later word does not shorten an earlier one.
COOL_DOWN: LiteralString = """
update providers set cooldown_until = greatest(cooldown_until, %(until)s::timestamptz) where slug = %(slug)s
"""

# -- connections -----------------------------------------------------------------------------------------

# A token that never ends is one of which nobody has said when.
_LINK: LiteralString = """
c.id, c.tenant_id, c.provider_slug as provider, c.external_id, c.display_name, c.status,
coalesce(c.scopes, '{}') as scopes, c.access_token_ciphertext as access,
c.refresh_token_ciphertext as refresh, c.token_key_id as key_id,
case when isfinite(c.expires_at)
    then greatest(least(c.expires_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z')
end as expires_at,
case when jsonb_typeof(c.metadata) = 'object' then c.metadata else '{}' end as metadata,
greatest(least(c.created_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') as created_at,
greatest(least(c.updated_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') as updated_at
"""

_ADD: LiteralString = """
insert into connections as c (
    id, tenant_id, provider_slug, external_id, display_name, status, scopes, access_token_ciphertext,
    refresh_token_ciphertext, token_key_id, expires_at, metadata
)
values (
    %(id)s, %(tenant_id)s, %(provider)s, %(external_id)s, %(display_name)s, %(status)s, %(scopes)s::text[],
    %(access)s, %(refresh)s, %(key_id)s, %(expires_at)s, %(metadata)s::text::jsonb
)
"""

ADD_LINK: LiteralString = _ADD + "returning " + _LINK

# What is kept for webhooks when an account is connected again: the names of before, and those of now.
_WEBHOOK: LiteralString = """
(c.metadata -> 'webhook')
|| case when jsonb_typeof(excluded.metadata -> 'webhook') = 'object'
    then excluded.metadata -> 'webhook' else '{}' end
|| case when jsonb_typeof(c.metadata #> '{webhook,external_ids}') = 'array'
    then jsonb_build_object('external_ids', (
        select coalesce(jsonb_agg(u.id order by u.place), '[]')
        from (
            select i.id, min(i.place) as place
            from jsonb_array_elements(
                (c.metadata #> '{webhook,external_ids}')
                || case when jsonb_typeof(excluded.metadata #> '{webhook,external_ids}') = 'array'
                    then excluded.metadata #> '{webhook,external_ids}' else '[]' end
            ) with ordinality as i (id, place)
            group by i.id
        ) as u
    )) else '{}' end
"""

# Connecting again: the new tokens, and what was known of syncs stays. A row that was just made has no `xmax`.
UPSERT_LINK: LiteralString = (
    _ADD
    + """
on conflict (tenant_id, provider_slug, external_id) do update
set status = excluded.status,
    display_name = coalesce(excluded.display_name, c.display_name),
    scopes = coalesce(excluded.scopes, c.scopes),
    access_token_ciphertext = excluded.access_token_ciphertext,
    refresh_token_ciphertext = excluded.refresh_token_ciphertext,
    token_key_id = excluded.token_key_id,
    expires_at = excluded.expires_at,
    metadata = case when jsonb_typeof(c.metadata) = 'object'
        then c.metadata || coalesce(excluded.metadata, '{}')
            || case when c.metadata ? 'sync'
                then jsonb_build_object('sync', c.metadata -> 'sync') else '{}' end
            || case when jsonb_typeof(c.metadata -> 'webhook') = 'object'
                then jsonb_build_object('webhook', """
    + _WEBHOOK
    + """) else '{}' end
        else excluded.metadata end
returning """
    + _LINK
    + ", c.xmax = 0 as made"
)

_SELECT: LiteralString = "select " + _LINK

_LINKS: LiteralString = _SELECT + " from connections as c where "

LINK: LiteralString = _LINKS + "c.id = %(id)s"

LINK_OF_TENANT: LiteralString = LINK + " and c.tenant_id = %(tenant_id)s"

# Not `for update`: that would wait for, and hold up, every insert that refers to the connection.
LOCK_LINK: LiteralString = LINK + " for no key update"

# Not `for share`: locks of a row are not queued, and many who share it would let no writer in.
LOCK_LINK_SHARED: LiteralString = LINK + " for key share"

LINK_BY_UNIQUE: LiteralString = (
    _LINKS
    + "c.tenant_id = %(tenant_id)s and c.provider_slug = %(provider)s and c.external_id = %(external_id)s"
)

LINKS_BY_EXTERNAL_IDS: LiteralString = (
    _LINKS
    + """
c.tenant_id = %(tenant_id)s and c.provider_slug = %(provider)s
and (
    c.external_id = any(%(ids)s::text[])
    or case when jsonb_typeof(c.metadata #> '{webhook,external_ids}') = 'array'
        then c.metadata #> '{webhook,external_ids}' ?| %(ids)s::text[] else false end
)
order by c.created_at, c.id
"""
)

LINK_CONDITIONS: Mapping[str, LiteralString] = {
    "tenant_id": "c.tenant_id = %(tenant_id)s",
    "provider": "c.provider_slug = %(provider)s",
    "status": "c.status = %(status)s",
    "after": "(c.created_at, c.id) > (%(after)s, %(after_id)s)",
}


def links(given: Iterable[str]) -> LiteralString:
    """A page of connections, the oldest first."""
    return _LINKS + where(LINK_CONDITIONS, given) + " order by c.created_at, c.id limit %(limit)s"


UPDATE_LINK: LiteralString = (
    """
update connections as c
set access_token_ciphertext = case when 'access' = any(%(given)s::text[])
        then %(access)s::bytea else c.access_token_ciphertext end,
    refresh_token_ciphertext = case when 'refresh' = any(%(given)s::text[])
        then %(refresh)s::bytea else c.refresh_token_ciphertext end,
    token_key_id = case when 'key_id' = any(%(given)s::text[])
        then %(key_id)s::text else c.token_key_id end,
    status = case when 'status' = any(%(given)s::text[])
        then %(status)s::text else c.status end,
    expires_at = case when 'expires_at' = any(%(given)s::text[])
        then %(expires_at)s::timestamptz else c.expires_at end
where c.id = %(id)s
returning """
    + _LINK
)

# Whatever stands there, null, a number or a list: afterwards it is an object, and other keys are as before.
MERGE_SYNC: LiteralString = """
update connections
set metadata = (case when jsonb_typeof(metadata) = 'object' then metadata else '{}' end)
    || jsonb_build_object('sync', (
        (case when jsonb_typeof(metadata -> 'sync') = 'object' then metadata -> 'sync' else '{}' end)
        - %(remove)s::text[]
    ) || %(patch)s::text::jsonb)
where id = %(id)s
"""

# -- keys ------------------------------------------------------------------------------------------------

SEALED: LiteralString = """
select id, tenant_id, provider_slug as provider, external_id, access_token_ciphertext as access,
    refresh_token_ciphertext as refresh, token_key_id as key_id
from connections
where id > %(after)s and (access_token_ciphertext is not null or refresh_token_ciphertext is not null)
order by id
limit %(limit)s
for no key update
"""

RESEAL: LiteralString = """
update connections as c
set access_token_ciphertext = m.access, refresh_token_ciphertext = m.refresh, token_key_id = %(key_id)s
from unnest(%(ids)s::uuid[], %(access)s::bytea[], %(refresh)s::bytea[]) as m (id, access, refresh)
where c.id = m.id
"""

# -- signals ---------------------------------------------------------------------------------------------

# Taken in a statement of its own: the next one sees what whoever had it before has committed.
SIGNALS_LOCK: LiteralString = """
select pg_advisory_xact_lock(hashtextextended('holdfast signals ' || %(tenant_id)s::text || %(provider)s, 0))
"""

# The index on the key is not unique, so the look for one that is there runs under that lock.
ADD_SIGNALS: LiteralString = """
insert into signals (id, tenant_id, provider_slug, connection_id, kind, occurred_at, payload, dedupe_key)
select i.id, %(tenant_id)s, %(provider)s, %(connection_id)s, i.kind, i.occurred_at, i.payload::jsonb, i.key
from unnest(
    %(ids)s::uuid[], %(kinds)s::text[], %(times)s::timestamptz[], %(payloads)s::text[], %(keys)s::text[]
) with ordinality as i (id, kind, occurred_at, payload, key, place)
where not exists (
    select from signals as s
    where s.tenant_id = %(tenant_id)s and s.provider_slug = %(provider)s and s.dedupe_key = i.key
)
order by i.place
"""

_SIGNAL: LiteralString = """
select s.id, s.tenant_id, s.provider_slug as provider, s.connection_id, s.kind,
greatest(least(s.occurred_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') as occurred_at,
greatest(least(s.received_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') as received_at,
s.dedupe_key
"""

SIGNAL_CONDITIONS: Mapping[str, LiteralString] = {
    "id": "s.id = %(id)s",
    "tenant_id": "s.tenant_id = %(tenant_id)s",
    "provider": "s.provider_slug = %(provider)s",
    "connection_id": "s.connection_id = %(connection_id)s",
    "kind": "s.kind = %(kind)s",
    "occurred_after": "s.occurred_at >= %(occurred_after)s",
    "occurred_before": "s.occurred_at <= %(occurred_before)s",
    "before": "(s.occurred_at, s.id) < (%(before)s, %(before_id)s)",
}


def signals(given: Iterable[str], *, payload: bool) -> LiteralString:
    """A page of signals, the newest first; payloads are large, and most lists show none."""
    body: LiteralString = ", s.payload" if payload else ", null::jsonb as payload"
    return (
        _SIGNAL
        + body
        + " from signals as s where "
        + where(SIGNAL_CONDITIONS, given)
        + " order by s.occurred_at desc, s.id desc limit %(limit)s"
    )
