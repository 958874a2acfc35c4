"""The catalogue as Python sees it."""

from __future__ import annotations

import json
import shutil

import pytest
import rbdata
from paths import DATA
from rbdata.datasets.catalogue import known_ids
from rbdata.datasets.sources.catalogue_entry import ListedDataset, cache_listing
from rbdata.errors import DatasetNotFoundError, UsageError


def test_every_id_is_there_and_short_in_a_terminal():
    catalogue = rbdata.catalogue()
    assert catalogue.ids == known_ids()
    assert repr(catalogue) == (
        f"<Catalogue of {len(catalogue):,} datasets: atari/AirRaid/1, atari/AirRaid/2, atari/AirRaid/3, ..., "
        "gymnasium/ALE/Pong-v5>"
    )
    assert repr(rbdata.catalogue("d4rl")[50]).startswith("<CatalogueEntry d4rl/")
    assert rbdata.search("nothing like it").ids == [] and repr(rbdata.search("zzz")) == "<Catalogue of 0 datasets>"
    with pytest.raises(DatasetNotFoundError, match="no source 'd5rl'"):
        rbdata.catalogue("d5rl")


def test_info():
    entry = rbdata.info("hopper-medium-v2")
    assert (entry.id, entry.source, entry.name) == ("d4rl/hopper-medium-v2", "d4rl", "hopper-medium-v2")
    assert (entry.reference_scores.low, entry.reference_scores.high) == (-20.272305, 3234.3)
    assert rbdata.info("atari/Pong/1").reference_scores.high_policy == "human"
    assert rbdata.search("hopper medium", max_size="200MB", source="d4rl")[0] == entry
    assert json.loads(json.dumps(entry.to_json()))["command"] == entry.command
    assert rbdata.info("CartPole-v1").command == "rbdata download gymnasium/CartPole-v1"
    with pytest.raises(DatasetNotFoundError) as raised:
        rbdata.info("hoper-medium-v2")
    assert "d4rl/hopper-medium-v2" in raised.value.hint
    with pytest.raises(UsageError, match="kind of actions"):
        rbdata.search("hopper", actions="none")


def test_a_listing_of_the_remote_adds_counts_and_datasets(tmp_path):
    listed = [ListedDataset("D4RL/door/human-v2", 26, 6800, 99), ListedDataset("new/one-v0", steps=5)]
    cache_listing("minari", "hf://farama-minari", listed, tmp_path)
    catalogue = {entry.id: entry for entry in rbdata.catalogue("minari", root=tmp_path)}
    door = catalogue["minari/D4RL/door/human-v2"]
    assert (door.steps, door.episodes, door.bytes, door.actions) == (6800, 26, 99, "continuous")
    new = rbdata.info("minari/new/one-v0", root=tmp_path)
    assert catalogue["minari/new/one-v0"].steps == new.steps == 5
    assert new.citation == door.citation


def test_minari_datasets_of_this_machine_are_listed_with_their_counts(tmp_path, monkeypatch):
    root = shutil.copytree(DATA / "minari", tmp_path / "minari")
    (root / "old/one-v0/data").mkdir(parents=True)
    (root / "old/one-v0/data/main_data.hdf5").write_bytes(bytes(7))  # from before metadata.json
    (root / "odd/one-v0/data").mkdir(parents=True)
    (root / "odd/one-v0/data/metadata.json").write_text('{"total_steps": "many"}')
    large = root / "large/one-v0/data"
    large.mkdir(parents=True)
    (large / "metadata.json").write_text(json.dumps({"total_steps": 12, "total_episodes": 3, "bounds": "0" * 300_000}))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    here = {entry.name: entry for entry in rbdata.catalogue("minari") if "this machine" in entry.available}
    for path in root.glob("*/*/data/metadata.json"):
        name = str(path.parents[1].relative_to(root))
        if name.split("/")[0] in ("cartpole", "mujoco"):
            stated = json.loads(path.read_text())
            entry = here[name]
            assert (entry.steps, entry.episodes) == (stated["total_steps"], stated["total_episodes"])
            assert entry.bytes == sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file())
            assert entry.environment == json.loads(stated["env_spec"])["id"]
    assert (here["cartpole/dict-v0"].observations, here["cartpole/dict-v0"].actions) == ("dict", "discrete")
    assert here["cartpole/dict-v0"].observation_space.startswith("Dict(state: Dict(pos: Box [2] float64")
    assert (here["large/one-v0"].steps, here["large/one-v0"].episodes) == (12, 3)
    assert (here["old/one-v0"].steps, here["old/one-v0"].bytes) == (None, 7)
    assert here["odd/one-v0"].steps is None
