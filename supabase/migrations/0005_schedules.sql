-- Holdfast 0005: schedule_ingest: capture sessions, days, events, notifications
-- Compiled from the migration of that number: change that one, then run `make sql`.
do $holdfast$
begin
perform pg_advisory_xact_lock(hashtextextended('holdfast.migrate', 0));
if to_regclass(quote_ident(current_schema()) || '.holdfast_version') is null then
    create table holdfast_version (
        version_num varchar(32) not null,
        constraint holdfast_version_pkc primary key (version_num)
    );
end if;
if (select max(version_num) from holdfast_version) is distinct from '0004' then
    return;
end if;

do $$
declare
    owners text;
begin
    if current_schema() = 'schedule_ingest' then
        raise exception using message =
            'schedule_ingest is shared with another service: give Holdfast another schema (HOLDFAST_SCHEMA)';
    end if;
    select string_agg(distinct quote_ident(pg_get_userbyid(relowner)), ', ') into owners from pg_class
        where relnamespace = to_regnamespace('schedule_ingest') and relname in ('capture_session', 'capture_image', 'day_schedule', 'schedule_version', 'day_snapshot', 'schedule_event', 'schedule_notification', 'capture_attempt', 'notification_attempt')
        and not pg_has_role(relowner, 'USAGE');
    if owners is not null then
        raise exception using message = 'tables of schedule_ingest belong to ' || owners
            || ', and get triggers and indexes: upgrade as their owner, or let an administrator run `grant '
            || owners || ' to ' || quote_ident(current_user) || '`';
    end if;
end
$$;

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
$$;

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
$$;

do $$
declare
    amiss text;
begin
    if to_regclass('schedule_ingest.capture_session') is null then
        create table schedule_ingest.capture_session (
    id uuid not null,
    user_id bigint not null,
    state schedule_ingest.capture_session_state not null,
    created_at timestamptz not null,
    error text,
    locked_at timestamptz,
    locked_by text,
    constraint capture_session_pkey primary key (id),
    constraint ck_capture_session_error check (error is null or state = 'failed')
);
        comment on table schedule_ingest.capture_session is 'made by Holdfast';
        return;
    end if;
    select string_agg(needed || ' ' || type, ', ' order by needed) into amiss
        from (values ('id', 'uuid'), ('user_id', 'bigint'), ('state', 'schedule_ingest.capture_session_state'), ('created_at', 'timestamptz'), ('error', 'text'), ('locked_at', 'timestamptz'), ('locked_by', 'text')) as columns (needed, type)
        where not exists (
            select from pg_attribute where attrelid = to_regclass('schedule_ingest.capture_session')
            and attname = needed and atttypid = to_regtype(type) and attnum > 0 and not attisdropped
        );
    if amiss is not null then
        raise exception using message =
            'schedule_ingest.capture_session is there already, but without ' || amiss;
    end if;
end
$$;

do $$
declare
    amiss text;
begin
    if to_regclass('schedule_ingest.capture_image') is null then
        create table schedule_ingest.capture_image (
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
);
        comment on table schedule_ingest.capture_image is 'made by Holdfast';
        return;
    end if;
    select string_agg(needed || ' ' || type, ', ' order by needed) into amiss
        from (values ('id', 'uuid'), ('session_id', 'uuid'), ('sequence', 'integer'), ('r2_key', 'text'), ('telegram_message_id', 'bigint'), ('created_at', 'timestamptz')) as columns (needed, type)
        where not exists (
            select from pg_attribute where attrelid = to_regclass('schedule_ingest.capture_image')
            and attname = needed and atttypid = to_regtype(type) and attnum > 0 and not attisdropped
        );
    if amiss is not null then
        raise exception using message =
            'schedule_ingest.capture_image is there already, but without ' || amiss;
    end if;
end
$$;

do $$
declare
    amiss text;
begin
    if to_regclass('schedule_ingest.day_schedule') is null then
        create table schedule_ingest.day_schedule (
    user_id bigint not null,
    schedule_date date not null,
    current_version integer not null,
    constraint day_schedule_pkey primary key (user_id, schedule_date),
    constraint day_schedule_current_version_check check (current_version > 0)
);
        comment on table schedule_ingest.day_schedule is 'made by Holdfast';
        return;
    end if;
    select string_agg(needed || ' ' || type, ', ' order by needed) into amiss
        from (values ('user_id', 'bigint'), ('schedule_date', 'date'), ('current_version', 'integer')) as columns (needed, type)
        where not exists (
            select from pg_attribute where attrelid = to_regclass('schedule_ingest.day_schedule')
            and attname = needed and atttypid = to_regtype(type) and attnum > 0 and not attisdropped
        );
    if amiss is not null then
        raise exception using message =
            'schedule_ingest.day_schedule is there already, but without ' || amiss;
    end if;
end
$$;

do $$
declare
    amiss text;
begin
    if to_regclass('schedule_ingest.schedule_version') is null then
        create table schedule_ingest.schedule_version (
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
);
        comment on table schedule_ingest.schedule_version is 'made by Holdfast';
        return;
    end if;
    select string_agg(needed || ' ' || type, ', ' order by needed) into amiss
        from (values ('user_id', 'bigint'), ('schedule_date', 'date'), ('version', 'integer'), ('session_id', 'uuid'), ('payload', 'jsonb'), ('payload_hash', 'text'), ('created_at', 'timestamptz')) as columns (needed, type)
        where not exists (
            select from pg_attribute where attrelid = to_regclass('schedule_ingest.schedule_version')
            and attname = needed and atttypid = to_regtype(type) and attnum > 0 and not attisdropped
        );
    if amiss is not null then
        raise exception using message =
            'schedule_ingest.schedule_version is there already, but without ' || amiss;
    end if;
end
$$;

do $$
declare
    amiss text;
begin
    if to_regclass('schedule_ingest.day_snapshot') is null then
        create table schedule_ingest.day_snapshot (
    user_id bigint not null,
    schedule_date date not null,
    snapshot_payload jsonb not null,
    source_session_id uuid not null,
    updated_at timestamptz not null,
    constraint day_snapshot_pkey primary key (user_id, schedule_date),
    constraint day_snapshot_snapshot_payload_check check (jsonb_typeof(snapshot_payload) = 'array')
);
        comment on table schedule_ingest.day_snapshot is 'made by Holdfast';
        return;
    end if;
    select string_agg(needed || ' ' || type, ', ' order by needed) into amiss
        from (values ('user_id', 'bigint'), ('schedule_date', 'date'), ('snapshot_payload', 'jsonb'), ('source_session_id', 'uuid'), ('updated_at', 'timestamptz')) as columns (needed, type)
        where not exists (
            select from pg_attribute where attrelid = to_regclass('schedule_ingest.day_snapshot')
            and attname = needed and atttypid = to_regtype(type) and attnum > 0 and not attisdropped
        );
    if amiss is not null then
        raise exception using message =
            'schedule_ingest.day_snapshot is there already, but without ' || amiss;
    end if;
end
$$;

do $$
declare
    amiss text;
begin
    if to_regclass('schedule_ingest.schedule_event') is null then
        create table schedule_ingest.schedule_event (
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
);
        comment on table schedule_ingest.schedule_event is 'made by Holdfast';
        return;
    end if;
    select string_agg(needed || ' ' || type, ', ' order by needed) into amiss
        from (values ('event_id', 'uuid'), ('user_id', 'bigint'), ('schedule_date', 'date'), ('event_type', 'text'), ('location_fingerprint', 'text'), ('customer_fingerprint', 'text'), ('old_value_hash', 'text'), ('new_value_hash', 'text'), ('old_value', 'jsonb'), ('new_value', 'jsonb'), ('detected_at', 'timestamptz'), ('source_session_id', 'uuid')) as columns (needed, type)
        where not exists (
            select from pg_attribute where attrelid = to_regclass('schedule_ingest.schedule_event')
            and attname = needed and atttypid = to_regtype(type) and attnum > 0 and not attisdropped
        );
    if amiss is not null then
        raise exception using message =
            'schedule_ingest.schedule_event is there already, but without ' || amiss;
    end if;
end
$$;

do $$
declare
    amiss text;
begin
    if to_regclass('schedule_ingest.schedule_notification') is null then
        create table schedule_ingest.schedule_notification (
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
);
        comment on table schedule_ingest.schedule_notification is 'made by Holdfast';
        return;
    end if;
    select string_agg(needed || ' ' || type, ', ' order by needed) into amiss
        from (values ('notification_id', 'text'), ('user_id', 'bigint'), ('schedule_date', 'date'), ('source_session_id', 'uuid'), ('status', 'text'), ('notification_type', 'text'), ('message', 'text'), ('event_ids', 'jsonb'), ('created_at', 'timestamptz'), ('sent_at', 'timestamptz')) as columns (needed, type)
        where not exists (
            select from pg_attribute where attrelid = to_regclass('schedule_ingest.schedule_notification')
            and attname = needed and atttypid = to_regtype(type) and attnum > 0 and not attisdropped
        );
    if amiss is not null then
        raise exception using message =
            'schedule_ingest.schedule_notification is there already, but without ' || amiss;
    end if;
end
$$;

do $$
declare
    amiss text;
begin
    if to_regclass('schedule_ingest.capture_attempt') is null then
        create table schedule_ingest.capture_attempt (
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
);
        comment on table schedule_ingest.capture_attempt is 'made by Holdfast';
        return;
    end if;
    select string_agg(needed || ' ' || type, ', ' order by needed) into amiss
        from (values ('session_id', 'uuid'), ('attempt', 'integer'), ('worker', 'text'), ('claimed_at', 'timestamptz'), ('ended_at', 'timestamptz'), ('outcome', 'text')) as columns (needed, type)
        where not exists (
            select from pg_attribute where attrelid = to_regclass('schedule_ingest.capture_attempt')
            and attname = needed and atttypid = to_regtype(type) and attnum > 0 and not attisdropped
        );
    if amiss is not null then
        raise exception using message =
            'schedule_ingest.capture_attempt is there already, but without ' || amiss;
    end if;
end
$$;

do $$
declare
    amiss text;
begin
    if to_regclass('schedule_ingest.notification_attempt') is null then
        create table schedule_ingest.notification_attempt (
    notification_id text not null,
    attempt integer not null,
    tried_at timestamptz not null,
    error text,
    next_at timestamptz,
    constraint notification_attempt_pkey primary key (notification_id, attempt),
    constraint notification_attempt_notification_id_fkey foreign key (notification_id)
        references schedule_ingest.schedule_notification (notification_id) on delete cascade,
    constraint notification_attempt_attempt_check check (attempt > 0)
);
        comment on table schedule_ingest.notification_attempt is 'made by Holdfast';
        return;
    end if;
    select string_agg(needed || ' ' || type, ', ' order by needed) into amiss
        from (values ('notification_id', 'text'), ('attempt', 'integer'), ('tried_at', 'timestamptz'), ('error', 'text'), ('next_at', 'timestamptz')) as columns (needed, type)
        where not exists (
            select from pg_attribute where attrelid = to_regclass('schedule_ingest.notification_attempt')
            and attname = needed and atttypid = to_regtype(type) and attnum > 0 and not attisdropped
        );
    if amiss is not null then
        raise exception using message =
            'schedule_ingest.notification_attempt is there already, but without ' || amiss;
    end if;
end
$$;

do $$
declare
    which smallint := attnum from pg_attribute
        where attrelid = 'schedule_ingest.capture_session'::regclass and attname = 'id';
begin
    if exists (
        select from pg_attrdef where adrelid = 'schedule_ingest.capture_session'::regclass and adnum = which
    ) then
        return;
    end if;
    alter table schedule_ingest.capture_session alter id set default gen_random_uuid();
    if col_description('schedule_ingest.capture_session'::regclass, which) is null then
        comment on column schedule_ingest.capture_session.id is 'default made by Holdfast';
    end if;
end
$$;

do $$
declare
    which smallint := attnum from pg_attribute
        where attrelid = 'schedule_ingest.capture_session'::regclass and attname = 'state';
begin
    if exists (
        select from pg_attrdef where adrelid = 'schedule_ingest.capture_session'::regclass and adnum = which
    ) then
        return;
    end if;
    alter table schedule_ingest.capture_session alter state set default 'pending';
    if col_description('schedule_ingest.capture_session'::regclass, which) is null then
        comment on column schedule_ingest.capture_session.state is 'default made by Holdfast';
    end if;
end
$$;

do $$
declare
    which smallint := attnum from pg_attribute
        where attrelid = 'schedule_ingest.capture_session'::regclass and attname = 'created_at';
begin
    if exists (
        select from pg_attrdef where adrelid = 'schedule_ingest.capture_session'::regclass and adnum = which
    ) then
        return;
    end if;
    alter table schedule_ingest.capture_session alter created_at set default now();
    if col_description('schedule_ingest.capture_session'::regclass, which) is null then
        comment on column schedule_ingest.capture_session.created_at is 'default made by Holdfast';
    end if;
end
$$;

do $$
declare
    which smallint := attnum from pg_attribute
        where attrelid = 'schedule_ingest.capture_image'::regclass and attname = 'id';
begin
    if exists (
        select from pg_attrdef where adrelid = 'schedule_ingest.capture_image'::regclass and adnum = which
    ) then
        return;
    end if;
    alter table schedule_ingest.capture_image alter id set default gen_random_uuid();
    if col_description('schedule_ingest.capture_image'::regclass, which) is null then
        comment on column schedule_ingest.capture_image.id is 'default made by Holdfast';
    end if;
end
$$;

do $$
declare
    which smallint := attnum from pg_attribute
        where attrelid = 'schedule_ingest.capture_image'::regclass and attname = 'created_at';
begin
    if exists (
        select from pg_attrdef where adrelid = 'schedule_ingest.capture_image'::regclass and adnum = which
    ) then
        return;
    end if;
    alter table schedule_ingest.capture_image alter created_at set default now();
    if col_description('schedule_ingest.capture_image'::regclass, which) is null then
        comment on column schedule_ingest.capture_image.created_at is 'default made by Holdfast';
    end if;
end
$$;

do $$
declare
    which smallint := attnum from pg_attribute
        where attrelid = 'schedule_ingest.schedule_version'::regclass and attname = 'created_at';
begin
    if exists (
        select from pg_attrdef where adrelid = 'schedule_ingest.schedule_version'::regclass and adnum = which
    ) then
        return;
    end if;
    alter table schedule_ingest.schedule_version alter created_at set default now();
    if col_description('schedule_ingest.schedule_version'::regclass, which) is null then
        comment on column schedule_ingest.schedule_version.created_at is 'default made by Holdfast';
    end if;
end
$$;

do $$
declare
    which smallint := attnum from pg_attribute
        where attrelid = 'schedule_ingest.schedule_notification'::regclass and attname = 'status';
begin
    if exists (
        select from pg_attrdef where adrelid = 'schedule_ingest.schedule_notification'::regclass and adnum = which
    ) then
        return;
    end if;
    alter table schedule_ingest.schedule_notification alter status set default 'pending';
    if col_description('schedule_ingest.schedule_notification'::regclass, which) is null then
        comment on column schedule_ingest.schedule_notification.status is 'default made by Holdfast';
    end if;
end
$$;

do $$
declare
    which smallint := attnum from pg_attribute
        where attrelid = 'schedule_ingest.schedule_notification'::regclass and attname = 'created_at';
begin
    if exists (
        select from pg_attrdef where adrelid = 'schedule_ingest.schedule_notification'::regclass and adnum = which
    ) then
        return;
    end if;
    alter table schedule_ingest.schedule_notification alter created_at set default now();
    if col_description('schedule_ingest.schedule_notification'::regclass, which) is null then
        comment on column schedule_ingest.schedule_notification.created_at is 'default made by Holdfast';
    end if;
end
$$;

do $$
begin
    if exists (
        select from pg_constraint
        where conrelid = 'schedule_ingest.schedule_version'::regclass and conname = 'ck_schedule_version'
    ) then
        return;
    end if;
    alter table schedule_ingest.schedule_version add constraint ck_schedule_version check (version > 0 and payload_hash <> '') not valid;
    comment on constraint ck_schedule_version on schedule_ingest.schedule_version is 'made by Holdfast';
    begin
        alter table schedule_ingest.schedule_version validate constraint ck_schedule_version;
    exception when check_violation then
        raise notice 'old rows of schedule_ingest.schedule_version break ck_schedule_version, which holds for new ones only';
    end;
end
$$;

do $$
begin
    if exists (
        select from pg_constraint
        where conrelid = 'schedule_ingest.schedule_notification'::regclass and conname = 'ck_schedule_notification_sent'
    ) then
        return;
    end if;
    alter table schedule_ingest.schedule_notification add constraint ck_schedule_notification_sent check ((status = 'sent') = (sent_at is not null)) not valid;
    comment on constraint ck_schedule_notification_sent on schedule_ingest.schedule_notification is 'made by Holdfast';
    begin
        alter table schedule_ingest.schedule_notification validate constraint ck_schedule_notification_sent;
    exception when check_violation then
        raise notice 'old rows of schedule_ingest.schedule_notification break ck_schedule_notification_sent, which holds for new ones only';
    end;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_capture_session_pending') is null then
        create index ix_capture_session_pending on schedule_ingest.capture_session (created_at, id) where state = 'pending';
        comment on index schedule_ingest.ix_capture_session_pending is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_capture_session_stale') is null then
        create index ix_capture_session_stale on schedule_ingest.capture_session (locked_at) where state = 'processing';
        comment on index schedule_ingest.ix_capture_session_stale is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_capture_session_held') is null then
        create index ix_capture_session_held on schedule_ingest.capture_session (created_at, id) where state = 'processing';
        comment on index schedule_ingest.ix_capture_session_held is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_capture_session_worker') is null then
        create index ix_capture_session_worker on schedule_ingest.capture_session (locked_by) where state = 'processing';
        comment on index schedule_ingest.ix_capture_session_worker is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_capture_session_user') is null then
        create index ix_capture_session_user on schedule_ingest.
    capture_session (user_id, created_at, id) where state in ('pending', 'processing');
        comment on index schedule_ingest.ix_capture_session_user is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_capture_session_listed') is null then
        create index ix_capture_session_listed on schedule_ingest.capture_session (created_at, id);
        comment on index schedule_ingest.ix_capture_session_listed is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_capture_session_of_user') is null then
        create index ix_capture_session_of_user on schedule_ingest.capture_session (user_id, created_at, id);
        comment on index schedule_ingest.ix_capture_session_of_user is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_capture_session_failed') is null then
        create index ix_capture_session_failed on schedule_ingest.capture_session (created_at, id) where state = 'failed';
        comment on index schedule_ingest.ix_capture_session_failed is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_capture_image_session_created') is null then
        create index ix_capture_image_session_created on schedule_ingest.capture_image (session_id, created_at desc);
        comment on index schedule_ingest.ix_capture_image_session_created is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_day_schedule_listed') is null then
        create index ix_day_schedule_listed on schedule_ingest.day_schedule (schedule_date, user_id);
        comment on index schedule_ingest.ix_day_schedule_listed is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_schedule_version_day') is null then
        create index ix_schedule_version_day on schedule_ingest.schedule_version (user_id, schedule_date, created_at desc);
        comment on index schedule_ingest.ix_schedule_version_day is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_schedule_event_day') is null then
        create index ix_schedule_event_day on schedule_ingest.schedule_event (user_id, schedule_date, detected_at desc);
        comment on index schedule_ingest.ix_schedule_event_day is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_schedule_event_session') is null then
        create index ix_schedule_event_session on schedule_ingest.schedule_event (source_session_id);
        comment on index schedule_ingest.ix_schedule_event_session is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_schedule_notification_pending') is null then
        create index ix_schedule_notification_pending on schedule_ingest.
    schedule_notification (created_at, notification_id) where status = 'pending';
        comment on index schedule_ingest.ix_schedule_notification_pending is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_schedule_notification_day') is null then
        create index ix_schedule_notification_day on schedule_ingest.schedule_notification (user_id, schedule_date, created_at desc);
        comment on index schedule_ingest.ix_schedule_notification_day is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_schedule_notification_user') is null then
        create index ix_schedule_notification_user on schedule_ingest.
    schedule_notification (user_id, created_at, notification_id) where status = 'pending';
        comment on index schedule_ingest.ix_schedule_notification_user is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_schedule_notification_listed') is null then
        create index ix_schedule_notification_listed on schedule_ingest.schedule_notification (created_at, notification_id);
        comment on index schedule_ingest.ix_schedule_notification_listed is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_schedule_notification_of_user') is null then
        create index ix_schedule_notification_of_user on schedule_ingest.schedule_notification (user_id, created_at, notification_id);
        comment on index schedule_ingest.ix_schedule_notification_of_user is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_schedule_notification_failed') is null then
        create index ix_schedule_notification_failed on schedule_ingest.
    schedule_notification (created_at, notification_id) where status = 'failed';
        comment on index schedule_ingest.ix_schedule_notification_failed is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_schedule_notification_session') is null then
        create index ix_schedule_notification_session on schedule_ingest.schedule_notification (source_session_id);
        comment on index schedule_ingest.ix_schedule_notification_session is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_capture_attempt_worker') is null then
        create index ix_capture_attempt_worker on schedule_ingest.capture_attempt (worker, claimed_at);
        comment on index schedule_ingest.ix_capture_attempt_worker is 'made by Holdfast';
    end if;
end
$$;

do $$
begin
    if to_regclass('schedule_ingest.ix_capture_attempt_lost') is null then
        create index ix_capture_attempt_lost on schedule_ingest.capture_attempt (claimed_at) where outcome = 'lost';
        comment on index schedule_ingest.ix_capture_attempt_lost is 'made by Holdfast';
    end if;
end
$$;

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
$$;

grant select on
    schedule_ingest.capture_session, schedule_ingest.capture_image, schedule_ingest.day_schedule,
    schedule_ingest.schedule_version, schedule_ingest.day_snapshot, schedule_ingest.schedule_event,
    schedule_ingest.schedule_notification, schedule_ingest.capture_attempt,
    schedule_ingest.notification_attempt
to holdfast_worker;

grant insert on
    schedule_ingest.schedule_version, schedule_ingest.day_snapshot, schedule_ingest.schedule_event,
    schedule_ingest.schedule_notification, schedule_ingest.capture_attempt,
    schedule_ingest.notification_attempt
to holdfast_worker;

grant update (state, error, locked_at, locked_by) on schedule_ingest.capture_session to holdfast_worker;

grant update (snapshot_payload, source_session_id, updated_at) on schedule_ingest.day_snapshot
to holdfast_worker;

grant update (status, sent_at) on schedule_ingest.schedule_notification to holdfast_worker;

grant update (ended_at, outcome) on schedule_ingest.capture_attempt to holdfast_worker;

grant update (error, next_at) on schedule_ingest.notification_attempt to holdfast_worker;

do $$
begin
    grant usage on schema schedule_ingest to holdfast_worker;
exception when insufficient_privilege then
    raise notice 'holdfast_worker may need `grant usage on schema schedule_ingest` from its owner';
end
$$;

delete from holdfast_version;
insert into holdfast_version (version_num) values ('0005');
end
$holdfast$;
