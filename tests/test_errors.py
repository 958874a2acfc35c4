"""The text of errors: message and hint, each once."""

from __future__ import annotations

import pickle

import pytest
import rbdata
from rbdata import errors
from rbdata.cli import run
from rbdata.cli.failure import explain
from rbdata.errors import DamagedDatasetError, FetchError, RbdataError, UsageError, reason, without_logins

CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, RbdataError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_text_has_message_and_hint(kind):
    error = kind("nothing there", hint="look elsewhere")
    assert str(error) == "nothing there\nhint: look elsewhere"
    assert (error.message, error.hint) == ("nothing there", "look elsewhere")
    assert str(kind("nothing there")) == "nothing there" == reason(error)
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:swordfish@host/x is gone", "https://***@host/x is gone"),
        ("use 'http://me:sword@fish@host:80'", "use 'http://***@host:80'"),
        ("http://token-alone@host/data", "http://***@host/data"),
        ("the folder http:/me:swordfish@host/data", "the folder http:/***@host/data"),
        ("s3://key:swordfish@bucket, ftp://a:b@c", "s3://***@bucket, ftp://***@c"),
        ("sftp://me@host/x", "sftp://***@host/x"),
        ("http://host:80/adult@2 and me@host", "http://host:80/adult@2 and me@host"),
        ("http://me:pass?swordfish@host, http://me:swordfish#1@host/x", "http://***@host, http://***@host/x"),
        ("https://h/x?a=1&X-Amz-Signature=swordfish&b=2", "https://h/x?a=1&X-Amz-Signature=***&b=2"),
        ("url: /x?sv=1&sig=swordfish (gone)", "url: /x?sv=1&sig=*** (gone)"),
        ("'https://h/x?token=swordfish' '/y#access_token=swordfish'", "'https://h/x?token=***' '/y#access_token=***'"),
        ("https://h/x?monkey=1&design=2&keys=3", "https://h/x?monkey=1&design=2&keys=3"),
    ],
)
def test_no_error_holds_a_login(text, shown):
    error = FetchError(text, hint=text)
    assert (error.message, error.hint, str(error)) == (shown, shown, f"{shown}\nhint: {shown}")
    assert "swordfish" not in repr(error)


def test_logins_are_found_quickly():
    for text in (
        "://" + "a:" * 100_000,
        "://" + ":" * 200_000 + "@",
        "http://" * 50_000 + "@",
        "?token" * 50_000 + "=",
    ):
        without_logins(text)


def test_messages_do_not_speak_to_terminals():
    """Tracebacks print them as they are; ends of lines stay."""
    error = errors.DamagedDatasetError("\x1b]0;x\x07 is\ndamaged \u202e", hint="\x9b2J")
    assert str(error) == "\\x1b]0;x\\x07 is\ndamaged \\u202e\nhint: \\x9b2J"


def test_no_further_thread_is_no_bug():
    assert explain(RuntimeError("can't start new thread")).code == "memory"
    assert explain(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")).code == "memory"
    assert explain(RuntimeError("another")).code == "internal"


def test_a_message_quotes_no_megabytes():
    error = RbdataError("the shape is " + "[" * 5_000_000 + " not this", hint="h" * 9000)
    assert (
        str(error).startswith("the shape is [[[") and "[...[" in error.message and error.message.endswith(" not this")
    )
    assert len(error.message) < 7000 and len(error.hint) < 7000
    assert RbdataError("x" * 8000).message == "x" * 8000


@pytest.mark.parametrize(
    "words",
    ["inspect", "sample", "verify", "audit", "export", "delete --yes", "preprocess --fn rbdata:to_float --dest my/y"],
)
@pytest.mark.parametrize("dataset", ["my/none", "gymnasium/CartPole-v1"])
def test_a_missing_dataset_is_a_missing_file(words, dataset, tmp_path):
    with pytest.raises(FileNotFoundError):
        rbdata.load(dataset, root=tmp_path)
    verb, *options = words.split()
    target = ["--to", "npz", str(tmp_path / "x.npz")] if verb == "export" else []
    assert run([verb, dataset, *target[2:], *target[:2], *options, "--root", str(tmp_path)]) == 2
