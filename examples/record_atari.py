"""Play Atari the way DQN Replay was played, and log it the way DQN Replay was logged.

    python examples/record_atari.py Pong 5 --steps 6000 --capacity 2000 --out .demo/bucket

lays out ``.demo/bucket/dqn/Pong/5/replay_logs/``, which is a mirror: `rbdata download Pong/5 --mirror .demo/bucket`.

The protocol is that of the public data (batch_rl on Dopamine, 2019): sticky actions with probability 0.25 per game
frame, frame skip 4, per-pixel maximum over the last two frames in grey, area-interpolated to 84x84, the game's minimal
action set, no no-op starts, an episode ends at game over and not at the loss of a life, a reset after at most 27,000
agent steps which is stored as if it were terminal, and rewards clipped to [-1, 1]. What differs is the player: a
restless random one in place of a learning DQN.

Needs ale-py (`pip install rbdata[atari]`); its wheel carries the ROMs.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from dqn_replay_writer import DQNReplayWriter

SCREEN = (210, 160)
FRAME = (84, 84)
FRAME_SKIP = 4
STICKY = 0.25
MAX_EPISODE_STEPS = 27_000  # agent steps: 108,000 game frames, half an hour of play


class Step(NamedTuple):
    """One transition as it is logged. The frame is the one the action was chosen on, uint8 [84, 84]."""

    frame: np.ndarray
    action: int  # index into the game's minimal action set
    reward: float  # in {-1, 0, 1}
    terminal: bool


def area_weights(source: int, target: int) -> np.ndarray:
    """The area filter in one dimension as a matrix, float32 [target, source]; every row sums to 1.

    Weight (i, j) is the share of source pixel j in the stretch of line that target pixel i covers. Applied on both
    sides of an image and rounded half to even this is OpenCV's INTER_AREA up to rounding: over 1,200 screens of four
    games 0.016 % of pixels, whose exact value is a half, came out one grey level apart (OpenCV 5.0), the others equal.
    """
    scale = source / target
    starts, pixels = scale * np.arange(target)[:, None], np.arange(source)[None, :]
    overlap = np.minimum(starts + scale, pixels + 1) - np.maximum(starts, pixels)
    return (overlap.clip(0) / scale).astype(np.float32)


class AtariGame:
    """One game behind DQN's preprocessing. `frame` is the current observation, uint8 [84, 84].

    Args:
        game: as the public data spells it, e.g. ``Pong``, ``MsPacman``.
        seed: of the emulator (sticky actions included).
    """

    rows = area_weights(SCREEN[0], FRAME[0])
    columns = area_weights(SCREEN[1], FRAME[1]).T

    def __init__(self, game: str, seed: int = 0) -> None:
        import ale_py
        from ale_py import roms

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setInt("random_seed", seed)
        self.ale.setFloat("repeat_action_probability", STICKY)
        rom = roms.get_rom_path(rom_name(game))
        if rom is None:
            raise ValueError(f"ale-py carries no ROM for {game!r}; games are spelt as in Pong, MsPacman, UpNDown")
        self.ale.loadROM(rom)
        self.actions = self.ale.getMinimalActionSet()
        self._screens = np.zeros((2, *SCREEN), np.uint8)
        self.reset()

    def reset(self) -> None:
        self.ale.reset_game()
        self._screens[1] = 0
        self.ale.getScreenGrayscale(self._screens[0])
        self.frame = self._resize(self._screens.max(0))

    def step(self, action: int) -> tuple[float, bool]:
        """Hold the button for four frames. Returns the clipped reward and whether the game is over."""
        reward = 0
        for skipped in range(FRAME_SKIP):
            reward += self.ale.act(self.actions[action])
            if self.ale.game_over():
                break
            if skipped >= FRAME_SKIP - 2:
                self.ale.getScreenGrayscale(self._screens[skipped - (FRAME_SKIP - 2)])
        self.frame = self._resize(self._screens.max(0))
        return float(np.clip(reward, -1, 1)), self.ale.game_over()

    def _resize(self, screen: np.ndarray) -> np.ndarray:
        return np.rint(self.rows @ screen.astype(np.float32) @ self.columns).astype(np.uint8)


def play(game: str, steps: int, seed: int = 0) -> Iterator[Step]:
    """Play `steps` steps of a game, one episode after another; the last one may stay open."""
    rng = np.random.default_rng(seed)
    atari = AtariGame(game, seed)
    held, action, episode_steps = 0, 0, 0
    for _ in range(steps):
        if held == 0:  # an action is held for a while: it takes the player further than a new one every step
            action, held = int(rng.integers(len(atari.actions))), int(rng.integers(1, 9))
        held -= 1
        frame = atari.frame
        reward, terminal = atari.step(action)
        episode_steps += 1
        # The public data does not tell a time limit from the end of a game, so neither does this.
        terminal = terminal or episode_steps == MAX_EPISODE_STEPS
        yield Step(frame, action, reward, terminal)
        if terminal:
            atari.reset()
            held, episode_steps = 0, 0


def record(
    game: str, run_folder: Path, steps: int, capacity: int, seed: int = 0, final_dump: bool = True, gzip_level: int = 6
) -> DQNReplayWriter:
    """Play and log to ``<run_folder>/replay_logs``. Returns the writer, which knows what it was given."""
    writer = DQNReplayWriter(run_folder / "replay_logs", capacity, gzip_level=gzip_level, seed=seed)
    for step in play(game, steps, seed):
        writer.add(*step)
    writer.close(final_dump)
    return writer


def rom_name(game: str) -> str:
    """``MsPacman`` -> ``ms_pacman``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", game).lower()


def main() -> None:
    parser = argparse.ArgumentParser(description="Record Atari play in the DQN Replay format.")
    parser.add_argument("game", help="as in the public data: Pong, MsPacman, SpaceInvaders, ...")
    parser.add_argument("run", type=int, nargs="?", default=1, help="run number; also the seed")
    parser.add_argument("--steps", type=int, default=6000, help="agent steps; four game frames each")
    parser.add_argument("--capacity", type=int, default=2000, help="rows of the ring, so rows of a shard")
    parser.add_argument("--out", type=Path, default=Path(".demo/bucket"), help="root of the mirror")
    parser.add_argument("--no-final", action="store_true", help="skip the last, partly stale checkpoint")
    parser.add_argument("--gzip-level", type=int, default=6, help="1 (fast) to 9 (small)")
    parser.add_argument("--frames-only", type=Path, metavar="OUT.npy", help="save only frames, uint8 [steps, 84, 84]")
    args = parser.parse_args()

    started = time.perf_counter()
    if args.frames_only:
        args.frames_only.parent.mkdir(parents=True, exist_ok=True)
        frames = np.lib.format.open_memmap(args.frames_only, "w+", np.uint8, (args.steps, *FRAME))
        for row, step in enumerate(play(args.game, args.steps, args.run)):
            frames[row] = step.frame
        frames.flush()
        print(f"{args.frames_only}: {args.steps} frames")
    else:
        run_folder = args.out / "dqn" / args.game / str(args.run)
        writer = record(
            args.game, run_folder, args.steps, args.capacity, args.run, not args.no_final, gzip_level=args.gzip_level
        )
        episodes = writer.episodes()
        returns = [float(episode.rewards.sum()) for episode in episodes if episode.terminal]
        print(
            f"{run_folder}/replay_logs: {len(writer.dumps)} checkpoints, {args.steps} steps, {len(episodes)} episodes"
        )
        if returns:
            print(f"clipped return: mean {np.mean(returns):.1f}, from {min(returns):.0f} to {max(returns):.0f}")
        print(f"{writer.recoverable_steps().present.sum()} steps can be read back")
    seconds = time.perf_counter() - started
    print(f"{args.steps / seconds:.0f} frames/s ({FRAME_SKIP * args.steps / seconds:.0f} game frames/s)")


if __name__ == "__main__":
    main()
