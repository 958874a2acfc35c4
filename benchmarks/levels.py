"""Levels of zstd: bytes of a frame, time to encode it, frames a second in random access; and what a conversion costs.

    python benchmarks/levels.py                        # five games: 5 minutes of play, once; then about 2 minutes
    python benchmarks/levels.py --parts convert --games Pong --rows 200000 --levels 3 6 9

- ``frames``: for each game, played with some skill (a script, or plans tried in the emulator) and at random, and for each
  level. The dictionary is trained as by a download, on the first half of the frames; the second half is encoded and read: 256
  rows at a time, at random, through the package's own reader.
- ``convert``: ``rbdata.download`` of a shard from a directory mirror, one process: reading, gunzip, encoding, files.

All times are CPU seconds (of one thread for ``frames``, of all threads for ``convert``): other programs on the machine lengthen
the clock's time, and these much less.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from atari_shards import CACHE, Base, write_shards
from harness import machine, measure, table
from record_atari import FRAME, FRAME_SKIP, MAX_EPISODE_STEPS, AtariGame, Step, play

GAMES = ("Pong", "Breakout", "Qbert", "Seaquest", "SpaceInvaders")
LEVELS = (3, 5, 6, 9, 12, 15, 19)
PARTS = ("frames", "convert")
WORK = CACHE / "levels"
ROW = FRAME[0] * FRAME[1]
BATCH = 256
#: Rows that a dictionary is trained on: as many as a download takes.
TRAINED = 3000
#: Rows that one call encodes: as many as a block of a conversion has.
BLOCK = 512
#: Steps that the player looks ahead, how many of them it plays before it looks again, and how many new plans it tries.
AHEAD, PLAYED, PLANS = 12, 6, 3


#: The action that follows the ball, by the memory of the console.
FOLLOWS: dict[str, Callable[[np.ndarray], int]] = {
    "Pong": lambda ram: 2 if ram[54] < ram[51] else 3,
    "Breakout": lambda ram: 1 if ram[101] == 0 else 2 if ram[99] > ram[72] + 4 else 3,
}


def skilled(game: str, steps: int, seed: int = 0) -> Iterator[Step]:
    """Follow the ball in Pong and Breakout; else play the best of a few random plans: keep lives first, then gain points."""
    rng = np.random.default_rng(seed)
    atari = AtariGame(game, seed)
    plan, episode_steps = np.zeros(0, int), 0
    for _ in range(steps):
        if game in FOLLOWS:
            plan = np.array([FOLLOWS[game](atari.ale.getRAM().astype(int))])
        elif len(plan) <= AHEAD - PLAYED:
            holds = [np.repeat(rng.integers(len(atari.actions), size=2), AHEAD // 2) for _ in range(PLANS + 1)]
            kept = np.append(plan, holds[0])[:AHEAD]  # what is left of the last plan, continued
            plan = max([kept, *holds[1:]], key=lambda one: _outcome(atari, one.tolist()))
        action, plan = int(plan[0]), plan[1:]
        frame = atari.frame
        reward, terminal = atari.step(action)
        episode_steps += 1
        terminal = terminal or episode_steps == MAX_EPISODE_STEPS
        yield Step(frame, action, reward, terminal)
        if terminal:
            atari.reset()
            plan, episode_steps = plan[:0], 0


def _outcome(atari: AtariGame, plan: list[int]) -> tuple[int, int]:
    """Lives and points after a plan; the emulator is put back. The random repetition of actions is not foreseen."""
    ale = atari.ale
    before, points = ale.cloneState(), 0
    for action in plan:
        points += sum(ale.act(atari.actions[action]) for _ in range(FRAME_SKIP))
        if ale.game_over():
            break
    lives = -1 if ale.game_over() else ale.lives()
    ale.restoreState(before)
    return lives, points


# -- frames ----------------------------------------------------------------------------------------------------------------


def measure_frames(base: Base, levels: list[int], seconds: float) -> dict[str, tuple[float, float, float]]:
    """Of every codec: bytes of a frame, milliseconds to encode one (0: it is only copied), frames a second that are read."""
    import torch
    from rbdata.storage.codecs import load_codec

    torch.set_num_threads(1)
    half = len(base.frames) // 2
    frames = np.ascontiguousarray(base.frames[half:]).reshape(-1, ROW)
    codec: Any = load_codec("zstd")
    picked = np.unique(np.linspace(0, half - 1, TRAINED).astype(int))
    dictionary = codec.train(base.frames[picked].reshape(-1, ROW))
    WORK.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in ("raw", *(f"zstd:{level}" for level in levels)):
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            spent = write_leaf(Path(folder), name, frames, dictionary)
            size = sum(
                file.stat().st_size for file in Path(folder).rglob("*") if file.name in ("blob", "observation.memmap")
            )
            found[name] = (
                size / len(frames),
                spent / len(frames) * 1e3,
                read_rate(Path(folder), name, frames, seconds),
            )
    return found


def write_leaf(folder: Path, choice: str, frames: np.ndarray, dictionary: bytes) -> float:
    """Write the files of a leaf ``observation``. Returns the CPU seconds of the encoder, its set-up left out."""
    from rbdata.storage.codecs import codec_of, level_of

    codec: Any = codec_of(leaf_of(choice))
    if codec.fixed_rows:
        frames.tofile(folder / codec.path(""))
        return 0.0
    encode = codec.encoder(dictionary, 1, level=level_of(choice))
    blocks, lengths, spent = [], [np.zeros(1, np.int64)], 0.0
    for block in np.split(frames, range(BLOCK, len(frames), BLOCK)):
        began = time.thread_time()
        data, sizes = encode(block.reshape(-1), np.arange(len(block)) * ROW, ROW)
        spent += time.thread_time() - began
        blocks.append(data)
        lengths.append(sizes)
    (folder / "observation").mkdir()
    (folder / codec.path("blob")).write_bytes(b"".join(blocks))
    (folder / codec.path("offsets")).write_bytes(np.concatenate(lengths).cumsum().astype("<i8").tobytes())
    (folder / codec.path("dictionary")).write_bytes(dictionary)
    return spent


def read_rate(folder: Path, choice: str, frames: np.ndarray, seconds: float) -> float:
    """Frames for each CPU second of this process, 256 rows at a time; every one is compared with what was written first."""
    import torch
    from rbdata.storage.codecs import codec_of

    rows = codec_of(leaf_of(choice)).open_rows(folder, len(frames))
    assert np.array_equal(rows.block(0, len(frames)).numpy().reshape(frames.shape), frames)
    draw = torch.Generator().manual_seed(0)
    done, began = 0, time.process_time()
    while (spent := time.process_time() - began) < seconds:
        rows.take(torch.randint(len(frames), (BATCH,), generator=draw))
        done += BATCH
    return done / spent


def leaf_of(choice: str) -> Any:
    from rbdata.storage.leaf import Leaf

    return Leaf("observation", "state", "uint8", FRAME, choice.partition(":")[0])


# -- a conversion ----------------------------------------------------------------------------------------------------------


def convert(mirror: Path, game: str, root: Path, codec: str) -> tuple[float, float, int]:
    """CPU seconds of ``rbdata.download`` with all its threads, without imports; those of the clock; bytes of the result."""
    import rbdata
    import torch  # noqa: F401  not a part of the work
    from rbdata.storage.manifest import read_manifest

    cpu, clock = time.process_time(), time.perf_counter()
    folder = rbdata.download(f"{game}/1", root=root, mirror=str(mirror), procs=1, codec=codec)
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    size = read_manifest(folder).bytes
    shutil.rmtree(root)
    return cpu, clock, size


def conversions(base: Base, game: str, rows: int, levels: list[int], repeats: int) -> list[list[Any]]:
    mirror = WORK / f"mirror-{rows}-{game}"
    shard = mirror / "dqn" / game / "1" / "replay_logs"
    if not list(shard.glob("*observation_ckpt.0.gz")):
        write_shards(base, shard, rows, 1, fast_gzip=True, scratch=WORK)
    runs: dict[int, list[tuple[float, float, int]]] = {level: [] for level in levels}
    for _ in range(repeats):
        for level, found in runs.items():
            found.append(measure(convert, mirror, game, WORK / "converted", f"zstd:{level}").result)
    first = 0.0
    lines = []
    for level, found in runs.items():
        cpu = statistics.median(cpu for cpu, _, _ in found)
        clock = statistics.median(clock for _, clock, _ in found)
        first = first or cpu
        lines.append([game, level, f"{cpu:.2f} s", f"{cpu / first:.2f}", f"{clock:.2f} s", f"{found[0][2] / rows:.1f}"])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--games", nargs="+", default=GAMES)
    parser.add_argument("--levels", nargs="+", type=int, default=LEVELS)
    parser.add_argument("--steps", type=int, default=8000, help="frames of a game")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the shard that is converted")
    parser.add_argument("--seconds", type=float, default=0.5, help="CPU seconds of reading, for each figure")
    parser.add_argument("--repeats", type=int, default=3, help="of every conversion, in turn")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print(machine(), end="\n\n", flush=True)

    bases = {game: Base(game, args.steps, player=skilled) for game in args.games}
    if "frames" in args.parts:
        head = ["game", "play", "codec", "bytes a frame", "of raw", "ms to encode", "frames/s read"]
        lines = []
        for game in args.games:
            for player, base in {"skilled": bases[game], "random": Base(game, args.steps, player=play)}.items():
                found = measure_frames(base, args.levels, args.seconds)
                for name, (size, spent, rate) in found.items():
                    share = f"1/{ROW / size:.1f}"
                    lines.append([game, player, name, f"{size:.1f}", share, f"{spent:.4f}", f"{rate:,.0f}"])
        print(table(head, lines), end="\n\n", flush=True)
    if "convert" in args.parts:
        head = ["game", "level", "CPU", "of the first", "clock", "bytes a frame, all files"]
        lines = [
            line for game in args.games for line in conversions(bases[game], game, args.rows, args.levels, args.repeats)
        ]
        print(table(head, lines), flush=True)


if __name__ == "__main__":
    main()
