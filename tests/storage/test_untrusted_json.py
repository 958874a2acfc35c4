"""JSON of strangers: what is decoded, and what is refused before or after it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from rbdata.storage import untrusted_json
from rbdata.storage.untrusted_json import DEEPEST, parse_json

PACKAGE = Path(untrusted_json.__file__).parents[1]
#: What reads JSON that rbdata, the user or a program of this machine wrote, or of at most 1 MiB.
OWN = {
    "cli/options.py": "an option that is typed",
    "preprocess/function.py": "an argument that is typed",
    "datasets/sources/catalogue_entry.py": "a file of the package, and a cached listing",
    "datasets/sources/gymnasium/environments.py": "what Gymnasium says",
    "datasets/sources/ogbench/reader.py": "a file of the package",
    "datasets/sources/minari/source.py": "Minari's root on this machine, at most 256 KiB",
    "storage/manifest.py": "what was encoded the line before",
    "storage/untrusted_json.py": "the door itself",
}


def test_everything_else_goes_through_one_door():
    found = set()
    for room in ("cli", "datasets", "preprocess", "storage"):
        for path in (PACKAGE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.loads", "json.load"):
                    found.add(path.relative_to(PACKAGE).as_posix())
    assert found == set(OWN)


@pytest.mark.parametrize("value", [None, 5, "[[[", {"a": [[0, 255, 0]] * 9}, [[[0]] * 90] * 9, [{"id": "A-v0"}] * 99])
def test_what_is_plausible_is_read(value):
    text = json.dumps(value, separators=(",", ":"))
    assert parse_json(text) == parse_json(text.encode()) == value


def test_bounds_of_pictures_written_in_full_are_read():
    low = [[[0]] * 320] * 240
    assert parse_json(json.dumps({"low": low}, separators=(",", ":"))) == {"low": low}


@pytest.mark.parametrize("text", ["[" + "[]," * 299_999 + "0]", '[{"":0}' + ',{"":0}' * 299_999 + "]"])
def test_more_than_the_text_can_mean_is_refused_before_it_is_decoded(text, monkeypatch):
    monkeypatch.setattr(json, "loads", None)
    for form in (text, text.encode()):
        with pytest.raises(ValueError, match=r"300000 (lists|objects) in \d+ bytes"):
            parse_json(form)


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}"), ('[0,{"a":', "}]")])
def test_levels(begin, end):
    levels = DEEPEST // (begin.count("[") + begin.count("{"))
    assert parse_json(begin * levels + "0" + end * levels)
    for more in (1, 300, 20_000):
        with pytest.raises(ValueError, match="more than 256 levels"):
            parse_json(begin * (levels + more) + "0" + end * (levels + more))


def test_the_hook_gets_pairs_as_they_are_written():
    assert parse_json('{"a":1,"a":2}', list) == [("a", 1), ("a", 2)]
