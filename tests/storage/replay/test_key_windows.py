"""`load(keys=...)` and `load(windows=...)` against the episodes themselves, and what they read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rbdata
import torch
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rbdata.errors import RbdataError, UnknownKeyError, UsageError
from tensordict import TensorDict

FLAGS = {"done", "terminated", "truncated", "next/done", "next/terminated", "next/truncated", "next/reward"}


def episodes(frames: bool) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(9):
        n = int(rng.integers(1, 12))
        vectors = rng.normal(size=(n + 1, 3)).astype(np.float32)
        yield {
            "observation": rng.integers(1, 255, (n + 1, 36, 36), np.uint8) if frames else vectors,
            "action": rng.integers(1, 9, (n, 2)),
            "reward": rng.normal(size=n).astype(np.float32),
            "terminated": np.arange(n) == n - 1,
            "truncated": np.zeros(n, bool),
        }


@pytest.fixture(scope="module", params=["vectors", "frames"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> rbdata.Dataset:
    root = tmp_path_factory.mktemp("windows")
    path = rbdata.from_episodes(episodes(request.param == "frames"), "my/data", root=root)
    return rbdata.open_dataset(path)


def paths(batch: TensorDict) -> set[str]:
    return {key if isinstance(key, str) else "/".join(key) for key in batch.keys(True, True)}


@lru_cache(None)
def rows_around(dataset: rbdata.Dataset, step: int, key: str) -> tuple[torch.Tensor, int]:
    """The rows of the episode of a step, and its first step."""
    number = int(dataset.episode_of(torch.tensor([step])))
    episode = dataset.episode(number)
    rows = episode[tuple(key.split("/"))]
    if key == "observation":
        rows = torch.cat([rows, episode["next", "observation"][-1:]])
    return rows, int(dataset.episodes.starts[number])


def expected(dataset: rbdata.Dataset, step: int, key: str, offset: int, padding: str) -> tuple[torch.Tensor, bool]:
    rows, start = rows_around(dataset, step, key)
    place = step - start + offset
    near = min(max(place, 0), len(rows) - 1)
    return rows[near] if near == place or padding == "repeat" else torch.zeros_like(rows[near]), near == place


OFFSETS = st.tuples(st.integers(-6, 6), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    windows=st.dictionaries(
        st.sampled_from(["observation", "next/observation", "action", "next/reward"]), OFFSETS, min_size=1
    ),
    padding=st.sampled_from(["repeat", "zero"]),
    replacement=st.booleans(),
)
def test_windows_are_the_rows_of_the_episode(dataset, windows, padding, replacement):
    buffer = rbdata.load(dataset, batch_size=16, windows=windows, padding=padding, replacement=replacement, seed=0)
    batch = buffer.sample()
    assert paths(batch) == {"index", *windows, *(f"mask/{key}" for key in windows)}
    for key, (first, last) in windows.items():
        path = tuple(key.split("/"))
        found, mask = batch[path], batch["mask"][path]
        assert mask.dtype == torch.bool
        assert mask.shape == found.shape[:2] == (len(batch), last - first + 1)
        for row, step in enumerate(batch["index"].tolist()):
            for column, offset in enumerate(range(first, last + 1)):
                rows, inside = expected(dataset, step, key, offset, padding)
                assert torch.equal(found[row, column], rows)
                assert bool(mask[row, column]) == inside


WINDOWS: dict[str, Any] = {"observation": (-1, 1), "action": (0, 3)}


def assert_right(dataset: rbdata.Dataset, batch: TensorDict) -> None:
    for key, (first, _) in WINDOWS.items():
        for row, step in enumerate(batch["index"].tolist()):
            for column in range(batch[key].shape[1]):
                rows, inside = expected(dataset, step, key, first + column, "repeat")
                assert torch.equal(batch[key][row, column], rows)
                assert bool(batch["mask", key][row, column]) == inside


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.7},
        {"prefetch": 2},
        {"slice_len": 2, "strict_length": False},
        {"shuffle": "blocks", "replacement": False},
    ],
)
def test_with_other_samplers(dataset, options):
    buffer = rbdata.load(dataset, batch_size=8, windows=WINDOWS, seed=1, **options)
    for _ in range(3):
        assert_right(dataset, buffer.sample())


@pytest.mark.parametrize("kind", [rbdata.TensorDictReplayBuffer, rbdata.ReplayBuffer])
def test_slices_have_the_flags_of_their_steps(dataset, kind):
    sampler = rbdata.SliceSampler(slice_len=2, strict_length=False)
    around = rbdata.Around(windows=WINDOWS)
    buffer = kind(storage=rbdata.DatasetStorage(dataset), sampler=sampler, batch_size=40, around=around, seed=0)
    _, info = buffer.sample(return_info=True)
    stored = dataset[info["index"]]["next"]
    assert stored["terminated"].any() and torch.equal(info["next", "terminated"], stored["terminated"])
    assert bool(info["next", "truncated"][stored["truncated"]].all())
    assert torch.equal(info["next", "done"], stored["terminated"] | info["next", "truncated"])


def test_in_views_workers_and_checkpoints(dataset, tmp_path):
    view = rbdata.concat([dataset, dataset]).select(episodes=[12, 3, 4, 1])
    assert_right(view, rbdata.load(view, batch_size=16, windows=WINDOWS, seed=0).sample())
    buffer = rbdata.load(dataset, batch_size=4, windows=WINDOWS, seed=2)
    buffer.sample()
    buffer.dumps(tmp_path / "checkpoint")
    wanted = buffer.sample()
    again = rbdata.load(dataset, batch_size=4, windows=WINDOWS)
    again.loads(tmp_path / "checkpoint")
    assert torch.equal(again.sample()["action"], wanted["action"])
    passes = rbdata.load(dataset, batch_size=4, windows=WINDOWS, seed=2, replacement=False)
    for batch in passes.as_iterable().loader(num_workers=1, multiprocessing_context="fork"):
        assert_right(dataset, batch)
    assert_right(dataset, buffer.sample_at(torch.arange(len(dataset))))


def test_windows_over_a_buffer_that_was_overwritten(dataset):
    """A ring whose oldest episodes are gone: windows end where the data do."""
    buffer = rbdata.TensorDictReplayBuffer(
        storage=rbdata.LazyTensorStorage(10), batch_size=20, seed=0, around=rbdata.Around(windows={"action": (-2, 2)})
    )
    steps = TensorDict(
        {
            "action": torch.arange(14),
            "next": {"done": torch.tensor([False, False, False, True] * 3 + [False] * 2)[:, None]},
        },
        [14],
    )
    buffer.extend(steps)
    batch = buffer.sample()
    for row, middle in enumerate(batch["action"][:, 2].tolist()):
        low, high = max(4, middle // 4 * 4), min(13, middle // 4 * 4 + 3)
        wanted = [min(max(middle + offset, low), high) for offset in range(-2, 3)]
        assert batch["action"][row].tolist() == wanted
        assert batch["mask", "action"][row].tolist() == [low <= middle + offset <= high for offset in range(-2, 3)]


@pytest.mark.parametrize("key", ["observation", "pixels", "state", ("agents", "observation")])
@pytest.mark.parametrize("ndim", [1, 2])
def test_the_state_after_the_last_action_is_a_row_whatever_its_name(key, ndim):
    """Two steps that end, then two that have not ended: each has a third state, under ``next``."""
    done = torch.tensor([False, True, False, False])[:, None]
    steps = TensorDict({"action": torch.arange(4), "next": {"action": torch.arange(4) + 10, "done": done}}, [4])
    path = (key,) if isinstance(key, str) else key
    successor, within = ("next", *path), ("mask", *path)
    steps[path], steps[successor] = torch.arange(4.0), torch.arange(4.0) + 1
    storage = rbdata.LazyTensorStorage(4, ndim=ndim)
    buffer = rbdata.TensorDictReplayBuffer(
        storage=storage, batch_size=4, around=rbdata.Around(windows={key: (-1, 1), "action": (0, 1)})
    )
    buffer.extend(steps if ndim == 1 else steps[None])
    rows = torch.arange(4) if ndim == 1 else torch.stack([torch.arange(4), torch.zeros(4, dtype=torch.long)], 1)
    batch = buffer.sample_at(rows)
    assert batch[path].tolist() == [[0, 0, 1], [0, 1, 2], [2, 2, 3], [2, 3, 4]]
    assert batch[within].tolist() == [[False, True, True], [True] * 3, [False, True, True], [True] * 3]
    assert batch["mask", "action"].tolist() == [[True, True], [True, False], [True, True], [True, False]]


@pytest.mark.parametrize(
    "successor", [torch.zeros(4, 2), torch.arange(4.0, dtype=torch.float64)], ids=["shape", "dtype"]
)
def test_a_successor_of_another_kind_is_no_row(successor):
    """``next/state`` here is another thing than the state after ``state``."""
    steps = TensorDict({"state": torch.arange(4.0), "next": {"state": successor, "done": torch.ones(4, 1) == 1}}, [4])
    buffer = rbdata.TensorDictReplayBuffer(
        storage=rbdata.LazyTensorStorage(4), batch_size=4, around=rbdata.Around(windows={"state": (0, 1)})
    )
    buffer.extend(steps)
    batch = buffer.sample_at(torch.arange(4))
    assert batch["state"].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert batch["mask", "state"].tolist() == [[True, False]] * 4


def test_frames_read_are_frames_returned(dataset, monkeypatch):
    if not dataset.schema.states:
        pytest.skip("no frames")
    rows, read = dataset.rows["observation"], []
    monkeypatch.setattr(rows, "take", lambda index, take=rows.take: (read.append(len(index)), take(index))[1])
    monkeypatch.setattr(rows, "windows", lambda first, length: pytest.fail("more than was asked for"))
    rbdata.load(dataset, batch_size=8, windows={"observation": (-1, 0), "action": (0, 15)}, seed=0).sample()
    assert sum(read) == 16


@pytest.mark.parametrize(
    "wrong",
    [
        {"windows": {}},
        {"windows": {"nothing": (0, 1)}},
        {"windows": {"action": (1, 0)}},
        {"windows": {"action": 3}},
        {"windows": {"action": (0, 1.5)}},
        {"windows": {"action": (0, True)}},
        {"windows": {"action": (0, 10**12)}},
        {"windows": ["action"]},
        {"windows": WINDOWS, "padding": "edge"},
        {"windows": WINDOWS, "n_step": 2},
        {"windows": WINDOWS, "frame_stack": 2},
        {"keys": "action"},
    ],
    ids=str,
)
def test_wrong_windows(dataset, wrong):
    with pytest.raises(UsageError):
        rbdata.load(dataset, batch_size=4, **wrong).sample()


# -- keys ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> rbdata.Dataset:
    rng, n = np.random.default_rng(0), 200
    states = rng.normal(size=(n + 1, 3)).astype(np.float32)
    arrays = {"observations": states[:-1], "next_observations": states[1:], "actions": rng.normal(size=(n, 2))}
    arrays |= {"rewards": rng.normal(size=n), "terminals": np.arange(n) % 20 == 19}
    arrays |= {"infos/qpos": rng.normal(size=(n, 4)), "infos/qvel": rng.normal(size=(n, 4))}
    return rbdata.open_dataset(rbdata.from_arrays(arrays, "my/nested", root=tmp_path_factory.mktemp("keys")))


@pytest.mark.parametrize(
    ("keys", "leaves"),
    [
        (["action"], {"action"}),
        (["observation"], {"observation"}),
        ([("next", "observation")], {"next/observation"}),
        (["next/reward", "observation"], {"next/reward", "observation"}),
        (["info", "action"], {"info/qpos", "info/qvel", "action"}),
        (["info/qpos"], {"info/qpos"}),
        ([], set()),
    ],
)
@pytest.mark.parametrize("options", [{}, {"n_step": 3}, {"slice_len": 5}])
def test_keys(nested, keys, leaves, options):
    """These leaves and no others, beside what the sampler and n-step returns say."""
    whole, some = (rbdata.load(nested, batch_size=20, seed=3, keys=given, **options) for given in (None, keys))
    one, other = whole.sample(), some.sample()
    said = {"index"}
    if "alpha" in options:
        said |= {"priority_weight", "_weight"}
    if "slice_len" in options:
        said |= {"next/done", "next/terminated", "next/truncated"}
    if "n_step" in options:
        said |= {"next/reward", "next/original_reward", "steps_to_next_obs", "gamma"}
    assert paths(other) == said | leaves
    for key in other.keys(True, True):
        assert torch.equal(other[key], one[key]), key
    assert paths(some[:7]) == leaves
    assert "next/observation" not in paths(some[3:60:2]) or "next/observation" in leaves


def test_other_leaves_are_not_read(nested, monkeypatch):
    for name in ("info/qpos", "info/qvel", "observation", "next/observation"):
        for read in ("take", "windows", "block"):
            monkeypatch.setattr(nested.rows[name], read, lambda *args: pytest.fail("it was read"), raising=False)
    buffer = rbdata.load(nested, batch_size=8, keys=["action"], seed=0)
    buffer.sample()
    buffer[:5]
    buffer[torch.tensor([3, 1])]


def test_unknown_keys(nested):
    with pytest.raises(UnknownKeyError, match="unknown keys reward_to_go"):
        rbdata.load(nested, batch_size=4, keys=["action", "reward_to_go"])
    with contextlib.suppress(RbdataError):
        rbdata.load(nested, batch_size=4, keys=["action"], windows={"observation": (0, 1)}).sample()
        pytest.fail("a window of a leaf that keys leave out")


def test_a_root_that_is_not_there(tmp_path: Path):
    with pytest.raises(RbdataError):
        rbdata.load("my/nothing", root=tmp_path, keys=["action"])


def test_a_key_stands_for_all_leaves_below_it(tmp_path: Path) -> None:
    """As in ``keys``: the observations of robots are several leaves."""
    several = []
    for episode in episodes(frames=False):
        frames = np.arange(len(episode["observation"]), dtype=np.uint8)[:, None, None] + np.zeros((36, 36), np.uint8)
        several.append({**episode, "observation": {"arm": {"position": episode["observation"]}, "camera": frames}})
    path = rbdata.from_episodes(several, "my/several", root=tmp_path)
    names = ("observation/arm/position", "observation/camera")

    def batch(**options: Any) -> TensorDict:
        found: TensorDict = rbdata.load(path, batch_size=32, seed=0, **options).sample()
        return found

    together = batch(windows={"observation": (-1, 0), "action": (0, 2)})
    apart = batch(windows={**dict.fromkeys(names, (-1, 0)), "action": (0, 2)})
    assert paths(together) == paths(apart) >= {*names, *(f"mask/{name}" for name in names)}
    assert (together == apart).all()
    nearer = batch(windows={"observation": (-3, 0), "observation/camera": (0, 0), "action": (0, 0)})
    assert nearer["observation", "camera"].shape[1] == 1 and nearer["observation", "arm", "position"].shape[1] == 4
    stacked = batch(frame_stack=3, stack_keys="observation/arm")
    assert (stacked == batch(frame_stack=3, stack_keys=names[:1])).all()
    assert stacked["observation", "camera"].shape == (32, 36, 36)
    batch(windows={"observation": (-1, 0)}, normalize="observation/arm")
    for options in ({"windows": {"observation/ar": (0, 0)}}, {"frame_stack": 2, "stack_keys": "observation/ar"}):
        with pytest.raises(UsageError, match="observation/ar"):
            batch(**options)
