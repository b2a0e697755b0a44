"""The SQL that reads `jobs_legacy`, whatever columns it has. It only reads."""

from typing import LiteralString

EXISTS: LiteralString = "select to_regclass(format('%%I.jobs_legacy', %(schema)s::text)) is not null"

# `t.*` is the row, also where a column is called t. The order needs no column to be there: a missing one is
# NULL, and numbers and texts compare as JSON does.
RECORDS: LiteralString = """
select told.record
from {table} as t, lateral (select to_jsonb(t.*) as record) as told
where %(id)s::text is null or told.record ->> 'id' = %(id)s or told.record ->> 'job_id' = %(id)s
order by told.record -> 'created_at' desc nulls last,
    coalesce(told.record ->> 'id', told.record ->> 'job_id') desc, told.record desc
limit %(limit)s
"""
