"""`Dataset.as_source`: steps and windows by number, for the loaders of grain and torch, with forked workers and others."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import rbdata
from beside_jax import beside_jax
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


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_workers_of_torch(dataset: rbdata.Dataset, start: str) -> None:
    source = dataset.as_source(windows={"observation": (-1, 0), "action": (0, 3)})
    loader = DataLoader(source, batch_size=10, num_workers=2, multiprocessing_context=start)
    batches = list(loader)
    assert len(batches) == 10 and batches[0]["observation"].shape == (10, 2, 2)
    assert batches[1]["observation"][:, 1, 0].tolist() == [100.0 + step for step in range(5, 15)]


@pytest.mark.filterwarnings("error:os.fork")
def test_loaders_of_grain(dataset: rbdata.Dataset) -> None:
    """With threads and with a worker, beside JAX, whose warning of a fork would be an error."""
    with beside_jax():
        grain, jax = pytest.importorskip("grain"), pytest.importorskip("jax")
        pytest.importorskip("absl.flags").FLAGS.mark_as_parsed()  # which absl.app.run does; grain's workers ask for it
        jax.numpy.zeros(3).block_until_ready()
        source = dataset.as_source(form="flat")
        actions = dataset["action"].tolist()
        steps = grain.MapDataset.source(source)
        assert np.concatenate([batch["actions"] for batch in steps.batch(20)]).tolist() == actions
        shuffled = steps.seed(0).shuffle().batch(20).to_iter_dataset()
        assert sorted(np.concatenate([batch["actions"] for batch in shuffled]).tolist()) == sorted(actions)
        sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=1, num_epochs=1)
        batched = [grain.transforms.Batch(20)]
        loader = grain.DataLoader(data_source=source, sampler=sampler, worker_count=1, operations=batched)
        batches = list(loader)
        assert sorted(np.concatenate([batch["actions"] for batch in batches]).tolist()) == sorted(actions)
        assert batches[0]["observations"].shape == (20, 2) and batches[0]["masks"].shape == (20,)
