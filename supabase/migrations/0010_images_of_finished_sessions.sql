-- Holdfast 0010: schedule_ingest: images of finished sessions stay
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
if (select max(version_num) from holdfast_version) is distinct from '0009' then
    return;
end if;

create or replace function schedule_ingest.holdfast_image_keep() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
declare
    found_in text;
begin
    if tg_op = 'TRUNCATE' then
        raise exception using message = 'capture_image is a record, and truncate is refused: only '
            || 'images of open sessions can be deleted, row by row';
    end if;
    select state into found_in from schedule_ingest.capture_session where id = old.session_id for share;
    if found_in in ('done', 'failed') then
        raise exception using message = 'the capture session ' || old.session_id || ' is ' || found_in
            || ', and its images cannot be deleted: ' || case found_in
            when 'done' then 'only schedule_ingest.erase(user) deletes them, with all rows of the user'
            else 'requeue the session first' end;
    end if;
    return old;
end
$body$;

comment on function schedule_ingest.holdfast_image_keep() is 'made by Holdfast';

create or replace trigger holdfast_image_keep before delete on schedule_ingest.capture_image
for each row when (
    schedule_ingest.holdfast_erasing(nullif(current_setting('holdfast.erasing', true), '')::bigint)
    is not true
) execute function schedule_ingest.holdfast_image_keep();

create or replace trigger holdfast_image_keep_all before truncate on schedule_ingest.capture_image
for each statement execute function schedule_ingest.holdfast_image_keep();

do $$
declare
    signature constant text := 'schedule_ingest.holdfast_image_keep()';
begin
    execute 'revoke all on function ' || signature || ' from public';
    execute 'alter function ' || signature || ' owner to ' || (
        select quote_ident(pg_get_userbyid(proowner)) from pg_proc
        where oid = to_regprocedure('schedule_ingest.erase(bigint)')
    );
end
$$;

delete from holdfast_version;
insert into holdfast_version (version_num) values ('0010');
end
$holdfast$;
