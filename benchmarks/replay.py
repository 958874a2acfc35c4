"""The replay runtime beside TorchRL and cpprb: low-dimensional transitions, slices, priorities.

    python benchmarks/replay.py                        # about two minutes
    python benchmarks/replay.py --steps 100000 --repeats 1

The data are those of a locomotion task (17 observations, 6 actions, float32): one folder in the TED layout, which both
libraries read, memory-mapped, page cache warm. Every figure is the median of fresh processes, rivals interleaved. Figures
are microseconds for one batch. cpprb is measured where it is installed (it is no dependency).

TorchRL's prioritized sampler is an extension built for one minor version of torch. Where it does not load, give another
Python in which it does: 0.14.1 was built for torch 2.14.

    python -m venv other; other/bin/pip install torch==2.14.1 torchrl==0.14.1 tensordict==0.14.3 psutil
    python benchmarks/replay.py --torchrl-python other/bin/python
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import shutil
import statistics
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import Cost, interleave, machine, measure, rate, table

WORK = Path(".bench") / "replay"
BATCH, SLICE, EPISODE = 256, 32, 1000


def write_folder(steps: int) -> Path:
    """A dataset of ``steps`` steps in episodes of 1000, written once."""
    import rbdata

    path = WORK / f"my/locomotion-{steps}"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    episodes = (
        {
            "observation": rng.standard_normal((EPISODE + 1, 17)).astype("float32"),
            "action": rng.standard_normal((EPISODE, 6)).astype("float32"),
            "reward": rng.standard_normal(EPISODE).astype("float32"),
            "truncated": True,
        }
        for _ in range(steps // EPISODE)
    )
    return rbdata.from_episodes(episodes, f"my/locomotion-{steps}", root=WORK, progress=False)


def microseconds(step: Callable[[], Any], seconds: float) -> float:
    return 1e6 / rate(step, 1, seconds)


# -- rbdata ------------------------------------------------------------------------------------------------------------


def ours(folder: Path, seconds: float, **options: Any) -> float:
    import rbdata
    import torch

    torch.set_num_threads(1)
    buffer = rbdata.load(folder, batch_size=BATCH, seed=0, **options)
    for rows in buffer.dataset.rows.values():
        rows.block(0, rows.count).flatten()[::64].sum()  # touch the pages
    return microseconds(buffer.sample, seconds)


def ours_prioritized(folder: Path, seconds: float, part: str) -> float:
    import rbdata
    import torch

    torch.set_num_threads(1)
    buffer = rbdata.load(folder, batch_size=BATCH, seed=0, alpha=0.6, beta=0.4)
    size = len(buffer)
    buffer.sample()
    buffer.update_priority(torch.arange(size), torch.rand(size))
    error, storage = torch.rand(BATCH), buffer.storage
    sampler: Any = buffer.sampler
    index = torch.randint(size, (BATCH,))

    def both() -> None:
        batch = buffer.sample()
        buffer.update_priority(batch["index"], error)

    def indices() -> None:
        sampler.sample(storage, BATCH)

    def update() -> None:
        sampler.update_priority(index, error)

    return microseconds({"batch": both, "draw": indices, "update": update}[part], seconds)


def ours_in_memory(folder: Path, seconds: float, **options: Any) -> float:
    import torch
    from rbdata import open_dataset
    from rbdata.storage.replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

    torch.set_num_threads(1)
    data = open_dataset(folder).to_tensordict()
    sampler = SliceSampler(slice_len=SLICE) if options.get("slices") else None
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(len(data)), sampler=sampler, batch_size=BATCH)
    buffer.extend(data)
    return microseconds(buffer.sample, seconds)


def ours_like_cpprb(folder: Path, seconds: float) -> float:
    """Priorities over the columns that cpprb gets, in memory: observation, action, reward, next observation, done."""
    import torch
    from rbdata import open_dataset
    from rbdata.storage.replay import LazyTensorStorage, RoundRobinWriter, TensorDictPrioritizedReplayBuffer

    torch.set_num_threads(1)
    keys = ("observation", "action", ("next", "reward"), ("next", "observation"), ("next", "done"))
    data = open_dataset(folder).to_tensordict().select(*keys)
    size = len(data)
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=LazyTensorStorage(size), writer=RoundRobinWriter(), batch_size=BATCH, seed=0
    )
    buffer.extend(data)
    buffer.update_priority(torch.arange(size), torch.rand(size))
    error = torch.rand(BATCH)

    def both() -> None:
        batch = buffer.sample()
        buffer.update_priority(batch["index"], error)

    return microseconds(both, seconds)


# -- the others --------------------------------------------------------------------------------------------------------


def torchrl(folder: Path, seconds: float, sampler: str | None = None) -> float:
    import torch
    from tensordict import TensorDict
    from torchrl.data import SliceSampler, TensorDictReplayBuffer, TensorStorage

    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    data = TensorDict.load_memmap(folder)
    options: dict[str, Any] = {}
    if sampler:
        cached = sampler == "cached"
        options["sampler"] = SliceSampler(slice_len=SLICE, end_key=("next", "done"), cache_values=cached)
    buffer = TensorDictReplayBuffer(storage=TensorStorage(data), batch_size=BATCH, **options)
    for leaf in data.values(True, True):
        leaf.flatten()[::64].sum()
    return microseconds(buffer.sample, seconds)


def torchrl_prioritized(folder: Path, seconds: float) -> float:
    import torch
    from tensordict import TensorDict
    from torchrl.data import PrioritizedSampler, TensorDictReplayBuffer, TensorStorage

    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    data = TensorDict.load_memmap(folder)
    sampler = PrioritizedSampler(len(data), 0.6, 0.4)
    buffer = TensorDictReplayBuffer(storage=TensorStorage(data), sampler=sampler, batch_size=BATCH)
    buffer.update_priority(torch.arange(len(data)), torch.rand(len(data)))
    error = torch.rand(BATCH)

    def both() -> None:
        batch = buffer.sample()
        buffer.update_priority(batch["index"], error)

    return microseconds(both, seconds)


def torchrl_elsewhere(python: str, folder: Path, seconds: float) -> float:
    """`torchrl_prioritized` in another Python."""
    command = [python, __file__, "--torchrl-prioritized", str(folder), "--seconds", str(seconds)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def cpprb(folder: Path, seconds: float) -> float:
    from cpprb import PrioritizedReplayBuffer  # type: ignore[import-not-found]  # only where it is compared
    from rbdata import open_dataset

    data = open_dataset(folder).to_tensordict()
    size = len(data)
    spec = {"obs": {"shape": 17}, "act": {"shape": 6}, "rew": {}, "next_obs": {"shape": 17}, "done": {}}
    buffer = PrioritizedReplayBuffer(size, spec, alpha=0.6)
    nxt = data["next"]
    buffer.add(
        obs=data["observation"].numpy(),
        act=data["action"].numpy(),
        rew=nxt["reward"].numpy(),
        next_obs=nxt["observation"].numpy(),
        done=nxt["done"].numpy(),
    )
    rng = np.random.default_rng(0)
    buffer.update_priorities(np.arange(size), rng.random(size))
    error = rng.random(BATCH)

    def both() -> None:
        batch = buffer.sample(BATCH, beta=0.4)
        buffer.update_priorities(batch["indexes"], error)

    return microseconds(both, seconds)


def works(function: Callable[..., Any], *args: Any) -> bool:
    try:
        measure(function, *args)
    except RuntimeError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    parser.add_argument("--torchrl-python", help="a Python in which TorchRL's prioritized sampler works")
    parser.add_argument("--torchrl-prioritized", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help="keep the dataset for the next run")
    args = parser.parse_args()
    if args.torchrl_prioritized:
        print(torchrl_prioritized(args.torchrl_prioritized, args.seconds))
        return
    folder, seconds = write_folder(args.steps).absolute(), args.seconds
    print(machine(), end="\n\n", flush=True)
    groups: dict[str, dict[str, Callable[[], Cost]]] = {
        f"{BATCH} transitions": {
            "rbdata": partial(measure, ours, folder, seconds),
            "rbdata, in memory": partial(measure, ours_in_memory, folder, seconds),
            "rbdata, n_step=3": partial(measure, ours, folder, seconds, n_step=3),
            "rbdata, frame_stack=4": partial(measure, ours, folder, seconds, frame_stack=4),
            "TorchRL": partial(measure, torchrl, folder, seconds),
        },
        f"{BATCH // SLICE} slices of {SLICE}": {
            "rbdata": partial(measure, ours, folder, seconds, slice_len=SLICE),
            "rbdata, in memory": partial(measure, ours_in_memory, folder, seconds, slices=True),
            "TorchRL, cached": partial(measure, torchrl, folder, seconds, "cached"),
            "TorchRL": partial(measure, torchrl, folder, seconds, "uncached"),
        },
        f"{BATCH} by priority, and update": {
            "rbdata": partial(measure, ours_prioritized, folder, seconds, "batch"),
            "rbdata, in memory, cpprb's columns": partial(measure, ours_like_cpprb, folder, seconds),
            "rbdata, draw indices only": partial(measure, ours_prioritized, folder, seconds, "draw"),
            "rbdata, update only": partial(measure, ours_prioritized, folder, seconds, "update"),
        },
    }
    priorities = groups[f"{BATCH} by priority, and update"]
    if args.torchrl_python:
        elsewhere = partial(measure, torchrl_elsewhere, args.torchrl_python, folder, seconds)
        priorities["TorchRL (torch of another Python)"] = elsewhere
    elif works(torchrl_prioritized, folder, 0.01):
        priorities["TorchRL"] = partial(measure, torchrl_prioritized, folder, seconds)
    if importlib.util.find_spec("cpprb"):
        priorities["cpprb (plain arrays)"] = partial(measure, cpprb, folder, seconds)
    try:
        for what, rivals in groups.items():
            found = {name: [cost.result for cost in runs] for name, runs in interleave(rivals, args.repeats).items()}
            base = statistics.median(found["rbdata"])
            rows = [
                [
                    name,
                    f"{statistics.median(runs):,.0f}",
                    f"{min(runs):,.0f}..{max(runs):,.0f}",
                    f"{statistics.median(runs) / base:.1f}x",
                ]
                for name, runs in found.items()
            ]
            print(table([what, "us a batch", "range", "rbdata = 1"], rows), end="\n\n", flush=True)
    finally:
        if not args.keep:
            shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main()
