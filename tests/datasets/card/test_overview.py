from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rbdata.datasets.card.overview import MAX_STEPS, Overview, overview, sample_ranges
from rbdata.errors import DamagedDatasetError
from rbdata.storage.episodes import open_episodes
from rbdata.storage.manifest import read_manifest
from storage_tools import Recipe, columns, make_episodes


def look(folder: Path, **stated) -> Overview:
    manifest = read_manifest(folder)
    for name, value in stated.items():
        setattr(manifest, name, value)
    return overview(folder, manifest, open_episodes(folder, manifest.episodes, manifest.steps))


@pytest.fixture(scope="module")
def episodes():
    made = make_episodes([3, 50, 1, 9])
    rng = np.random.default_rng(1)
    for one in made:
        one.steps["action"] = {}
        del one.steps["action"]
        one.steps["action/arm"] = rng.uniform(-1, 1, (len(one), 40)).astype("float32")
        one.steps["action/grip"] = rng.integers(0, 2, len(one))
    made[1].steps["next/reward"][4] = np.nan
    return made


@pytest.fixture(scope="module")
def folder(episodes, tmp_path_factory):
    return Recipe(episodes).write(tmp_path_factory.mktemp("overview"))


def test_everything_of_a_small_dataset_is_counted(folder, episodes):
    truth = columns(episodes)
    found = look(folder)
    assert found.outcomes == {"terminated": 2, "truncated": 1, "cut": 1}
    assert (found.sampled_steps, found.episodes) == (63, 4)
    assert (found.lengths.low, found.lengths.mean, found.lengths.high) == (1, 15.75, 50)
    reward = found.rewards.elements[0]
    assert reward.not_finite == found.returns.not_finite == 1
    assert reward.mean == pytest.approx(np.nanmean(truth["next/reward"].astype("float64")))
    arm, grip = found.actions
    assert (arm.key, arm.size, len(arm.elements), arm.names[31]) == ("action/arm", 40, 32, "action/arm[31]")
    assert arm.elements[31].high == truth["action/arm"][:, 31].max()
    assert grip.elements[0].counts == tuple(np.bincount(truth["action/grip"]))


def test_observations_are_counted_by_element_frames_are_not(tmp_path):
    kinds = {"observation__joints": ((3,), "float32"), "observation__camera": ((40, 40), "uint8")}
    made = make_episodes([3, 50], **kinds)
    (joints,) = look(Recipe(made).write(tmp_path)).observations
    truth = np.concatenate([one.states["observation/joints"][:-1] for one in made])
    assert (joints.key, joints.size, joints.names[2]) == ("observation/joints", 3, "observation/joints[2]")
    for element, values in zip(joints.elements, truth.T):
        assert element.number == 53
        assert (element.low, element.high) == (values.min(), values.max())
        assert element.mean == pytest.approx(values.astype("float64").mean())


def test_the_record_is_json(folder):
    record = json.loads(json.dumps(look(folder).to_json(), allow_nan=False))
    assert record["sampled"] == {"steps": 63, "episodes": 4}
    assert list(record["distributions"]) == ["return", "length", "reward", "action/arm", "action/grip", "observation"]


def test_what_the_source_states(folder):
    source = {"environment": {"id": "Hopper-v5"}, "reference_scores": [-20, 380]}
    space = {"action": {"type": "Dict", "spaces": {"grip": {"type": "Discrete", "n": 4}}}}
    found = look(folder, source=source, spaces=space)
    assert found.environment == "Hopper-v5"
    assert [float(found.reference.normalize(total)) for total in (-20, 180)] == [0, 50]
    assert found.actions[1].elements[0].values == (0, 1, 2, 3)
    for wrong in ({"reference_scores": [1, 1], "environment": 3}, {"reference_scores": [float("inf"), 1]}, {}):
        found = look(folder, source=wrong, spaces={"action": {"type": "?", "n": "x"}})
        assert (found.reference, found.environment) == (None, None)


@pytest.mark.parametrize("count", [0, 1, MAX_STEPS, MAX_STEPS + 1, 50_000_000])
def test_blocks_are_few_and_cover_both_ends(count):
    found = sample_ranges(count, MAX_STEPS)
    assert sum(stop - start for start, stop in found) == min(count, MAX_STEPS)
    assert not found or (found[0][0], found[-1][1]) == (0, count)


def test_a_missing_leaf_is_named(folder):
    (folder / "action/grip.memmap").rename(folder / "elsewhere")
    try:
        with pytest.raises(DamagedDatasetError, match="grip"):
            look(folder)
    finally:
        (folder / "elsewhere").rename(folder / "action/grip.memmap")
