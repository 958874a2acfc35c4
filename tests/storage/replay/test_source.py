"""`Dataset.as_source`: steps and windows by number, for the loaders of grain and torch, in forked and spawned workers."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rbdata
from rbdata.errors import UsageError
from torch.utils.data import DataLoader

LENGTHS = (5, 70, 25)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> rbdata.Dataset:
    def episodes() -> Iterator[dict[str, Any]]:
        for number, length in enumerate(LENGTHS):
            state = 100 * number + np.arange(length + 1, dtype=np.float32)
            steps = {"action": np.arange(length), "reward": np.ones(length, np.float32)}
            yield {"observation": np.stack([state, -state], 1), **steps, "terminated": True, "truncated": False}

    return rbdata.open_dataset(rbdata.from_episodes(episodes(), "my/steps", root=tmp_path_factory.mktemp("root")))


def test_records(dataset: rbdata.Dataset) -> None:
    source = dataset.as_source()
    assert len(source) == len(dataset) == sum(LENGTHS)
    one = source[7]
    assert one["observation"].tolist() == [102, -102] and one["next"]["observation"].tolist() == [103, -103]
    assert one["next"]["reward"].shape == (1,) and one["action"].shape == () and one["action"] == 2
    assert all(type(leaf) is np.ndarray for leaf in (one["action"], one["next"]["reward"]))
    several = source.__getitems__([7, -1, 0])
    assert [each["action"].item() for each in several] == [2, LENGTHS[-1] - 1, 0]
    flat = dataset.as_source(form="flat", keys=["observation", "action", ("next", "reward"), ("next", "terminated")])
    assert set(flat[0]) == {"observations", "actions", "rewards", "terminals", "masks"}
    assert flat[4]["masks"] == 0 and flat[3]["masks"].shape == ()
    with pytest.raises(IndexError):
        source[len(source)]


def test_windows(dataset: rbdata.Dataset) -> None:
    source = dataset.as_source(windows={"observation": (-1, 0), "action": (0, 3)})
    record = source[5]  # the first step of the second episode
    assert record["observation"][:, 0].tolist() == [100, 100] and record["mask"]["observation"].tolist() == [
        False,
        True,
    ]
    assert record["action"].tolist() == [0, 1, 2, 3]
    assert source.__getitems__([5, 6])[1]["observation"][:, 0].tolist() == [100, 101]
    with pytest.raises(UsageError, match="goals"):
        dataset.as_source(goals=rbdata.Goals())


def test_it_pickles_as_a_path(dataset: rbdata.Dataset) -> None:
    source = dataset.as_source(frame_stack=4, normalize="observation", extra="step")
    source[3]
    pickled = pickle.dumps(source)
    assert len(pickled) < 6000
    again = pickle.loads(pickled)
    assert np.array_equal(again[3]["observation"], source[3]["observation"]) and again[3]["step"] == 3


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_torch(dataset: rbdata.Dataset, start: str) -> None:
    source = dataset.as_source(windows={"observation": (-1, 0), "action": (0, 3)})
    loader = DataLoader(source, batch_size=10, num_workers=2, multiprocessing_context=start)
    batches = list(loader)
    assert len(batches) == 10 and batches[0]["observation"].shape == (10, 2, 2)
    assert batches[1]["observation"][:, 1, 0].tolist() == [100.0 + step for step in range(5, 15)]


GRAIN = """
import json, sys, warnings
import grain
import jax
import numpy as np
import rbdata
from absl import flags


def main():
    flags.FLAGS.mark_as_parsed()  # which absl.app.run does; grain's workers ask for it
    source = rbdata.open_dataset(sys.argv[1]).as_source(form="flat")
    wanted = [int(action) for action in rbdata.open_dataset(sys.argv[1])["action"]]
    warnings.simplefilter("error")
    jax.numpy.zeros(3).block_until_ready()
    steps = grain.MapDataset.source(source)
    batches = list(steps.batch(20))
    told = {"map": np.concatenate([batch["actions"] for batch in batches]).tolist() == wanted}
    shuffled = steps.seed(0).shuffle().batch(20).to_iter_dataset()
    told["threads"] = sorted(np.concatenate([batch["actions"] for batch in shuffled]).tolist()) == sorted(wanted)
    sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=1, num_epochs=1)
    loader = grain.DataLoader(
        data_source=source, sampler=sampler, worker_count=2, operations=[grain.transforms.Batch(20)]
    )
    batches = list(loader)
    told["workers"] = sorted(np.concatenate([batch["actions"] for batch in batches]).tolist()) == sorted(wanted)
    told["shapes"] = [batches[0]["observations"].shape, batches[0]["masks"].shape]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
"""


def test_loaders_of_grain(dataset: rbdata.Dataset, tmp_path: Path) -> None:
    """With threads and with workers, beside JAX, whose warning of a fork would be an error."""
    pytest.importorskip("grain")
    pytest.importorskip("jax")
    program = tmp_path / "program.py"
    program.write_text(GRAIN)
    said = subprocess.run(
        [sys.executable, str(program), str(dataset.path)], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    told = json.loads(said.stdout)
    assert told == {"map": True, "threads": True, "workers": True, "shapes": [[20, 2], [20]]}
