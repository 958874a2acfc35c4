"""Own data in and out: rates and memory by the number of steps, beside NumPy writing the same arrays.

    python benchmarks/own_data.py                      # 1 and 4 million steps, about 2 minutes
    python benchmarks/own_data.py --steps 1e7

Steps have 17 numbers of observation, 6 of action and a reward, in episodes of 100 (as locomotion). ``np.save`` of the flat
arrays is the floor: it writes each number once, and checks, counts and sorts nothing. Every run is a fresh process, imports
included.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, measure, size, table

WORK = Path(".bench") / "own_data"
LENGTH = 100
FORMATS = ("npz", "d4rl", "torchrl", "parquet", "minari", "rlds", "lerobot")


def episodes(steps: int) -> Iterator[dict[str, Any]]:
    """Episodes that differ, at the cost of one addition each."""
    rng = np.random.default_rng(0)
    states, actions = rng.random((LENGTH + 1, 17), np.float32), rng.random((LENGTH, 6), np.float32)
    rewards = rng.random(LENGTH)
    for number in range(steps // LENGTH):
        done = number % 2 == 0
        states += 1e-3
        yield {"observation": states, "action": actions, "reward": rewards, "terminated": done, "truncated": not done}


def arrays(steps: int) -> dict[str, np.ndarray]:
    """The same steps as flat arrays, without the last observations of episodes."""
    some = list(episodes(steps))
    flags = np.arange(steps) % LENGTH == LENGTH - 1
    joined = {key: np.concatenate([one[key] for one in some]) for key in ("action", "reward")}
    return {"observation": np.concatenate([one["observation"][:-1] for one in some]), **joined, "done": flags}


def save_with_numpy(steps: int) -> None:
    for name, values in arrays(steps).items():
        np.save(WORK / f"{name}.npy", values)


def make_arrays(steps: int) -> None:
    arrays(steps)


def from_arrays(steps: int) -> None:
    import rbdata

    rbdata.from_arrays(arrays(steps), "my/arrays", root=WORK, force=True, progress=False)


def from_episodes(steps: int) -> None:
    import rbdata

    rbdata.from_episodes(episodes(steps), "my/episodes", root=WORK, force=True, progress=False)


def export(to: str) -> None:
    import rbdata

    rbdata.export("my/episodes", WORK / "out-v0", to, root=WORK, force=True)  # type: ignore[arg-type]


def convert() -> None:
    import rbdata

    rbdata.convert(WORK / "out-v0.npz", "my/back", root=WORK, force=True, progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=float, nargs="+", default=[1e6, 4e6])
    rows = []
    for steps in map(int, parser.parse_args().steps):
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)
        floor = measure(save_with_numpy, steps)
        runs = {
            "the arrays alone": measure(make_arrays, steps),
            "np.save": floor,
            "from_arrays": measure(from_arrays, steps),
            "from_episodes": measure(from_episodes, steps),
        }
        for to in FORMATS:
            runs[f"export to {to}"] = measure(export, to)
            if to == "npz":
                runs["convert npz"] = measure(convert)
            for made in WORK.glob("out*"):
                shutil.rmtree(made) if made.is_dir() else made.unlink()
        for name, cost in runs.items():
            ratio, rate = f"{cost.wall / floor.wall:.1f}", f"{steps / cost.wall / 1e6:.2f} M"
            rows.append([f"{steps:,}", name, f"{cost.wall:.1f}", rate, ratio, size(cost.peak), size(cost.anonymous)])
    print(machine())
    print(table(["steps", "", "s", "steps/s", "of np.save", "peak", "anonymous"], rows))
    shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main()
