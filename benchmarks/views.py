"""Windows, views and mixtures beside a hand-written NumPy loader, and copies of views: times, rates and memory.

    python benchmarks/views.py                    # about a minute
    python benchmarks/views.py --save 10000000    # a tenth of so many steps, selected and saved

Data are 17 numbers of observation and 6 of action a step, in episodes of 1,000. Figures are microseconds for a batch of 256:
medians of interleaved repeats.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np
import rbdata
import torch
from goals import microseconds
from harness import machine, measure, size
from replay import EPISODE, WORK, write_folder

BATCH = 256


class NumpyWindows:
    """Windows of observations (-1, 0) and actions (0, 15) with masks, from arrays in memory, as tensors."""

    def __init__(self, observations: np.ndarray, actions: np.ndarray) -> None:
        self.rows = {"observation": (observations, np.arange(-1, 1)), "action": (actions, np.arange(16))}
        self.rng = np.random.default_rng(0)

    def sample(self) -> dict[str, torch.Tensor]:
        steps = self.rng.integers(0, len(self.rows["action"][0]), BATCH)
        first = steps // EPISODE * EPISODE
        batch = {"index": torch.from_numpy(steps)}
        for name, (rows, offsets) in self.rows.items():
            wanted = steps[:, None] + offsets
            within = np.clip(wanted, first[:, None], first[:, None] + EPISODE - 1)
            batch[name], batch[f"mask/{name}"] = torch.from_numpy(rows[within]), torch.from_numpy(wanted == within)
        return batch


def compare(name: str, repeats: int, **ways: object) -> None:
    """Print the median times of two ways to make a batch, and their ratio."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats + 1):
        for way, buffer in ways.items():
            found[way].append(microseconds(buffer.sample))  # type: ignore[attr-defined]
    medians = {way: statistics.median(times[1:]) for way, times in found.items()}
    ours, theirs = medians.values()
    print(f"{name:44} {'   '.join(f'{way} {time:.0f}' for way, time in medians.items()):32} ratio {ours / theirs:.2f}")


def save(path: Path, steps: int) -> int:
    dataset = rbdata.open_dataset(path)
    numbers = np.random.default_rng(0).permutation(len(dataset.episodes))[: len(dataset.episodes) // 10]
    dataset.select(episodes=numbers).save("my/selected", root=WORK, force=True, progress=False, procs=1)
    return steps // 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--save", type=int, default=0, metavar="STEPS")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    print(machine())
    if options.save:
        for steps in (options.save // 10, options.save):
            cost = measure(save, write_folder(steps), steps)
            print(
                f"select and save {cost.result:,} of {steps:,} steps: {cost.wall:.1f} s, "
                f"{cost.result / cost.wall / 1e6:.2f} M steps/s, anonymous memory {size(cost.anonymous)}"
            )
        return
    dataset, half = (
        rbdata.open_dataset(write_folder(options.steps)),
        rbdata.open_dataset(write_folder(options.steps // 2)),
    )
    load, repeats = rbdata.load, options.repeats
    windows = {"observation": (-1, 0), "action": (0, 15)}
    rival = NumpyWindows(dataset["observation"].numpy(), dataset["action"].numpy())
    compare("windows by key", repeats, rbdata=load(dataset, batch_size=BATCH, windows=windows, seed=0), NumPy=rival)
    one = load(dataset, batch_size=BATCH, seed=0)
    keys = load(dataset, batch_size=BATCH, keys=["observation", "action"], seed=0)
    compare("two leaves, all leaves", repeats, keys=keys, all=one)
    other = rbdata.open_dataset(write_folder(options.steps // 2 + EPISODE))
    mixture = load([half, other], weights=[0.9, 0.1], batch_size=BATCH, seed=0)
    compare("a mixture of two, one of the same size", repeats, mixture=mixture, one=one)
    best = dataset.select(episodes=dataset.episodes.where(top=0.5))
    compare("half of the episodes, all", repeats, view=load(best, batch_size=BATCH, seed=0), all=one)
    parts = [load(half, batch_size=BATCH, seed=number) for number in range(64)]
    ensemble = rbdata.ReplayBufferEnsemble(*parts, batch_size=BATCH, seed=0)
    compare("an ensemble of 64 buffers, one", repeats, ensemble=ensemble, one=one)
    ensemble = rbdata.ReplayBufferEnsemble(*parts[:2], p=[0.9, 0.1], num_buffer_sampled=64, batch_size=BATCH, seed=0)
    compare("an ensemble of two buffers in 64 parts, one", repeats, ensemble=ensemble, one=one)


if __name__ == "__main__":
    main()
