"""What the tests of the replay runtime share: TED batches with known contents, and slow, obvious references.

`rollout` makes a TED batch whose observations say where they come from: ``observation[0]`` counts all states ever made,
so a successor, a stack or an n-step look ahead is checked by arithmetic.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from storage_tools import Episode, columns
from tensordict import TensorDict


def rollout(lengths: Sequence[int], *, first: int = 0, open_end: bool = False, extra: bool = True) -> TensorDict:
    """Episodes one after the other, batch ``[steps]``; ``open_end`` leaves the last one without done.

    ``observation`` float32 ``[2]``: (number of the state, its step in the episode); ``action`` int64 counts all steps;
    ``("next", "reward")`` is ``step + 1`` of the episode times 1, 0.5, ... by episode.
    """
    rows: dict[str, list] = {name: [] for name in ("obs", "next", "action", "reward", "done", "traj", "step")}
    state, step_number = first, first
    for number, length in enumerate(lengths):
        for step in range(length):
            rows["obs"].append([state, step])
            rows["next"].append([state + 1, step + 1])
            rows["action"].append(step_number)
            rows["reward"].append([(step + 1) / (number % 3 + 1)])
            rows["done"].append([step == length - 1 and not (open_end and number == len(lengths) - 1)])
            rows["traj"].append(first * 1000 + number)
            rows["step"].append(step)
            state, step_number = state + 1, step_number + 1
        state += 1
    n = len(rows["obs"])
    done = torch.tensor(rows["done"]) if n else torch.zeros(0, 1, dtype=torch.bool)
    no = torch.zeros_like(done)
    content = {
        "observation": torch.tensor(rows["obs"], dtype=torch.float32).reshape(n, 2),
        "action": torch.tensor(rows["action"], dtype=torch.int64),
        "done": no,
        "terminated": no.clone(),
        "truncated": no.clone(),
        "next": TensorDict(
            {
                "observation": torch.tensor(rows["next"], dtype=torch.float32).reshape(n, 2),
                "reward": torch.tensor(rows["reward"], dtype=torch.float32).reshape(n, 1),
                "done": done,
                "terminated": done.clone(),
                "truncated": no.clone(),
            },
            [n],
        ),
    }
    if extra:
        content["collector"] = TensorDict({"traj_ids": torch.tensor(rows["traj"], dtype=torch.int64)}, [n])
        content["step_count"] = torch.tensor(rows["step"], dtype=torch.int64)
    return TensorDict(content, [n])


class Truth:
    """A dataset's TED columns, and what a batch of it must be, worked out step by step."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self.columns = columns(episodes)
        self.lengths = [len(episode) for episode in episodes]
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])

    def bounds(self, step: int) -> tuple[int, int]:
        episode = int(np.searchsorted(self.starts, step, "right")) - 1
        return int(self.starts[episode]), int(self.starts[episode + 1])

    def stack(self, name: str, step: int, k: int) -> np.ndarray:
        """The last k observations up to a step, the first one repeated before it; ``next/`` names the successor's stack."""
        low, _ = self.bounds(step)
        root = self.columns[name.removeprefix("next/")]
        past = [root[max(i, low)] for i in range(step - k + 1, step + 1)]
        if name.startswith("next/"):
            past = [*past[1:], self.columns[name][step]]
        return np.stack(past)

    def last(self, step: int, n: int) -> int:
        return min(step + n, self.bounds(step)[1]) - 1

    def n_step_reward(self, step: int, n: int, gamma: float) -> float:
        rewards = self.columns["next/reward"][step : self.last(step, n) + 1, 0].astype("float64")
        return float((rewards * gamma ** np.arange(len(rewards))).sum())


def same(left: torch.Tensor, right: np.ndarray | torch.Tensor) -> bool:
    right = torch.as_tensor(np.ascontiguousarray(right)) if isinstance(right, np.ndarray) else right
    return left.shape == right.shape and left.dtype == right.dtype and bool((left == right).all())


def numbers(n: int = 20, **more: Any) -> Any:
    """A buffer in memory with one episode of ``n`` steps, in batches of 5."""
    from rbdata.storage.replay import LazyTensorStorage, TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(n), batch_size=5, seed=0, **more)
    buffer.extend(rollout([n]))
    return buffer


def equal(left: TensorDict, right: TensorDict) -> bool:
    """Same keys, shapes, dtypes and values."""
    keys = set(left.keys(True, True))
    return keys == set(right.keys(True, True)) and all(same(left.get(key), right.get(key)) for key in keys)


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """How many standard deviations the statistic lies above its mean; below 5 in all but one of millions of runs."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    return (statistic - freedom) / (2 * freedom) ** 0.5


def priorities(buffer: Any) -> torch.Tensor:
    """What a prioritized sampler keeps of each row."""
    kept: torch.Tensor = buffer.sampler._priorities
    return kept


def write_and_die(folder: Path | None) -> None:
    """In a process of its own: write thirty rows, and end without a word."""
    import os

    from rbdata.storage.replay import LazyMemmapStorage, ReplayBuffer

    buffer = ReplayBuffer(storage=LazyMemmapStorage(100, scratch_dir=folder), batch_size=4)
    buffer.extend(rollout([30]))
    os._exit(9)


def own_memory(batch: TensorDict) -> TensorDict:
    """A transform: the bytes of memory that this process alone has and no file does, as ``own``.

    By mapping: pages shared with a parent are anonymous too, and those of files in memory (tmpfs) dirty; a copy is both.
    """
    words = [line.split() for line in Path("/proc/self/smaps").read_text().splitlines()]
    private, anonymous = (
        [int(value) << 10 for name, value, *_ in words if name == f"{wanted}:"]
        for wanted in ("Private_Dirty", "Anonymous")
    )
    own = sum(map(min, private, anonymous))
    return batch.set("own", torch.full(batch.batch_size, own))


class LeavesTrace:
    """A transform that changes nothing. Where it is unpickled, ``path`` is made, and written to when that interpreter ends."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        Path(self.path).touch()
        atexit.register(Path(self.path).write_text, "ended")

    def __call__(self, batch: TensorDict) -> TensorDict:
        return batch


def numbered(first: int, count: int) -> TensorDict:
    """Rows ``x`` int64 ``[count]`` of consecutive numbers, and ``y`` float32 ``[count, 5]`` with the same number."""
    number = torch.arange(first, first + count)
    return TensorDict({"x": number, "y": number.float()[:, None].expand(count, 5).contiguous()}, [count])


def write_rows(buffer: Any, worker: int, results: Any) -> None:
    """In a process of its own: write 200 rows, four and one at a time; put ``"done"`` or an error into a queue."""
    torch.set_num_threads(1)
    try:
        for number in range(50):
            rows = numbered(1 + worker * 10_000 + number * 4, 4)
            if number % 2:
                buffer.extend(rows)
            else:
                for row in rows:
                    buffer.add(row)
        results.put("done")
    except Exception as error:
        results.put(f"{type(error).__name__}: {error}")
