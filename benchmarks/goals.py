"""Goals, extra leaves and normalisation beside a hand-written NumPy loader in memory.

    python benchmarks/goals.py                     # about a minute
    python benchmarks/goals.py --steps 50000000    # the first batch with returns to go of a long dataset

The rivals are a `GCDataset` by OGBench's rule (arrays in memory, value and actor goals) and a loader whose returns to go and
normalised observations were computed before. Figures are microseconds for a batch of 1,024: medians of interleaved repeats.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rbdata
from replay import EPISODE, write_folder

BATCH = 1024


class NumpyGoals:
    """Batches with goals, by OGBench's published rule, from arrays in memory."""

    def __init__(self, arrays: dict[str, np.ndarray], ends: np.ndarray, seed: int) -> None:
        self.arrays, self.ends, self.rng = arrays, ends, np.random.default_rng(seed)
        self.count = len(arrays["observation"])

    def goals(self, steps: np.ndarray, current: float, trajectory: float, geometric: float | None) -> np.ndarray:
        rng, final = self.rng, self.ends[np.searchsorted(self.ends, steps)]
        if geometric is None:
            d = rng.random(len(steps))
            later = np.round(np.minimum(steps + 1, final) * d + final * (1 - d)).astype(int)
        else:
            later = np.minimum(steps + rng.geometric(1 - geometric, len(steps)), final)
        anywhere = rng.integers(0, self.count, len(steps))
        mixed = np.where(rng.random(len(steps)) < trajectory / (1 - current), later, anywhere)
        return np.where(rng.random(len(steps)) < current, steps, mixed)

    def sample(self) -> dict[str, np.ndarray]:
        steps = self.rng.integers(0, self.count, BATCH)
        batch = {name: array[steps] for name, array in self.arrays.items()}
        goals = self.goals(steps, 0.2, 0.5, 0.99)
        success = (steps == goals).astype(np.float32)
        batch["goal"], batch["reward"], batch["mask"] = self.arrays["observation"][goals], success - 1, 1 - success
        batch["actor_goal"] = self.arrays["observation"][self.goals(steps, 0.0, 1.0, None)]
        return batch


def microseconds(call: Callable[[], Any], batches: int = 200) -> float:
    begun = time.perf_counter()
    for _ in range(batches):
        call()
    return (time.perf_counter() - begun) / batches * 1e6


def compare(name: str, ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int) -> None:
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for each, call in zip(found, (ours, theirs)):
            each.append(microseconds(call))
    a, b = (statistics.median(each[1:]) for each in found)
    print(f"{name:40} rbdata {a:8.0f}   NumPy {b:8.0f}   ratio {a / b:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    dataset = rbdata.open_dataset(write_folder(options.steps))
    begun = time.perf_counter()
    buffer = rbdata.load(dataset, batch_size=BATCH, extra=["return_to_go"], seed=0)
    buffer.sample()
    print(f"first batch with returns to go: {1000 * (time.perf_counter() - begun):.0f} ms")
    begun = time.perf_counter()
    rbdata.load(dataset, normalize="observation")
    print(f"statistics of observations (the first time): {1000 * (time.perf_counter() - begun):.0f} ms")
    if options.steps > 5_000_000:
        compare("returns to go against themselves", buffer.sample, buffer.sample, options.repeats)
        return
    names = (
        "observation",
        "action",
        "next/observation",
        "next/reward",
        "next/terminated",
        "next/truncated",
        "next/done",
    )
    arrays = {name: dataset[name].numpy() for name in (*names, "done", "terminated", "truncated")}
    ends = np.arange(EPISODE - 1, options.steps, EPISODE)
    goals = rbdata.Goals(actor=rbdata.Goals(0.0, 1.0, 0.0, geometric=None))
    rival = NumpyGoals(arrays, ends, 0)
    compare(
        "value and actor goals", rbdata.load(dataset, batch_size=BATCH, goals=goals, seed=0).sample, rival.sample, 9
    )
    shaped = arrays["next/reward"].reshape(-1, EPISODE).astype(np.float64)
    extras = dict(arrays, return_to_go=shaped[:, ::-1].cumsum(1)[:, ::-1].reshape(-1, 1).astype(np.float32))
    for name in ("observation", "next/observation"):
        mean, std = arrays["observation"].mean(0), arrays["observation"].std(0) + 1e-3
        extras[name] = (arrays[name] - mean) / std
    extras["step"] = np.arange(options.steps)[:, None] % EPISODE
    rng = np.random.default_rng(0)

    def sample() -> dict[str, np.ndarray]:
        steps = rng.integers(0, options.steps, BATCH)
        return {name: array[steps] for name, array in extras.items()}

    ours = rbdata.load(dataset, batch_size=BATCH, extra=["return_to_go", "step"], normalize="observation", seed=0)
    compare("normalised, with step and return to go", ours.sample, sample, options.repeats)
    compare(
        "plain batch", rbdata.load(dataset, batch_size=BATCH, seed=0).sample, rival_plain(arrays, rng), options.repeats
    )


def rival_plain(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> Callable[[], Any]:
    count = len(arrays["observation"])

    def sample() -> dict[str, np.ndarray]:
        steps = rng.integers(0, count, BATCH)
        return {name: array[steps] for name, array in arrays.items()}

    return sample


if __name__ == "__main__":
    main()
