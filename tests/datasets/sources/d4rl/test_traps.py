"""One test for each known trap in D4RL's files, all through the real conversion."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import rbdata
import torch
from d4rl_truth import assert_holds, checked, expected, make, to_dataset, write
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import DATA
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.sources.d4rl.reader import EndFlags, choose_ends
from rbdata.errors import CorruptSourceError, DatasetExistsError, UsageError

REAL = DATA / "d4rl"


def get(name: str, mirror: Path, root: Path, **extra):
    """Download a dataset from a directory mirror."""
    options = ConvertOptions(extra=extra)
    return checked(download(Request(f"d4rl/{name}", root=root, mirror=str(mirror), options=options)).path)


@pytest.mark.parametrize(
    ("name", "by"),
    [("walker2d-random-v0", "horizon"), ("hopper-full-replay-v2", "both"), ("halfcheetah-random-v2", "both")],
)
def test_real_files_value_for_value(name, by, tmp_path):
    dataset = get(name, REAL, tmp_path)
    (file,) = REAL.glob(f"*/{dataset.manifest.source['objects'][0]['name']}")
    truth = expected(file, by, horizon=1000)
    assert_holds(dataset, truth)
    assert dataset.manifest.source["options"]["episodes_by"] == by
    with h5py.File(file) as source:
        for key, path in dataset.manifest.source["keys"].items():
            found = dataset[key].numpy()
            np.testing.assert_array_equal(found, source[path][()][truth["row"]])
            assert found.dtype == source[path].dtype
        assert dataset.manifest.counts["rows"] == len(source["rewards"])
    assert dataset.manifest.counts["rows"] - dataset.manifest.counts["given_up_steps"] == len(dataset)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    ends=st.lists(st.sampled_from(["terminal", "timeout", "terminal timeout", "none"]), min_size=6, max_size=6),
    successors=st.booleans(),
    by=st.sampled_from(["auto", "both", "terminals", "horizon"]),
    zero=st.booleans(),
    packed=st.booleans(),
)
def test_any_file_value_for_value(lengths, ends, successors, by, zero, packed, tmp_path_factory):
    if successors:  # a trajectory that goes on after its successor was stated otherwise is another test
        ends = ["timeout" if end == "none" else end for end in ends]
        by = "both" if by != "auto" else by
    folder = tmp_path_factory.mktemp("file")
    storage = {"compression": "gzip", "chunks": True} if packed else {}
    file = write(folder / "raw" / "x.hdf5", make(lengths, ends, successors=successors), **storage)
    flagged = any("timeout" in end for end in ends[: len(lengths)])
    resolved = by if by != "auto" else "both" if flagged or sum(lengths) <= 6 else "horizon"
    truth = None
    try:
        dataset = to_dataset(file, folder, episodes_by=by, horizon=5, unknown_next="zero" if zero else "truncate")
    except CorruptSourceError as error:
        assert "no step whose successor is known" in str(error)
        return
    resolved = dataset.manifest.source["options"]["episodes_by"] if by == "auto" else resolved
    truth = expected(file, resolved, horizon=5, zero=zero)
    assert_holds(dataset, truth)


def test_trap_27_missing_timeouts_end_at_the_horizon(tmp_path):
    arrays = make([4, 6, 7], ["terminal", "none", "none"])
    del arrays["timeouts"]
    file = write(tmp_path / "raw" / "walker2d_random.hdf5", arrays)
    dataset = to_dataset(file, tmp_path, horizon=5)
    assert_holds(dataset, expected(file, "horizon", horizon=5))
    assert dataset.manifest.lengths["max"] <= 5
    assert any("at the latest, after 5 rows" in note for note in dataset.manifest.notes)


def test_trap_27_no_silent_single_episode(tmp_path):
    arrays = make([10], ["none"])
    del arrays["timeouts"]
    file = write(tmp_path / "raw" / "x.hdf5", arrays)
    with pytest.raises(UsageError, match=r"nothing in .* says where its trajectories end"):
        to_dataset(file, tmp_path)
    assert not (tmp_path / "my" / "run").exists()
    with pytest.raises(UsageError, match="flags no time-outs"):
        to_dataset(file, tmp_path, episodes_by="timeouts")
    with pytest.raises(UsageError, match=r"horizon of .* is not known"):
        to_dataset(file, tmp_path, episodes_by="horizon")


def test_timeouts_that_are_never_set_are_not_believed_beyond_the_horizon():
    terminals, timeouts = np.zeros(100, bool), np.zeros(100, bool)
    assert choose_ends("auto", EndFlags(terminals, timeouts, True, 50), "x") == "horizon"
    assert choose_ends("auto", EndFlags(terminals, timeouts, True, 100), "x") == "both"
    terminals[40::40] = True
    assert choose_ends("auto", EndFlags(terminals, timeouts, True, 50), "x") == "both"


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("bool", "column"),
        ("uint8", "flat"),
        ("int64", "column"),
        ("float32", "flat"),
        ("float64", "column"),
        (">f4", "flat"),
    ],
)
def test_trap_28_and_29_scalars_in_every_form(kind, shape, tmp_path):
    plain = make([3, 4, 2], ["terminal", "timeout", "none"])
    odd = {**plain, "terminals": plain["terminals"].astype(kind), "timeouts": plain["timeouts"].astype(kind)}
    if shape == "column":
        odd = {key: value[:, None] if value.ndim == 1 else value for key, value in odd.items()}
    first = to_dataset(write(tmp_path / "a" / "x.hdf5", plain), tmp_path / "1")
    second = to_dataset(write(tmp_path / "b" / "x.hdf5", odd), tmp_path / "2")
    for key in first.schema.names:
        assert torch.equal(first[key], second[key]), key
    assert second["next/reward"].shape == (len(second), 1)


def test_trap_29_float64_stays_and_rewards_become_float32(tmp_path):
    arrays = make([5, 4], ["timeout", "timeout"], successors=True, dtype="float64")
    arrays["observations"][:, 0] += 1e-12
    arrays["next_observations"][:-1] = np.where(
        arrays["timeouts"][:-1, None], arrays["next_observations"][:-1], arrays["observations"][1:]
    )
    arrays["rewards"] += 1e-12
    dataset = to_dataset(write(tmp_path / "raw" / "x.hdf5", arrays), tmp_path)
    assert dataset["observation"].dtype == torch.float64
    assert dataset["next/reward"].dtype == torch.float32
    np.testing.assert_array_equal(dataset["observation"].numpy(), arrays["observations"])
    assert any("Rewards were float64" in note for note in dataset.manifest.notes)


def test_trap_30_true_successors_at_time_outs(tmp_path):
    file = write(tmp_path / "raw" / "x.hdf5", make([3, 4], ["timeout", "terminal"], successors=True))
    dataset = to_dataset(file, tmp_path)
    assert dataset["next/observation"][2].tolist() == [1000, 1000, 1000]
    assert dataset["next/truncated"][2]
    assert dataset["next/observation"][-1].tolist() == [1001, 1001, 1001]
    assert len(dataset) == 7


@pytest.mark.parametrize("unknown_next", ["truncate", "zero"])
def test_trap_31_no_successor_from_the_next_trajectory(unknown_next, tmp_path):
    arrays = make([3, 4, 5], ["timeout", "terminal", "timeout"])
    dataset = to_dataset(write(tmp_path / "raw" / "x.hdf5", arrays), tmp_path, unknown_next=unknown_next)
    firsts = {tuple(arrays["observations"][row]) for row in (3, 7)}
    assert not firsts & {tuple(row) for row in dataset["next/observation"].tolist()}
    counts = dataset.manifest.counts
    assert (counts["given_up_steps"], counts["unknown_next_steps"]) == (
        (2, 0) if unknown_next == "truncate" else (0, 2)
    )
    assert len(dataset) == (10 if unknown_next == "truncate" else 12)


def test_trap_32_and_33_roots_are_false_and_the_last_row_is_accounted_for(tmp_path):
    file = write(tmp_path / "raw" / "x.hdf5", make([3, 4], ["terminal", "none"], successors=True))
    dataset = to_dataset(file, tmp_path)
    assert len(dataset) == 7
    assert dataset.episodes.outcomes.tolist() == [1, 3]  # cut: the data end there
    assert "reward" not in dataset.schema
    without = to_dataset(write(tmp_path / "b" / "x.hdf5", make([3, 4], ["terminal", "none"])), tmp_path / "2")
    assert len(without) == 6
    assert without.manifest.counts["given_up_steps"] == 1
    assert any("Dropped: 1 of 7 steps" in note for note in without.manifest.notes)


def test_trap_34_terminal_and_timeout_together(tmp_path):
    dataset = to_dataset(write(tmp_path / "raw" / "x.hdf5", make([3, 3], ["terminal timeout"] * 2)), tmp_path)
    ends = dataset["next/done"].squeeze(1)
    assert dataset["next/terminated"][ends].all() and dataset["next/truncated"][ends].all()
    assert len(dataset) == 6 and dataset.episodes.outcomes.tolist() == [1, 1]


def test_trap_35_only_per_step_arrays_enter(tmp_path):
    arrays: dict[str, Any] = make([4, 4], ["terminal", "terminal"])
    rows = 8
    arrays |= {
        "infos": np.arange(rows),
        "metadata/algorithm": np.bytes_("SAC"),
        "metadata/iteration": np.int64(7),
        "metadata/policy/fc0/weight": np.ones((256, 3), "f4"),
        "metadata/policy/nonlinearity": np.bytes_("relu"),
        "metadata/names": np.array([b"a", b"b"]),
        "extra/goal": np.arange(rows * 2).reshape(rows, 2).astype("f4"),
        "odd_length": np.zeros(3),
        "text": np.array([b"x"] * rows),
        "empty": np.zeros((rows, 0)),
    }
    dataset = to_dataset(write(tmp_path / "raw" / "x.hdf5", arrays), tmp_path)
    assert dataset["info/infos"].tolist() == list(range(rows))
    assert dataset["info/extra/goal"].tolist() == arrays["extra/goal"].tolist()
    assert {key for key in dataset.schema.names if key.startswith("info")} == {"info/infos", "info/extra/goal"}
    source = dataset.manifest.source
    assert source["metadata"]["algorithm"] == "SAC" and source["metadata"]["iteration"] == 7
    assert source["metadata"]["names"] == ["a", "b"]
    assert source["metadata"]["policy/fc0/weight"]["shape"] == [256, 3]
    assert set(source["left_out"]) == {"odd_length", "text", "empty"}
    json.dumps(source, allow_nan=False)
    assert any(note.startswith("Left out:") for note in dataset.manifest.notes)


def test_infos_with_odd_names_are_mapped_and_clashes_left_out(tmp_path):
    arrays = make([4], ["terminal"])
    column = np.arange(4)
    arrays |= {"infos/a.b": column, "infos/a%b": column + 10, "infos/shape": column + 20, "a_b": column + 30}
    dataset = to_dataset(write(tmp_path / "raw" / "x.hdf5", arrays), tmp_path)
    keys = dataset.manifest.source["keys"]
    assert keys["info/shape_"] == "infos/shape"
    assert len(keys) + len(dataset.manifest.source["left_out"]) == 4
    for key, path in keys.items():
        assert dataset[key].tolist() == arrays[path].tolist()


def test_infos_that_differ_in_case_alone(tmp_path):
    """On many disks they would be one file: the first is kept, and what is left out is said."""
    arrays = make([3, 4], ["terminal"] * 2)
    arrays |= {"infos/Qpos": np.arange(7.0), "infos/qpos": np.arange(7.0) + 10, "infos/QPOS/x": np.arange(7.0)}
    dataset = to_dataset(write(tmp_path / "raw" / "x.hdf5", arrays), tmp_path)
    infos = [leaf.name for leaf in dataset.schema if leaf.name.startswith("info")]
    assert len(infos) == 1 and len(dataset.manifest.source["left_out"]) == 2
    assert any("is taken" in note for note in dataset.manifest.notes)


def test_trap_36_maze2d_keeps_every_row_it_can(tmp_path):
    """Time-outs mark goals; the row after one repeats its observation. Nothing is repaired, and every row accounted for."""
    arrays = make([5, 6, 4], ["timeout", "timeout", "none"], width=4)
    arrays["observations"][5] = arrays["observations"][4]
    write(tmp_path / "m" / "maze2d" / "maze2d-umaze-sparse-v1.hdf5", arrays)
    dataset = get("maze2d-umaze-v1", tmp_path / "m", tmp_path)
    counts = dataset.manifest.counts
    assert counts["rows"] == 15 == len(dataset) + counts["given_up_steps"]
    assert dataset["observation"][4].tolist() == arrays["observations"][5].tolist()
    np.testing.assert_array_equal(
        dataset["next/reward"].numpy()[:, 0], arrays["rewards"][[0, 1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13]]
    )
    assert any("issue 194" in note for note in dataset.manifest.notes)


def antmaze(path: Path) -> dict[str, np.ndarray]:
    arrays = make([8, 8], ["timeout", "timeout"], width=29)
    arrays["observations"] = np.cumsum(np.full((16, 29), 0.1, "f4"), 0, dtype="f4")
    arrays["terminals"][[3, 4, 5, 14]] = True
    write(path, arrays)
    return arrays


def test_trap_37_antmaze_terminals_do_not_end_the_trajectory(tmp_path):
    file = tmp_path / "m" / "Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed.hdf5"
    antmaze(file)
    dataset = get("antmaze-umaze-v2", tmp_path / "m", tmp_path)
    assert dataset.episodes.lengths.tolist() == [7, 7]
    assert_holds(dataset, expected(file, "timeouts", terminals_end=False))
    assert dataset["next/terminal"].squeeze(1).nonzero().squeeze(1).tolist() == [3, 4, 5, 13]
    assert dataset.manifest.counts["inner_terminals"] == 3
    assert dataset["next/terminated"].squeeze(1).nonzero().squeeze(1).tolist() == [13]  # it is the last there is
    both = get("antmaze-umaze-v2", tmp_path / "m", tmp_path / "2", episodes_by="both")
    # Rows 3, 4, 5, 7, 14 and 15 end trajectories; the last of them is one row whose successor nobody knows.
    assert len(both.episodes) == 5 and both.manifest.counts["lost_trajectories"] == 1
    assert "next/terminal" not in both.schema


def test_trap_39_other_options_are_another_conversion(tmp_path):
    file = write(tmp_path / "raw" / "x.hdf5", make([3, 4, 5], ["terminal", "timeout", "terminal"]))
    first = len(to_dataset(file, tmp_path).episodes)
    with pytest.raises(DatasetExistsError, match="episodes_by"):
        to_dataset(file, tmp_path, episodes_by="terminals")
    assert len(to_dataset(file, tmp_path, episodes_by="terminals", force=True).episodes) == first - 1
    to_dataset(file, tmp_path, episodes_by="terminals")  # what is there is what is asked for


@pytest.mark.parametrize(
    "storage", [{}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}, {"chunks": (3, 2)}]
)
def test_trap_65_big_endian_and_every_storage(storage, tmp_path):
    arrays = make([7, 9, 30], ["terminal", "timeout", "none"], successors=True)
    big = {key: value.astype(value.dtype.newbyteorder(">")) for key, value in arrays.items()}
    one, two = (folder / "x.hdf5" for folder in (tmp_path / "a", tmp_path / "b"))
    write(one, arrays)
    two.parent.mkdir()
    with h5py.File(two, "w") as file:
        for key, value in big.items():
            chunks = storage.get("chunks")
            chosen = {**storage, "chunks": chunks[: value.ndim]} if chunks else storage
            file.create_dataset(key, data=value, **chosen)
    first, second = to_dataset(one, tmp_path / "1"), to_dataset(two, tmp_path / "2")
    for key in first.schema.names:
        assert torch.equal(first[key], second[key]), key


def test_unflagged_seams_end_episodes(tmp_path):
    """The file says what follows a row, and its next row is something else: the trajectory ends there."""
    arrays = make([6, 6], ["none", "terminal"], successors=True)
    arrays["next_observations"][2] = arrays["observations"][3] * (1 + 1e-7)  # rounding is no seam
    arrays["observations"][9] = arrays["next_observations"][8] = np.nan  # NaN is like NaN
    dataset = to_dataset(write(tmp_path / "raw" / "x.hdf5", arrays), tmp_path)
    assert dataset.episodes.lengths.tolist() == [6, 6] and dataset.episodes.outcomes.tolist() == [3, 1]
    counts = dataset.manifest.counts
    assert counts["seams"] == 1
    assert dataset["next/observation"][5].tolist() == [1000, 1000, 1000]


def test_large_observations_are_stored_once(tmp_path):
    """CARLA's flattened images: a state leaf, compressed, whether or not the file has successors."""
    rng = np.random.default_rng(0)
    for successors in (False, True):
        arrays = make([40, 50, 30], ["terminal", "timeout", "none"], successors=successors)
        images = rng.integers(0, 40, (120, 2304)).astype("uint8")
        arrays["observations"] = images
        if successors:
            after = np.concatenate([images[1:], images[:1]])
            after[[39, 89, 119]] = 255
            arrays["next_observations"] = after
        file = write(tmp_path / f"raw{successors}" / "x.hdf5", arrays, compression="gzip")
        dataset = to_dataset(file, tmp_path / str(successors))
        assert dataset.schema["observation"].kind == "state" and dataset.schema["observation"].codec == "zstd"
        assert_holds(dataset, expected(file, "both"))
    plain = to_dataset(file, tmp_path / "zero", unknown_next="zero")
    assert_holds(plain, expected(file, "both", zero=True))


@pytest.mark.parametrize("successors", [True, False])
@pytest.mark.parametrize("last", ["terminal", "timeout", "none"])
def test_row_counts_beside_those_of_qlearning_dataset(tmp_path, successors, last):
    """As docs/sources/d4rl.md states them, and the function of docs/functions.md that gives the same rows."""
    arrays = make([5, 4, 6, 3], ["terminal", "timeout", "timeout", last], successors=successors)
    path = write(tmp_path / "hopper_medium-v2.hdf5", arrays)
    dataset = rbdata.open_dataset(rbdata.convert(path, "d4rl/hopper-medium-v2", root=tmp_path, source="d4rl"))
    theirs = [row for row in range(17) if not arrays["timeouts"][row]]  # next observations are those of the row after
    assert len(theirs) == 18 - int(arrays["timeouts"].sum()) - (last != "timeout")
    assert len(dataset) == (18 if successors else len(theirs) + (last == "terminal"))
    if not successors:
        assert np.array_equal(dataset["observation"][: len(theirs)].numpy(), arrays["observations"][theirs])
        return
    page = (Path(__file__).parents[4] / "docs/functions.md").read_text()
    namespace = {}
    exec(re.search(r"<!-- file: qlearning.py -->\n```python\n(.*?)```", page, re.S)[1], namespace)
    made = rbdata.preprocess(dataset.path, namespace["rows"], dest="my/q", per="episode", root=tmp_path)
    rows = rbdata.open_dataset(made)
    assert np.array_equal(rows["observation"][: len(theirs)].numpy(), arrays["observations"][theirs])
    assert len(rows) == len(theirs) + (last == "terminal"), "a terminal in the last row stays"
