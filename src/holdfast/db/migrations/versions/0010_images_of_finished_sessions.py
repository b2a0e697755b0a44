"""schedule_ingest: images of finished sessions stay

An image is an input of its session. Once the session is done or failed, only `erase` deletes it. An image
of an open session may still be withdrawn; updates were refused before.
"""

from alembic import op

revision = "0010"
down_revision = "0009"

# The lock meets every UPDATE of the session: a delete either comes before the finish, which then finds the
# image gone, or waits for the finish and is refused. A session that is missing was deleted in this
# transaction, by an owner whose foreign key cascades. The function runs as its owner: the caller may have no
# right to read sessions.
KEEP = """
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
$body$
"""

# The condition is evaluated as the caller, so that the setting counts only for the owner of `erase`.
TRIGGERS = (
    """
create or replace trigger holdfast_image_keep before delete on schedule_ingest.capture_image
for each row when (
    schedule_ingest.holdfast_erasing(nullif(current_setting('holdfast.erasing', true), '')::bigint)
    is not true
) execute function schedule_ingest.holdfast_image_keep()
""",
    """
create or replace trigger holdfast_image_keep_all before truncate on schedule_ingest.capture_image
for each statement execute function schedule_ingest.holdfast_image_keep()
""",
)

# All functions of the schema have one owner, so that the same login can downgrade.
CONFINE = """
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
$$
"""

# While another Holdfast of this database is at this revision, the rule stays.
LEAVE = """
do $$
declare
    other regclass;
    at text;
begin
    for other in select oid from pg_class where relname = 'holdfast_version' and relkind = 'r'
        and relnamespace <> quote_ident(current_schema())::regnamespace
    loop
        begin
            execute 'select max(version_num) from ' || other into at;
        exception when insufficient_privilege then
            at := 'unknown';
        end;
        if at >= '0010' then
            return;
        end if;
    end loop;
    drop trigger if exists holdfast_image_keep_all on schedule_ingest.capture_image;
    drop trigger if exists holdfast_image_keep on schedule_ingest.capture_image;
    drop function if exists schedule_ingest.holdfast_image_keep();
end
$$
"""


def upgrade() -> None:
    op.execute(KEEP)
    op.execute("comment on function schedule_ingest.holdfast_image_keep() is 'made by Holdfast'")
    for trigger in TRIGGERS:
        op.execute(trigger)
    op.execute(CONFINE)


def downgrade() -> None:
    op.execute(LEAVE)
