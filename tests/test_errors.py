"""The text of errors: message and hint, each once."""

from __future__ import annotations

import pickle

import pytest
from rbdata import errors
from rbdata.cli.failures import explain
from rbdata.errors import DamagedDatasetError, FetchError, RbdataError, SpecError, UsageError, reason

CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, RbdataError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_text_has_message_and_hint(kind):
    more = {"leaf": "action", "step": 3} if kind is SpecError else {}
    error = kind("nothing there", hint="look elsewhere", **more)
    assert str(error) == "nothing there\nhint: look elsewhere"
    assert (error.message, error.hint) == ("nothing there", "look elsewhere")
    assert str(kind("nothing there", **more)) == "nothing there" == reason(error)
    failure = explain(error)
    assert (failure.message, failure.hint) == ("nothing there", "look elsewhere")


def test_an_error_within_another_has_no_second_hint():
    inner = UsageError("too long", hint="make it shorter")
    outer = DamagedDatasetError(f"cannot be read: {reason(inner)}", hint="get it again")
    assert str(outer) == "cannot be read: too long\nhint: get it again"
    assert reason(OSError(2, "No such file")) == "[Errno 2] No such file"
    assert str(FetchError("gone")) == "gone"


def test_text_survives_a_process():
    error = FetchError("gone", hint="later")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
