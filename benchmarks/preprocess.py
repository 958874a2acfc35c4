"""Preprocessing: beside TorchRL's, by the number of processes, by the size of the data; and a run that is killed and killed.

    python benchmarks/preprocess.py                    # all parts, about 10 minutes; then the kills, about 10 more
    python benchmarks/preprocess.py --parts torchrl memory

- ``torchrl``: a function over a million low-dimensional steps with two processes, beside ``preprocess`` of TorchRL's
  datasets on the same folder; the function sees batches in both, and in ours single steps and episodes as well. TorchRL is
  given its default (a chunk for each process) and chunks of 10,000 steps.
- ``atari``: 100,000 frames of 84x84 to 42x42, one process and two.
- ``memory``: peak memory for a quarter, one and four million steps.
- ``kills``: killed at random moments, sometimes the whole run, sometimes a worker, until it is done; compared byte by byte.

Every run is a fresh process, imports included.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from atari_shards import Base, write_shards
from harness import compare, interleave, machine, measure, median, size, table
from replay import WORK as LOW_DIM
from replay import write_folder

WORK = Path(".bench") / "preprocess"
HERE = Path(__file__).resolve()
PARTS = ("torchrl", "atari", "memory", "kills")


def normalize(td: Any) -> Any:
    """Observations shifted and scaled, rewards scaled: the usual thing."""
    td["observation"] = (td["observation"] - 0.1) / 1.5
    td["next", "observation"] = (td["next", "observation"] - 0.1) / 1.5
    td["next", "reward"] = td["next", "reward"] * 0.1
    return td


def resize(td: Any) -> Any:
    """84x84 to 42x42, the mean of 2x2 pixels, with torch's own operation: what a user would write."""
    import torch

    for key in ("observation", ("next", "observation")):
        frames = td[key].float().unsqueeze(1)
        td[key] = torch.nn.functional.avg_pool2d(frames, 2).round_().to(torch.uint8).squeeze(1)
    return td


# -- what is measured, each in its own process --------------------------------------------------------------------------


def ours(source: Path, fn: str, dest: str, root: Path, **options: Any) -> int:
    """``rbdata.preprocess`` as a user calls it; bytes of the result."""
    shutil.rmtree(root / dest, ignore_errors=True)
    import rbdata
    from rbdata.storage.manifest import read_manifest

    folder = rbdata.preprocess(source, fn, dest=dest, root=root, **options)
    return read_manifest(folder).bytes


def torchrl(source: Path, dest: Path, procs: int, chunksize: int | None) -> int:
    """TorchRL's on the same memory-mapped TED folder."""
    shutil.rmtree(dest, ignore_errors=True)
    from tensordict import TensorDict
    from torchrl.data import TensorStorage
    from torchrl.data.datasets.common import BaseDatasetExperienceReplay

    class Folder(BaseDatasetExperienceReplay):
        data_path = data_path_root = _is_downloaded = None

        def __init__(self) -> None:
            self._replay_lock = None
            self._storage = TensorStorage(TensorDict.load_memmap(source).exclude("episodes"))

    result = BaseDatasetExperienceReplay.preprocess(
        Folder(), normalize, num_workers=procs, chunksize=chunksize, dest=dest
    )
    return sum(tensor.nbytes for tensor in result._storage.values(True, True))


def ours_in_turn(source: Path, fn: str, root: Path, rounds: int, args: dict[str, Any]) -> dict[int, list[float]]:
    """Seconds of runs by one process and by two, in turn, all of them up before: what longer runs converge to."""
    from rbdata.datasets.workers.local_engine import LocalEngine
    from rbdata.preprocess.request import PreprocessRequest
    from rbdata.preprocess.run import preprocess

    engines = {procs: LocalEngine(procs) for procs in (1, 2)}
    seconds: dict[int, list[float]] = {procs: [] for procs in engines}
    for number in range(rounds + 1):
        for procs, engine in engines.items():
            request = PreprocessRequest(
                str(source), [fn], f"my/turn{procs}", root=root, procs=procs, args=args, force=True
            )
            began = time.perf_counter()
            preprocess(request, engine=engine)
            if number:  # the first round warms up
                seconds[procs].append(time.perf_counter() - began)
    for engine in engines.values():
        engine.close()
    return seconds


# -- parts -------------------------------------------------------------------------------------------------------------------


def beside_torchrl(steps: int, repeats: int) -> None:
    source = write_folder(steps).resolve()
    fn = f"{HERE}:normalize"
    common = {"procs": 2}
    rivals = {
        "TorchRL, default": partial(measure, torchrl, source, WORK / "theirs", 2, None),
        "TorchRL, chunks of 10,000": partial(measure, torchrl, source, WORK / "theirs", 2, 10_000),
        "rbdata, batches": partial(measure, ours, source, fn, "my/batch", WORK, **common),
        "rbdata, episodes": partial(measure, ours, source, fn, "my/episode", WORK, per="episode", **common),
    }
    print(f"{steps:,} steps, 17 + 6 numbers each, two processes")
    print(compare(interleave(rivals, repeats)))
    one = measure(ours, source, fn, "my/sample", WORK, per="sample", **common)
    print(f"rbdata, single steps: {one.wall:.1f} s, {steps / one.wall:,.0f} steps/s\n", flush=True)


def atari(rows: int, repeats: int) -> None:
    mirror = Path(".bench") / f"mirror-{rows}"
    shard = mirror / "dqn" / "SpaceInvaders" / "1" / "replay_logs"
    if not list(shard.glob("*observation_ckpt.0.gz")):
        print(f"making a shard of {rows} rows ...", flush=True)
        write_shards(Base("SpaceInvaders", 60_000), shard, rows, 1, scratch=Path(".bench") / "scratch")
    import rbdata

    source = rbdata.download("SpaceInvaders/1", mirror=str(mirror), root=WORK).resolve()
    ready: dict[str, Any] = {"args": {"height": 42, "width": 42}}
    ways: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("own function", f"{HERE}:resize", {}),
        ("rbdata:resize_frames", "rbdata:resize_frames", ready),
    )
    rivals = {}
    for name, fn, options in ways:
        for procs in (1, 2):
            rivals[f"{name}, {procs}"] = partial(
                measure, ours, source, fn, f"my/p{procs}", WORK, procs=procs, **options
            )
    costs = interleave(rivals, repeats)
    print(f"{rows:,} frames to 42x42, by the number of processes")
    print(compare(costs))
    print("the same in turn, processes up before the clock starts; medians of each, and of the ratio of each round")
    for name, fn, options in ways:
        turns = measure(ours_in_turn, source, fn, WORK, 3 * repeats, options.get("args", {})).result
        one, two = (statistics.median(turns[procs]) for procs in (1, 2))
        ratio = statistics.median(a / b for a, b in zip(turns[1], turns[2]))
        print(f"{name}: {one:.2f} s and {two:.2f} s, {rows / two:,.0f} frames/s: {ratio:.2f}x")
    print(flush=True)


def memory(repeats: int) -> None:
    rows = []
    for steps in (250_000, 1_000_000, 4_000_000):
        source = write_folder(steps).resolve()
        cost = median(measure(ours, source, f"{HERE}:normalize", "my/memory", WORK, procs=1) for _ in range(repeats))
        rows.append([f"{steps:,}", f"{cost.wall:.2f} s", size(cost.peak), size(cost.anonymous), size(cost.result)])
    print(table(["steps, one process", "wall", "peak memory", "anonymous", "result"], rows), end="\n\n", flush=True)
    shutil.rmtree(LOW_DIM / "my" / "locomotion-4000000", ignore_errors=True)


def kills(steps: int, number: int, seed: int) -> None:
    """Kill a run ``number`` times, at random moments, and let it go on; then compare with one that nobody disturbed."""
    source = write_folder(steps).resolve()
    rng = random.Random(seed)
    calm, root = WORK / "calm", WORK / "killed"
    for folder in (calm, root):
        shutil.rmtree(folder, ignore_errors=True)
    words = ["preprocess", source, "--fn", f"{HERE}:slow", "--dest", "my/out", "--procs", 2, "--batch-size", 512]
    began = time.perf_counter()
    subprocess.run(_command(*words, "--root", calm), check=True, capture_output=True)
    undisturbed = time.perf_counter() - began
    done = whole = workers = 0
    while done < number:
        process = subprocess.Popen(_command(*words, "--root", root), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        # Late enough that there is something to kill, early enough that it is not over.
        wait = rng.uniform(0.1, undisturbed * 0.9)
        try:
            process.wait(wait)
            print(f"finished before kill {done + 1}; once more from the start")
            shutil.rmtree(root)
            continue
        except subprocess.TimeoutExpired:
            pass
        victims = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "forkserver" in " ".join(child.cmdline())  # workers, and the process they are forked from
        ]
        if victims and rng.random() < 0.5:
            workers += 1
            rng.choice(victims).kill()
            process.wait()
        else:
            whole += 1
            process.send_signal(signal.SIGKILL)
            process.wait()
        done += 1
    subprocess.run(_command(*words, "--root", root), check=True, capture_output=True)
    sys.path.insert(0, str(HERE.parent.parent / "tests" / "support"))
    from preprocess_tools import lasting

    same = lasting(calm / "my" / "out") == lasting(root / "my" / "out")
    told = f"{done} kills ({whole} of the whole run, {workers} of a worker or of what they are forked from)"
    print(f"{told}: {'identical' if same else 'DIFFERENT'}\n")
    if not same:
        raise SystemExit(1)


def slow(td: Any) -> Any:
    """Takes its time, so that there is something to kill."""
    time.sleep(0.003)
    return normalize(td)


def _command(*words: object) -> list[str]:
    return [sys.executable, "-c", "from rbdata.cli import main; main()", *map(str, words)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the low-dimensional dataset")
    parser.add_argument("--rows", type=int, default=100_000, help="of the Atari shard")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    print(machine(), end="\n\n", flush=True)
    os.environ["RBDATA_CONFIG"] = ""
    if "torchrl" in args.parts:
        beside_torchrl(args.steps, args.repeats)
    if "atari" in args.parts:
        atari(args.rows, args.repeats)
    if "memory" in args.parts:
        memory(args.repeats)
    if "kills" in args.parts:
        kills(args.steps, args.kills, args.seed)


if __name__ == "__main__":
    main()
