"""Every requirement of the connectors is named by the docstring of a test, and every proof has its test.

Here requirements stand by their number and in a few words; what each proof is called is the test's own name.
"""

from __future__ import annotations

import pytest

from requirements import docstrings, names, numbers, words

REQUIREMENTS = {
    # database and start
    1: "one pool for all",
    2: "passing faults are tried again",
    3: "wrong credentials stop the start",
    4: "migrations at start, here only",
    5: "an old schema claims nothing",
    6: "wrong settings are told together",
    # catalogue and repositories
    7: "tenants and providers are inserted",
    8: "providers: get, list and upsert",
    9: "seeding upserts all eight",
    10: "hyphens mean the underscore form",
    11: "connections: create, find, list, update",
    12: "a listing by keyset",
    13: "another tenant's id is 404",
    14: "composite keys tie the tenant",
    15: "what a deletion takes along",
    # metadata.sync
    16: "its keys are all optional",
    17: "times are 27 characters",
    18: "the scheduler stores the default",
    19: "a caller's interval is refused",
    # the tick
    20: "job and time together",
    21: "due ones, batch by batch",
    22: "each connection fails alone",
    23: "one job after any downtime",
    24: "jitter never adds up",
    25: "new connections are due at once",
    26: "a refused insert is nothing",
    27: "two schedulers, one job",
    # execution
    28: "priority first, then the time",
    29: "three lanes, merged",
    30: "failed ones with a time",
    31: "attempts are starts",
    32: "full beside incremental",
    33: "lost workers, nobody's rows, timeouts",
    34: "where a run starts",
    35: "the contract of a connector",
    36: "what a provider's answer means",
    37: "success is one transaction",
    38: "a reset is never undone",
    39: "known signals are skipped",
    40: "how long a retry waits",
    41: "errors are structured",
    42: "permanent errors and cool-downs",
    43: "refresh once, repeat once",
    44: "cancel, requeue, and in bulk",
    # webhooks
    45: "two doors and a challenge",
    46: "the checks in their order",
    47: "how each provider signs",
    48: "tenants get a derived secret",
    49: "inbox first, one draining job",
    50: "a known delivery changes nothing",
    51: "the connection is never guessed",
    52: "what is stored and dropped",
    53: "webhooks move no cursor",
    54: "bad deliveries are parked, replayed",
    55: "the rate, and no secrets",
    # tokens
    56: "AES-256-GCM for one account",
    57: "one generic decryption error",
    58: "refresh before they end",
    59: "what a refused refresh means",
    60: "kept or rotated refresh tokens",
    61: "the key and its errors",
    62: "old keys and rekey",
    # OAuth
    63: "the way there",
    64: "a state works once",
    65: "the way back",
    66: "webhook-only says how instead",
    # HTTP
    67: "problems: code, status and shape",
    68: "pages by cursor",
    69: "what may be read",
    70: "what may be done",
    71: "health and readiness",
    72: "token first, then tenant",
    # signals
    73: "signals and their index",
    74: "kinds are a closed list",
    75: "which event is which kind",
    76: "keys that name the fact",
    77: "golden files for every kind",
    78: "retention",
}

# A proof, and the tests that are it. Where its words are a test's name already, that name is enough.
PROOFS: dict[str, tuple[str, ...]] = {
    # the seed's scenarios
    "a valid database url gives one pool that routes and workers share": (),
    "wrong credentials stop the start with a message that names authentication": (),
    "the local profile migrates an empty database at start": (),
    "migrating again at head changes neither schema nor data": (),
    "a tenant inserted by id and name gets its created at": (),
    "a second tenant with the same id is a primary key violation": (),
    "a new provider is inserted and its times are set": (),
    "a second provider github is a primary key violation": (),
    "a tick writes the job and next run at and last jitter in one transaction or not at all": (
        "the_job_and_its_time_are_written_by_one_transaction",
        "neither_the_job_nor_its_time_is_there_when_one_of_them_fails",
    ),
    "an override of 7200 with a limit of 3600 is stored as 900 and warned of": (),
    "listing t1 github returns only connections of t1 and github": (),
    "upserting the eight providers leaves eight rows with the latest values": (),
    "a signal for an existing tenant provider and connection is stored with its times": (),
    "a query by tenant and kind newest first uses the composite index and no sort": (),
    "jobs are picked by highest priority then earliest scheduled at through an index": (),
    "a failed job is hidden until its retry after has passed and is picked then": (),
    "a second queued incremental job is refused by the index and the tick carries on": (),
    "a full job is accepted while an incremental one runs and both proceed": (),
    "a completed incremental job does not block the next one": (),
    # scheduling, races and downtime
    "two ticks at once create one job and no error": (),
    "a tick during a finish neither blocks nor doubles": (),
    "downtime until 13:07 gives exactly one job due 13:00 and next run 13:15": (
        "downtime_gives_exactly_one_job",
        "finished_at_ten_and_restarted_later_one_run_is_due",
    ),
    "finished 10:00 restart 10:20 gives 10:15 and 10:30": (
        "finished_at_ten_and_restarted_later_one_run_is_due",
    ),
    "a new connection is due at once and its next run carries the jitter": (),
    "a refused insert leaves next run at unchanged": (
        "a_refused_insert_leaves_next_run_at_unchanged_and_a_cleaned_interval_is_saved",
    ),
    "jitter over 1000 draws stays in 0..180, 45..270 and 0": ("jitter_over_1000_draws_stays_in_its_range",),
    "600 busy or failing connections do not starve the 601st": (),
    "a malformed sync object is repaired and its siblings survive": (),
    "a next run at in another spelling is repaired, not starved": (),
    # execution and recovery
    "each backoff example of C-40 holds at both ends of its range": (
        "each_example_of_the_backoff_holds_at_both_ends_of_its_range",
    ),
    "a job that always fails runs exactly ten times": (),
    "a killed worker's job is run by another and its connection is not blocked": (),
    "a job that kills its worker ends failed": (),
    "a zombie can write neither signals nor cursor nor status": (),
    "a crash between signals and finish leaves no signal": (),
    "two due failed rows of one pair give one claim and no error": (),
    "claims cost the same with 100 000 backed-off rows": (
        "claims_cost_the_same_with_a_hundred_thousand_backed_off_rows",
    ),
    "a reset cursor survives the running job's finish": (),
    "the follow-up starts where its parent ended": (),
    "every state times every verb of sync jobs is legal with one change or refused with none": (
        "every_state_times_every_verb_is_one_change_or_none",
    ),
    "release and snooze give the start back": (
        "a_claim_counts_as_a_start_and_snooze_and_release_give_it_back",
        "a_worker_that_stops_gives_its_job_back_and_the_start_with_it",
    ),
    "a second 401 after one refresh puts the connection in error": (),
    "one 429 holds back the connection's other jobs": (),
    # webhooks
    "a replayed delivery id is accepted and changes nothing": (),
    "a replayed body under a new id yields no second signal": (
        "a_body_that_comes_back_under_a_new_id_yields_no_second_signal",
        "the_same_content_under_a_new_id_yields_no_second_signal",
    ),
    "one hundred deliveries during a running job are all processed, each once": (),
    "a delivery at the moment of finish is not stranded": (),
    "a slack request 300 s old passes and one of 301 s does not": (),
    "one changed byte of a github or slack body is refused": (
        "one_changed_byte_of_a_github_body_is_refused",
        "one_changed_byte_of_a_slack_body_is_refused",
    ),
    "no dropped header ever reaches the inbox": (),
    "a poisoned delivery does not hold up the next": (),
    "an unmatched one can be replayed": ("an_unmatched_delivery_can_be_replayed",),
    # tenancy, tokens, OAuth, HTTP
    "a job signal or delivery naming another tenant's connection is refused by the database": (
        "a_row_that_names_another_tenants_or_providers_connection_is_refused",
        "a_job_or_signal_naming_another_tenants_connection_is_refused_by_the_database",
        "a_delivery_naming_another_tenants_connection_is_refused",
    ),
    "no route shows another tenant's row": (),
    "a token moved to another tenant's row does not decrypt": (
        "a_token_moved_to_another_row_does_not_decrypt",
        "a_token_in_a_row_is_sealed_and_good_in_that_row_only",
    ),
    "flipping any single byte does not decrypt": ("flipping_any_single_bit_does_not_decrypt",),
    "a plain token is not accepted": (),
    "old keys still read and rekey leaves none of them in use": (
        "old_keys_still_read_and_new_secrets_use_the_current_one",
        "rekey_leaves_none_of_the_old_keys_in_use",
    ),
    "no token or key appears in any log, answer or page": (
        "no_token_or_key_appears_in_any_log_or_answer",
        "no_token_is_seen_in_a_log_a_row_or_a_repr",
        "no_token_code_or_verifier_is_logged_or_told",
        "nothing_secret_is_on_any_page",
    ),
    "a state works once even when the provider reports an error": (),
    "used, old and unknown states are told apart": (),
    "connecting again updates": (),
    "two processes refresh one connection once": (),
    "pages over equal times show every row once": (),
    "each bad input answers as its table row says": (),
}


def test_every_requirement_of_the_connectors_is_named_by_a_test() -> None:
    named = {number for text in docstrings().values() for number in numbers("C", text)}
    missing = [f"C-{number}: {title}" for number, title in REQUIREMENTS.items() if number not in named]
    assert not missing, "no test names\n" + "\n".join(missing)


def test_no_test_names_a_requirement_that_does_not_exist() -> None:
    assert list(REQUIREMENTS) == list(range(1, 79))
    known = set(REQUIREMENTS)
    unknown = {test: wrong for test, text in docstrings().items() if (wrong := numbers("C", text) - known)}
    assert not unknown


def test_a_range_of_requirements_names_all_of_them() -> None:
    """Two numbers with dots between are as many as lie between them."""
    assert numbers("C", "C-28..C-30, proofs; C-41: and") == {28, 29, 30, 41}
    assert numbers("C", "AC-1, C-x") == set()


@pytest.mark.parametrize("proof", PROOFS)
def test_every_proof_has_its_test(proof: str) -> None:
    """By the words of the proof, or by the names that stand beside it."""
    missing = set(PROOFS[proof] or (words(proof),)) - names()
    assert not missing
