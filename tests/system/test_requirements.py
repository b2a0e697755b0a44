"""Every requirement of the system is named by the docstring of a test, and every proof has its test.

Here requirements stand by their number and in a few words; what each proof is called is the test's own name.
"""

from __future__ import annotations

import pytest

from requirements import docstrings, names, numbers, words

REQUIREMENTS = {
    # records and lifecycle
    1: "the prefix of an id",
    2: "words in any case",
    3: "types that nobody knows",
    4: "milliseconds of the database",
    5: "new, then queued",
    6: "a key among active jobs",
    7: "node, queue, priority",
    8: "one claim, fenced",
    9: "done, with counts",
    10: "a summary and the whole trace",
    11: "retries and their waits",
    12: "due after any restart",
    13: "failed at once, and for good",
    14: "a lost worker",
    15: "cancelled, at once",
    16: "snooze and orderly stop",
    17: "one job a target",
    # jobs.log
    18: "every line has an id and a level",
    19: "physical lines",
    20: "after the commit",
    21: "many writers, rotated",
    # registry
    22: "what may be touched is declared",
    23: "definitions are looked up and kept",
    24: "and never used when stale",
    # executors
    25: "a file counts when the manifest names it",
    26: "events beside, values equal",
    27: "never an unfinished row",
    28: "a table of one's own is dropped",
    29: "old rows of a stream",
    30: "a subject is erased",
    31: "fewer and larger files",
    32: "a dump of one snapshot",
    33: "verified, and in one step",
    34: "locations, programs, passwords",
    # console
    35: "a session, a statement, a context",
    36: "a small grammar",
    37: "skipped, and for administrators",
    38: "the same by API and command line",
    39: "by timetable, once in a period",
    # old records
    40: "result and error_message",
    41: "parameters that were an array",
    42: "old states",
    43: "an old table is kept aside",
}

# Sentences to be proven, and the tests that do.
PROOFS: dict[str, tuple[str, ...]] = {
    # schema and migrations
    "the live table has every field of the text plus the added list and nothing else": (),
    "upgrade, downgrade and upgrade again gives the same schema and a second upgrade runs no ddl": (),
    "an old system jobs is kept aside unchanged and comes back on downgrade": (),
    "ten thousand ids per type match the format and the prefix of their type": (),
    "a million ids in several processes are unique": (),
    "an id collision is drawn again unseen by the caller": (),
    # lifecycle
    "every state meets every verb": (
        "a_legal_verb_moves_that_row_alone_and_the_journal_tells_each_hop_once",
        "an_illegal_verb_changes_no_column_tells_nothing_and_is_answered_by_its_type",
        "an_end_is_told_with_its_level_its_summary_and_its_trace",
        "an_order_is_told_with_who_said_it_and_why",
    ),
    "a job that always fails runs exactly four times at the default limit": (),
    "max retries zero gives one run and so does a permanent failure": (),
    "256 retries are refused": ("bad_input_is_refused_by_its_field_and_nothing_is_written",),
    "a retrying job whose process dies is run when due by another": (),
    "a success after two retries keeps retry count two and clears the trace": (),
    "a trace of a thousand lines is stored whole": (),
    "a key is refused while its job is active and free after its end": (),
    "one hundred racing creates of one key make one job": (),
    # concurrency, zombies, crashes
    "twenty workers draining one thousand jobs run each exactly once": (),
    "an executor that lost its claim changes nothing and writes no log line": (),
    "a cancelled job stays cancelled and its executor stops and says how far it came": (),
    "a killed worker's job is failed as lost and the jobs of other nodes go on": (),
    "kill -9 at each step, then a new job": (
        "kill_at_each_step_of_a_flush_loses_and_doubles_nothing",
        "kill_at_each_step_of_a_compaction_loses_and_doubles_nothing",
        "kill_at_each_step_of_cleanup_then_a_new_job_leaves_no_stray_file",
        "kill_at_each_step_of_user_cleanup_then_a_new_job_completes_it",
        "a_backup_killed_at_each_step_is_made_by_the_next_run",
        "a_restore_killed_at_each_step_is_done_by_the_next_run",
    ),
    "two jobs on one target never overlap": (),
    # executors
    "flush then read back gives rows equal to those removed for every ledger": (),
    "retention deletes exactly the finished rows past the limit and spares dead letters unless told": (),
    "eviction of a full stream ends in one job without a retry and leaves the last event of all": (),
    "without cascade nothing is erased while work is open and the counts are told": (),
    "with cascade no table and no archive file knows the subject": (),
    "compact halves a folder of small files and readers see a whole set": (),
    "compact merges small files and keeps every row": (),
    "backup and restore of a live schema under load gives the counts of the manifest": (
        "counts_and_dump_are_of_one_snapshot",
        "workers_go_on_while_their_tables_are_replaced",
    ),
    "backup, drop everything, restore and all is as it was": (),
    "one flipped byte is refused before any change": (),
    "restore refuses an existing schema": (),
    "with overwrite it replaces it in one step": (),
    "a failed one changes nothing": (),
    "no password is in parameters, log or message": (),
    "no password is in the process list": (),
    # log, console, registry, legacy
    "every physical line of jobs log begins with a job id and has a level with eight processes writing and"
    " rotating at once": (),
    "each form is read in any case with or without a semicolon": (),
    "each bad form is refused with its position": (),
    "no console text can write, join, read another table or run a second statement": (),
    "a second flush of a busy table answers skipped with the running id": (),
    "a non administrator is refused before anything is read": (),
    "a column renamed by psql is seen before the next destructive act": (),
    "a dropped table leaves the cache of every process": (),
    "legacy arrays, result, error message and mixed case states read as the mapping says and reading writes"
    " nothing": (),
}


def test_every_requirement_of_the_system_is_named_by_a_test() -> None:
    named = {number for text in docstrings().values() for number in numbers("Y", text)}
    missing = [f"Y-{number}: {title}" for number, title in REQUIREMENTS.items() if number not in named]
    assert not missing, "no test names\n" + "\n".join(missing)


def test_no_test_names_a_requirement_of_the_system_that_does_not_exist() -> None:
    assert list(REQUIREMENTS) == list(range(1, 44))
    known = set(REQUIREMENTS)
    unknown = {test: wrong for test, text in docstrings().items() if (wrong := numbers("Y", text) - known)}
    assert not unknown


@pytest.mark.parametrize("proof", PROOFS)
def test_every_proof_of_the_system_has_its_test(proof: str) -> None:
    """By the words of the proof, or by the names that stand beside it."""
    missing = set(PROOFS[proof] or (words(proof),)) - names()
    assert not missing
