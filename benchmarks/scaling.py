"""What all of Atari costs on a cluster, worked out from rates measured on one machine: the tables of docs/scaling.md.

    python benchmarks/scaling.py games --out benchmarks/scaling_games.json     # 60 games, about 5 minutes
    python benchmarks/scaling.py tables --games benchmarks/scaling_games.json

``games`` plays a few thousand steps of every game, and says how many bytes a frame takes in gzip (as the provider has it)
and in rbdata's zstd rows. ``tables`` multiplies; every rate and price it uses is an option, with what was measured or
assumed as its default, so that the page can be redone with yours.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

RUNS = 5
STEPS_PER_RUN = 50_000_000
SHARD = 1_000_000
ROW = 84 * 84


# -- games -----------------------------------------------------------------------------------------------------------------


def measure_game(game: str, steps: int) -> dict[str, float]:
    """Bytes a frame of play takes: ``gzip`` (level 9, one stream) and ``zstd`` (rows on their own, with a dictionary)."""
    from rbdata.storage.codecs import DEFAULT, load_codec
    from record_atari import play

    frames = np.stack([step.frame for step in play(game, steps)]).reshape(steps, ROW)
    # Rows that the dictionary has not seen, from later play: a run's dictionary is trained on its first shard as well.
    early, late = frames[: steps // 2], np.ascontiguousarray(frames[steps // 2 :])
    codec = load_codec(DEFAULT)
    dictionary = codec.train(early[:: max(1, len(early) // 1667)])
    size = int(codec.encoded_lengths(late, dictionary).sum())
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = sum(len(packer.compress(block.tobytes())) for block in np.array_split(late, 16)) + len(packer.flush())
    return {"gzip": packed / len(late), "zstd": size / len(late)}


def games(args: argparse.Namespace) -> None:
    from rbdata.datasets.sources.atari.source import games as all_games

    found: dict[str, dict[str, float]] = json.loads(args.out.read_text()) if args.out.exists() else {}
    for game in all_games():
        if game in found:
            continue
        try:
            found[game] = {name: round(value, 1) for name, value in measure_game(game, args.steps).items()}
        except RuntimeError as error:  # a console of another television standard: 250 lines
            print(f"{game:20} left out: {error}", flush=True)
            continue
        print(f"{game:20} gzip {found[game]['gzip']:7.1f}   zstd {found[game]['zstd']:7.1f} bytes a frame", flush=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")


# -- tables ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """One way through all of the data: core-seconds of computing, bytes in and out."""

    name: str
    core_seconds: float
    bytes_in: float
    bytes_out: float


def table(head: list[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def tables(args: argparse.Namespace) -> None:
    from rbdata.datasets.sources.atari.source import games as all_games

    sizes: dict[str, dict[str, float]] = json.loads(args.games.read_text())
    missing = [game for game in all_games() if game not in sizes]
    mean = {name: sum(one[name] for one in sizes.values()) / len(sizes) for name in ("gzip", "zstd")}
    sizes.update({f"{game} (not measured: the mean)": mean for game in missing})
    rows = len(sizes) * RUNS * STEPS_PER_RUN
    played = sum(one["gzip"] for one in sizes.values()) * RUNS * STEPS_PER_RUN
    fit = args.gz_total / played  # real runs change more than a few thousand steps of random play do
    gz = args.gz_total
    zstd = sum(one["zstd"] for one in sizes.values()) * RUNS * STEPS_PER_RUN * fit
    small = rows * (8 + 4 + 3)
    print(f"{len(sizes)} games x {RUNS} runs = {rows / 1e9:.1f} G frames; real gzip / played gzip = {fit:.2f}\n")

    table(
        ["", "all", "mean per run"],
        [
            ["raw frames", f"{rows * ROW / 1e12:.1f} TB", f"{STEPS_PER_RUN * ROW / 1e9:.0f} GB"],
            ["gzip, to fetch", f"{gz / 1e12:.1f} TB", f"{gz / len(sizes) / RUNS / 1e9:.1f} GB"],
            ["zstd rows", f"{zstd / 1e12:.1f} TB", f"{zstd / len(sizes) / RUNS / 1e9:.1f} GB"],
            ["actions, rewards, flags", f"{small / 1e12:.2f} TB", f"{small / len(sizes) / RUNS / 1e9:.2f} GB"],
        ],
    )
    ordered = sorted(sizes, key=lambda game: sizes[game]["zstd"])
    table(
        ["game", "gzip per run", "zstd per run", "of raw"],
        [
            [
                game,
                f"{sizes[game]['gzip'] * fit * STEPS_PER_RUN / 1e9:.1f} GB",
                f"{sizes[game]['zstd'] * fit * STEPS_PER_RUN / 1e9:.1f} GB",
                f"1/{ROW / (sizes[game]['zstd'] * fit):.0f}",
            ]
            for game in ordered
        ],
    )
    shards = rows / SHARD
    convert = shards * args.shard_seconds + gz / 1e6 * args.gz_seconds
    made = zstd * args.small_ratio
    works = [
        Work("download and convert", convert, gz, zstd + small),
        Work("resize to 42x42, zstd to zstd", rows / args.resize_rate, zstd + small, made + small),
        Work("new rewards, frames copied in compressed form", rows / args.copy_rate, zstd + small, zstd + small),
    ]
    table(
        ["work", "core-hours", "read", "written", "read per core", "written per core", "cost of the cores"],
        [
            [
                work.name,
                f"{work.core_seconds / 3600:,.0f}",
                f"{work.bytes_in / 1e12:.1f} TB",
                f"{work.bytes_out / 1e12:.1f} TB",
                f"{work.bytes_in / work.core_seconds / 1e6:.0f} MB/s",
                f"{work.bytes_out / work.core_seconds / 1e6:.0f} MB/s",
                f"${work.core_seconds / 3600 / args.cores * args.price:,.0f}",
            ]
            for work in works
        ],
    )
    print(
        f"workers of {args.cores} cores, {args.network:g} Gbit/s each; shared filesystem {args.filesystem:g} GB/s in all\n"
    )
    rows_out = []
    for workers in args.workers:
        for work in works:
            times = {
                "cores": work.core_seconds / (workers * args.cores) / args.efficiency,
                "network": max(work.bytes_in, work.bytes_out) * 8 / (workers * args.network * 1e9),
                # Parts are written, read back, and appended: what comes out goes over the filesystem three times.
                "filesystem": (3 * work.bytes_out + (work.bytes_in if work is not works[0] else 0))
                / (args.filesystem * 1e9),
                "tasks": rows / args.chunk / args.task_rate / min(workers, args.drivers)
                if work is not works[0]
                else 0.0,
            }
            bound = max(times, key=lambda name: times[name])
            cost = times[bound] / 3600 * workers * args.price
            rows_out.append([f"{workers}", work.name, hours(times[bound]), bound, f"${cost:,.0f}"])
    table(["workers", "work", "time", "limited by", "cost"], rows_out)
    month = (zstd + small) / 1e9
    table(
        ["storage", "per month"],
        [
            [f"object storage, ${args.object_price}/GB", f"${month * args.object_price:,.0f}"],
            [f"shared filesystem, ${args.file_price}/GB", f"${month * args.file_price:,.0f}"],
            ["the same raw, object storage", f"${rows * ROW / 1e9 * args.object_price:,.0f}"],
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("games")
    first.add_argument("--steps", type=int, default=10_000)
    first.add_argument("--out", type=Path, required=True)
    first.set_defaults(run=games)
    second = commands.add_parser("tables", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    second.add_argument("--games", type=Path, required=True)
    second.add_argument("--gz-total", type=float, default=3.1e12, help="bytes of all gzip files, as others report it")
    second.add_argument("--shard-seconds", type=float, default=2.1, help="core-seconds of a shard, whatever its size")
    second.add_argument("--gz-seconds", type=float, default=0.033, help="and of each MB of gzip in it")
    second.add_argument("--resize-rate", type=float, default=64e3, help="frames a second a core resizes, zstd to zstd")
    second.add_argument(
        "--copy-rate", type=float, default=150e3, help="frames a second a core copies beside changed rewards"
    )
    second.add_argument("--small-ratio", type=float, default=0.44, help="size of a zstd row of 42x42 to one of 84x84")
    second.add_argument("--chunk", type=float, default=4744, help="frames of a task")
    second.add_argument("--task-rate", type=float, default=800, help="tasks a second one driver hands out")
    second.add_argument(
        "--drivers", type=int, default=300, help="commands that run beside each other: one for each run"
    )
    second.add_argument(
        "--efficiency", type=float, default=0.9, help="of many cores of one worker, of as many times one"
    )
    second.add_argument("--cores", type=int, default=16, help="of a worker")
    second.add_argument("--network", type=float, default=10, help="Gbit/s of a worker")
    second.add_argument("--filesystem", type=float, default=5, help="GB/s that the shared filesystem takes in all")
    second.add_argument("--price", type=float, default=0.80, help="dollars an hour of a worker")
    second.add_argument("--object-price", type=float, default=0.02)
    second.add_argument("--file-price", type=float, default=0.20)
    second.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64])
    second.set_defaults(run=tables)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
