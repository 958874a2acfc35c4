"""Cards: what is in them, and that nothing in them comes to life."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rbdata.datasets.card.overview import describe_episodes, overview
from rbdata.datasets.card.writers import MARK, hub_licence, make_croissant, make_html, make_readme
from rbdata.errors import MissingExtraError
from rbdata.storage.episodes import EpisodeTable, open_episodes
from rbdata.storage.leaf import Leaf
from rbdata.storage.manifest import Manifest, read_manifest, write_manifest
from rbdata.storage.schema import Schema, ted_flags
from storage_tools import Recipe, make_episodes

EVIL = (
    "<script>alert(1)</script> & \"x\" 'y' ]]> --> </style></svg> {{x}}\x1b[31m\x9b2J\u202e | `z`\n---\nlicense: evil"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    episodes = make_episodes([3, 50, 1, 9], camera=((20, 24), "uint8"))
    for one in episodes:
        one.steps["action"] = np.random.default_rng(0).uniform(-1, 1, (len(one), 40)).astype("float32")
    episodes[2].steps["next/reward"][0] = np.inf
    folder = Recipe(episodes, "zstd").write(tmp_path_factory.mktemp("cards"))
    manifest = read_manifest(folder)
    manifest.notes = [EVIL, "A second note."]
    manifest.citation = manifest.licence = EVIL
    manifest.source = {"name": EVIL, "environment": {"id": EVIL}, "reference_scores": [0, 9], "options": {EVIL: EVIL}}
    manifest.provenance = {"location": "/home/me/secret", "rbdata_version": EVIL, "created": EVIL}
    write_manifest(folder, manifest)
    table = open_episodes(folder, manifest.episodes, manifest.steps)
    return folder, manifest, overview(folder, manifest, table), table


@pytest.fixture(scope="module")
def page(made):
    return make_html(*made)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.sources += [value for name, value in attributes if name in ("src", "href", "action", "data")]
        assert not [name for name, _ in attributes if name.startswith("on")]
        if tag not in ("meta", "img", "rect", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("rect", "path"):
            assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_for_nothing(page):
    text, found = page, Page(page)
    assert not found.open
    assert not {"script", "link", "iframe", "object", "form", "a"} & set(found.tags)
    figure, sheet = found.sources
    assert figure.startswith("data:image/svg+xml;base64,") and sheet.startswith("data:image/png;base64,")
    drawn = base64.b64decode(figure.partition(",")[2])
    assert b">action of a step" in drawn and b"system-ui" in drawn and b"DejaVu" not in drawn  # in the page's font
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text and MARK in text
    assert "nan" not in text.partition("<img")[0] and "/home/me" not in text
    assert "A second note." in text and "No source has this dataset" in text
    drawn = base64.b64decode(figure.partition(",")[2]).decode()
    for word in ("[31]", "8 more elements", "1 not finite", "cut short (1)", "normalised score"):
        assert word in drawn
    assert "<script>" not in drawn


def test_a_page_without_matplotlib(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(MissingExtraError) as error:
        make_html(*made)
    assert "rbdata[plot]" in (error.value.hint or "")


def test_croissant_describes_files_and_fields(made):
    folder, manifest, found, _ = made
    record = json.loads(make_croissant(folder, manifest, found))
    described, tensors = record["distribution"]
    assert described["sha256"] == hashlib.sha256((folder / "rbdata.json").read_bytes()).hexdigest()
    assert all((folder / path).is_file() for path in tensors["includes"])
    (steps,) = record["recordSet"]
    fields = {field["name"]: field for field in steps["field"]}
    assert fields["steps/action"]["dataType"] == "cr:Float32" and fields["steps/action"]["arrayShape"] == "40"
    assert len(fields) == len(list(manifest.schema))


def test_the_head_of_a_readme_is_its_own(made):
    _, manifest, found, _ = made
    text = make_readme(manifest, found)
    _, head, body = text.split("---\n", 2)
    entries = {line.split(": ", 1)[0]: json.loads(line.split(": ", 1)[1]) for line in head.splitlines()}
    assert entries["license"] == "other" and entries["size_categories"] == ["n<1K"]
    assert entries["tags"][:2] == ["offline-rl", "rbdata"]
    assert "<script>" not in body.split("## Citation")[0]
    assert all(
        line.startswith("    ") for line in body.split("## Citation\n\n")[1].split("\n<!--")[0].splitlines() if line
    )


def test_no_card_holds_what_a_terminal_acts_upon(made, page):
    folder, manifest, found, _ = made
    for text in (make_readme(manifest, found), page, make_croissant(folder, manifest, found)):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


@pytest.mark.parametrize(
    ("stated", "name"),
    [(None, "unknown"), ("CC-BY-4.0", "cc-by-4.0"), ("CC BY 4.0", "cc-by-4.0"), ("MIT", "mit"), ("Public Domain", "cc0-1.0"),
     ("not stated for the data (the code is Apache-2.0)", "unknown"), ("mitigated", "other")],
)  # fmt: skip
def test_licences_as_the_hub_names_them(stated, name):
    assert hub_licence(stated) == name


def test_the_smallest_dataset_has_cards_too(tmp_path: Path):
    folder = Recipe(make_episodes([1])).write(tmp_path)
    manifest = read_manifest(folder)
    table = open_episodes(folder, 1, 1)
    found = overview(folder, manifest, table)
    assert not Page(make_html(folder, manifest, found, table)).open
    assert json.loads(make_croissant(folder, manifest, found))["name"] == "my/test"
    assert make_readme(manifest, found).startswith("---\n")


def test_dataset_without_steps(tmp_path):
    schema = Schema((Leaf("observation", "step", "float32", (4,)), Leaf("action", "step", "int64", ()), *ted_flags()))
    for leaf in schema:
        (tmp_path / leaf.memmap).parent.mkdir(exist_ok=True)
        (tmp_path / leaf.memmap).touch()
    none = np.zeros(0, np.int64)
    table = EpisodeTable(none, none, none.astype(float), none.astype(np.uint8), none.astype(bool))
    table.write(tmp_path)
    manifest = Manifest("my/empty", schema, 0, 0, {"name": "my"})
    page = make_html(tmp_path, manifest, overview(tmp_path, manifest, table), table)
    assert "Tensors" in page and "distributions" not in page and "Returns" not in page


def test_what_never_varies_is_stated_once(tmp_path):
    episodes = make_episodes([5, 5])
    for one in episodes:
        one.steps["next/reward"][:] = 1
    folder = Recipe(episodes).write(tmp_path)
    manifest = read_manifest(folder)
    found = overview(folder, manifest, open_episodes(folder, 2, 10))
    assert describe_episodes(manifest, found) == [("length", "always 5"), ("return", "always 5")]
