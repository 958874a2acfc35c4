"""Built-in functions keep the identities that existing datasets record, wherever their code is."""

from __future__ import annotations

import functools

import pytest
from preprocess_tools import make_input, run
from processes import run_forked
from rbdata.preprocess.function import content_hash, identify
from rbdata.preprocess.functions import BUILTIN, find_builtin
from rbdata.preprocess.functions.traits import recorded_identity


def test_names_are_functions_whatever_is_imported_first():
    code = """
import sys
assert "rbdata.preprocess" not in sys.modules
import rbdata.preprocess.functions.rewards, rbdata.preprocess.functions as functions
from rbdata.preprocess.functions.episodes import subsample as direct
from rbdata.preprocess.functions import clip_rewards, subsample, to_float
for name in functions.BUILTIN:
    assert callable(getattr(functions, name)) and getattr(functions, name) is functions.find_builtin(name), name
assert direct is subsample and callable(clip_rewards) and callable(to_float)
assert callable(rbdata.preprocess) and rbdata.preprocess.functions is functions
"""
    assert run_forked(code) == 0


@pytest.mark.parametrize("name", [name for name in BUILTIN if recorded_identity(name)])
def test_recorded(name):
    recorded = recorded_identity(name)
    found = identify(find_builtin(name))
    assert (found.name, found.content, found.file, found.files) == (*(recorded or ()), {})
    assert recorded is not None and [len(digest) for digest in recorded[1:]] == [64, 64]
    assert recorded_identity("another") is None


def test_others_are_identified_by_their_source():
    clip = find_builtin("clip_rewards")

    @functools.wraps(clip)
    def wrapped(td):
        return clip(td)

    for fn in (wrapped, functools.partial(clip, low=0)):
        assert identify(fn).content == content_hash(fn) != identify(clip).content


def test_in_the_lineage(tmp_path):
    make_input(tmp_path)
    (record,) = run(tmp_path, "rbdata:clip_rewards").manifest.lineage["functions"]
    assert record == {
        "function": "rbdata:clip_rewards",
        "source_sha256": "85d53f2514ba68d8a333fbb3d0f69a174ff0e756c0dfeacba258f79385ba4c0e",
        "file_sha256": "d4e130ef2dfecba5cbb4a88b48447c2a10c9e58d3f2075d63374f65c62571222",
        "args": {},
    }
