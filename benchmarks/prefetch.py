"""``prefetch=2`` beside ``prefetch=0``: what handing batches to threads costs, or saves.

    python benchmarks/prefetch.py                    # a minute or two
    python benchmarks/prefetch.py --seconds 20 --work 0.004

Both buffers are of one process and sampled in turn, a few batches each (A B B A), so that a slow moment of a shared machine
hits both. Given are the medians of microseconds for one batch and the median of the ratios of neighbors; below 1 prefetching
is quicker. The first batches, in which a buffer measures both ways (`Pace` in `storage/replay/prefetch.py`), are left out;
later trials count. ``work`` is how long the caller uses each batch, as a training step does.
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


def cases(folder: Path) -> dict[str, Callable[[int], Any]]:
    """Buffers by what they hold; called with a prefetch depth."""
    import rbdata
    from rbdata.storage.replay import (
        LazyTensorStorage,
        PrioritizedSampler,
        SliceSampler,
        TensorDictReplayBuffer,
    )

    rows = 50_000

    def memory(batch: int, width: int = 17, sampler: Callable[[], Any] | None = None) -> Callable[[int], Any]:
        def make(prefetch: int) -> Any:
            storage = LazyTensorStorage(rows if width < 1000 else 5000)
            made = None if sampler is None else sampler()
            buffer = TensorDictReplayBuffer(storage=storage, sampler=made, batch_size=batch, prefetch=prefetch, seed=0)
            buffer.extend(transitions(storage.max_size, width))
            return buffer

        return make

    place = frames(folder, 2000)

    def dataset(batch: int, **options: Any) -> Callable[[int], Any]:
        return lambda prefetch: rbdata.load(place, batch_size=batch, prefetch=prefetch, seed=0, **options)

    return {
        "memory, batch 32": memory(32),
        "memory, batch 256": memory(256),
        "memory, batch 4096": memory(4096),
        "memory, 5000 wide, batch 256": memory(256, 5000),
        "slices of 32, batch 256": memory(256, sampler=lambda: SliceSampler(slice_len=32)),
        "slices of 32, batch 4096": memory(4096, sampler=lambda: SliceSampler(slice_len=32)),
        "priorities, batch 32": memory(32, sampler=lambda: PrioritizedSampler(rows, 0.6, 0.4)),
        "priorities, batch 256": memory(256, sampler=lambda: PrioritizedSampler(rows, 0.6, 0.4)),
        "compressed frames, batch 8": dataset(8),
        "compressed frames, batch 32": dataset(32),
        "compressed frames, stack 4, batch 128": dataset(128, frame_stack=4),
        "compressed frames, slices, batch 128": dataset(128, slice_len=16),
    }


def microseconds(buffer: Any, batches: int, work: float) -> float:
    """For one batch, without the time that the caller uses it."""
    begun = time.perf_counter()
    for _ in range(batches):
        buffer.sample()
        if work:
            time.sleep(work)  # as one that waits for a device
    return 1e6 * ((time.perf_counter() - begun) / batches - work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one case")
    parser.add_argument("--work", type=float, default=0.0, help="seconds that the caller uses a batch")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(machine(), end="\n\n")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in cases(Path(folder)).items():
            if args.only not in name:
                continue
            without, ahead = make(0), make(2)
            for buffer in (without, ahead):
                microseconds(buffer, 120, args.work)
            pairs: list[tuple[float, float]] = []
            begun = time.perf_counter()
            while time.perf_counter() - begun < args.seconds or len(pairs) < 3:
                order = (without, ahead) if len(pairs) % 2 else (ahead, without)
                found = {id(buffer): microseconds(buffer, 8, args.work) for buffer in order}
                pairs.append((found[id(without)], found[id(ahead)]))
            middle = [statistics.median(column) for column in zip(*pairs, strict=True)]
            ratio = statistics.median(second / first for first, second in pairs)
            rows.append([name, f"{middle[0]:,.0f}", f"{middle[1]:,.0f}", f"{ratio:.2f}"])
            print(*rows[-1], flush=True)
            ahead.close()
    print()
    print(table(["us a batch", "prefetch=0", "prefetch=2", "ratio"], rows))


if __name__ == "__main__":
    main()
