"""Batches for a learner on a CUDA device: rbdata, TorchRL, and batches that lie on the device already.

    python benchmarks/gpu.py                        # a minute on one GPU
    python benchmarks/gpu.py --device cpu --updates 5   # tries the program on a machine without one

Two learners, each fed by every supplier in turn (A B C A B C), medians over the rounds:

- *pixels*: the network of DQN (Mnih et al., Nature 2015, https://doi.org/10.1038/nature14236) with its loss and an Adam step
  on batches of 256 stacks of four frames of 84 x 84. rbdata reads a compressed dataset of single frames and stacks them;
  TorchRL samples stacked frames out of memory (its storage is eight times as large), and moves them to the device.
- *states*: two layers of 256 on batches of 256 of 17 numbers, a few kernels an update, so that the supply decides.

"floor" is the update with one batch that stays on the device. A supplier costs what its update takes more. Beside them the
time for a batch alone, without a learner.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import machine, table
from tensordict import TensorDict
from torch import nn


def wait(device: torch.device) -> None:
    """Until the device has done everything that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def transitions(rows: int, width: int) -> TensorDict:
    """Transitions of ``width`` observations, in episodes of 100 steps."""
    end = (torch.arange(rows) % 100 == 99)[:, None]
    return TensorDict(
        {
            "observation": torch.rand(rows, width),
            "action": torch.rand(rows, 6),
            "next": {
                "observation": torch.rand(rows, width),
                "reward": torch.rand(rows, 1),
                "done": end,
                "terminated": end,
                "truncated": torch.zeros_like(end),
            },
        },
        [rows],
    )


def frames(folder: Path, steps: int, layout: str = "zstd") -> Any:
    """A dataset of frames ``[84, 84]`` with some structure, as games have it."""
    import sys

    import numpy as np

    sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
    from storage_tools import make_episodes, write_dataset

    rng = np.random.default_rng(0)
    episodes = make_episodes([250] * (steps // 250), shape=(84, 84), dtype="uint8")
    for episode in episodes:
        frames = episode.states["observation"]
        frames[:] = 0
        frames[:, 20:40, 20:40] = rng.integers(0, 256, (len(frames), 20, 20))
    return write_dataset(folder, episodes, layout)


def learner(device: torch.device, *, pixels: bool) -> Callable[[Any], None]:
    """An update of a Q function on a batch that lies on the device."""
    if pixels:
        body = [
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
        ]
        network = nn.Sequential(*body, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6)).to(device)
    else:
        network = nn.Sequential(nn.Linear(17, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 6)).to(
            device
        )
    optimizer = torch.optim.Adam(network.parameters(), 1e-4)

    def values(observation: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = network(observation.float().flatten(1, -3) / 255 if pixels else observation)
        return made

    def update(batch: Any) -> None:
        action = batch["action"].reshape(len(batch), -1)[:, :1].long().clamp(0, 5)
        with torch.no_grad():
            best = values(batch["next", "observation"]).max(1, keepdim=True).values
            target = batch["next", "reward"].reshape(-1, 1) + 0.99 * best * ~batch["next", "terminated"].reshape(-1, 1)
        loss = nn.functional.smooth_l1_loss(values(batch["observation"]).gather(1, action), target.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return update


def pixel_suppliers(folder: Path, steps: int, device: torch.device) -> dict[str, Callable[[], Any]]:
    import rbdata

    place, raw = (frames(folder / layout, steps, layout) for layout in ("zstd", "raw"))
    stack: dict[str, Any] = {"batch_size": 256, "frame_stack": 4}
    made = {
        "rbdata, compressed": (place, {}),
        "rbdata, compressed, no prefetch": (place, {"prefetch": 0}),
        "rbdata, raw": (raw, {}),
        "rbdata, raw, no prefetch": (raw, {"prefetch": 0}),
    }
    suppliers: dict[str, Callable[[], Any]] = {
        name: rbdata.load(where, device=device, seed=0, **stack, **options).sample  # type: ignore[arg-type]
        for name, (where, options) in made.items()
    }
    rows = rbdata.load(place, **stack).sample_at(torch.arange(min(steps, 4000)))
    suppliers |= torchrl_suppliers(rows, device)
    batch = suppliers["rbdata, raw"]()
    return {"floor": lambda: batch, **suppliers}


def torchrl_suppliers(rows: Any, device: torch.device) -> dict[str, Callable[[], Any]]:
    from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer

    def moved(storage: Any, **options: Any) -> Callable[[], Any]:
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=256, **options)
        buffer.extend(rows)
        return lambda: buffer.sample().to(device)

    return {
        "TorchRL, files": moved(LazyMemmapStorage(len(rows))),
        "TorchRL, files, pinned, prefetch 3": moved(
            LazyMemmapStorage(len(rows)), pin_memory=device.type == "cuda", prefetch=3
        ),
        "TorchRL, memory": moved(LazyTensorStorage(len(rows))),
        "TorchRL, on the device": moved(LazyTensorStorage(len(rows), device=device)),
    }


def state_suppliers(device: torch.device) -> dict[str, Callable[[], Any]]:
    import rbdata

    rows = transitions(100_000, 17)

    def made(storage: Any, **options: Any) -> Callable[[], Any]:
        buffer = rbdata.TensorDictReplayBuffer(storage=storage, batch_size=256, **options)
        buffer.extend(rows)
        return buffer.sample

    suppliers = {
        "rbdata, memory": made(rbdata.LazyTensorStorage(len(rows)), device=device),
        "rbdata, memory, no prefetch": made(rbdata.LazyTensorStorage(len(rows)), device=device, prefetch=0),
        "rbdata, on the device": made(rbdata.LazyTensorStorage(len(rows), device=device)),
        **torchrl_suppliers(rows, device),
    }
    batch = suppliers["rbdata, memory"]()
    return {"floor": lambda: batch, **suppliers}


def milliseconds(step: Callable[[], Any], count: int, device: torch.device) -> float:
    wait(device)
    begun = time.perf_counter()
    for _ in range(count):
        step()
    wait(device)
    return (time.perf_counter() - begun) / count * 1000


def compare(
    suppliers: dict[str, Callable[[], Any]], update: Callable[[Any], None], count: int, device: torch.device
) -> str:
    fed: dict[str, list[float]] = {name: [] for name in suppliers}
    alone: dict[str, list[float]] = {name: [] for name in suppliers}
    for figures, uses in ((fed, True), (alone, False)):  # apart: buffers measure what their callers do between batches
        for trial in range(7):
            for name, sample in suppliers.items():
                step = (lambda sample=sample: update(sample())) if uses else sample
                taken = milliseconds(step, count, device)
                if trial > 1:
                    figures[name].append(taken)
    floor = statistics.median(fed["floor"])
    rows = []
    for name in suppliers:
        feed, batch = statistics.median(fed[name]), statistics.median(alone[name])
        rows.append([name, f"{feed:.3f}", f"{feed / floor:.2f}", "" if name == "floor" else f"{batch:.3f}"])
    return table(["supplier", "ms an update", "of the floor", "ms a batch alone"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=20_000, help="of the dataset of frames")
    parser.add_argument("--updates", type=int, default=100, help="in a row with one supplier")
    given = parser.parse_args()
    device = torch.device(given.device)
    print(machine(), torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU", sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        print(
            "\npixels\n"
            + compare(
                pixel_suppliers(Path(folder), given.steps, device), learner(device, pixels=True), given.updates, device
            )
        )
    print("\nstates\n" + compare(state_suppliers(device), learner(device, pixels=False), given.updates, device))


if __name__ == "__main__":
    main()
