"""CPU microseconds a batch takes in the sampling thread, by kind of batch: ``python benchmarks/sampling.py [FOLDER]``.

CPU time instead of the clock, the least of several rounds: so that two commits can be compared beside other programs. Datasets
are made in FOLDER (default: a temporary one) from random numbers: states of 17 numbers, frames of 84 x 84 bytes, and 64 small
datasets for a mixture, beside one of their size. Two floors: `torch.index_select` of as many frames, and a loader of windows
written by hand with NumPy.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rbdata
import torch

BATCH, ROUNDS, PARTS, PART_STEPS = 256, 7, 64, 2000
WINDOWS = {"observation": (-1, 0), "action": (0, 15)}


def states(steps: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    ends = np.arange(steps) % 200 == 199
    return {
        "observation": rng.normal(size=(steps, 17)).astype("f4"),
        "action": rng.normal(size=(steps, 6)).astype("f4"),
        "reward": rng.normal(size=steps).astype("f4"),
        "terminated": ends,
    }


def frames(episodes: int = 10, length: int = 1000) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (64, 84, 84)).astype("u1")
    for _ in range(episodes):
        yield {
            "observation": pictures[rng.integers(0, 64, length + 1)],
            "action": rng.integers(0, 6, length),
            "reward": np.zeros(length, "f4"),
            "terminated": np.arange(length) == length - 1,
            "truncated": np.zeros(length, bool),
        }


def make(root: Path) -> None:
    if (root / "my" / "whole").exists():
        return
    for number in range(PARTS):
        rbdata.from_arrays(states(PART_STEPS, number), f"my/part{number}", root=root)
    rbdata.concat([f"my/part{number}" for number in range(PARTS)], root=root).save("my/whole", root=root)
    for codec in ("raw", "zstd"):
        rbdata.from_episodes(frames(), f"my/frames_{codec}", root=root, codec=codec)


def cost(sample: Callable[[], Any], batches: int) -> float:
    """The CPU microseconds of a call in this thread."""
    for _ in range(48):  # batches are drawn ahead in growing groups
        sample()
    rounds = []
    for _ in range(ROUNDS):
        begin = time.thread_time()
        for _ in range(batches):
            sample()
        rounds.append((time.thread_time() - begin) / batches * 1e6)
    return min(rounds)


def by_hand(dataset: rbdata.Dataset) -> Callable[[], Any]:
    """A loader of WINDOWS as one writes it with NumPy."""
    observation, action = dataset["observation"].numpy(), dataset["action"].numpy()
    starts, rng = dataset.episode_starts.numpy(), np.random.default_rng(0)

    def sample() -> dict[str, torch.Tensor]:
        steps = rng.integers(0, len(action), BATCH)
        episode = np.searchsorted(starts, steps, "right") - 1
        low, high = starts[episode][:, None], starts[episode + 1][:, None]
        before, after = steps[:, None] + np.arange(-1, 1), steps[:, None] + np.arange(16)
        found = {
            "observation": observation[np.maximum(before, low)],
            "observation_mask": before >= low,
            "action": action[np.minimum(after, high - 1)],
            "action_mask": after < high,
        }
        return {name: torch.from_numpy(value) for name, value in found.items()}

    return sample


def main(root: Path) -> None:
    make(root)
    torch.set_num_threads(1)
    parts = [str(root / "my" / f"part{number}") for number in range(PARTS)]
    kinds: dict[str, tuple[Any, dict[str, Any], int]] = {
        "states": ("whole", {}, 160),
        "mixture of 64": (parts, {}, 160),
        "mixture of 64, weights": (parts, {"weights": [1.0] * PARTS}, 160),
        "slices of 16": ("whole", {"slice_len": 16}, 160),
        "stacks of 4": ("whole", {"frame_stack": 4}, 64),
        "n-step returns of 5": ("whole", {"n_step": 5}, 96),
        "windows": ("whole", {"windows": WINDOWS}, 64),
        "without replacement": ("whole", {"replacement": False}, 160),
        "priorities": ("whole", {"alpha": 0.6, "beta": 0.4}, 96),
        "frames, raw": ("frames_raw", {}, 16),
        "frames, zstd": ("frames_zstd", {}, 16),
    }
    for name, (place, options, batches) in kinds.items():
        given = place if isinstance(place, list) else root / "my" / place
        with rbdata.load(given, batch_size=BATCH, seed=0, **options) as buffer:
            print(f"{name:24} {cost(buffer.sample, batches):8.1f} us")
    print(f"{'windows by hand':24} {cost(by_hand(rbdata.open_dataset(root / 'my' / 'whole')), 64):8.1f} us")
    rows = rbdata.open_dataset(root / "my" / "frames_raw")["observation"].flatten(1)

    def floor() -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.randint(len(rows), (BATCH,))
        return rows.index_select(0, index), rows.index_select(0, index)

    print(f"{'index_select of frames':24} {cost(floor, 16):8.1f} us")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder))
