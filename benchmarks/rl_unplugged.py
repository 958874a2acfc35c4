"""RL Unplugged episodes to a dataset: what a second process brings, and what memory it takes.

    python benchmarks/rl_unplugged.py                     # 8 files of 100,000 frames: about 5 minutes
    python benchmarks/rl_unplugged.py --rows 50000        # half the data: the same memory, and start-up weighs twice

Real play (`atari_shards.Base`), each frame a PNG, in gzip TFRecord files of whole episodes, as the public ones
are. Measured, each in a fresh process and interleaved: ``rbdata.download`` from a directory mirror with one process and
with two, imports included. The floor is Pillow, frame by frame.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from atari_shards import Base
from harness import compare, disk_use, interleave, machine, measure, median, size

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

WORK = Path(".bench") / "rl_unplugged"


def packed_frames(base: Base) -> list[bytes]:
    """Every frame of the base as a PNG, packed by Pillow, whose filters are chosen row by row as libpng does it."""
    from PIL import Image

    pictures = []
    for frame in base.frames:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "PNG")
        pictures.append(file.getvalue())
    return pictures


def write_files(folder: Path, game: str, files: int, rows: int, base_steps: int, seed: int = 0) -> None:
    """Complete episodes dealt into files of at least ``rows`` frames, one checkpoint each."""
    import numpy as np
    from rlu_writer import blobs, example, floats, ints, write_records

    base = Base(game, base_steps)
    pictures = packed_frames(base)
    rng = np.random.default_rng(seed)

    def deal() -> Iterator[tuple[int, int]]:
        while True:
            yield from (base.episodes[number] for number in rng.permutation(len(base.episodes)))

    dealt = deal()
    for number in range(files):
        records: list[bytes] = []
        held = 0
        while held < rows:
            start, stop = next(dealt)
            discount = np.ones(stop - start)
            discount[-1] = 0
            features = {
                "observations": blobs(pictures[start:stop]),
                "actions": ints(base.action[start:stop].tolist()),
                "clipped_rewards": floats(base.reward[start:stop].tolist()),
                "discounts": floats(discount.tolist()),
                "checkpoint_idx": ints([number]),
                "episode_idx": ints([len(records)]),
            }
            records.append(example(features))
            held += stop - start
        name = f"run_1-{number:05d}-of-{files:05d}"
        write_records(folder / "atari_episodes_ordered" / game / name, records)


def convert(mirror: Path, game: str, root: Path, procs: int) -> int:
    """``rbdata.download`` as a user calls it; returns the frames stored."""
    shutil.rmtree(root, ignore_errors=True)
    import rbdata

    folder = rbdata.download(f"atari/{game}/1", root=root, mirror=str(mirror), procs=procs)
    # Not `open_dataset`: it would add the import of torch, which a download does without.
    return sum(part["states"] for part in json.loads((folder / "rbdata.json").read_text())["parts"])


def pillow_floor(mirror: Path, game: str) -> float:
    """Microseconds a frame: Pillow, one picture after the other, to an array."""
    import gzip

    import numpy as np
    from PIL import Image
    from rbdata.datasets.formats.tfrecord import parse_example, read_records

    file = min((mirror / "atari_episodes_ordered" / game).iterdir())
    record = next(iter(read_records([gzip.decompress(file.read_bytes())], file.name)))
    frames = [bytes(frame) for frame in parse_example(record.payload)["observations"]]
    began = time.perf_counter()
    for frame in frames:
        np.asarray(Image.open(io.BytesIO(frame)))
    return (time.perf_counter() - began) / len(frames) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="SpaceInvaders")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument(
        "--rows", type=int, default=100_000, help="frames of a file; the public ones hold about 1,000,000"
    )
    parser.add_argument("--base-steps", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()

    mirror = WORK / f"mirror-{args.game}-{args.files}x{args.rows}"
    if not (mirror / "done").exists():
        print(f"making {args.files} files of {args.rows:,} frames ...", flush=True)
        write_files(mirror, args.game, args.files, args.rows, args.base_steps)
        (mirror / "done").touch()
    print(machine(), end="\n\n", flush=True)
    root = WORK / "root"
    try:
        rivals = {f"whole, {procs} proc": partial(measure, convert, mirror, args.game, root, procs) for procs in (1, 2)}
        costs = interleave(rivals, args.repeats)
        states = next(iter(costs.values()))[0].result
        files = mirror / "atari_episodes_ordered"
        print(f"{states:,} state rows from {size(disk_use(files))} in {args.files} files")
        print(compare(costs))
        one, two = (median(runs).wall for runs in costs.values())
        print(f"whole: {states / one:,.0f} and {states / two:,.0f} rows/s, two over one {one / two:.2f}x")
        print(f"floor: Pillow alone {measure(pillow_floor, mirror, args.game).result:.0f} us a frame on one core")
        print(f"on disk: {size(disk_use(root))}")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
