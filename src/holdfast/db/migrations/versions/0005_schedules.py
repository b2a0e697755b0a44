"""schedule_ingest: capture sessions, days, events, notifications

The schema is a contract with another service, so it has a name of its own, is one for the whole database, and
may be there before us. What is there stays as it is: nothing is dropped, no column is added, and defaults,
comments and rows are kept. What we add carries the comment `made by Holdfast`.

A downgrade takes away what carries that comment. A table that we made goes with its rows; a table that was
there before us stays with its rows, and loses only our indexes, constraints and defaults. While another
Holdfast of this database works with the schema, all of it stays.
"""

from alembic import op

revision = "0005"
down_revision = "0004"

# The schema may be somebody else's, but its tables must be ours to change.
FREE = """
do $$
declare
    owners text;
begin
    if current_schema() = 'schedule_ingest' then
        raise exception using message =
            'schedule_ingest is shared with another service: give Holdfast another schema (HOLDFAST_SCHEMA)';
    end if;
    select string_agg(distinct quote_ident(pg_get_userbyid(relowner)), ', ') into owners from pg_class
        where relnamespace = to_regnamespace('schedule_ingest') and relname in ({tables})
        and not pg_has_role(relowner, 'USAGE');
    if owners is not null then
        raise exception using message = 'tables of schedule_ingest belong to ' || owners
            || ', and get triggers and indexes: upgrade as their owner, or let an administrator run `grant '
            || owners || ' to ' || quote_ident(current_user) || '`';
    end if;
end
$$
"""

SCHEMA = """
do $$
begin
    if to_regnamespace('schedule_ingest') is null then
        create schema schedule_ingest;
        comment on schema schedule_ingest is 'made by Holdfast';
    end if;
exception when insufficient_privilege then
    raise exception using errcode = 'insufficient_privilege', message =
        'the schema schedule_ingest is missing and ' || quote_ident(current_user)
        || ' may not create it: an administrator must first run `create schema schedule_ingest authorization '
        || quote_ident(current_user) || '`';
end
$$
"""

STATE = """
do $$
declare
    amiss text;
begin
    if to_regtype('schedule_ingest.capture_session_state') is null then
        create type schedule_ingest.capture_session_state as enum ('pending', 'processing', 'done', 'failed');
        comment on type schedule_ingest.capture_session_state is 'made by Holdfast';
        return;
    end if;
    select string_agg(word, ', ') into amiss
        from unnest(array['pending', 'processing', 'done', 'failed']) as word
        where not exists (
            select from pg_enum where enumlabel = word
            and enumtypid = to_regtype('schedule_ingest.capture_session_state')
        );
    if amiss is not null then
        raise exception using message =
            'the type schedule_ingest.capture_session_state is there already, but without ' || amiss;
    end if;
end
$$
"""

# The first seven are the contract's. The last two are ours, and hold what those have no column for: how often
# a session was claimed, and when a message is tried again.
TABLES = {
    "capture_session": """
    id uuid not null,
    user_id bigint not null,
    state schedule_ingest.capture_session_state not null,
    created_at timestamptz not null,
    error text,
    locked_at timestamptz,
    locked_by text,
    constraint capture_session_pkey primary key (id),
    constraint ck_capture_session_error check (error is null or state = 'failed')
""",
    "capture_image": """
    id uuid not null,
    session_id uuid not null,
    sequence integer not null,
    r2_key text not null,
    telegram_message_id bigint,
    created_at timestamptz not null,
    constraint capture_image_pkey primary key (id),
    constraint capture_image_session_id_fkey
        foreign key (session_id) references schedule_ingest.capture_session (id),
    constraint capture_image_r2_key_key unique (r2_key),
    constraint uq_capture_image_session_sequence unique (session_id, sequence),
    constraint capture_image_sequence_check check (sequence > 0)
""",
    "day_schedule": """
    user_id bigint not null,
    schedule_date date not null,
    current_version integer not null,
    constraint day_schedule_pkey primary key (user_id, schedule_date),
    constraint day_schedule_current_version_check check (current_version > 0)
""",
    "schedule_version": """
    user_id bigint not null,
    schedule_date date not null,
    version integer not null,
    session_id uuid not null,
    payload jsonb not null,
    payload_hash text not null,
    created_at timestamptz not null,
    constraint schedule_version_pkey primary key (user_id, schedule_date, version),
    constraint schedule_version_session_id_key unique (session_id),
    constraint schedule_version_session_id_fkey
        foreign key (session_id) references schedule_ingest.capture_session (id),
    constraint schedule_version_payload_check check (jsonb_typeof(payload) = 'object')
""",
    "day_snapshot": """
    user_id bigint not null,
    schedule_date date not null,
    snapshot_payload jsonb not null,
    source_session_id uuid not null,
    updated_at timestamptz not null,
    constraint day_snapshot_pkey primary key (user_id, schedule_date),
    constraint day_snapshot_snapshot_payload_check check (jsonb_typeof(snapshot_payload) = 'array')
""",
    "schedule_event": """
    event_id uuid not null,
    user_id bigint not null,
    schedule_date date not null,
    event_type text not null,
    location_fingerprint text not null,
    customer_fingerprint text not null,
    old_value_hash text not null,
    new_value_hash text not null,
    old_value jsonb,
    new_value jsonb,
    detected_at timestamptz not null,
    source_session_id uuid not null,
    constraint schedule_event_pkey primary key (event_id),
    constraint uq_schedule_event_dedupe unique
        (user_id, schedule_date, location_fingerprint, event_type, old_value_hash, new_value_hash),
    constraint schedule_event_event_type_check check (
        event_type in (
            'shift_added', 'shift_removed', 'shift_time_changed', 'shift_relocated', 'shift_retitled',
            'shift_reclassified'
        )
    )
""",
    "schedule_notification": """
    notification_id text not null,
    user_id bigint not null,
    schedule_date date not null,
    source_session_id uuid not null,
    status text not null,
    notification_type text not null,
    message text not null,
    event_ids jsonb not null,
    created_at timestamptz not null,
    sent_at timestamptz,
    constraint schedule_notification_pkey primary key (notification_id),
    constraint schedule_notification_status_check check (status in ('pending', 'sent', 'failed')),
    constraint schedule_notification_notification_type_check
        check (notification_type in ('event', 'summary')),
    constraint schedule_notification_event_ids_check check (jsonb_typeof(event_ids) = 'array')
""",
    "capture_attempt": """
    session_id uuid not null,
    attempt integer not null,
    worker text not null,
    claimed_at timestamptz not null,
    ended_at timestamptz,
    outcome text,
    constraint capture_attempt_pkey primary key (session_id, attempt),
    constraint capture_attempt_session_id_fkey
        foreign key (session_id) references schedule_ingest.capture_session (id) on delete cascade,
    constraint capture_attempt_attempt_check check (attempt > 0)
""",
    "notification_attempt": """
    notification_id text not null,
    attempt integer not null,
    tried_at timestamptz not null,
    error text,
    next_at timestamptz,
    constraint notification_attempt_pkey primary key (notification_id, attempt),
    constraint notification_attempt_notification_id_fkey foreign key (notification_id)
        references schedule_ingest.schedule_notification (notification_id) on delete cascade,
    constraint notification_attempt_attempt_check check (attempt > 0)
""",
}

# A table that is there already must have these columns, and may have more.
TABLE = """
do $$
declare
    amiss text;
begin
    if to_regclass('schedule_ingest.{table}') is null then
        create table schedule_ingest.{table} ({columns});
        comment on table schedule_ingest.{table} is 'made by Holdfast';
        return;
    end if;
    select string_agg(needed || ' ' || type, ', ' order by needed) into amiss
        from (values {needs}) as columns (needed, type)
        where not exists (
            select from pg_attribute where attrelid = to_regclass('schedule_ingest.{table}')
            and attname = needed and atttypid = to_regtype(type) and attnum > 0 and not attisdropped
        );
    if amiss is not null then
        raise exception using message =
            'schedule_ingest.{table} is there already, but without ' || amiss;
    end if;
end
$$
"""

DEFAULTS = (
    ("capture_session", "id", "gen_random_uuid()"),
    ("capture_session", "state", "'pending'"),
    ("capture_session", "created_at", "now()"),
    ("capture_image", "id", "gen_random_uuid()"),
    ("capture_image", "created_at", "now()"),
    ("schedule_version", "created_at", "now()"),
    ("schedule_notification", "status", "'pending'"),
    ("schedule_notification", "created_at", "now()"),
)

# A default or a comment that somebody else has given the column stays.
DEFAULT = """
do $$
declare
    which smallint := attnum from pg_attribute
        where attrelid = 'schedule_ingest.{table}'::regclass and attname = '{column}';
begin
    if exists (
        select from pg_attrdef where adrelid = 'schedule_ingest.{table}'::regclass and adnum = which
    ) then
        return;
    end if;
    alter table schedule_ingest.{table} alter {column} set default {value};
    if col_description('schedule_ingest.{table}'::regclass, which) is null then
        comment on column schedule_ingest.{table}.{column} is 'default made by Holdfast';
    end if;
end
$$
"""

CHECKS = (
    ("schedule_version", "ck_schedule_version", "version > 0 and payload_hash <> ''"),
    ("schedule_notification", "ck_schedule_notification_sent", "(status = 'sent') = (sent_at is not null)"),
)

# Rows that were there before us may break the rule: then it holds for new ones only.
CHECK = """
do $$
begin
    if exists (
        select from pg_constraint
        where conrelid = 'schedule_ingest.{table}'::regclass and conname = '{name}'
    ) then
        return;
    end if;
    alter table schedule_ingest.{table} add constraint {name} check ({rule}) not valid;
    comment on constraint {name} on schedule_ingest.{table} is 'made by Holdfast';
    begin
        alter table schedule_ingest.{table} validate constraint {name};
    exception when check_violation then
        raise notice 'old rows of schedule_ingest.{table} break {name}, which holds for new ones only';
    end;
end
$$
"""

# What a claim reads: the pending, the stale, the held, and those of one user; what a list shows, newest
# first; and the record of a day.
INDEXES = {
    "ix_capture_session_pending": "capture_session (created_at, id) where state = 'pending'",
    "ix_capture_session_stale": "capture_session (locked_at) where state = 'processing'",
    "ix_capture_session_held": "capture_session (created_at, id) where state = 'processing'",
    "ix_capture_session_worker": "capture_session (locked_by) where state = 'processing'",
    "ix_capture_session_user": """
    capture_session (user_id, created_at, id) where state in ('pending', 'processing')""",
    "ix_capture_session_listed": "capture_session (created_at, id)",
    "ix_capture_session_of_user": "capture_session (user_id, created_at, id)",
    "ix_capture_session_failed": "capture_session (created_at, id) where state = 'failed'",
    "ix_capture_image_session_created": "capture_image (session_id, created_at desc)",
    "ix_day_schedule_listed": "day_schedule (schedule_date, user_id)",
    "ix_schedule_version_day": "schedule_version (user_id, schedule_date, created_at desc)",
    "ix_schedule_event_day": "schedule_event (user_id, schedule_date, detected_at desc)",
    "ix_schedule_event_session": "schedule_event (source_session_id)",
    "ix_schedule_notification_pending": """
    schedule_notification (created_at, notification_id) where status = 'pending'""",
    "ix_schedule_notification_day": "schedule_notification (user_id, schedule_date, created_at desc)",
    "ix_schedule_notification_user": """
    schedule_notification (user_id, created_at, notification_id) where status = 'pending'""",
    "ix_schedule_notification_listed": "schedule_notification (created_at, notification_id)",
    "ix_schedule_notification_of_user": "schedule_notification (user_id, created_at, notification_id)",
    "ix_schedule_notification_failed": """
    schedule_notification (created_at, notification_id) where status = 'failed'""",
    "ix_schedule_notification_session": "schedule_notification (source_session_id)",
    "ix_capture_attempt_worker": "capture_attempt (worker, claimed_at)",
    "ix_capture_attempt_lost": "capture_attempt (claimed_at) where outcome = 'lost'",
}

INDEX = """
do $$
begin
    if to_regclass('schedule_ingest.{name}') is null then
        create index {name} on schedule_ingest.{definition};
        comment on index schedule_ingest.{name} is 'made by Holdfast';
    end if;
end
$$
"""

# Images may be there that came twice: they were read, and are nobody's to remove here.
MESSAGES = """
do $$
begin
    if to_regclass('schedule_ingest.uq_capture_image_message') is null then
        create unique index uq_capture_image_message
        on schedule_ingest.capture_image (session_id, telegram_message_id)
        where telegram_message_id is not null;
        comment on index schedule_ingest.uq_capture_image_message is 'made by Holdfast';
    end if;
exception when unique_violation then
    raise notice using message =
        'schedule_ingest.capture_image has a message twice in one session already, so one that is delivered '
        'again will add an image again: take such images out, and create the unique index '
        'uq_capture_image_message on (session_id, telegram_message_id)';
end
$$
"""

# As before: what a worker needs, and nothing that says whose a row is. The day pointer it only reads.
WORKER = (
    """
grant select on
    schedule_ingest.capture_session, schedule_ingest.capture_image, schedule_ingest.day_schedule,
    schedule_ingest.schedule_version, schedule_ingest.day_snapshot, schedule_ingest.schedule_event,
    schedule_ingest.schedule_notification, schedule_ingest.capture_attempt,
    schedule_ingest.notification_attempt
to holdfast_worker
""",
    """
grant insert on
    schedule_ingest.schedule_version, schedule_ingest.day_snapshot, schedule_ingest.schedule_event,
    schedule_ingest.schedule_notification, schedule_ingest.capture_attempt,
    schedule_ingest.notification_attempt
to holdfast_worker
""",
    """
grant update (state, error, locked_at, locked_by) on schedule_ingest.capture_session to holdfast_worker
""",
    """
grant update (snapshot_payload, source_session_id, updated_at) on schedule_ingest.day_snapshot
to holdfast_worker
""",
    "grant update (status, sent_at) on schedule_ingest.schedule_notification to holdfast_worker",
    "grant update (ended_at, outcome) on schedule_ingest.capture_attempt to holdfast_worker",
    "grant update (error, next_at) on schedule_ingest.notification_attempt to holdfast_worker",
)

# Who may create here need not own the schema.
SCHEMA_USAGE = """
do $$
begin
    grant usage on schema schedule_ingest to holdfast_worker;
exception when insufficient_privilege then
    raise notice 'holdfast_worker may need `grant usage on schema schedule_ingest` from its owner';
end
$$
"""

# A version table that we may not read is that of another Holdfast at work. A table that refers to another of
# ours was made after it.
LEAVE = """
do $$
declare
    mark constant text := 'made by Holdfast';
    here regnamespace := to_regnamespace('schedule_ingest');
    other regclass;
    at text;
    one record;
begin
    if here is null then
        return;
    end if;
    for other in select oid from pg_class where relname = 'holdfast_version' and relkind = 'r'
        and relnamespace <> quote_ident(current_schema())::regnamespace
    loop
        begin
            execute 'select max(version_num) from ' || other into at;
        exception when insufficient_privilege then
            at := 'unknown';
        end;
        if at >= '0005' then
            raise notice using message = 'schedule_ingest stays: another Holdfast uses it, with ' || other;
            return;
        end if;
    end loop;
    for one in select oid::regclass as name from pg_class
        where relnamespace = here and relkind = 'r' and obj_description(oid, 'pg_class') = mark
        order by oid desc
    loop
        execute 'drop table ' || one.name;
    end loop;
    for one in select oid::regclass as name from pg_class
        where relnamespace = here and relkind = 'i' and obj_description(oid, 'pg_class') = mark
    loop
        execute 'drop index ' || one.name;
    end loop;
    for one in select conname as name, conrelid::regclass as of_table from pg_constraint
        where connamespace = here and obj_description(oid, 'pg_constraint') = mark
    loop
        execute 'alter table ' || one.of_table || ' drop constraint ' || one.name;
    end loop;
    for one in select attname as name, attrelid::regclass as of_table
        from pg_attribute join pg_class on pg_class.oid = attrelid
        where relnamespace = here and attnum > 0 and col_description(attrelid, attnum) = 'default ' || mark
    loop
        execute 'alter table ' || one.of_table || ' alter ' || one.name || ' drop default';
        execute 'comment on column ' || one.of_table || '.' || one.name || ' is null';
    end loop;
    if obj_description(to_regtype('schedule_ingest.capture_session_state'), 'pg_type') = mark then
        begin
            drop type schedule_ingest.capture_session_state;
        exception when dependent_objects_still_exist then null;
        end;
    end if;
    for one in select pg_class.oid::regclass as name, rolname as role from pg_class, pg_roles
        where relnamespace = here and relkind in ('r', 'p') and pg_has_role(relowner, 'USAGE')
        and rolname = 'holdfast_worker'
    loop
        execute 'revoke all on ' || one.name || ' from ' || one.role;
    end loop;
    begin
        revoke all on schema schedule_ingest from holdfast_worker;
    exception when undefined_object or insufficient_privilege then null;
    end;
    if obj_description(here, 'pg_namespace') = mark then
        begin
            drop schema schedule_ingest;
        exception when dependent_objects_still_exist then null;
        end;
    end if;
end
$$
"""


def needs(columns: str) -> str:
    """The names and types of a table's columns, as rows of VALUES."""
    words = [line.split() for line in columns.replace(",", "").splitlines()]
    return ", ".join(f"('{name}', '{kind}')" for name, kind, *_ in filter(None, words))


def upgrade() -> None:
    op.execute(FREE.format(tables=", ".join(f"'{table}'" for table in TABLES)))
    op.execute(SCHEMA)
    op.execute(STATE)
    for table, columns in TABLES.items():
        wanted = needs(columns.partition("constraint ")[0])
        op.execute(TABLE.format(table=table, columns=columns, needs=wanted))
    for table, column, value in DEFAULTS:
        op.execute(DEFAULT.format(table=table, column=column, value=value))
    for table, name, rule in CHECKS:
        op.execute(CHECK.format(table=table, name=name, rule=rule))
    for name, definition in INDEXES.items():
        op.execute(INDEX.format(name=name, definition=definition))
    op.execute(MESSAGES)
    for statement in (*WORKER, SCHEMA_USAGE):
        op.execute(statement)


def downgrade() -> None:
    op.execute(LEAVE)
