"""Every requirement of schedules is named by the docstring of a test, and every proof has its test.

Here requirements stand by their number and in a few words; what each proof is called is the test's own name.
"""

from __future__ import annotations

import pytest

from requirements import docstrings, names, numbers, words

REQUIREMENTS = {
    # rules that the database keeps
    1: "changes of state, and no others",
    2: "an error in failed only",
    3: "images are never changed",
    4: "no message twice",
    5: "the pointer only grows",
    6: "versions in their order",
    7: "event types and their key",
    # claim and lease
    8: "one statement, pending first",
    9: "when a lease is stale",
    10: "when a session is ready",
    11: "every write is guarded",
    12: "the lease is renewed",
    13: "how a session ends",
    14: "what a late worker does",
    15: "five lost workers",
    16: "an orderly stop",
    17: "called off by a person",
    18: "one failure is one's own",
    19: "a late image",
    # extraction
    20: "the fixture",
    21: "the noise",
    22: "extractors by name",
    23: "pictures, boxes, cards",
    24: "the date is in the picture",
    25: "shifts on several pictures",
    # payload and versions
    26: "one spelling",
    27: "times, titles, places",
    28: "an address counts",
    29: "the hash",
    30: "the lock of a day",
    31: "the next version",
    32: "one transaction",
    # shifts
    33: "eleven texts",
    34: "cleaning",
    35: "addresses",
    36: "kinds of work",
    37: "fingerprint of a place",
    38: "fingerprint of a customer",
    39: "hash of a value",
    # diff, events, snapshot
    40: "four stages",
    41: "one event a pair",
    42: "once per session",
    43: "fingerprints and time",
    44: "slots of equal events",
    45: "ids that stay",
    46: "replay gives the snapshot",
    47: "late sessions",
    # notifications
    48: "events or a summary",
    49: "order and texts",
    50: "delivery under a lock",
    51: "tries, order, resend",
    # loop and tools
    52: "for ever, without a port",
    53: "what is logged",
    54: "the command line",
    55: "metrics",
    56: "no message for the past",
    57: "erase",
}

# Sentences to be proven, and the tests that do where these are not called so.
PROOFS: dict[str, tuple[str, ...]] = {
    # the contract
    "every allowed change of state passes and every other one is refused by the database": (),
    "error text outside failed is refused": (),
    "images cannot be changed": (),
    "a key or sequence cannot repeat": (),
    "a pending session is claimed before a day old stale one": (),
    "a fresh lease is never taken and a null lease is stale": (),
    "two workers and one session give one winner and the other returns at once": (),
    "a claim sets processing, locked at and locked by": (),
    "the heartbeat moves locked at only for its owner": (),
    "done and failed clear the lease only for its owner": (),
    "the error is cut at 4000 characters": (),
    "no statement of holdfast writes day schedule and the worker role may not": (),
    "the first version is 1, the next is current plus 1, and a gap is refused by the trigger": (),
    "an equal payload inserts no version and the session is done": (),
    "a b a gives three versions": (),
    "one session never has two versions": (),
    "canonicalising twice changes nothing": (),
    "each time spelling gives the same minute": (),
    "every vector of the document holds": (
        "the_hash_of_a_payload_is_that_of_its_vector",
        "the_lock_of_a_day_is_that_of_its_vector",
        "every_vector_of_a_shift_holds",
        "an_event_id_is_that_of_its_vector",
        "a_notification_id_is_that_of_its_vector",
    ),
    "twenty noise seeds give one version and a real change under twenty more gives exactly two": (),
    "the same seed gives the same noise": (),
    "the first observation adds every shift": (),
    "an unchanged session still moves the snapshot's source and time": (),
    "each of the six event types arises from its example and only from it": (),
    "reordering gives no event": (),
    "a rerun of a session adds no event and no notification": (),
    "two events give two messages and three give one summary": (),
    "e1 e3 e2 is the order": (),
    "each message reads as its table row": (),
    "delivery marks sent with its time or failed": (),
    "only pending rows are inserted by the worker": (
        "three_events_give_one_summary_and_only_pending_rows_are_inserted_by_the_worker",
    ),
    "the loop survives a failing session and logs start, end and error and it opens no port": (),
    # races, zombies, crashes
    "a slow worker whose lease was taken changes nothing and exactly one version exists": (),
    "a worker that claims again never passes the guard of its own older attempt": (),
    "two sessions of one day at once give versions 1 and 2 with events in order of detection": (),
    "two sessions of different days do not wait for each other": (),
    "a kill at each step leaves nothing and the next worker completes it once": (),
    "five lost workers end the session as failed": (),
    "an orderly stop releases and does not count": (),
    "an image added while processing is not lost": (),
    "an image in flight at the finish is seen": (),
    "racing finalisers give one winner": (),
    "a new image restarts the idle clock": (),
    "downtime of a day is caught up in order each session once": (),
    # history
    "ten to eleven to ten to eleven gives three events and three messages": (),
    "add remove add gives two adds": (),
    "two equal shifts on one day give two events": (),
    "one of two equal shifts moved gives one time change": (),
    "replaying the events gives exactly the snapshot for 500 random days and their changes": (),
    "a spelling wobble changes neither snapshot nor events": (),
    "an address change makes a version and an event": (),
    "an older session that is requeued does not turn the day back": (),
    "an older session that is reclaimed does not turn the day back": (),
    "in user order a slow older session goes first": (),
    "an empty day removes every shift": (),
    "a shift over midnight is paired by the circle": (),
    # delivery and limits
    "holdfast and a foreign dispatcher together send each row once": (),
    "a crash after the send repeats one row at most": (),
    "a passing failure is tried again and keeps the user's order": (),
    "a failed message can be sent again by a person": (),
    "users never see each other's days": (),
    "erase leaves no row of the user and touches no other": (),
    "a folder store refuses keys that leave it": (),
    "folder and s3 stores give the same day": (),
    "each bad input answers as its table row says": (
        "each_bad_input_fails_its_session_writes_nothing_else_and_the_next_is_processed",
        "a_shape_or_word_that_the_contract_does_not_know_is_a_check_violation",
        "a_sender_that_lacks_what_it_needs_stops_the_start",
        "a_session_in_which_no_shift_was_read_fails_and_clears_no_day",
    ),
    # and beyond
    "whatever two workers see and wherever they die the record is true": (),
}


def test_every_requirement_of_schedules_is_named_by_a_test() -> None:
    named = {number for text in docstrings().values() for number in numbers("S", text)}
    missing = [f"S-{number}: {title}" for number, title in REQUIREMENTS.items() if number not in named]
    assert not missing, "no test names\n" + "\n".join(missing)


def test_no_test_names_a_requirement_of_schedules_that_does_not_exist() -> None:
    assert list(REQUIREMENTS) == list(range(1, 58))
    known = set(REQUIREMENTS)
    unknown = {test: wrong for test, text in docstrings().items() if (wrong := numbers("S", text) - known)}
    assert not unknown


@pytest.mark.parametrize("proof", PROOFS)
def test_every_proof_of_schedules_has_its_test(proof: str) -> None:
    """By the words of the proof, or by the names that stand beside it."""
    missing = set(PROOFS[proof] or (words(proof),)) - names()
    assert not missing
