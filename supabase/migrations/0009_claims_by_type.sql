-- Holdfast 0009: indexes for workers that claim some types only
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
if (select max(version_num) from holdfast_version) is distinct from '0008' then
    return;
end if;

create index idx_job__claimable_by_type on job (queue, type, priority desc, run_at) where status in ('queued', 'failed');

create index idx_tasks_claimable_by_type on tasks (type, priority desc, created_at) where status = 'pending' and next_retry_at is null;

create index idx_tasks_due_retry_by_type on tasks (type, priority desc, next_retry_at) where status = 'pending' and next_retry_at is not null;

delete from holdfast_version;
insert into holdfast_version (version_num) values ('0009');
end
$holdfast$;
