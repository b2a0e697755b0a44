"""The live schema of `tasks` and `workers` is the seed's and the listed additions, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest

from holdfast.db import migrate

Database = psycopg.Connection[tuple[Any, ...]]

COLUMNS = """
select attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid)
from pg_attribute left join pg_attrdef on adrelid = attrelid and adnum = attnum
where attrelid = %s::regclass and attnum > 0
order by attnum
"""

INDEXES = """
select relname, replace(pg_get_indexdef(indexrelid), current_schema() || '.', '')
from pg_index join pg_class on oid = indexrelid
where indrelid = %s::regclass
"""

# PostgreSQL 18 lists NOT NULL here, too; COLUMNS has it.
CONSTRAINTS = """
select conname, pg_get_constraintdef(oid) from pg_constraint where conrelid = %s::regclass and contype <> 'n'
"""

TRIGGERS = """
select tgname, replace(pg_get_triggerdef(oid), current_schema() || '.', ''), tgenabled
from pg_trigger where tgrelid = %s::regclass
"""

EVERYTHING = """
select 'table', relname::text from pg_class
where relnamespace = current_schema()::regnamespace and relkind <> 'i'
union all
select 'function', proname::text from pg_proc where pronamespace = current_schema()::regnamespace
union all
select 'type', typname::text from pg_type
where typnamespace = current_schema()::regnamespace and typrelid = 0 and typelem = 0
order by 1, 2
"""

ENUM = """
CREATE TYPE task_status AS ENUM (
    'pending',      -- Waiting to be claimed
    'claimed',      -- Claimed by worker, not yet started
    'running',      -- Handler is executing
    'completed',    -- Finished successfully
    'failed',       -- Terminal failure (no handler, immediate fail)
    'dead_letter'   -- Exceeded max_retries
);
"""

ENQUEUE = """
-- Enqueue with idempotency key
INSERT INTO tasks (type, payload, idempotency_key)
VALUES ('email:send', '{"to":"user@example.com"}', 'email-user-123')
ON CONFLICT (type, idempotency_key) 
DO UPDATE SET updated_at = NOW()
RETURNING id;
"""  # noqa: W291 - the seed's own text

# The seed's $my_worker_id stands for a parameter in any client's notation; this one is psycopg's.
LEAD = """
-- Acquire leadership (atomic conditional update)
UPDATE workers
SET is_leader = TRUE, leader_until = NOW() + interval '30 seconds'
WHERE id = %(my_worker_id)s
  AND (
      -- No current leader
      NOT EXISTS (SELECT 1 FROM workers WHERE is_leader = TRUE AND leader_until > NOW())
      -- Or I'm already leader (extending my lease)
      OR (id = %(my_worker_id)s AND is_leader = TRUE)
  );
"""

TRIGGER = """
CREATE TRIGGER update_tasks_updated_at 
BEFORE UPDATE ON tasks
FOR EACH ROW EXECUTE FUNCTION update_updated_at_column();
"""  # noqa: W291 - the seed's own text

LOOKALIKE = """
CREATE FUNCTION update_updated_at_column() RETURNS TRIGGER AS $$
BEGIN
    NEW.updated_at = NOW();
    RETURN NEW;
END;
$$ LANGUAGE plpgsql
"""

FOREIGN = """
create function update_updated_at_column() returns trigger language plpgsql as
$$ begin new.updated_at = now(); new.edited_by = current_user; return new; end $$
"""

FUNCTION = "select oid, prosrc from pg_proc where proname = 'update_updated_at_column'"


@pytest.fixture
def db(empty_database_url: str) -> Iterator[Database]:
    migrate.upgrade(empty_database_url)
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        yield connection


def names_to(db: Database, query: LiteralString, table: str) -> dict[str, Any]:
    found = db.execute(query, [table]).fetchall()
    return {name: rest[0] if len(rest) == 1 else tuple(rest) for name, *rest in found}


def test_tasks_has_the_columns_of_the_seed_and_a_fence(db: Database) -> None:
    assert db.execute(COLUMNS, ["tasks"]).fetchall() == [
        ("id", "uuid", True, "gen_random_uuid()"),
        ("type", "text", True, None),
        ("payload", "jsonb", False, None),
        ("status", "task_status", True, "'pending'::task_status"),
        ("priority", "integer", True, "0"),
        ("idempotency_key", "text", False, None),
        ("worker_id", "text", False, None),
        ("created_at", "timestamp without time zone", True, "now()"),
        ("claimed_at", "timestamp without time zone", False, None),
        ("started_at", "timestamp without time zone", False, None),
        ("completed_at", "timestamp without time zone", False, None),
        ("updated_at", "timestamp without time zone", True, "now()"),
        ("attempts", "integer", True, "0"),
        ("max_retries", "integer", True, "3"),
        ("last_error", "text", False, None),
        ("next_retry_at", "timestamp without time zone", False, None),
        ("fence", "bigint", True, "0"),
        ("traceparent", "text", False, None),
    ]


def test_workers_has_the_columns_of_the_seed_and_what_it_serves(db: Database) -> None:
    assert db.execute(COLUMNS, ["workers"]).fetchall() == [
        ("id", "text", True, None),
        ("hostname", "text", True, None),
        ("started_at", "timestamp without time zone", True, "now()"),
        ("last_heartbeat", "timestamp without time zone", True, "now()"),
        ("pool_size", "integer", True, None),
        ("version", "text", False, None),
        ("is_leader", "boolean", True, "false"),
        ("leader_until", "timestamp without time zone", False, None),
        ("serves", "text[]", True, "'{}'::text[]"),
        ("shares", "jsonb", True, "'{}'::jsonb"),
    ]


def test_the_enum_has_the_six_states_in_order(db: Database) -> None:
    row = db.execute("select enum_range(null::task_status)::text").fetchone()
    assert row == ("{pending,claimed,running,completed,failed,dead_letter}",)


def test_tasks_has_the_constraints_of_the_seed(db: Database) -> None:
    assert names_to(db, CONSTRAINTS, "tasks") == {
        "tasks_pkey": "PRIMARY KEY (id)",
        "unique_idempotency_key": "UNIQUE (type, idempotency_key)",
    }


def test_workers_has_the_constraint_of_the_seed(db: Database) -> None:
    assert names_to(db, CONSTRAINTS, "workers") == {"workers_pkey": "PRIMARY KEY (id)"}


def test_tasks_has_the_indexes_of_the_seed_a_second_lane_and_the_held_rows(db: Database) -> None:
    pending = "status = 'pending'::task_status"
    held = "status = ANY (ARRAY['claimed'::task_status, 'running'::task_status])"
    on = "ON tasks USING btree"
    assert names_to(db, INDEXES, "tasks") == {
        "tasks_pkey": f"CREATE UNIQUE INDEX tasks_pkey {on} (id)",
        "unique_idempotency_key": f"CREATE UNIQUE INDEX unique_idempotency_key {on} (type, idempotency_key)",
        "idx_tasks_claimable": f"CREATE INDEX idx_tasks_claimable {on} (priority DESC, created_at)"
        f" WHERE (({pending}) AND (next_retry_at IS NULL))",
        "idx_tasks_due_retry": f"CREATE INDEX idx_tasks_due_retry {on} (priority DESC, next_retry_at)"
        f" WHERE (({pending}) AND (next_retry_at IS NOT NULL))",
        "idx_tasks_claimable_by_type": f"CREATE INDEX idx_tasks_claimable_by_type {on}"
        f" (type, priority DESC, created_at) WHERE (({pending}) AND (next_retry_at IS NULL))",
        "idx_tasks_due_retry_by_type": f"CREATE INDEX idx_tasks_due_retry_by_type {on}"
        f" (type, priority DESC, next_retry_at) WHERE (({pending}) AND (next_retry_at IS NOT NULL))",
        "idx_tasks_status": f"CREATE INDEX idx_tasks_status {on} (status)",
        "idx_tasks_created_at": f"CREATE INDEX idx_tasks_created_at {on} (created_at)",
        "idx_tasks_type_status": f"CREATE INDEX idx_tasks_type_status {on} (type, status)",
        "idx_tasks_worker_id": f"CREATE INDEX idx_tasks_worker_id {on} (worker_id)"
        " WHERE (worker_id IS NOT NULL)",
        "idx_tasks_held": f"CREATE INDEX idx_tasks_held {on} (worker_id) WHERE ({held})",
    }


def test_workers_has_the_indexes_of_the_seed(db: Database) -> None:
    on = "ON workers USING btree"
    assert names_to(db, INDEXES, "workers") == {
        "workers_pkey": f"CREATE UNIQUE INDEX workers_pkey {on} (id)",
        "idx_workers_heartbeat": f"CREATE INDEX idx_workers_heartbeat {on} (last_heartbeat)",
        "idx_workers_leader": f"CREATE INDEX idx_workers_leader {on} (is_leader, leader_until)"
        " WHERE (is_leader = true)",
    }


def test_tasks_has_the_trigger_of_the_seed_and_workers_has_none(db: Database) -> None:
    definition = (
        "CREATE TRIGGER update_tasks_updated_at BEFORE UPDATE ON tasks"
        " FOR EACH ROW EXECUTE FUNCTION update_updated_at_column()"
    )
    assert names_to(db, TRIGGERS, "tasks") == {"update_tasks_updated_at": (definition, "O")}
    assert names_to(db, TRIGGERS, "workers") == {}


def test_the_first_revision_makes_nothing_else(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url, "0001")
    with psycopg.connect(empty_database_url) as db:
        found = db.execute(EVERYTHING).fetchall()
    assert found == [
        ("function", "update_updated_at_column"),
        ("table", "holdfast_version"),
        ("table", "tasks"),
        ("table", "workers"),
        ("type", "task_status"),
    ]


def test_the_seeds_enqueue_runs_unchanged_and_its_key_makes_one_task(db: Database) -> None:
    first, again = db.execute(ENQUEUE).fetchone(), db.execute(ENQUEUE).fetchone()
    assert first == again
    found = db.execute("select type, payload, status, attempts, max_retries, fence from tasks").fetchall()
    assert found == [("email:send", {"to": "user@example.com"}, "pending", 0, 3, 0)]


def test_a_key_is_taken_within_its_type_and_no_key_never_collides(db: Database) -> None:
    insert = "insert into tasks (type, idempotency_key) values (%s, %s)"
    for row in [("a", "k"), ("b", "k"), ("a", None), ("a", None)]:
        db.execute(insert, row)
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.execute(insert, ("a", "k"))


def test_the_seeds_leader_statement_runs_unchanged(db: Database) -> None:
    db.execute("insert into workers (id, hostname, pool_size) values ('one', 'here', 4), ('two', 'there', 4)")
    assert db.execute(LEAD, {"my_worker_id": "one"}).rowcount == 1
    assert db.execute(LEAD, {"my_worker_id": "two"}).rowcount == 0
    assert db.execute(LEAD, {"my_worker_id": "one"}).rowcount == 1


def test_the_seeds_takeover_runs_while_a_stale_flag_stands(db: Database) -> None:
    """§4: a unique index on is_leader would refuse it."""
    db.execute("insert into workers (id, hostname, pool_size) values ('one', 'here', 4), ('two', 'there', 4)")
    db.execute(LEAD, {"my_worker_id": "one"})
    db.execute("update workers set leader_until = now() - interval '1 second' where id = 'one'")
    assert db.execute(LEAD, {"my_worker_id": "two"}).rowcount == 1
    flags = db.execute("select id, is_leader from workers order by id").fetchall()
    assert flags == [("one", True), ("two", True)]


def test_the_seeds_trigger_statement_runs_unchanged(db: Database) -> None:
    before = names_to(db, TRIGGERS, "tasks")
    db.execute("drop trigger update_tasks_updated_at on tasks")
    db.execute(TRIGGER)
    assert names_to(db, TRIGGERS, "tasks") == before


def test_the_seeds_enum_made_by_hand_is_used_and_outlives_a_downgrade(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as db:
        db.execute(ENUM)
        migrate.upgrade(empty_database_url)
        db.execute(ENQUEUE)
        migrate.downgrade(empty_database_url, "base")
        assert db.execute(EVERYTHING).fetchall() == [("type", "task_status")]


def test_another_enum_of_that_name_stops_the_upgrade(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as db:
        db.execute("create type task_status as enum ('open', 'done')")
        with pytest.raises(migrate.MigrationError, match=r"the type task_status exists .* with other values"):
            migrate.upgrade(empty_database_url)
        assert db.execute(EVERYTHING).fetchall() == [("type", "task_status")]


def test_a_users_own_function_is_not_replaced(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as db:
        db.execute(FOREIGN)
        theirs = db.execute(FUNCTION).fetchall()
        with pytest.raises(
            migrate.MigrationError, match=r"update_updated_at_column\(\) exists .* another body"
        ):
            migrate.upgrade(empty_database_url)
        assert db.execute(FUNCTION).fetchall() == theirs
        assert db.execute(EVERYTHING).fetchall() == [("function", "update_updated_at_column")]


def test_a_users_function_that_does_the_same_is_used_and_stays_theirs(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as db:
        db.execute(LOOKALIKE)
        theirs = db.execute(FUNCTION).fetchall()
        migrate.upgrade(empty_database_url)
        assert db.execute(FUNCTION).fetchall() == theirs
        migrate.downgrade(empty_database_url, "base")
        assert db.execute(FUNCTION).fetchall() == theirs


def test_what_a_users_table_has_come_to_need_outlives_a_downgrade(
    db: Database, empty_database_url: str
) -> None:
    db.execute("create table mine (status task_status, updated_at timestamp)")
    db.execute("create trigger touch before update on mine execute function update_updated_at_column()")
    migrate.downgrade(empty_database_url, "base")
    assert db.execute(EVERYTHING).fetchall() == [
        ("function", "update_updated_at_column"),
        ("table", "mine"),
        ("type", "task_status"),
    ]
    migrate.upgrade(empty_database_url)


@pytest.mark.parametrize("change", ["priority = 1", "updated_at = '2000-01-01'", "updated_at = updated_at"])
def test_the_trigger_moves_updated_at_whatever_the_statement_sets(
    db: Database, change: LiteralString
) -> None:
    db.execute("insert into tasks (type, updated_at) values ('a', '1999-01-01')")
    with db.transaction():
        db.execute("update tasks set " + change)
        assert db.execute("select updated_at = now()::timestamp from tasks").fetchall() == [(True,)]


def test_plain_sql_may_write_any_state(db: Database) -> None:
    db.execute(
        "insert into tasks (type, status, attempts, completed_at) values ('a', 'dead_letter', 3, now())"
    )
    assert db.execute("update tasks set status = 'pending'").rowcount == 1
