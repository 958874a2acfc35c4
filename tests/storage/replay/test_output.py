"""The form of batches (`load(output=..., form=...)`): NumPy and JAX arrays of the batches that torch gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rbdata
import torch
from beside_jax import beside_jax
from processes import start_forked
from rbdata.errors import UsageError
from rbdata.storage.replay.iterable import identity
from replay_tools import LeavesTrace
from tensordict import TensorDict
from torch.utils.data import DataLoader

LENGTHS = (3, 9, 40, 5, 8)


def episodes(first: int = 0) -> Iterator[dict[str, Any]]:
    """States count up; frames are of the size that is compressed."""
    for number, length in enumerate(LENGTHS):
        state = first + number * 100 + np.arange(length + 1, dtype=np.float32)
        yield {
            "observation": np.stack([state, -state], 1),
            "action": np.arange(length, dtype=np.int64),
            "reward": np.arange(1, length + 1, dtype=np.float32),
            "terminated": number % 2 == 0,
            "truncated": number % 2 == 1,
        }


def pictures() -> Iterator[dict[str, Any]]:
    for number, episode in enumerate(episodes()):
        frames = np.full((len(episode["observation"]), 40, 40), 20 * number, np.uint8)
        yield {**episode, "observation": frames + np.arange(len(frames), dtype=np.uint8)[:, None, None]}


def several() -> Iterator[dict[str, Any]]:
    for episode in episodes():
        state = episode["observation"]
        yield {**episode, "observation": {"position": state[:, :1].astype(np.float64), "velocity": state[:, 1:]}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("datasets")
    rbdata.from_episodes(episodes(), "my/first", root=root)
    rbdata.from_episodes(episodes(5000), "my/second", root=root)
    rbdata.from_episodes(pictures(), "my/pictures", root=root, codec="zstd")
    rbdata.from_episodes(several(), "my/several", root=root)
    return root


def goal_reward(state: Any, goal: Any) -> Any:
    return (state == goal).all(-1).float()


def halved(batch: TensorDict) -> TensorDict:
    return batch.set("action", batch["action"] / 2)


WAYS: dict[str, dict[str, Any]] = {
    "steps": {},
    "slices": {"slice_len": 4},
    "padded slices": {"slice_len": 6, "strict_length": False, "pad_output": True},
    "one pass": {"replacement": False, "drop_last": True},
    "n steps": {"n_step": 3},
    "stacks": {"frame_stack": 3},
    "windows": {"windows": {"observation": (-2, 0), "action": (0, 3), ("next", "reward"): (0, 1)}},
    "goals": {"goals": rbdata.Goals(actor=rbdata.Goals())},
    "own rewards": {"goals": rbdata.Goals(reward_fn=goal_reward)},
    "priorities": {"alpha": 0.7, "beta": 0.5},
    "computed": {"extra": ["step", "return_to_go", "is_first", "discount"], "normalize": "observation"},
    "keys": {"keys": ["action", ("next", "reward")]},
    "a transform": {"transform": halved},
    "frames": {"dataset": "my/pictures", "frame_stack": 4},
    "several observations": {"dataset": "my/several"},
    "a mixture": {"dataset": ["my/first", "my/second"], "weights": [0.5, 0.5]},
}


def loaded(root: Path, way: str, **more: Any) -> rbdata.TensorDictReplayBuffer:
    options = {"dataset": "my/first", "batch_size": 24, "seed": 0, **WAYS[way], **more}
    return rbdata.load(options.pop("dataset"), root=root, **options)


def leaves(batch: Any, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """The leaves of nested dictionaries by path."""
    if not isinstance(batch, dict):
        return {above: batch}
    return {path: leaf for key, part in batch.items() for path, leaf in leaves(part, (*above, key)).items()}


def same(batch: Any, wanted: TensorDict) -> None:
    """A nested dictionary of arrays has all that a TensorDict has, to the bit."""
    found = leaves(batch)
    expected = {(key,) if isinstance(key, str) else key: leaf.numpy() for key, leaf in wanted.items(True, True)}
    assert found.keys() == expected.keys()
    for key, array in found.items():
        assert array.dtype == expected[key].dtype and np.array_equal(array, expected[key]), key


@pytest.mark.parametrize("way", WAYS)
def test_numpy_batches_are_those_of_torch(root: Path, way: str) -> None:
    plain = loaded(root, way)
    wanted = [plain.sample() for _ in range(6)]
    for more in ({}, {"prefetch": 2}):
        buffer = loaded(root, way, output="numpy", **more)
        for batch in wanted:
            found = buffer.sample()
            assert all(type(leaf) is np.ndarray for leaf in leaves(found).values())
            same(found, batch)
    if "goals" not in WAYS[way]:
        rows = wanted[0]["index"][:5] if "index" in wanted[0] else torch.arange(5)
        same(buffer.sample_at(rows), plain.sample_at(rows))
        same(buffer.as_map()[3], plain.as_map()[3])
        records, read = buffer.as_map().__getitems__([4, 7, 1]), plain.as_map()[torch.tensor([4, 7, 1])]
        for place, one in enumerate(records):
            same(one, read[place])


@pytest.mark.parametrize("way", WAYS)
def test_arrays_may_be_written_to(root: Path, way: str) -> None:
    """Each leaf alone: neither another leaf of the batch, nor the next batch, nor the data change."""
    buffer, plain = loaded(root, way, output="numpy"), loaded(root, way)
    for _ in range(4):
        found = leaves(buffer.sample())
        plain.sample()
        for array in found.values():
            array[...] = 1 if array.dtype == bool else 77
        for array in found.values():
            assert (array == (1 if array.dtype == bool else 77)).all()
        for number, array in enumerate(found.values()):
            array[...] = number % 2 if array.dtype == bool else number
        for number, array in enumerate(found.values()):
            assert (array == (number % 2 if array.dtype == bool else number)).all()
    same(buffer.sample(), plain.sample())


def test_flat_names(root: Path) -> None:
    wanted = loaded(root, "steps").sample()
    batch = loaded(root, "steps", output="numpy", form="flat").sample()
    shapes = {name: (array.dtype.name, array.shape) for name, array in batch.items()}
    assert shapes == {
        "observations": ("float32", (24, 2)),
        "actions": ("int64", (24,)),
        "rewards": ("float32", (24,)),
        "next_observations": ("float32", (24, 2)),
        "terminals": ("bool", (24,)),
        "truncations": ("bool", (24,)),
        "masks": ("float32", (24,)),
        "index": ("int64", (24,)),
    }
    for name, key in {
        "observations": "observation",
        "actions": "action",
        "rewards": ("next", "reward"),
        "next_observations": ("next", "observation"),
        "terminals": ("next", "terminated"),
        "truncations": ("next", "truncated"),
        "index": "index",
    }.items():
        assert np.array_equal(batch[name], wanted[key].numpy().reshape(batch[name].shape)), name
    assert np.array_equal(batch["masks"], 1 - batch["terminals"]) and 0 < batch["masks"].mean() < 1


def test_flat_names_of_all_that_load_adds(root: Path) -> None:
    batch = loaded(root, "goals", output="numpy", form="flat", extra=["step", "discount"]).sample()
    assert batch["value_goals"].shape == batch["actor_goals"].shape == (24, 2)
    assert batch["step"].shape == batch["discount"].shape == batch["rewards"].shape == (24,)
    assert np.array_equal(batch["masks"], 1 - batch["terminals"]) and np.array_equal(batch["masks"], batch["discount"])
    batch = loaded(root, "n steps", output="numpy", form="flat").sample()
    assert {"gamma", "steps_to_next_obs", "next_original_reward"} <= set(batch)
    assert batch["gamma"].shape == batch["next_original_reward"].shape == (24,)
    batch = loaded(root, "windows", output="numpy", form="flat").sample()
    assert batch["observations"].shape == (24, 3, 2) and batch["rewards"].shape == (24, 2)
    assert {name: array.shape for name, array in batch["mask"].items()} == {
        "observations": (24, 3),
        "actions": (24, 4),
        "rewards": (24, 2),
    }
    batch = loaded(root, "several observations", output="numpy", form="flat").sample()
    assert batch["observations"]["position"].shape == batch["next_observations"]["velocity"].shape == (24, 1)
    batch = loaded(root, "keys", output="numpy", form="flat").sample()
    assert set(batch) == {"actions", "rewards", "index"}
    batch = loaded(root, "steps", form="flat").sample()
    assert all(isinstance(leaf, torch.Tensor) for leaf in batch.values()) and batch["masks"].dtype == torch.float32
    batch = loaded(root, "a mixture", output="numpy", form="flat").sample()
    assert set(batch["dataset"]) == {0, 1}


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, says",
    [
        ({"output": "tensorflow"}, "not 'torch', 'numpy' or 'jax'"),
        ({"form": "d4rl"}, "not 'ted' or 'flat'"),
        ({"output": "numpy", "device": "cpu"}, "leave out device"),
        ({"output": "numpy", "pin_memory": True}, "pin_memory goes with output='torch'"),
        ({"output": "jax", "pin_memory": True}, "pin_memory goes with output='torch'"),
        ({"output": "numpy", "sharding": object()}, "sharding goes with output='jax'"),
        ({"sharding": object()}, "sharding goes with output='jax'"),
        ({"output": "jax", "device": "cpu", "sharding": object()}, "leave out device"),
        ({"output": "numpy", "form": "flat", "collate_fn": abs}, "collate_fn"),
    ],
)
def test_options_that_do_not_go_together(root: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        loaded(root, "steps", **options)


def test_leaves_that_would_get_the_same_name(tmp_path: Path) -> None:
    def told() -> Iterator[dict[str, Any]]:
        for episode in episodes():
            yield {**episode, "masks_": 1 + episode["reward"], "rewards": episode["reward"]}

    place = rbdata.from_episodes(told(), "my/own", root=tmp_path)
    names = rbdata.open_dataset(place).schema.names
    twice = next(name for name in names if name.startswith("rewards"))
    with pytest.raises(UsageError, match=f"both .*{twice}"):
        rbdata.load(place, form="flat")
    assert rbdata.load(place, form="flat", keys=["action"], batch_size=4).sample()["actions"].shape == (4,)


def test_records_keep_their_own_form(root: Path) -> None:
    """The buffer's own records are what is stored; ``as_map`` has the form of batches."""
    buffer = loaded(root, "steps", output="numpy")
    assert isinstance(buffer[3], TensorDict) and isinstance(buffer["action"], torch.Tensor)
    with pytest.raises(UsageError, match="ensemble"):
        rbdata.ReplayBufferEnsemble(loaded(root, "steps"), buffer)
    batch, info = buffer.sample(return_info=True)
    assert np.array_equal(batch["index"], info["index"])


def test_a_transform_that_comes_later_gets_tensordicts(root: Path) -> None:
    """Though batches were drawn ahead, and read as arrays."""
    plain, buffer = loaded(root, "steps"), loaded(root, "steps", output="numpy")
    for _ in range(5):
        same(buffer.sample(), plain.sample())
    for one in (plain, buffer):
        one.append_transform(halved)
    for _ in range(20):
        same(buffer.sample(), plain.sample())


def test_a_transform_that_makes_something_else(root: Path) -> None:
    buffer = loaded(root, "steps", output="numpy", transform=lambda batch: batch["action"])
    assert type(buffer.sample()) is np.ndarray
    buffer = loaded(root, "steps", output="numpy", form="flat", transform=lambda batch: batch["action"])
    with pytest.raises(UsageError, match="form='flat'"):
        buffer.sample()
    buffer = loaded(root, "steps", output="numpy", collate_fn=lambda batch: (batch["action"], [batch["index"]]))
    action, (index,) = buffer.sample()
    assert type(action) is type(index) is np.ndarray


# -- priorities, states, loaders ---------------------------------------------------------------------------------------


def test_priorities_from_arrays(root: Path) -> None:
    plain, buffer = loaded(root, "priorities"), loaded(root, "priorities", output="numpy")
    for _ in range(5):
        wanted, batch = plain.sample(), buffer.sample()
        same(batch, wanted)
        wanted["td_error"] = wanted["index"].double() + 1
        plain.update_tensordict_priority(wanted)
        buffer.update_priority(batch["index"], batch["index"] + 1.0)
    with pytest.raises(UsageError, match="is a dict, no TensorDict"):
        buffer.update_tensordict_priority(batch)


def test_a_state_is_that_of_a_buffer_of_tensordicts(root: Path) -> None:
    plain, buffer = loaded(root, "one pass"), loaded(root, "one pass", output="numpy", prefetch=2)
    plain.sample()
    buffer.load_state_dict(plain.state_dict())
    same(buffer.sample(), plain.sample())


@pytest.mark.parametrize("way, workers", [("one pass", 2), ("goals", 2), ("a transform", 0), ("a mixture", 2)])
def test_loaders(root: Path, way: str, workers: int) -> None:
    plain, buffer = loaded(root, way), loaded(root, way, output="numpy")
    # Named: a test that imports TorchRL before this one makes "spawn" the default, where functions of this file are not found.
    how: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    for _, found in zip(range(3), buffer.as_iterable().loader(**how)):
        same(found, plain.sample())
    own = DataLoader(buffer.as_iterable(), batch_size=None, collate_fn=identity, **how)
    assert all(type(leaf) is np.ndarray for leaf in leaves(next(iter(own))).values())


# -- JAX ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def jax() -> Iterator[Any]:
    with beside_jax():
        yield pytest.importorskip("jax")


@pytest.mark.parametrize("way", WAYS)
def test_jax_batches_are_those_of_torch(jax: Any, root: Path, way: str) -> None:
    plain, buffer = loaded(root, way), loaded(root, way, output="jax", prefetch=2)
    for _ in range(3):
        batch, wanted = leaves(buffer.sample()), leaves(loaded_arrays(plain.sample()))
        assert batch.keys() == wanted.keys()
        for key, array in batch.items():
            assert isinstance(array, jax.Array)
            assert np.allclose(array, wanted[key]) and array.dtype == jax.dtypes.canonicalize_dtype(wanted[key].dtype)


def loaded_arrays(batch: TensorDict) -> dict[str, Any]:
    return {key: loaded_arrays(leaf) if isinstance(leaf, TensorDict) else leaf.numpy() for key, leaf in batch.items()}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_jax_arrays_keep_their_values_where_a_transform_uses_its_memory_again(
    jax: Any, root: Path, prefetch: int
) -> None:
    memory = torch.zeros(4096, 2)

    def reused(batch: TensorDict) -> TensorDict:
        return batch.set("observation", memory[: len(batch)].copy_(batch["observation"]))

    plain = loaded(root, "steps", batch_size=4096)
    buffer = loaded(root, "steps", batch_size=4096, output="jax", transform=reused, prefetch=prefetch)
    kept = [buffer.sample() for _ in range(4)]
    for batch in kept:
        assert np.array_equal(batch["observation"], plain.sample()["observation"].numpy())


def test_devices_of_jax(jax: Any, root: Path) -> None:
    for device in ("cpu", "cpu:0", jax.devices("cpu")[0]):
        batch = loaded(root, "steps", output="jax", device=device).sample()
        assert batch["action"].devices() == {jax.devices("cpu")[0]}
    for device in ("gpu:7", "cpu:x", torch.device("cpu"), 0):
        with pytest.raises(UsageError, match="JAX"):
            loaded(root, "steps", output="jax", device=device)
    with pytest.raises(UsageError, match=r"jax.sharding.Sharding"):
        loaded(root, "steps", output="jax", sharding="batch")


SHARDED = """
import sys, jax, numpy as np, rbdata
from jax.sharding import Mesh, NamedSharding, PartitionSpec
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))
options = {"root": sys.argv[1], "batch_size": 24, "seed": 0, "form": "flat"}
with rbdata.load("my/first", output="jax", sharding=sharding, prefetch=2, **options) as buffer:
    batch, wanted = buffer.sample(), rbdata.load("my/first", output="numpy", **options).sample()
assert [shard.data.shape for shard in batch["observations"].addressable_shards] == [(6, 2)] * 4
assert all(np.array_equal(batch[key], wanted[key]) for key in wanted)
for refused, says in (({"batch_size": 22}, "22"), ({"replacement": False}, "drop_last")):
    try:
        rbdata.load("my/first", output="jax", sharding=sharding, **options | refused)
    except rbdata.errors.UsageError as error:
        assert says in str(error)
    else:
        raise AssertionError(refused)
"""


def test_batches_are_divided_by_a_sharding(jax: Any, root: Path) -> None:
    process = start_forked(SHARDED, str(root), XLA_FLAGS="--xla_force_host_platform_device_count=4")
    process.join()
    assert process.exitcode == 0


def test_workers_beside_jax_are_spawned(
    jax: Any, root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """So that the warning of JAX, that a fork of its threads may hang, is not deserved.

    They end without the end of their interpreter, in which torch, whose thread still sends batches, aborts: "terminate called
    without an active exception".
    """
    jax.numpy.zeros(3).block_until_ready()
    trace = LeavesTrace(str(tmp_path / "ends"))
    plain, buffer = (loaded(root, "steps", output=output, form="flat", transform=trace) for output in ("numpy", "jax"))
    loader = buffer.as_iterable().loader(num_workers=1)
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    for _, batch in zip(range(2), loader):
        assert isinstance(batch["actions"], jax.Array)
        assert all(np.array_equal(batch[key], value) for key, value in plain.sample().items())
    assert (tmp_path / "ends").read_text() == ""  # made in the worker, and not written to at its end
    said = capfd.readouterr().err
    assert "os.fork()" not in said and "terminate" not in said
