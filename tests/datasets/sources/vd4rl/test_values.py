"""Values, episodes and flags of V-D4RL, beside the transitions that were meant and beside plain NumPy readers."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
import pytest
import rbdata
from effort import examples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from paths import DATA
from rbdata.storage.integrity import verify
from transitions_truth import Truth

SETS = {
    "walker_walk-medium-64px": "observation/image",
    "walker_walk-expert-64px": "observation/image",
    "walker_walk-medium_replay-64px": "observation/image",
    "cheetah_run-medium-84px": "observation",
}


def converted(folder: Path, root: Path):
    path = rbdata.convert(folder, "my/x", root=root, procs=0)
    assert verify(path).ok
    return rbdata.open_dataset(path)


@pytest.mark.parametrize("name", SETS)
def test_transitions_are_those_that_were_meant(tmp_path, name):
    """Traps 79 and 80: action and reward of a row led to its image; 500 images with 501 flags; no next episode's frame."""
    rbdata.download(f"vd4rl/{name}", root=tmp_path, mirror=DATA / "vd4rl", procs=0)
    dataset = rbdata.open_dataset(f"vd4rl/{name}", root=tmp_path)
    Truth.of_file(DATA / f"vd4rl/truth/{name}.npz").check(dataset, SETS[name])
    assert (dataset["info/discount"] == (~dataset["next/terminated"]).float()[:, 0]).all()


def test_more_flags_than_images_are_noted(tmp_path):
    """Trap 80."""
    rbdata.download("vd4rl/walker_walk-medium", root=tmp_path, mirror=DATA / "vd4rl")
    manifest = rbdata.open_dataset("vd4rl/walker_walk-medium", root=tmp_path).manifest
    assert manifest.counts["files_with_more_flags"] == 1
    assert any("more flags than images" in note for note in manifest.notes)


# -- files of random shapes, read by loops ---------------------------------------------------------------------------------


@st.composite
def npz_episodes(draw):
    """Arrays of a few files, some keys in all of them or in none."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    side, channels = draw(st.sampled_from([(4, 3), (20, 3), (64, 1)]))
    with_discount, with_flags, with_states = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    reward_type, discount_type = draw(st.sampled_from(["f4", "f8"])), draw(st.sampled_from(["f4", "f8"]))
    files = []
    for rows in draw(st.lists(st.integers(1, 9), min_size=1, max_size=4).filter(lambda lengths: max(lengths) > 1)):
        terminal = draw(st.booleans())
        arrays = {
            "image": rng.integers(0, 256, (rows, side, side, channels), np.uint8),
            "action": rng.normal(size=(rows, 2)).astype("f4"),
            "reward": rng.normal(size=rows).astype(reward_type),
        }
        if with_discount:
            arrays["discount"] = np.ones(rows, discount_type)
            arrays["discount"][-1] = not (terminal and not with_flags)
        if with_flags:
            more = draw(st.sampled_from([0, 1, 7]))
            arrays["is_first"] = np.arange(rows + more) == 0
            arrays["is_last"] = np.arange(rows + more) == rows + more - 1
            arrays["is_terminal"] = np.arange(rows + more) == (rows - 1 if terminal else rows + more)
        if with_states:
            arrays["height"] = rng.normal(size=rows).astype("f4")
            arrays["velocity"] = rng.normal(size=(rows, 3)).astype("f4")
        files.append(arrays)
    return files


def truth_of_npz(files):
    truth, heights = Truth(), []
    for arrays in files:
        n = len(arrays["image"]) - 1
        terminal = bool(arrays["is_terminal"][n]) if "is_terminal" in arrays else False
        terminal |= "discount" in arrays and arrays["discount"][n] == 0
        truth.add(
            arrays["image"], arrays["action"][1:], arrays["reward"][1:], "terminated" if terminal else "truncated"
        )
        heights += list(arrays.get("height", ())[:n])
    return truth, heights


@settings(max_examples=examples(8), phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
@given(npz_episodes())
def test_npz_episodes_of_any_shape(files):
    with TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        raw.mkdir()
        for number, arrays in enumerate(files):
            np.savez_compressed(raw / f"2022010{number}T013700-0a1b-500.npz", **arrays)
        dataset = converted(raw, Path(folder) / "root")
        truth, heights = truth_of_npz(files)
        truth.check(dataset, "observation/image")
        if heights:
            assert np.array_equal(dataset["observation/height"][:, 0].numpy(), np.array(heights))
            assert dataset["next/observation/velocity"].shape == (len(heights), 3)


@st.composite
def shards(draw):
    """Rows of shards; the first may begin inside an episode, and the last end there."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    made = []
    for _ in range(draw(st.integers(1, 3))):
        lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
        types, discount = [], []
        for length in lengths:
            types += [0] + [1] * (length - 2) + [2] * (length > 1)
            discount += [1.0] * (length - 1) + [float(draw(st.booleans()))]
        low = draw(st.integers(0, lengths[0] - 1))
        high = len(types) - draw(st.integers(0, lengths[-1] - 1)) * (len(lengths) > 1)
        rows = high - low
        made.append(
            {
                "observation": rng.integers(0, 256, (rows, 3, 30, 30), np.uint8),
                "action": rng.normal(size=(rows, 2)).astype("f4"),
                "reward": rng.normal(size=rows),
                "discount": np.array(discount[low:high]),
                "step_type": np.array(types[low:high]).astype(draw(st.sampled_from(["i8", "f8"]))),
            }
        )
    return made


def truth_of_shards(made):
    """As a loop over time steps reads them: an episode ends with a last one, or before the next first one."""
    truth = Truth()
    for arrays in made:
        rows: list[int] = []
        for row, kind in enumerate(arrays["step_type"]):
            if kind == 0 and rows:
                _end(truth, arrays, rows, "cut")
                rows = []
            rows.append(row)
            if kind == 2:
                _end(truth, arrays, rows, "truncated")
                rows = []
        if rows:
            _end(truth, arrays, rows, "cut")
    return truth


def _end(truth, arrays, rows, end):
    end = "terminated" if arrays["discount"][rows[-1]] == 0 else end
    truth.add(arrays["observation"][rows], arrays["action"][rows[1:]], arrays["reward"][rows[1:]], end)


@settings(max_examples=examples(8), phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
@given(shards().filter(lambda made: truth_of_shards(made).episodes))
def test_shards_of_any_shape(made):
    with TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        raw.mkdir()
        for number, arrays in enumerate(made):
            with h5py.File(raw / f"{number}.hdf5", "w") as file:
                for key, values in arrays.items():
                    file.create_dataset(key, data=values, compression="gzip", chunks=True)
        dataset = converted(raw, Path(folder) / "root")
        truth_of_shards(made).check(dataset)
        cut = sum(arrays["step_type"][0] != 0 for arrays in made)
        assert dataset.manifest.counts["cut_beginnings"] == cut
        assert any(f"{cut} shard" in note and "inside an episode" in note for note in dataset.manifest.notes) == bool(
            cut
        )
