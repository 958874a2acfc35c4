"""Compressed records in memory, beside TorchRL's: writing, sampling and size, on frames of real play.

    python benchmarks/compressed_replay.py             # 5,000 steps of Pong: about 2 minutes

Both storages get the same batches of 100 steps (frame, next frame, action, reward: 84x84 uint8 frames), then batches of 256
steps are sampled. Every run is a separate process; rivals are interleaved and compared by their medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from importlib import import_module
from typing import Any

from atari_shards import Base
from harness import interleave, machine, measure, table

BATCH, WRITE = 256, 100


def run(package: str, game: str, steps: int, level: int, seconds: float) -> dict[str, float]:
    """Microseconds a step to write, milliseconds a batch to sample, bytes a step."""
    import torch
    from tensordict import TensorDict

    torch.set_num_threads(1)
    of: Any = import_module("rbdata" if package == "rbdata" else "torchrl.data")
    base = Base(game, steps)
    frames = torch.from_numpy(base.frames[:steps].copy())
    data = TensorDict(
        {
            "pixels": frames[:-1],
            "next_pixels": frames[1:],
            "action": torch.from_numpy(base.action[: steps - 1].copy()),
            "reward": torch.from_numpy(base.reward[: steps - 1].copy()),
        },
        [steps - 1],
    )
    storage = of.CompressedListStorage(steps, compression_level=level)
    buffer = of.ReplayBuffer(storage=storage, batch_size=BATCH)
    begun = time.perf_counter()
    for first in range(0, steps - 1, WRITE):
        buffer.extend(data[first : first + WRITE])
    written = time.perf_counter() - begun
    assert torch.equal(storage.get(7)["pixels"], frames[7])
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        begun = time.perf_counter()
        batch = buffer.sample()
        times.append(time.perf_counter() - begun)
        assert batch["pixels"].shape == (BATCH, 84, 84)
    return {
        "us/step written": 1e6 * written / (steps - 1),
        "ms/batch sampled": 1e3 * statistics.median(times),
        "bytes/step": storage.bytes() / (steps - 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    Base(args.game, args.steps)
    rivals = {
        name: partial(measure, run, name, args.game, args.steps, args.level, args.seconds)
        for name in ("rbdata", "TorchRL")
    }
    costs = interleave(rivals, args.repeats)
    medians = {
        name: {what: statistics.median(cost.result[what] for cost in runs) for what in runs[0].result}
        for name, runs in costs.items()
    }
    print(machine())
    rows = [[name, *(f"{value:,.2f}" for value in numbers.values())] for name, numbers in medians.items()]
    ratios = [medians["TorchRL"][what] / value for what, value in medians["rbdata"].items()]
    print(table(["", *medians["rbdata"]], [*rows, ["TorchRL / rbdata", *(f"{ratio:.1f}" for ratio in ratios)]]))


if __name__ == "__main__":
    main()
