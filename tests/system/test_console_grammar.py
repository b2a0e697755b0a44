"""The grammar of the console: every form, every refusal with its place, and nothing else (Y-36, Y-40)."""

from __future__ import annotations

import doctest
import time
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.apps.system.console import grammar, literals, reader, statements, words
from holdfast.apps.system.console.grammar import MOST_COLUMNS, MOST_ROWS, forms, parse
from holdfast.apps.system.console.statements import (
    COLUMNS,
    All,
    Among,
    BackupSchema,
    BackupTables,
    Between,
    Column,
    CompactAll,
    CompactTable,
    Compare,
    Condition,
    Either,
    FlushAll,
    FlushTable,
    IsNull,
    KillJob,
    Like,
    Name,
    Not,
    Order,
    Restore,
    Select,
    ShowJobs,
    Statement,
)
from holdfast.apps.system.console.words import LONGEST, caret, tokens, unfinished
from holdfast.errors import SyntaxRefused

ID = "FL-4fK2mZ0q"
STATUS = Column("status", "status")
COUNT = Column("retry_count", "retry_count")
EVERY = tuple(Column(name, name) for name in COLUMNS)


def refused(text: str) -> SyntaxRefused:
    with pytest.raises(SyntaxRefused) as caught:
        parse(text)
    return caught.value


def where(text: str) -> Condition:
    shown = parse(f"SHOW JOBS WHERE {text}")
    assert isinstance(shown, ShowJobs)
    assert shown.where is not None
    return shown.where


@pytest.mark.parametrize("module", [grammar, literals, reader, statements, words])
def test_the_examples_in_the_code_are_true(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


# -- every form ------------------------------------------------------------------------------------------

FORMS: list[tuple[str, Statement]] = [
    (f"KILL JOB {ID}", KillJob(ID)),
    (f"CANCEL JOB '{ID}'", KillJob(ID)),
    (f'KILL JOB "{ID}"', KillJob(ID)),
    ("KILL JOB 12", KillJob("12")),  # whether it can be an id is not the grammar's question
    ("STORAGE FLUSH TABLE system.jobs", FlushTable(Name("system", "jobs"))),
    ("STORAGE FLUSH TABLE job", FlushTable(Name(None, "job"))),
    ('STORAGE FLUSH TABLE "My-Schema"."Odd.name"', FlushTable(Name("My-Schema", "Odd.name"))),
    ("STORAGE FLUSH TABLE System.Jobs", FlushTable(Name("system", "jobs"))),
    ("STORAGE FLUSH ALL", FlushAll()),
    ("STORAGE FLUSH ALL IN system", FlushAll("system")),
    ("STORAGE COMPACT TABLE system.jobs", CompactTable(Name("system", "jobs"))),
    ("STORAGE COMPACT ALL", CompactAll()),
    ("BACKUP SCHEMA system TO '/b/it''s'", BackupSchema("system", "/b/it's")),
    ("BACKUP TABLE a.b TO '/b'", BackupTables((Name("a", "b"),), "/b")),
    ("BACKUP TABLE a.b, a.c, a.b TO '/b'", BackupTables((Name("a", "b"), Name("a", "c")), "/b")),
    ("RESTORE FROM '/b' INTO SCHEMA copy", Restore("/b", "copy")),
    ("RESTORE FROM '/b' INTO SCHEMA copy OVERWRITE", Restore("/b", "copy", True)),
    ("RESTORE FROM '/b' INTO SCHEMA \"overwrite\"", Restore("/b", "overwrite")),
    ("SHOW JOBS", ShowJobs()),
    ("SHOW JOBS LIMIT 5", ShowJobs(limit=5)),
    ("SHOW JOBS WHERE status = 'failed' LIMIT 5", ShowJobs(Compare(STATUS, "=", "failed"), 5)),
    ("SELECT * FROM system.jobs", Select(EVERY)),
    ('SELECT * FROM "system"."jobs"', Select(EVERY)),
    ("SELECT count(*) FROM system.jobs", Select(None)),
    ("SELECT count ( * ) FROM system.jobs LIMIT 0", Select(None, limit=0)),
    ("SELECT status, status FROM system.jobs", Select((STATUS, STATUS))),
    (
        "SELECT retry_count FROM system.jobs WHERE status IS NULL "
        "ORDER BY retry_count DESC NULLS LAST, status ASC, status NULLS FIRST LIMIT 10000",
        Select(
            (COUNT,),
            IsNull(STATUS, False),
            (Order(COUNT, True, False), Order(STATUS), Order(STATUS, nulls_first=True)),
            10_000,
        ),
    ),
    (
        "SELECT parameters ->> 'ledger' FROM system.jobs",
        Select((Column("parameters", "parameters", "ledger"),)),
    ),
]


@pytest.mark.parametrize(("text", "statement"), FORMS)
def test_each_form_is_read_in_any_case_with_or_without_a_semicolon(text: str, statement: Statement) -> None:
    """Y-36: keywords in any case, one optional semicolon."""
    for spelled in (text, f"  {text} ; ", f"\n{text};\n", text.replace(" ", "\n\t ")):
        assert parse(spelled) == statement
    quoted = text.partition("'")[0].partition('"')[0].partition(ID)[0]
    for change in (str.lower, str.upper, str.swapcase):
        assert parse(change(quoted) + text[len(quoted) :]) == statement


def test_the_table_of_forms_names_every_verb_that_is_read() -> None:
    """Y-35: what the help shows is what there is."""
    verbs = {form.split()[0] for form in forms()}
    assert verbs == {"KILL", "CANCEL", "STORAGE", "BACKUP", "RESTORE", "SHOW", "SELECT"}
    for verb in verbs:
        assert refused(verb).position == len(verb) + 1, "it goes on after the verb"


# -- conditions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("retry_count = 1", Compare(COUNT, "=", 1)),
        ("retry_count <> 1", Compare(COUNT, "<>", 1)),
        ("retry_count != 1", Compare(COUNT, "<>", 1)),
        ("retry_count<-1", Compare(COUNT, "<", -1)),
        ("retry_count <= 1.5", Compare(COUNT, "<=", Decimal("1.5"))),
        ("retry_count > .5", Compare(COUNT, ">", Decimal("0.5"))),
        ("retry_count >= '2'", Compare(COUNT, ">=", 2)),
        ('"retry_count" = +3', Compare(COUNT, "=", 3)),
        ("RETRY_COUNT IN (1, 2)", Among(COUNT, (1, 2), False)),
        ("retry_count NOT IN (1)", Among(COUNT, (1,), True)),
        ("retry_count BETWEEN 1 AND 2", Between(COUNT, 1, 2, False)),
        ("retry_count not between 1 and 2", Between(COUNT, 1, 2, True)),
        ("retry_count IS NULL", IsNull(COUNT, False)),
        ("retry_count IS NOT NULL", IsNull(COUNT, True)),
        ("message LIKE 'a%'", Like(Column("message", "message"), "a%", "LIKE", False)),
        ("message NOT ILIKE 'A_'", Like(Column("message", "message"), "A_", "ILIKE", True)),
        ("NOT NOT retry_count = 1", Not(Not(Compare(COUNT, "=", 1)))),
        ("((retry_count = 1))", Compare(COUNT, "=", 1)),
    ],
)
def test_each_comparison_is_read(text: str, meant: Condition) -> None:
    """Y-36: comparisons, IN, LIKE, IS NULL, BETWEEN, NOT and brackets."""
    assert where(text) == meant


def test_and_binds_before_or_and_brackets_before_both() -> None:
    """Y-36: as in SQL, so that nobody is surprised."""
    one, two, three = (Compare(COUNT, "=", number) for number in (1, 2, 3))
    text = "retry_count = 1 OR retry_count = 2 AND retry_count = 3"
    assert where(text) == Either((one, All((two, three))))
    text = "(retry_count = 1 OR retry_count = 2) AND NOT retry_count = 3"
    assert where(text) == All((Either((one, two)), Not(three)))


@pytest.mark.parametrize(
    "written", ["stream_eviction", "StreamEviction", "STREAM_EVICTION", "streamEviction"]
)
def test_words_for_types_compare_in_any_case_and_both_spellings(written: str) -> None:
    """Y-2, Y-36: as people, seeds and rows write them."""
    kind = Column("job_type", "job_type")
    assert where(f"job_type = '{written}'") == Compare(kind, "=", "stream_eviction")
    assert where(f"job_type IN ('{written}', 'Flush')") == Among(kind, ("stream_eviction", "flush"), False)


def test_words_for_states_compare_in_any_case_and_unknown_ones_in_small_letters() -> None:
    """Y-3, Y-36: a word of a later version may be stored."""
    assert where("status = 'Running'") == Compare(STATUS, "=", "running")
    assert where("status <> 'CANCELLED'") == Compare(STATUS, "<>", "cancelled")
    assert where("status = 'Paused'") == Compare(STATUS, "=", "paused")
    assert where("status LIKE 'R%'") == Like(STATUS, "r%", "LIKE", False)
    kind = Column("job_type", "job_type")
    assert where("job_type = 'Defragment'") == Compare(kind, "=", "defragment")


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        ("0", 0),
        ("'1738324800000'", 1738324800000),
        ("1738324800000", 1738324800000),
        ("'2025-01-31'", 1738281600000),
        ("'2025-01-31 12:00'", 1738324800000),
        ("'2025-01-31T12:00:00Z'", 1738324800000),
        ("'2025-01-31T12:00:00.001Z'", 1738324800001),
        ("'2025-01-31T12:00:00.0005Z'", Decimal("1738324800000.5")),
        ("'2025-01-31T13:00:00+01:00'", 1738324800000),
        ("'0001-01-01T00:00:00+23:59'", -62135683140000),
        ("'9999-12-31T23:59:59-23:59'", 253402387139000),
    ],
)
def test_times_are_read_as_iso_8601_in_utc_or_as_milliseconds(written: str, milliseconds: Any) -> None:
    """Y-4: people write ISO times, rows have milliseconds."""
    created = Column("created_at", "created_at")
    assert where(f"created_at >= {written}") == Compare(created, ">=", milliseconds)


def test_old_names_mean_the_message_and_keep_their_heading() -> None:
    """Y-40: result and error_message read as message, in queries that name them."""
    selected = parse("SELECT id, Result, error_message FROM system.jobs ORDER BY result")
    assert isinstance(selected, Select)
    assert selected.columns is not None
    assert [(one.heading, one.real) for one in selected.columns] == [
        ("id", "id"),
        ("result", "message"),
        ("error_message", "message"),
    ]
    assert where("error_message LIKE 'x'") == Like(Column("error_message", "message"), "x", "LIKE", False)


def test_a_field_of_the_parameters_is_compared_as_text() -> None:
    """Y-36: also with JSON's numbers and truths, as they are written there."""
    ledger = Column("parameters", "parameters", "it's")
    assert where("parameters->>'it''s' = 'Job'") == Compare(ledger, "=", "Job")
    assert where("parameters ->> 'it''s' IN (24, TRUE)") == Among(ledger, ("24", "true"), False)
    assert where("parameters IS NOT NULL") == IsNull(Column("parameters", "parameters"), True)


# -- refusals --------------------------------------------------------------------------------------------

WRITES = [
    "INSERT",
    "UPDATE",
    "DELETE",
    "MERGE",
    "TRUNCATE",
    "DROP",
    "ALTER",
    "CREATE",
    "COPY",
    "GRANT",
    "SET",
]

# What is written, the part that the position must be at, and words of the sentence.
REFUSED: list[tuple[str, str, str]] = [
    ("", "", "the statement is empty"),
    (" \n ", "", "the statement is empty"),
    (";", ";", "found ';'"),
    ("EXPLAIN SHOW JOBS", "EXPLAIN", "found 'EXPLAIN'"),
    ("'KILL' JOB x", "'KILL'", "SHOW JOBS"),
    *((f"{verb} x", verb, "nothing is written here") for verb in WRITES),
    ("WITH x AS (SELECT 1) SELECT * FROM x", "WITH", "found 'WITH'"),
    ("KILL", "", "KILL JOB <id>"),
    ("KILL JOB", "", "KILL JOB <id>"),
    ("KILL JOB ;", ";", "KILL JOB <id>"),
    ("KILL JOB ''", "''", "the id is empty"),
    ('KILL JOB " "', '" "', "the id is empty"),
    (f"KILL JOBS {ID}", "JOBS", "KILL JOB <id>"),
    (f"KILL JOB '{ID}", "'", "has no end"),
    ('KILL JOB "x', '"', "has no end"),
    ("KILL JOB '''", "'''", "has no end"),
    (f"KILL JOB {ID} FL-aaaaaaaa", "FL-aaaaaaaa", "found 'FL-aaaaaaaa'"),
    (f"KILL JOB {ID}; KILL JOB {ID}", f"KILL JOB {ID}\0", "one statement at a time"),
    (f"KILL JOB {ID};;", ";\0", "one statement at a time"),
    (f"KILL JOB {ID} -- now", "--", "found a comment"),
    (f"KILL /* this */ JOB {ID}", "/*", "found a comment"),
    ("STORAGE", "", "STORAGE COMPACT ALL"),
    ("STORAGE DROP ALL", "DROP", "STORAGE FLUSH ALL"),
    ("STORAGE FLUSH", "", "STORAGE FLUSH TABLE <ns.table>"),
    ("STORAGE FLUSH TABLE", "", "STORAGE FLUSH TABLE <ns.table>"),
    ("STORAGE FLUSH TABLE 'a'", "'a'", "STORAGE FLUSH TABLE <ns.table>"),
    ('STORAGE FLUSH TABLE ""', '""', "the name is empty"),
    ("STORAGE FLUSH TABLE a.", "", "STORAGE FLUSH TABLE <ns.table>"),
    ("STORAGE FLUSH TABLE a.b.c", ".c", "found '.'"),
    ("STORAGE FLUSH ALL IN", "", "the name of a schema"),
    ("STORAGE FLUSH ALL x", "x", "IN <ns>"),
    ("STORAGE COMPACT ALL IN system", "IN", "found 'IN'"),
    ("BACKUP", "", "BACKUP SCHEMA"),
    ("BACKUP SCHEMA TO '/b'", "TO", "BACKUP SCHEMA <schema> TO '<location>'"),
    ("BACKUP SCHEMA a '/b'", "'/b'", "BACKUP SCHEMA <schema> TO '<location>'"),
    ("BACKUP SCHEMA a TO /b", "/", "found '/'"),
    ("BACKUP SCHEMA a TO b", "b", "found 'b'"),
    ('BACKUP SCHEMA a TO "/b"', '"/b"', "TO '<location>'"),
    ("BACKUP SCHEMA a TO ''", "''", "the location is empty"),
    ("BACKUP TABLE a.b, TO '/b'", "TO", "BACKUP TABLE"),
    ("RESTORE FROM '/b'", "", "INTO SCHEMA"),
    ("RESTORE FROM '/b' INTO SCHEMA OVERWRITE", "OVERWRITE", "INTO SCHEMA <schema>"),
    ("RESTORE FROM '/b' INTO SCHEMA a FORCE", "FORCE", "OVERWRITE"),
    ("SHOW TABLES", "TABLES", "SHOW JOBS"),
    ("SHOW JOBS ORDER BY id", "ORDER", "WHERE …"),
    ("SHOW JOBS LIMIT", "", "a whole number"),
    ("SHOW JOBS LIMIT -1", "-1", "a whole number"),
    ("SHOW JOBS LIMIT 1.5", "1.5", "a whole number"),
    ("SHOW JOBS LIMIT ALL", "ALL", "a whole number"),
    (f"SHOW JOBS LIMIT {MOST_ROWS + 1}", f"{MOST_ROWS + 1}", "at most 10,000 rows"),
    ("SHOW JOBS LIMIT " + "9" * 5000, "999", "a whole number"),
    ("SHOW JOBS LIMIT 1 OFFSET 1", "OFFSET", "found 'OFFSET'"),
    ("SELECT", "", "count(*)"),
    ("SELECT FROM system.jobs", "FROM", "there is no column 'from'"),
    ("SELECT id", "", "FROM system.jobs"),
    ("SELECT " + "id, " * MOST_COLUMNS + "status FROM system.jobs", "status", "at most 100 columns"),
    (
        "SELECT id FROM system.jobs ORDER BY " + "id, " * MOST_COLUMNS + "status",
        "status",
        "at most 100 columns",
    ),
    ("SELECT id, FROM system.jobs", "FROM", "there is no column 'from'"),
    ("SELECT *, id FROM system.jobs", ",", "FROM system.jobs"),
    ("SELECT DISTINCT id FROM system.jobs", "DISTINCT", "there is no column 'distinct'"),
    ("SELECT id AS x FROM system.jobs", "AS", "FROM system.jobs"),
    ("SELECT password FROM system.jobs", "password", "there is no column 'password'"),
    ('SELECT "ID" FROM system.jobs', '"ID"', "there is no column 'ID'"),
    ("SELECT 1 FROM system.jobs", "1", "found '1'"),
    ("SELECT 'x' FROM system.jobs", "'x'", "found \"'x'\""),
    ("SELECT id || status FROM system.jobs", "|", "found '|'"),
    ("SELECT lower(id) FROM system.jobs", "lower", "there is no column 'lower'"),
    ("SELECT pg_sleep(9) FROM system.jobs", "pg_sleep", "there is no column 'pg_sleep'"),
    ("SELECT count(id) FROM system.jobs", "id", "count(*)"),
    ("SELECT max(id) FROM system.jobs", "max", "there is no column 'max'"),
    ("SELECT count(*), id FROM system.jobs", ",", "FROM system.jobs"),
    ("SELECT count(*) FROM system.jobs ORDER BY id", "ORDER", "found 'ORDER'"),
    ("SELECT * FROM jobs", "jobs", "only system.jobs can be read"),
    ("SELECT * FROM pg_catalog.pg_authid", "pg_catalog", "only system.jobs can be read"),
    ("SELECT * FROM system.jobs_legacy", "system", "only system.jobs can be read"),
    ("SELECT * FROM (SELECT * FROM system.jobs)", "(", "system.jobs"),
    ("SELECT * FROM system.jobs, job", ",", "found ','"),
    ("SELECT * FROM system.jobs JOIN job ON true", "JOIN", "WHERE …"),
    ("SELECT * FROM system.jobs j", "j\0", "found 'j'"),
    ("SELECT * FROM system.jobs UNION SELECT * FROM job", "UNION", "found 'UNION'"),
    ("SELECT id INTO x FROM system.jobs", "INTO", "FROM system.jobs"),
    ("SELECT * FROM system.jobs FOR UPDATE", "FOR", "found 'FOR'"),
    ("SELECT * FROM system.jobs GROUP BY id", "GROUP", "ORDER BY …"),
    ("SELECT * FROM system.jobs ORDER id", "id", "BY"),
    ("SELECT * FROM system.jobs ORDER BY 1", "1", "a column"),
    ("SELECT * FROM system.jobs ORDER BY id NULLS", "", "FIRST"),
    ("SELECT * FROM system.jobs LIMIT 1 WHERE id = 'x'", "WHERE", "found 'WHERE'"),
    ("SHOW JOBS WHERE", "", "a column"),
    ("SHOW JOBS WHERE id", "", "[NOT] IN"),
    ("SHOW JOBS WHERE 1 = 1", "1", "a column"),
    ("SHOW JOBS WHERE true", "true", "there is no column 'true'"),
    ("SHOW JOBS WHERE id = status", "status", "texts are in single quotes"),
    ('SHOW JOBS WHERE id = "x"', '"x"', "texts are in single quotes"),
    ("SHOW JOBS WHERE id = (SELECT 1)", "(", "where a value is needed"),
    ("SHOW JOBS WHERE id = NULL", "NULL", "IS NULL"),
    ("SHOW JOBS WHERE id IN ('a', NULL)", "NULL", "IS NULL"),
    ("SHOW JOBS WHERE id IN ()", ")", "where a value is needed"),
    ("SHOW JOBS WHERE id IN ('a'", "", ")"),
    ("SHOW JOBS WHERE id IN 'a'", "'a'", "("),
    ("SHOW JOBS WHERE id IN (SELECT id FROM job)", "SELECT", "where a value is needed"),
    ("SHOW JOBS WHERE id = 'a' || 'b'", "|", "found '|'"),
    ("SHOW JOBS WHERE id = 'a' 'b'", "'b'", "found"),
    ("SHOW JOBS WHERE id = E'a'", "E'a'", "texts are in single quotes"),
    ("SHOW JOBS WHERE id = $$a$$", "$", "found '$'"),
    ("SHOW JOBS WHERE id = $1", "$", "found '$'"),
    ("SHOW JOBS WHERE id = %s", "%", "found '%'"),
    ("SHOW JOBS WHERE id = 'a'::text", ":", "found ':'"),
    ("SHOW JOBS WHERE id ~ 'a'", "~", "found '~'"),
    ("SHOW JOBS WHERE id = 1", "1", "id is a text"),
    ("SHOW JOBS WHERE id = true", "true", "id is a text"),
    ("SHOW JOBS WHERE retry_count = 'many'", "'many'", "retry_count is a number"),
    ("SHOW JOBS WHERE retry_count = true", "true", "retry_count is a number"),
    ("SHOW JOBS WHERE retry_count = 1e5", "1e5", "where a value is needed"),
    ("SHOW JOBS WHERE retry_count = " + "9" * 5000, "999", "retry_count is a number"),
    ("SHOW JOBS WHERE parameters LIKE 'a'", "'a'", "allowed here: parameters ->> '<field>'"),
    ("SHOW JOBS WHERE retry_count LIKE '1'", "'1'", "LIKE is for texts"),
    ("SHOW JOBS WHERE created_at > 'yesterday'", "'yesterday'", "created_at is a time"),
    ("SHOW JOBS WHERE created_at > '2025-02-30'", "'2025-02-30'", "created_at is a time"),
    ("SHOW JOBS WHERE created_at > now()", "now", "where a value is needed"),
    ("SHOW JOBS WHERE message LIKE 'a\\'", "'a\\'", "backslash"),
    ("SHOW JOBS WHERE message LIKE message", "message\0", "a pattern in single quotes"),
    ("SHOW JOBS WHERE parameters = '{}'", "'{}'", "compare one of its fields"),
    ("SHOW JOBS WHERE parameters ->> ledger = 'a'", "ledger", "the name of a field"),
    ("SHOW JOBS WHERE message ->> 'a' = 'a'", "->>", "only parameters have fields"),
    ("SHOW JOBS WHERE id IS TRUE", "TRUE", "NOT NULL"),
    ("SHOW JOBS WHERE id NOT = 'a'", "=", "LIKE"),
    ("SHOW JOBS WHERE id BETWEEN 'a' OR 'b'", "OR", "AND"),
    ("SHOW JOBS WHERE (id = 'a'", "", ")"),
    ("SHOW JOBS WHERE id = 'a')", ")", "LIMIT n"),
    ("SHOW JOBS WHERE id = 'a' AND", "", "a column"),
    ("SHOW JOBS WHERE id = 'a\0b'", "\0", "U+0000"),
    ("SHOW JOBS WHERE id = 'a\udc80b'", "\udc80", "U+DC80"),
    ("SHOW\u200b JOBS", "\u200b", "found '\\u200b'"),
    ("K\u0131LL JOB x", "K", "found 'K\u0131LL'"),  # a dotless i is no i
    ("\u017fHOW JOBS", "\u017f", "found"),  # nor is a long s an s
]


@pytest.mark.parametrize(("text", "part", "words"), REFUSED)
def test_each_bad_form_is_refused_with_its_position(text: str, part: str, words: str) -> None:
    """Y-36: no verb, no id, an open quote, two statements, another table, any write."""
    error = refused(text)
    assert words in str(error)
    last = part.endswith("\0") and len(part) > 1
    start = text.rindex(part[:-1]) if last else text.index(part) if part else len(text.rstrip())
    assert error.position == start + 1, (error.position, str(error))
    assert f"(at position {error.position})" in str(error)
    assert all(one in str(error) for one in error.fields["allowed"])
    assert error.code == "SYNTAX_REFUSED"
    assert error.status == 400


def test_a_position_is_told_by_line_and_column_too() -> None:
    """Y-36: both count from 1."""
    error = refused("SHOW JOBS\nWHERE status = 'failed'\n  AND queue == 'x'")
    assert (error.fields["line"], error.fields["column"]) == (3, 14)


def test_brackets_have_an_end() -> None:
    """Y-36: fifty conditions fit in one another, and a hundred thousand brackets cost nothing."""
    assert where("(" * 50 + "retry_count = 1" + ")" * 50) == Compare(COUNT, "=", 1)
    for word in ("(", "NOT "):
        error = refused("SHOW JOBS WHERE " + word * 51 + "retry_count = 1")
        assert "nested too deeply" in str(error)
        assert error.position == len("SHOW JOBS WHERE ") + 50 * len(word) + 1
    assert "nested too deeply" in str(refused("SHOW JOBS WHERE " + "(" * 10_000))


def test_many_conditions_side_by_side_are_not_deep() -> None:
    """Y-36: a long list is fine."""
    many = where(" AND ".join(["NOT (retry_count = 1)"] * 500))
    assert isinstance(many, All)
    assert len(many.conditions) == 500


def test_a_statement_has_a_length() -> None:
    """Y-36: whoever sends a book is told so, and where it is cut."""
    assert parse("SHOW JOBS" + " " * (LONGEST - 9)) == ShowJobs()
    error = refused("SHOW JOBS" + " " * (LONGEST - 8))
    assert "too long" in str(error)
    assert error.position == LONGEST + 1


# -- any text --------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        *(
            "SELECT",
            "count",
            "(",
            "*",
            ")",
            "FROM",
            "system.jobs",
            "WHERE",
            "status",
            "=",
            "'a'",
            "IN",
            "NOT",
        ),
        *(
            "LIKE",
            "AND",
            "OR",
            "IS",
            "NULL",
            "BETWEEN",
            "1",
            "-1.5",
            ",",
            ";",
            "ORDER",
            "BY",
            "DESC",
            "LIMIT",
        ),
        *("SHOW", "JOBS", "KILL", "JOB", ID, "STORAGE", "FLUSH", "TABLE", "ALL", "BACKUP", "SCHEMA", "TO"),
        *("RESTORE", "INTO", "OVERWRITE", "created_at", "'2025-01-31'", "parameters", "->>", '"x"', "'", '"'),
        *("--", "/*", "é", "\0", "retry_count", ".", "<>", "!=", "NULLS", "FIRST", "''", "\\", "$", "result"),
    ]
)
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=40).map(" ".join), st.lists(PIECES).map("".join))


@settings(max_examples=1500, deadline=None)
@given(TEXTS)
@example("'" * 19_999)
@example('"' * 19_999)
@example("SHOW JOBS WHERE " + "NOT " * 4990)
@example("SELECT " + "id," * 6000)
@example("1." * 9999)
@example("a-" * 9999)
@example("SHOW JOBS WHERE id IN (" + "'," * 9000)
@example(" \u00a0" * 9999)
def test_any_text_is_a_statement_or_refused_and_quickly(text: str) -> None:
    """Y-36: never another error, and never a long wait."""
    began = time.process_time()
    refusal: SyntaxRefused | None = None
    try:
        assert isinstance(parse(text), Statement)
    except SyntaxRefused as error:
        refusal = error
    if refusal:
        assert 1 <= refusal.position <= len(text) + 1
        assert caret(text, refusal.position).count("\n") == 1
    assert unfinished(text) in (None, ";", "'", '"')
    assert time.process_time() - began < 1


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50))
def test_a_text_in_quotes_is_what_it_was(value: str) -> None:
    """Y-36: a quote is written twice, and nothing else means anything in there."""
    quoted = "'" + value.replace("'", "''") + "'"
    assert where(f"message = {quoted}") == Compare(Column("message", "message"), "=", value)
    assert [token.value for token in tokens(quoted)] == [value, ""]


# -- the caret, and typing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position", "shown"),
    [
        ("SHOW JOB", 6, "SHOW JOB\n     ^"),
        ("", 1, "\n^"),
        ("SHOW", 5, "SHOW\n    ^"),
        ("SHOW\nJOB x\nLIMIT", 6, "JOB x\n^"),
        ("SHOW\nJOB x\nLIMIT", 5, "SHOW\n    ^"),
        ("\tSHOW", 2, " SHOW\n ^"),
        ("a\x1b[2Jb", 6, "a\\x1b[2Jb\n        ^"),
        ("日本 x", 4, "日本 x\n     ^"),
        ("e\u0301 x", 4, "e\u0301 x\n  ^"),
        ("short", 99, "short\n     ^"),
    ],
)
def test_the_caret_is_below_what_was_found(text: str, position: int, shown: str) -> None:
    """Y-36: whatever is in the line, and nothing of it moves the cursor."""
    assert caret(text, position) == shown


def test_a_long_line_is_cut_around_the_caret() -> None:
    """Y-36: nobody counts the columns of a line that was wrapped."""
    line, below = caret("x" * 500 + "!" + "y" * 500, 501).splitlines()
    assert len(line) == 102
    assert line[below.index("^")] == "!"
    assert line[0] == line[-1] == "…"


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("", ";"),
        ("SHOW JOBS", ";"),
        ("SHOW JOBS;", None),
        ("SHOW JOBS WHERE id = 'a;", "'"),
        ("SHOW JOBS WHERE id = 'a;';", None),
        ('KILL JOB "', '"'),
        ("KILL JOB -- x", None),
        ("KILL $", None),
    ],
)
def test_a_statement_that_is_typed_waits_for_its_end(text: str, waits: str | None) -> None:
    """Y-36: a semicolon in quotes is no end; what can only be refused waits for nothing."""
    assert unfinished(text) == waits
