"""schedule_ingest: what the database itself keeps to, and the one way to take rows away

These hold for everybody who writes to the tables, and so also for the service that shares them. Functions and
triggers are named `holdfast_…`, but for `erase`; a downgrade takes these away, and no row.
"""

from alembic import op

revision = "0006"
down_revision = "0005"

FREE = """
do $$
begin
    if to_regprocedure('schedule_ingest.erase(bigint)') is not null
        and obj_description(to_regprocedure('schedule_ingest.erase(bigint)'), 'pg_proc')
            is distinct from 'made by Holdfast' then
        raise exception using message =
            'there is already another function schedule_ingest.erase(bigint): rename it';
    end if;
end
$$
"""

# The names in these functions are complete, and a temporary object of the caller's never stands in for one.
# Those that look at other tables do so as their owner: the caller may have no right to read or lock there.

# Only a change of state comes here, so that a heartbeat costs nothing. Whether a lease is stale is for the
# claim to judge. Another text instead of the old error is no leftover: the constraint will refuse it.
SESSION = """
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
$body$
"""

# Whoever sends: what was sent stays sent.
NOTICE = """
create or replace function schedule_ingest.holdfast_notice_guard() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $body$
begin
    if old.status = 'pending' or (old.status, new.status) = ('failed', 'pending') then
        return new;
    end if;
    raise exception using message = 'a message cannot go from ' || old.status || ' to ' || new.status || ': '
        || case old.status when 'sent' then 'sent is final' else 'from failed it goes to pending' end;
end
$body$
"""

# A session that is let run again was tried, whoever ended it and whoever says so: else it would pass for a
# first attempt, and could turn the day back. A requeue of ours has written the same already.
RETURN = """
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
$body$
"""

# The lock waits for whoever is finishing the session, and makes him wait who wants to finish it: so an image
# is either seen by the finish, or sees that it comes too late. A session that is not there is for the foreign
# key to refuse.
IMAGE = """
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
$body$
"""

# A trigger comes before any ON CONFLICT. A row that is there already, by number or by session, must come to
# the unique constraints, or nobody could tell an old row from a new one.
VERSION = """
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
$body$
"""

POINT = """
create or replace function schedule_ingest.holdfast_version_points() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
begin
    insert into schedule_ingest.day_schedule as known (user_id, schedule_date, current_version)
    values (new.user_id, new.schedule_date, new.version)
    on conflict (user_id, schedule_date) do update set current_version = excluded.current_version
    where known.current_version < excluded.current_version;
    return null;
end
$body$
"""

# Anybody may set the setting. So it counts only for who deletes as the owner of `erase`, as `erase` itself
# does. The owner, and who may become the owner, could still forge it: but they could drop the triggers, too.
ERASING = """
create or replace function schedule_ingest.holdfast_erasing(who bigint) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp as $body$
begin
    return current_setting('holdfast.erasing', true) = who::text and exists (
        select from pg_proc where oid = to_regprocedure('schedule_ingest.erase(bigint)')
        and pg_get_userbyid(proowner) = current_user
    );
end
$body$
"""

KEEP = """
create or replace function schedule_ingest.holdfast_keep() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $body$
begin
    if tg_op = 'DELETE' and schedule_ingest.holdfast_erasing(old.user_id) then
        return old;
    end if;
    raise exception using message = tg_table_name || ' is a record, and ' || lower(tg_op)
        || ' is refused: only schedule_ingest.erase(user) takes rows away, all of one user';
end
$body$
"""

# The pointer follows the versions: it goes nowhere but to the last one, and back for nobody.
POINTER = """
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
$body$
"""

# Locks in a worker's order: the days, then the sessions. From then on nothing of this user can be written but
# by a session that has come since; that one is looked for at the end.
ERASE = """
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
$body$
"""

# Every day of which there is something of this user.
DAYS = """
create or replace function schedule_ingest.holdfast_days(who bigint) returns date[]
language sql stable set search_path = pg_catalog, pg_temp as $body$
    select coalesce(array_agg(schedule_date), '{}') from (
        select schedule_date from schedule_ingest.day_schedule where user_id = who
        union select schedule_date from schedule_ingest.schedule_version where user_id = who
        union select schedule_date from schedule_ingest.day_snapshot where user_id = who
        union select schedule_date from schedule_ingest.schedule_event where user_id = who
        union select schedule_date from schedule_ingest.schedule_notification where user_id = who
    ) as known
$body$
"""

FUNCTIONS = (SESSION, NOTICE, RETURN, IMAGE, VERSION, POINT, ERASING, KEEP, POINTER, DAYS, ERASE)

NAMES = (
    "holdfast_session_guard()",
    "holdfast_notice_guard()",
    "holdfast_session_returns()",
    "holdfast_image_guard()",
    "holdfast_version_guard()",
    "holdfast_version_points()",
    "holdfast_keep()",
    "holdfast_pointer_guard()",
    "holdfast_erasing(bigint)",
    "holdfast_days(bigint)",
    "erase(bigint)",
)

# Nobody but the owner may erase.
CONFINE = """
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
$$
"""

TRIGGERS = (
    (
        "capture_session",
        "before update",
        "for each row when (old.state is distinct from new.state)",
        "session_guard",
    ),
    (
        "capture_session",
        "after update",
        "for each row when (old.state = 'failed' and new.state = 'pending')",
        "session_returns",
    ),
    (
        "schedule_notification",
        "before update",
        "for each row when (old.status is distinct from new.status)",
        "notice_guard",
    ),
    ("capture_image", "before insert or update", "for each row", "image_guard"),
    ("schedule_version", "before insert", "for each row", "version_guard"),
    ("schedule_version", "after insert", "for each row", "version_points"),
    ("schedule_version", "before update or delete", "for each row", "keep"),
    ("schedule_version", "before truncate", "for each statement", "keep"),
    ("schedule_event", "before update or delete", "for each row", "keep"),
    ("schedule_event", "before truncate", "for each statement", "keep"),
    ("day_schedule", "before insert or update or delete", "for each row", "pointer_guard"),
    ("day_schedule", "before truncate", "for each statement", "pointer_guard"),
)

# As with the tables: another Holdfast of this database may rely on these.
LEAVE = """
do $$
declare
    other regclass;
    at text;
    one record;
begin
    for other in select oid from pg_class where relname = 'holdfast_version' and relkind = 'r'
        and relnamespace <> quote_ident(current_schema())::regnamespace
    loop
        begin
            execute 'select max(version_num) from ' || other into at;
        exception when insufficient_privilege then
            at := 'unknown';
        end;
        if at >= '0006' then
            raise notice using message = 'schedule_ingest stays: another Holdfast uses it, with ' || other;
            return;
        end if;
    end loop;
    for one in select tgname as name, tgrelid::regclass as of_table from pg_trigger
        where tgfoid in (
            select oid from pg_proc where pronamespace = to_regnamespace('schedule_ingest')
            and obj_description(oid, 'pg_proc') = 'made by Holdfast'
        )
    loop
        execute 'drop trigger ' || one.name || ' on ' || one.of_table;
    end loop;
    for one in select oid::regprocedure as name from pg_proc
        where pronamespace = to_regnamespace('schedule_ingest')
        and obj_description(oid, 'pg_proc') = 'made by Holdfast'
    loop
        execute 'drop function ' || one.name;
    end loop;
end
$$
"""


def upgrade() -> None:
    op.execute(FREE)
    for statement in FUNCTIONS:
        op.execute(statement)
    for name in NAMES:
        op.execute(f"comment on function schedule_ingest.{name} is 'made by Holdfast'")
    op.execute(CONFINE)
    for table, event, scope, function in TRIGGERS:
        name = f"holdfast_{function}" if scope.startswith("for each row") else f"holdfast_{function}_all"
        op.execute(
            f"create or replace trigger {name} {event} on schedule_ingest.{table}\n"
            f"{scope} execute function schedule_ingest.holdfast_{function}()"
        )


def downgrade() -> None:
    op.execute(LEAVE)
