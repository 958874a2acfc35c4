"""All options of `rbdata.load`: set one, alone or with those it belongs to, and a batch changes or an error names it.

Through the public surface alone: what a buffer is made of is not asked here.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rbdata
import torch
from rbdata.cli import run as run_command_line
from rbdata.errors import DatasetNotFoundError, RbdataError, UsageError
from tensordict import TensorDict

LENGTHS = (3, 9, 40, 5, 8)


def episodes(first: int = 0) -> Iterator[dict[str, Any]]:
    """States count up in float64, with a part that float32 rounds; ``velocity`` is another observation."""
    for number, length in enumerate(LENGTHS):
        state = first + number * 100 + np.arange(length + 1, dtype=np.float64)
        yield {
            "observation": {"position": state[:, None] + 1e-9, "velocity": -state[:, None].astype(np.float32)},
            "action": np.arange(length, dtype=np.float32)[:, None],
            "reward": np.arange(1, length + 1, dtype=np.float64),
            "terminated": number % 2 == 0,
            "truncated": number % 2 == 1,
        }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("datasets")
    rbdata.from_episodes(episodes(), "my/first", root=root)
    rbdata.from_episodes(episodes(5000), "my/second", root=root)
    return root


def drawn(place: Any, batches: int = 3, **options: Any) -> list[str]:
    """What some batches are: keys, types, devices and values. Priorities are updated in between, from two keys."""
    buffer = rbdata.load(place, **{"batch_size": 24, "seed": 0, **options})
    found = []
    pass_ends = not options.get("replacement", True)
    for _, batch in zip(range(batches), buffer if pass_ends else iter(buffer.sample, None)):
        made = hashlib.sha256(f"{type(batch)} {getattr(batch, 'device', None)}".encode())
        if isinstance(batch, torch.Tensor):
            batch = {"all": batch}
        for key, value in sorted(pairs(batch), key=str):
            made.update(f"{key} {value.dtype} {list(value.shape)}".encode() + np.ascontiguousarray(value).tobytes())
        found.append(made.hexdigest())
        if options.get("alpha") is not None:
            batch["td_error"], batch["other"] = batch["index"].double() + 1, 1 / (batch["index"].double() + 1)
            buffer.update_tensordict_priority(batch)
    return found


@lru_cache
def plain(place: Path) -> list[str]:
    """Batches without options."""
    return drawn(place)


def pairs(batch: Any) -> Iterator[tuple[str, Any]]:
    for key, value in batch.items():
        below = pairs(value) if hasattr(value, "keys") else [("", value)]
        yield from ((f"{key}/{name}", leaf) for name, leaf in below)


def slices(**more: Any) -> dict[str, Any]:
    return {"slice_len": 8, **more}


POSITION, VELOCITY = ("observation", "position"), ("observation", "velocity")
WINDOWS = {POSITION: (-2, 0), "action": (0, 3)}

#: Each option with a value, and the options that it belongs to.
ALONE: dict[str, Any] = {
    "batch_size": 8,
    "frame_stack": 3,
    "n_step": 3,
    "slice_len": 4,
    "num_slices": 4,
    "replacement": False,
    "alpha": 0.7,
    "sampler": lambda: rbdata.RandomSampler(),  # a function of no arguments: a sampler belongs to one buffer
    "transform": lambda batch: batch.exclude("action"),
    "collate_fn": lambda batch: batch["action"],
    "seed": 1,
    "device": "cpu",
    "extra": "step",
    "normalize": [POSITION],
    "reward_scale": 2.0,
    "keys": ["action"],
    "windows": WINDOWS,
    "goals": lambda: rbdata.Goals(goal_key=POSITION),
    "dtype": "float32",
    "output": "numpy",
    "form": "flat",
}
TOGETHER: list[tuple[str, Any, dict[str, Any]]] = [
    ("stack_keys", [POSITION], {"frame_stack": 3}),
    ("padding", "zero", {"frame_stack": 3}),
    ("padding", "zero", {"windows": WINDOWS}),
    ("gamma", 0.5, {"n_step": 3}),
    ("strict_length", False, slices()),
    ("pad_output", True, slices(strict_length=False)),
    ("span", True, slices()),
    ("uniform_over", "transitions", slices()),
    ("drop_last", True, {"replacement": False}),
    ("shuffle", False, {"replacement": False}),
    ("shuffle", "blocks", {}),
    ("beta", 0.4, {"alpha": 0.7}),
    ("priority_key", "other", {"alpha": 0.7}),
    ("rank", 1, {"world_size": 2}),
    ("world_size", 2, {"replacement": False}),
    ("extra", ["step"], {"frame_stack": 2}),
    ("reward_scale", 2.0, {"windows": {("next", "reward"): (0, 1)}}),
    ("reward_scale", 2.0, {"windows": {"return_to_go": (0, 1)}, "extra": "return_to_go"}),
    ("normalize", [POSITION], {"windows": WINDOWS}),
    ("normalize", ["observation"], {"keys": [POSITION]}),
    ("dtype", torch.float32, {"normalize": [POSITION]}),
    ("dtype", "float32", {"windows": WINDOWS}),
    ("dtype", "float32", {"n_step": 3, "frame_stack": 2}),
]
#: What says where a dataset is, how batches are made ahead, or where they lie: tested by themselves below.
ELSEWHERE = {"root", "cache_dir", "cache_limit", "download", "prefetch", "pin_memory", "generator", "weights", "shares"}
#: Not of this table: what is tested with the room that it belongs to.
OTHERS = {"end_key", "traj_key", "sharding"}


def test_every_option_is_looked_at() -> None:
    options = set(inspect.signature(rbdata.load).parameters) - {"id_or_path"}
    looked_at = {*ALONE, *(name for name, _, _ in TOGETHER), *ELSEWHERE}
    assert options - OTHERS == looked_at


def made(value: Any) -> Any:
    return value() if callable(value) and not inspect.signature(value).parameters else value


@pytest.mark.parametrize("name", ALONE)
def test_one_option_changes_the_batches(root: Path, name: str) -> None:
    place, value = root / "my" / "first", ALONE[name]
    if name == "sampler":  # one that draws something else than the default
        value = lambda: rbdata.SliceSampler(slice_len=4)  # noqa: E731
    assert drawn(place, **{name: made(value)}) != plain(place)


@pytest.mark.parametrize("name, value, beside", TOGETHER, ids=lambda one: one if isinstance(one, str) else "")
def test_an_option_with_those_it_belongs_to_changes_the_batches(
    root: Path, name: str, value: Any, beside: dict[str, Any]
) -> None:
    place = root / "my" / "first"
    assert drawn(place, **{name: value}, **beside) != drawn(place, **beside)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    *((name, {name: value}) for name, value, beside in TOGETHER if name in ("stack_keys", "padding", "gamma", "beta")),
    *((name, {name: value}) for name, value, beside in TOGETHER if "slice_len" in beside),
    *((name, {name: value}) for name, value, beside in TOGETHER if name == "priority_key"),
    ("drop_last", {"drop_last": True}),
    ("shuffle", {"shuffle": False}),
    ("rank", {"rank": 1}),
    ("weights", {"weights": [1.0]}),
    ("shares", {"shares": "exact"}),
    ("padding", {"padding": "zero", "n_step": 3}),
    ("padding", {"padding": "zero", "slice_len": 4}),
    ("padding", {"padding": "other", "frame_stack": 2}),
    ("extra", {"windows": WINDOWS, "extra": "step"}),
    ("is_first", {"windows": {"step": (0, 0)}, "extra": ["step", "is_first"]}),
    ("normalize", {"windows": {"action": (0, 3)}, "normalize": [POSITION]}),
    ("velocity", {"windows": WINDOWS, "normalize": [POSITION, VELOCITY]}),
    ("normalize", {"windows": {"action": (0, 3)}, "normalize": {"observation/position": {"mean": 0.0, "std": 1.0}}}),
    ("reward_scale", {"windows": WINDOWS, "reward_scale": 2.0}),
    ("keys", {"windows": WINDOWS, "keys": ["action", "observation"]}),
    ("normalize", {"keys": ["action"], "normalize": [POSITION]}),
    ("reward_scale", {"keys": ["action"], "reward_scale": 2.0}),
    ("stack", {"keys": ["action"], "frame_stack": 2}),
    ("stack", {"frame_stack": 2, "stack_keys": ["nothing"]}),
    ("nothing", {"windows": {"nothing": (0, 1)}}),
    ("windows", {"windows": WINDOWS, "n_step": 2}),
    ("windows", {"windows": WINDOWS, "frame_stack": 2}),
    ("pad_output", {"shuffle": "blocks", "pad_output": True}),
    ("strict_length", {"shuffle": "blocks", "strict_length": False}),
    ("slices", {"shuffle": "blocks", "slice_len": 3}),
    ("beta", {"replacement": False, "beta": 0.5}),
    ("priorities", {"replacement": False, "alpha": 0.5}),
    ("alpha", {"sampler": "random", "alpha": 0.5}),
    ("slice_len", {"sampler": "random", "slice_len": 4}),
    ("replacement", {"sampler": "random", "replacement": False}),
    ("shuffle", {"sampler": "random", "shuffle": "blocks"}),
    ("drop_last", {"sampler": "random", "drop_last": True}),
    ("seed", {"generator": "generator"}),
    ("prefetch", {"prefetch": 2, "batch_size": None}),
    ("reward_scale", {"goals": "goals", "reward_scale": 2.0}),
    ("windows", {"goals": "goals", "windows": {("next", "reward"): (0, 1)}}),
    ("dtype", {"dtype": "float16"}),
]
OBJECTS: dict[str, Callable[[], Any]] = {
    "random": lambda: rbdata.RandomSampler(),
    "generator": lambda: torch.Generator(),
    "goals": lambda: rbdata.Goals(goal_key=POSITION),
}


@pytest.mark.parametrize("name, options", REFUSED, ids=lambda one: one if isinstance(one, str) else "")
def test_what_has_no_effect_is_refused_by_name(root: Path, name: str, options: dict[str, Any]) -> None:
    """By `load` itself, not by the first batch."""
    given = {key: OBJECTS[one]() if isinstance(one, str) and one in OBJECTS else one for key, one in options.items()}
    with pytest.raises(UsageError) as refused:
        rbdata.load(root / "my" / "first", **{"batch_size": 24, "seed": 0, **given})
    assert name in str(refused.value)


def test_shares_of_several_datasets(root: Path) -> None:
    both = [root / "my" / "first", root / "my" / "second"]
    plain, weighted = drawn(both), drawn(both, weights=[0.9, 0.1])
    assert plain != weighted
    assert weighted != drawn(both, weights=[0.9, 0.1], shares="exact")
    for beside, name in (({"slice_len": 4}, "slices"), ({"sampler": rbdata.RandomSampler()}, "weights")):
        with pytest.raises(UsageError, match=name):
            rbdata.load(both, weights=[0.9, 0.1], **beside)


def test_a_generator_gives_the_seed(root: Path) -> None:
    place = root / "my" / "first"
    found = [drawn(place, seed=None, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2, 1)]
    assert found[0] == found[2] != found[1]


def test_where_a_dataset_is(root: Path, tmp_path: Path) -> None:
    assert drawn("my/first", root=root) == drawn(root / "my" / "first")
    with pytest.raises(RbdataError, match="my/first"):
        rbdata.load("my/first", root=tmp_path)
    opened = rbdata.open_dataset(root / "my" / "first")
    for places in (opened, [opened, opened]):
        for name, value in {"root": root, "cache_dir": tmp_path, "cache_limit": "1GB", "download": True}.items():
            with pytest.raises(UsageError, match=name):
                rbdata.load(places, **{name: value})
    for name, value in {"cache_dir": tmp_path, "cache_limit": "1GB"}.items():
        with pytest.raises(UsageError, match=name):
            rbdata.load("my/first", root=root, **{name: value})
    url, cache = (root / "my" / "first").as_uri(), tmp_path / "cache"
    assert drawn(url, cache_dir=cache, cache_limit="64MB") == drawn(root / "my" / "first")
    assert any(cache.iterdir())
    with pytest.raises(UsageError, match="limit"):
        rbdata.load(url, cache_dir=cache, cache_limit="nothing")


def test_batches_made_ahead_and_pinned_are_the_same(root: Path) -> None:
    place = root / "my" / "first"
    assert drawn(place) == drawn(place, prefetch=2) == drawn(place, pin_memory=True)


# -- padding -----------------------------------------------------------------------------------------------------------


def test_stacks_and_windows_repeat_the_first_state_unless_they_are_told_to_pad_with_zeros(root: Path) -> None:
    """As Gymnasium's FrameStackObservation and TorchRL's CatFrames do."""
    place = root / "my" / "first"
    steps = [0, 1, LENGTHS[0], LENGTHS[0] + 1]  # the first two of two episodes
    states = [[0, 0, 0], [0, 0, 1], [100, 100, 100], [100, 100, 101]]
    stacked = rbdata.load(place, frame_stack=3).sample_at(steps)
    assert torch.equal(stacked[POSITION].squeeze(-1).round().long(), torch.tensor(states))
    after = [[0, 0, 1], [0, 1, 2], [100, 100, 101], [100, 101, 102]]
    assert torch.equal(stacked["next"][POSITION].squeeze(-1).round().long(), torch.tensor(after))
    zeros = rbdata.load(place, frame_stack=3, padding="zero").sample_at(steps[2:])
    assert torch.equal(
        zeros["next"][POSITION].squeeze(-1).round().long(), torch.tensor([[0, 100, 101], [100, 101, 102]])
    )
    assert torch.equal(zeros[POSITION].squeeze(-1).round().long(), torch.tensor([[0, 0, 100], [0, 100, 101]]))
    windows = {POSITION: (-2, 0)}
    for padding in ("repeat", "zero"):
        read = rbdata.load(place, windows=windows, padding=padding).sample_at(steps)
        assert torch.equal(
            read[POSITION], rbdata.load(place, frame_stack=3, padding=padding).sample_at(steps)[POSITION]
        )


@pytest.mark.parametrize("n_step", [None, 3])
@pytest.mark.parametrize("codec, size", [("raw", 80), ("zstd", 80), ("auto", 2)])
def test_padding_of_every_way_to_store_states(tmp_path: Path, codec: Any, size: int, n_step: int | None) -> None:
    """States stored once for each (raw, compressed) and as plain TED: the same stacks, and of slices those of steps."""
    lengths = (1, 2, 7)

    def told() -> Iterator[dict[str, Any]]:
        for number, length in enumerate(lengths):
            state = np.arange(length + 1) + 20 * number + 1
            frames = np.repeat(state, size * size).astype(np.uint8).reshape(length + 1, size, size)
            actions, rewards = np.zeros(length, np.int64), np.ones(length, np.float32)
            yield {"observation": frames, "action": actions, "reward": rewards, "terminated": True, "truncated": False}

    place = rbdata.from_episodes(told(), "my/frames", root=tmp_path, codec=codec)
    for padding in ("repeat", "zero"):
        buffer = rbdata.load(place, frame_stack=3, padding=padding, n_step=n_step)
        batch = buffer.sample_at(range(sum(lengths)))
        found, after, row = batch["observation"][..., 0, 0], batch["next", "observation"][..., 0, 0], 0
        for number, length in enumerate(lengths):
            for step in range(length):
                last = min(step + (n_step or 1), length)
                for rows, at in ((found, step), (after, last)):
                    wanted = [at - 2, at - 1, at]
                    state = [max(one, 0) + 20 * number + 1 if padding == "repeat" or one >= 0 else 0 for one in wanted]
                    assert rows[row].tolist() == state
                row += 1
        sliced = rbdata.load(place, frame_stack=3, padding=padding, slice_len=2, batch_size=8, seed=0).sample()
        steps = rbdata.load(place, frame_stack=3, padding=padding).sample_at(sliced["index"])
        assert torch.equal(sliced["observation"], steps["observation"])
        assert torch.equal(sliced["next", "observation"], steps["next", "observation"])


def test_padding_of_a_buffer_in_memory(root: Path) -> None:
    stored = rbdata.open_dataset(root / "my" / "first").to_tensordict()
    buffer = rbdata.TensorDictReplayBuffer(
        storage=rbdata.LazyTensorStorage(len(stored)), around=rbdata.Around(frame_stack=2)
    )
    buffer.extend(stored)
    batch = buffer.sample_at([0, LENGTHS[0]])
    assert batch[POSITION].squeeze(-1).round().tolist() == [[0, 0], [100, 100]]
    with pytest.raises(UsageError, match="padding"):
        rbdata.TensorDictReplayBuffer(storage=rbdata.LazyTensorStorage(8), around=rbdata.Around(padding="zero"))
    with pytest.raises(UsageError, match="gamma"):
        rbdata.TensorDictReplayBuffer(storage=rbdata.LazyTensorStorage(8), around=rbdata.Around(gamma=0.5))


# -- types -------------------------------------------------------------------------------------------------------------


def test_float64_leaves_come_as_float32(root: Path) -> None:
    place = root / "my" / "first"
    wide = rbdata.load(place, normalize=[POSITION], extra=["step", "return_to_go"]).sample_at(range(20))
    options = {"extra": ["step", "return_to_go"], "dtype": "float32"}
    buffer = rbdata.load(place, normalize=[POSITION], **options)
    narrow = buffer.sample_at(range(20))
    assert wide[POSITION].dtype == torch.float64
    assert {key: value.dtype for key, value in narrow.items(True, True) if value.is_floating_point()} == dict.fromkeys(
        [key for key, value in wide.items(True, True) if value.is_floating_point()], torch.float32
    )
    for key, value in wide.items(True, True):
        assert torch.equal(narrow[key], value.float() if value.dtype == torch.float64 else value)
    assert buffer[3][POSITION].dtype == torch.float32
    assert torch.equal(buffer[:20][POSITION], narrow[POSITION])
    plain = rbdata.load(place, dtype="float32", slice_len=4, batch_size=8, seed=0).sample()
    assert plain[POSITION].dtype == plain["next", "reward"].dtype == torch.float32


# -- what it takes -----------------------------------------------------------------------------------------------------


def test_slices_longer_than_every_episode_name_a_length_that_exists(root: Path) -> None:
    buffer = rbdata.load(root / "my" / "first", slice_len=1000, batch_size=2000)
    with pytest.raises(RbdataError, match="no episode has 1000 steps") as refused:
        buffer.sample()
    assert f"slice_len={max(LENGTHS)}" in str(refused.value.hint)
    length = max(LENGTHS)
    assert len(rbdata.load(root / "my" / "first", slice_len=length, batch_size=length).sample()) == length


def test_a_sampler_that_is_none_of_ours(root):
    class Newest:
        def sample(self, storage: Any, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
            return torch.arange(len(storage) - batch_size, len(storage)), {}

    class Derived(Newest, rbdata.Sampler):
        pass

    place = root / "my/first"
    for make in (rbdata.load, lambda path, **options: rbdata.TensorDictReplayBuffer(storage=path, **options)):
        for sampler in (Newest(), Newest):
            with pytest.raises(UsageError, match="a sampler is wanted, not a Newest"):
                make(place, sampler=sampler)
        for derived in (Derived(), Derived):
            last = make(place, sampler=derived, batch_size=4).sample()
            assert last["index"].tolist() == list(range(sum(LENGTHS) - 4, sum(LENGTHS)))


@pytest.mark.parametrize("data", [{"observation": np.zeros(3)}, TensorDict(observation=torch.zeros(3), batch_size=[3])])
def test_data_in_memory_are_made_a_dataset_first(data):
    with pytest.raises(UsageError) as refused:
        rbdata.load(data)
    assert "rbdata.from_arrays" in str(refused.value.hint)


@pytest.mark.parametrize("text", ["pendulum.npz", "./pendulum.npz"])
def test_a_file_of_raw_data_is_converted_first(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.arange(4.0)[:, None]
    np.savez("pendulum.npz", observation=rows, action=rows, reward=rows, terminated=rows == 3)
    with pytest.raises(DatasetNotFoundError, match=r"pendulum\.npz is a file") as refused:
        rbdata.load(text, root=tmp_path)
    command = str(refused.value.hint).split("`")[1]
    assert command == f"rbdata convert {text} --name my/pendulum --root {tmp_path}"
    assert run_command_line(command.split()[1:]) == 0 and len(rbdata.open_dataset("my/pendulum", root=tmp_path)) == 4
