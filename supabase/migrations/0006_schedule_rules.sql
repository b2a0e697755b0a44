-- Holdfast 0006: schedule_ingest: what the database itself keeps to, and the one way to take rows away
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
if (select max(version_num) from holdfast_version) is distinct from '0005' then
    return;
end if;

do $$
begin
    if to_regprocedure('schedule_ingest.erase(bigint)') is not null
        and obj_description(to_regprocedure('schedule_ingest.erase(bigint)'), 'pg_proc')
            is distinct from 'made by Holdfast' then
        raise exception using message =
            'there is already another function schedule_ingest.erase(bigint): rename it';
    end if;
end
$$;

create or replace function schedule_ingest.holdfast_session_guard() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $body$
declare
    allowed text[] := case old.state::text
        when 'pending' then array['processing', 'failed']
        when 'processing' then array['done', 'failed', 'pending']
        when 'failed' then array['pending']
        else array[]::text[]
    end;
begin
    if new.state::text <> all (allowed) then
        raise exception using message = 'a capture session cannot go from ' || old.state || ' to '
            || new.state || ': ' || case when allowed = '{}' then old.state || ' is final'
            else 'from ' || old.state || ' it goes to ' || array_to_string(allowed, ' or ') end;
    end if;
    if old.state = 'failed' and new.error is not distinct from old.error then
        new.error = null;
    end if;
    return new;
end
$body$;

create or replace function schedule_ingest.holdfast_notice_guard() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $body$
begin
    if old.status = 'pending' or (old.status, new.status) = ('failed', 'pending') then
        return new;
    end if;
    raise exception using message = 'a message cannot go from ' || old.status || ' to ' || new.status || ': '
        || case old.status when 'sent' then 'sent is final' else 'from failed it goes to pending' end;
end
$body$;

create or replace function schedule_ingest.holdfast_session_returns() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
declare
    at timestamptz := clock_timestamp();
    last record;
begin
    update schedule_ingest.capture_attempt set ended_at = at, outcome = 'failed'
        where session_id = new.id and ended_at is null;
    select attempt, outcome into last from schedule_ingest.capture_attempt
        where session_id = new.id order by attempt desc limit 1;
    if last is null or last.outcome is distinct from 'failed' then
        insert into schedule_ingest.capture_attempt
            (session_id, attempt, worker, claimed_at, ended_at, outcome)
        values (new.id, coalesce(last.attempt, 0) + 1, '-', at, at, 'failed');
    end if;
    return null;
end
$body$;

create or replace function schedule_ingest.holdfast_image_guard() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
declare
    found_in text;
begin
    if tg_op = 'UPDATE' then
        raise exception using message = 'an image is never changed: add another one, with the next sequence';
    end if;
    select state into found_in from schedule_ingest.capture_session where id = new.session_id for key share;
    if found_in in ('done', 'failed') then
        raise exception using message = 'the capture session ' || new.session_id || ' is ' || found_in
            || ', and an image would never be read: '
            || case found_in when 'done' then 'begin another session' else 'requeue the session first' end;
    end if;
    return new;
end
$body$;

create or replace function schedule_ingest.holdfast_version_guard() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
declare
    session record;
    wanted integer;
    amiss text;
begin
    if exists (
        select from schedule_ingest.schedule_version where session_id = new.session_id
        or (user_id, schedule_date, version) = (new.user_id, new.schedule_date, new.version)
    ) then
        return new;
    end if;
    select user_id, state::text into session from schedule_ingest.capture_session
        where id = new.session_id for no key update;
    select 1 + current_version into wanted from schedule_ingest.day_schedule
        where user_id = new.user_id and schedule_date = new.schedule_date;
    wanted = coalesce(wanted, 1);
    amiss = case
        when session is null then 'there is no capture session ' || new.session_id
        when session.user_id <> new.user_id then
            'the capture session ' || new.session_id || ' is of another user: a version is of its own user'
        when session.state not in ('processing', 'done') then
            'the capture session ' || new.session_id || ' is ' || session.state
            || ': a version is made by one that is processing or done'
        when new.version is distinct from wanted then
            'the next version of this day is ' || wanted || ', not ' || coalesce(new.version::text, 'null')
    end;
    if amiss is not null then
        raise exception using message = amiss;
    end if;
    return new;
end
$body$;

create or replace function schedule_ingest.holdfast_version_points() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
begin
    insert into schedule_ingest.day_schedule as known (user_id, schedule_date, current_version)
    values (new.user_id, new.schedule_date, new.version)
    on conflict (user_id, schedule_date) do update set current_version = excluded.current_version
    where known.current_version < excluded.current_version;
    return null;
end
$body$;

create or replace function schedule_ingest.holdfast_erasing(who bigint) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp as $body$
begin
    return current_setting('holdfast.erasing', true) = who::text and exists (
        select from pg_proc where oid = to_regprocedure('schedule_ingest.erase(bigint)')
        and pg_get_userbyid(proowner) = current_user
    );
end
$body$;

create or replace function schedule_ingest.holdfast_keep() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $body$
begin
    if tg_op = 'DELETE' and schedule_ingest.holdfast_erasing(old.user_id) then
        return old;
    end if;
    raise exception using message = tg_table_name || ' is a record, and ' || lower(tg_op)
        || ' is refused: only schedule_ingest.erase(user) takes rows away, all of one user';
end
$body$;

create or replace function schedule_ingest.holdfast_pointer_guard() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $body$
begin
    if tg_op = 'DELETE' and schedule_ingest.holdfast_erasing(old.user_id) then
        return old;
    end if;
    if (tg_op = 'INSERT' or tg_op = 'UPDATE' and new.current_version >= old.current_version
        and (new.user_id, new.schedule_date) = (old.user_id, old.schedule_date)
    ) and new.current_version = (
        select max(version) from schedule_ingest.schedule_version
        where user_id = new.user_id and schedule_date = new.schedule_date
    ) then
        return new;
    end if;
    raise exception using message = 'day_schedule follows the versions and never goes back: insert a version';
end
$body$;

create or replace function schedule_ingest.holdfast_days(who bigint) returns date[]
language sql stable set search_path = pg_catalog, pg_temp as $body$
    select coalesce(array_agg(schedule_date), '{}') from (
        select schedule_date from schedule_ingest.day_schedule where user_id = who
        union select schedule_date from schedule_ingest.schedule_version where user_id = who
        union select schedule_date from schedule_ingest.day_snapshot where user_id = who
        union select schedule_date from schedule_ingest.schedule_event where user_id = who
        union select schedule_date from schedule_ingest.schedule_notification where user_id = who
    ) as known
$body$;

create or replace function schedule_ingest.erase(who bigint) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
declare
    days date[];
    sessions uuid[];
    gone bigint;
    counts jsonb = '{}';
begin
    if who is null then
        raise exception using message = 'erase needs a user';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using message = 'erase must see what others have just written: use READ COMMITTED';
    end if;
    days = schedule_ingest.holdfast_days(who);
    perform pg_advisory_xact_lock(key) from (
        select ('x' || encode(substring(sha256(convert_to(
            who || ':' || to_char(day, 'YYYY-MM-DD'), 'UTF8')) for 8), 'hex'))::bit(64)::bigint as key
        from unnest(days) as day order by 1
    ) as keys;
    sessions = array(
        select id from schedule_ingest.capture_session where user_id = who order by id for update
    );
    perform from schedule_ingest.schedule_notification where user_id = who order by notification_id
        for update;
    if not schedule_ingest.holdfast_days(who) <@ days then
        raise exception using errcode = 'serialization_failure', message =
            'a day of user ' || who || ' has come in meanwhile: nothing was erased, try again';
    end if;
    perform set_config('holdfast.erasing', who::text, true);
    delete from schedule_ingest.notification_attempt where notification_id in (
        select notification_id from schedule_ingest.schedule_notification where user_id = who
    );
    get diagnostics gone = row_count;
    counts = counts || jsonb_build_object('notification_attempt', gone);
    delete from schedule_ingest.schedule_notification where user_id = who;
    get diagnostics gone = row_count;
    counts = counts || jsonb_build_object('schedule_notification', gone);
    delete from schedule_ingest.schedule_event where user_id = who;
    get diagnostics gone = row_count;
    counts = counts || jsonb_build_object('schedule_event', gone);
    delete from schedule_ingest.day_snapshot where user_id = who;
    get diagnostics gone = row_count;
    counts = counts || jsonb_build_object('day_snapshot', gone);
    delete from schedule_ingest.schedule_version where user_id = who;
    get diagnostics gone = row_count;
    counts = counts || jsonb_build_object('schedule_version', gone);
    delete from schedule_ingest.day_schedule where user_id = who;
    get diagnostics gone = row_count;
    counts = counts || jsonb_build_object('day_schedule', gone);
    delete from schedule_ingest.capture_attempt where session_id = any (sessions);
    get diagnostics gone = row_count;
    counts = counts || jsonb_build_object('capture_attempt', gone);
    delete from schedule_ingest.capture_image where session_id = any (sessions);
    get diagnostics gone = row_count;
    counts = counts || jsonb_build_object('capture_image', gone);
    delete from schedule_ingest.capture_session where id = any (sessions);
    get diagnostics gone = row_count;
    counts = counts || jsonb_build_object('capture_session', gone);
    perform set_config('holdfast.erasing', '', true);
    if exists (select from schedule_ingest.capture_session where user_id = who) then
        raise exception using errcode = 'serialization_failure', message =
            'a session of user ' || who || ' has come in meanwhile: nothing was erased, try again';
    end if;
    return counts;
end
$body$;

comment on function schedule_ingest.holdfast_session_guard() is 'made by Holdfast';

comment on function schedule_ingest.holdfast_notice_guard() is 'made by Holdfast';

comment on function schedule_ingest.holdfast_session_returns() is 'made by Holdfast';

comment on function schedule_ingest.holdfast_image_guard() is 'made by Holdfast';

comment on function schedule_ingest.holdfast_version_guard() is 'made by Holdfast';

comment on function schedule_ingest.holdfast_version_points() is 'made by Holdfast';

comment on function schedule_ingest.holdfast_keep() is 'made by Holdfast';

comment on function schedule_ingest.holdfast_pointer_guard() is 'made by Holdfast';

comment on function schedule_ingest.holdfast_erasing(bigint) is 'made by Holdfast';

comment on function schedule_ingest.holdfast_days(bigint) is 'made by Holdfast';

comment on function schedule_ingest.erase(bigint) is 'made by Holdfast';

do $$
declare
    signature text;
begin
    foreach signature in array array[
        'holdfast_session_returns()', 'holdfast_image_guard()', 'holdfast_version_guard()',
        'holdfast_version_points()', 'holdfast_days(bigint)', 'erase(bigint)'
    ] loop
        execute 'revoke all on function schedule_ingest.' || signature || ' from public';
    end loop;
end
$$;

create or replace trigger holdfast_session_guard before update on schedule_ingest.capture_session
for each row when (old.state is distinct from new.state) execute function schedule_ingest.holdfast_session_guard();

create or replace trigger holdfast_session_returns after update on schedule_ingest.capture_session
for each row when (old.state = 'failed' and new.state = 'pending') execute function schedule_ingest.holdfast_session_returns();

create or replace trigger holdfast_notice_guard before update on schedule_ingest.schedule_notification
for each row when (old.status is distinct from new.status) execute function schedule_ingest.holdfast_notice_guard();

create or replace trigger holdfast_image_guard before insert or update on schedule_ingest.capture_image
for each row execute function schedule_ingest.holdfast_image_guard();

create or replace trigger holdfast_version_guard before insert on schedule_ingest.schedule_version
for each row execute function schedule_ingest.holdfast_version_guard();

create or replace trigger holdfast_version_points after insert on schedule_ingest.schedule_version
for each row execute function schedule_ingest.holdfast_version_points();

create or replace trigger holdfast_keep before update or delete on schedule_ingest.schedule_version
for each row execute function schedule_ingest.holdfast_keep();

create or replace trigger holdfast_keep_all before truncate on schedule_ingest.schedule_version
for each statement execute function schedule_ingest.holdfast_keep();

create or replace trigger holdfast_keep before update or delete on schedule_ingest.schedule_event
for each row execute function schedule_ingest.holdfast_keep();

create or replace trigger holdfast_keep_all before truncate on schedule_ingest.schedule_event
for each statement execute function schedule_ingest.holdfast_keep();

create or replace trigger holdfast_pointer_guard before insert or update or delete on schedule_ingest.day_schedule
for each row execute function schedule_ingest.holdfast_pointer_guard();

create or replace trigger holdfast_pointer_guard_all before truncate on schedule_ingest.day_schedule
for each statement execute function schedule_ingest.holdfast_pointer_guard();

delete from holdfast_version;
insert into holdfast_version (version_num) values ('0006');
end
$holdfast$;
