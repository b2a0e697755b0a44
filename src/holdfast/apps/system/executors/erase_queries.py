"""The SQL of an erasure: what there is of a subject, that it goes, and what has only mentioned it."""

from typing import LiteralString

# A column of text may have it in other letters; one of its own type knows its own spellings.
IS_TEXT: LiteralString = "lower(t.{column}) = lower(%(value)s)"
IS: LiteralString = "t.{column} = %(value)s"

COUNT: LiteralString = "select count(*) from {table} as t where {condition}"

# Not in an end; or in one from which it is tried again by itself.
OPEN: LiteralString = "t.{state} <> all(%(ends)s::text[]::{state_type}[])"

# Nobody can change these any more, nor begin to refer to them.
HOLD: LiteralString = """
select from {table} as t where {condition} order by {key} limit %(batch)s for update of t
"""

DELETE: LiteralString = """
with picked as materialized (
    select {key} from {table} as t where {condition} limit %(batch)s for update of t
)
delete from {table} as t where ({key}) in (select {named} from picked)
"""

# Who refers to whom, among these tables.
REFERENCES: LiteralString = """
select f.conrelid::bigint, f.confrelid::bigint from pg_constraint as f
where f.contype = 'f' and f.conrelid <> f.confrelid
    and f.conrelid = any(%(oids)s::oid[]) and f.confrelid = any(%(oids)s::oid[])
"""

# The jobs that were to erase the subject and have ended, or end now, keep that they did and forget whom.
FORGET_JOBS: LiteralString = """
update {table} as t set
    parameters = jsonb_set(t.parameters, '{{subject}}', jsonb_build_object(%(word)s::text, 'erased')),
    idempotency_key = case when strpos(lower(t.idempotency_key), lower(%(value)s)) = 0
        then t.idempotency_key end
where t.job_type = 'user_cleanup' and (t.status = any(%(ends)s) or t.id = %(own)s) and exists (
    select from jsonb_each_text(
        case jsonb_typeof(t.parameters -> 'subject') when 'object' then t.parameters -> 'subject' end
    ) as s where s.key = any(%(words)s) and lower(s.value) = lower(%(value)s)
)
"""

# So does the audit: of who did what about the subject it keeps the rest.
FORGET_AUDIT: LiteralString = """
update holdfast_audit as t set
    detail = jsonb_set(t.detail, '{parameters,subject}', jsonb_build_object(%(word)s::text, 'erased'))
where exists (
    select from jsonb_each_text(
        case jsonb_typeof(t.detail #> '{parameters,subject}') when 'object'
        then t.detail #> '{parameters,subject}' end
    ) as s where s.key = any(%(words)s) and lower(s.value) = lower(%(value)s)
)
"""

# A long name is nobody else's, wherever it stands; a number could be anything.
FORGET_MENTIONS: LiteralString = """
update holdfast_audit as t set
    row_id = regexp_replace(t.row_id, %(value)s, 'erased', 'gi'),
    detail = regexp_replace(t.detail::text, %(value)s, 'erased', 'gi')::jsonb
where strpos(lower(t.row_id), lower(%(value)s)) > 0 or strpos(lower(t.detail::text), lower(%(value)s)) > 0
"""
