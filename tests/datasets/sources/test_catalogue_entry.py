"""The files that state what is known of datasets: their form, and that they agree with what else there is."""

from __future__ import annotations

import datetime
import importlib.util
import json
import re

import gymnasium
import pytest
from paths import DATA
from rbdata.datasets.catalogue import load_source
from rbdata.datasets.sources.atari.raw_files import LEFT_OUT
from rbdata.datasets.sources.catalogue_entry import ACTIONS, OBSERVATIONS, CatalogueEntry, CatalogueFile, Place
from rbdata.datasets.sources.d4rl.registry import FLAT_COPY, HOME, PINNED, registry
from rbdata.storage.plugins import BUILT_IN

TOP = DATA.parents[1]


@pytest.mark.parametrize("name", [name for name in BUILT_IN if load_source(name).names()])
class TestFile:
    def test_form(self, name):
        content = load_source(name).catalogue_file.content
        assert set(content) == {
            *("title", "date", "figures", "example", "places", "all", "groups", "columns", "datasets")
        }
        assert datetime.date.fromisoformat(content["date"]).year >= 2026
        assert content["figures"] and all(isinstance(figure, str) for figure in content["figures"])
        for place in (Place(**one) for one in content["places"].values()):
            assert place.access in ("open", "unreliable", "closed")
            assert re.fullmatch(r"\d{4}-\d\d(-\d\d)?", place.date)
        used = {row[1] for row in content["datasets"]}
        assert used == set(content["groups"])
        fields = set(CatalogueEntry.__dataclass_fields__) - {"id", "date", "figures"}
        assert all(set(facts) <= fields for facts in (content["all"], *content["groups"].values()))
        assert set(content["columns"][2:]) <= fields

    def test_values(self, name):
        source = load_source(name)
        options = {option.name for option in source.options}
        for entry in source.catalogue():
            assert entry.observations in (None, *OBSERVATIONS) and entry.actions in (None, *ACTIONS)
            counts = (entry.steps, entry.episodes, entry.bytes, entry.horizon)
            assert all(count is None or (type(count) is int and count > 0) for count in counts), entry.id
            assert None in (entry.steps, entry.episodes) or entry.steps >= entry.episodes
            assert entry.places and entry.citation and entry.origin.startswith("https://")
            assert set(entry.options) <= options
            assert all(tag == tag.lower() for tag in entry.tags)
            json.dumps(entry.to_json())

    def test_every_id_of_the_source_is_there(self, name):
        source = load_source(name)
        ids = [entry.name for entry in source.catalogue()]
        assert len(ids) == len(set(ids)) and set(ids) == set(source.names())
        assert source.catalogue_file.content["example"] in ids

    def test_is_part_of_the_package(self, name):
        text = (TOP / "pyproject.toml").read_text()
        source = load_source(name)
        package = type(source).__module__.rpartition(".")[0]
        assert re.search(rf'"{package}" = \[.*"{source.catalogue_name}"', text)


def test_ranges_and_additions():
    content = {
        "date": "2026-01-01",
        "figures": [],
        "places": {"web": {"name": "web", "url": "https://x", "access": "open", "mirror": True}},
        "all": {"tags": ["game"], "places": ["web"], "licence": "CC0"},
        "groups": {"pong": {"tags": ["ball"], "environment": "Pong"}},
        "columns": ["name", "group", "steps", "licence"],
        "datasets": [["Pong/9-11", "pong", 7], ["x-1-2", "pong", None, "MIT"]],
    }
    entries = list(CatalogueFile("s", content).entries())
    assert [entry.id for entry in entries] == ["s/Pong/9", "s/Pong/10", "s/Pong/11", "s/x-1-2"]
    assert (entries[0].steps, entries[0].licence, entries[0].tags) == (7, "CC0", ("ball", "game"))
    assert (entries[3].steps, entries[3].licence) == (None, "MIT")
    assert entries[3].command == "rbdata download s/x-1-2 --mirror https://x"


def test_atari_agrees_with_its_tables():
    closed = {entry.name for entry in load_source("atari").catalogue() if not entry.available}
    assert closed == {f"{game}/{run}" for game in LEFT_OUT for run in range(1, 6)}
    assert len(load_source("atari").catalogue_file.content["groups"]) == 60


def test_d4rl_agrees_with_its_registry():
    source = load_source("d4rl")
    places = source.catalogue_file.content["places"]
    assert (places["hugging-face"]["url"], places["berkeley"]["url"]) == (FLAT_COPY, HOME)
    sizes: dict[str, set] = {}
    for entry in source.catalogue():
        known = registry()[entry.name]
        assert entry.horizon == known.horizon
        sizes.setdefault(known.path, set()).add(entry.bytes)
        if known.file.removesuffix(".hdf5") in PINNED:
            assert "Hugging Face" in entry.available
    assert all(len(stated) == 1 for stated in sizes.values())  # ids that share a file


def test_gymnasium_agrees_with_its_environments():
    for entry in load_source("gymnasium").catalogue():
        if entry.name.startswith("ALE/"):
            continue
        env = gymnasium.make(entry.name)
        assert entry.horizon == env.spec.max_episode_steps
        for space, stated in ((env.observation_space, entry.observation_space), (env.action_space, entry.action_space)):
            assert stated == short(space)


def short(space: gymnasium.Space) -> str:
    if isinstance(space, gymnasium.spaces.Box):
        return f"Box {list(space.shape)} {space.dtype}"
    if isinstance(space, gymnasium.spaces.Tuple):
        return f"Tuple({', '.join(map(short, space.spaces))})"
    assert isinstance(space, gymnasium.spaces.Discrete)
    return f"Discrete {space.n}"


def test_the_page_of_all_datasets_is_up_to_date():
    """If it is not: python docs/gallery.py."""
    spec = importlib.util.spec_from_file_location("gallery", TOP / "docs" / "gallery.py")
    gallery = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gallery)
    text = gallery.PAGE.read_text()
    assert gallery.page(text) == text
