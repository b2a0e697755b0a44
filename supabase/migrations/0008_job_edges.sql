-- Holdfast 0008: job: a change of status that no edge of the lifecycle allows is refused
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
if (select max(version_num) from holdfast_version) is distinct from '0007' then
    return;
end if;

create function job_refuse_status() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $body$
begin
    raise exception using errcode = 'check_violation', message =
        'job ' || old.id || ' cannot change from ' || old.status || ' to ' || new.status
        || ': no edge of its lifecycle leads there',
        hint = 'use `holdfast cancel` or `holdfast requeue`, which also write the event';
end
$body$;

create trigger trg_job__edges
after update of status on job
for each row when (
    old.status <> new.status and not (
        old.status = 'running' and new.status in ('succeeded', 'failed', 'dead_letter', 'queued', 'canceled')
        or old.status = 'queued' and new.status in ('running', 'canceled')
        or old.status = 'failed' and new.status in ('running', 'queued', 'dead_letter', 'canceled')
        or old.status = 'dead_letter' and new.status = 'queued'
    )
) execute function job_refuse_status();

delete from holdfast_version;
insert into holdfast_version (version_num) values ('0008');
end
$holdfast$;
