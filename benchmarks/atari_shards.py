"""Make DQN Replay shards of any size for benchmarks, out of real play.

    python benchmarks/atari_shards.py --game Pong --rows 100000 --shards 1 --out .bench/mirror-100k

A base of real play is recorded once (60,000 steps at frame skip 4, cached under ``.bench/``); a shard is its complete
episodes, dealt again and again in a new order, through the writer of `examples/dqn_replay_writer.py`. Repeating
episodes flatters no compressor that looks at most 32 KiB back (gzip) or at one row at a time (our zstd rows); it would
flatter a dictionary trained on everything, so a codec's ratio should be quoted on the base as well.

Memory stays flat: the ring lives in an unnamed file below ``--scratch`` and gzip is fed in blocks.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from dqn_replay_writer import DQNReplayWriter
from record_atari import FRAME, Step, play

CACHE = Path(__file__).resolve().parent.parent / ".bench"


class Base:
    """Recorded play, mapped from disk.

    frames: uint8 [steps, 84, 84]; action: int32, reward: float32, terminal: bool, [steps] each;
    episodes: (start, stop) of every complete one.
    """

    def __init__(self, game: str, steps: int, seed: int = 0, player: Callable[..., Iterator[Step]] = play) -> None:
        folder = CACHE / "base" / f"{game}-{steps}-{seed}{'' if player is play else '-' + player.__name__}"
        if not (folder / "columns.npz").exists():  # written last: without it the recording was interrupted
            print(f"recording {steps:,} steps of {game} into {folder}", flush=True)
            folder.mkdir(parents=True, exist_ok=True)
            frames = np.lib.format.open_memmap(folder / "frames.npy", "w+", np.uint8, (steps, *FRAME))
            actions, rewards, terminals = np.zeros(steps, np.int32), np.zeros(steps, np.float32), np.zeros(steps, bool)
            for row, (frame, action, reward, terminal) in enumerate(player(game, steps, seed)):
                frames[row], actions[row], rewards[row], terminals[row] = frame, action, reward, terminal
            frames.flush()
            np.savez(folder / "columns.npz", action=actions, reward=rewards, terminal=terminals)
        self.frames = np.load(folder / "frames.npy", mmap_mode="r")
        columns = np.load(folder / "columns.npz")
        self.action, self.reward, self.terminal = columns["action"], columns["reward"], columns["terminal"]

        stops = np.flatnonzero(self.terminal) + 1
        if not len(stops):
            raise SystemExit(f"{steps:,} steps of {game} hold no complete episode: raise --base-steps")
        self.episodes = list(zip([0, *stops[:-1].tolist()], stops.tolist(), strict=True))

    def deal(self, seed: int = 0) -> Iterator[Step]:
        """Complete episodes for ever, every round in a new order."""
        rng = np.random.default_rng(seed)
        while True:
            for episode in rng.permutation(len(self.episodes)):
                start, stop = self.episodes[episode]
                columns = (self.action[start:stop], self.reward[start:stop], self.terminal[start:stop])
                yield from map(Step, self.frames[start:stop], *(column.tolist() for column in columns))


def write_shards(
    base: Base,
    folder: Path,
    rows: int,
    shards: int,
    *,
    gzip_level: int = 6,
    fast_gzip: bool = False,
    scratch: Path | None = None,
    seed: int = 0,
    final_dump: bool = False,
) -> DQNReplayWriter:
    """Deal episodes into a ring of `rows` rows until it was saved `shards` times."""
    if any(folder.glob("*_ckpt.*.gz")):
        raise SystemExit(f"{folder} already holds shards")
    writer = DQNReplayWriter(folder, rows, gzip_level=gzip_level, fast_gzip=fast_gzip, scratch=scratch)
    for step in base.deal(seed):
        writer.add(*step)
        if len(writer.dumps) == shards:
            break
    writer.close(final_dump)
    return writer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--run", type=int, default=1)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of a shard; the public ones have 1,000,000")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--out", type=Path, default=CACHE / "mirror", help="root of the mirror")
    parser.add_argument("--base-steps", type=int, default=60_000)
    parser.add_argument("--gzip-level", type=int, default=6, help="the public files were written at 9")
    parser.add_argument("--fast-gzip", action="store_true", help="ISA-L, level 3 at most: quicker and larger")
    parser.add_argument("--scratch", type=Path, default=CACHE / "scratch", help="where the ring lives")
    parser.add_argument("--final", action="store_true", help="add the partly stale file of a run's end")
    args = parser.parse_args()

    base = Base(args.game, args.base_steps)
    folder = args.out / "dqn" / args.game / str(args.run) / "replay_logs"
    started = time.perf_counter()
    writer = write_shards(
        base,
        folder,
        args.rows,
        args.shards,
        gzip_level=args.gzip_level,
        fast_gzip=args.fast_gzip,
        scratch=args.scratch,
        final_dump=args.final,
    )
    seconds = time.perf_counter() - started
    rows = args.rows * len(writer.dumps)
    for file in sorted(folder.glob("*observation*")):
        size = file.stat().st_size
        print(f"{file.name}: {size / 1e6:.1f} MB, {size / args.rows:.1f} bytes a row")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "linux" else 1 << 30)
    print(f"{folder}: {rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f} rows/s), peak memory {peak:.2f} GiB")


if __name__ == "__main__":
    main()
