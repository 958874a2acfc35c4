"""What a run of DQN Replay shards means, worked out twice and slowly; the converter must find the same.

``fed_truth`` starts from what a `DQNReplayWriter` was fed and from the tags of the rows it saved: it never looks at a
file. ``file_truth`` starts from the files alone, and reads them row by row by the rules of the format. Neither shares a
line with the converter, and where both apply they must agree with each other too.

An `Episode` names its frames (`frames`, one more than it has steps) by reference: a step number in ``fed_truth``, a pair
(file number, file row) in ``file_truth``, and ``BLANK`` for the unknown frame after the last step.
"""

from __future__ import annotations

import gzip
import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from dqn_replay_writer import PAD, DQNReplayWriter

BLANK = "blank"
CODES = {"terminated": 1, "truncated": 2, "cut": 3}
ARRAYS = ("observation", "action", "reward", "terminal")


@dataclass
class Episode:
    """One episode as a dataset must hold it."""

    frames: list[Any]
    actions: list[int]
    rewards: list[float]
    outcome: str
    midway: bool

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def terminated(self) -> list[bool]:
        return [False] * (len(self) - 1) + [self.outcome == "terminated"]

    @property
    def truncated(self) -> list[bool]:
        return [False] * (len(self) - 1) + [self.outcome != "terminated"]


@dataclass
class Truth:
    """All episodes, in time order, and the rows that were given up (references, as in ``Episode.frames``)."""

    episodes: list[Episode] = field(default_factory=list)
    given_up: list[Any] = field(default_factory=list)
    pads: int = 0
    gaps: int = 0

    @property
    def steps(self) -> int:
        return sum(len(episode) for episode in self.episodes)


@dataclass
class _Row:
    ref: Any
    action: int
    reward: float
    terminal: bool


def _add_episode(truth: Truth, rows: list[_Row], unknown_next: str, time_limit: int, midway: bool) -> None:
    """The one rule about ends, in words: every step has a true next frame, or is terminated, or (if the user wants to
    keep rows without a known next frame) is truncated with a blank one."""
    outcome = "terminated" if rows[-1].terminal else "cut"
    if rows[-1].terminal and not midway and len(rows) == time_limit:
        outcome = "truncated"
    frames = [row.ref for row in rows]
    if outcome == "terminated" or unknown_next == "zero":
        kept = rows
        frames.append(BLANK)
    else:
        kept = rows[:-1]
        truth.given_up.append(rows[-1].ref)
    if kept:
        actions, rewards = [row.action for row in kept], [row.reward for row in kept]
        truth.episodes.append(Episode(frames, actions, rewards, outcome, midway))


# -- from what the writer was fed ----------------------------------------------------------------------------------


def fed_truth(
    writer: DQNReplayWriter,
    shards: list[int] | None = None,
    there: list[int] | None = None,
    unknown_next: str = "truncate",
    time_limit: int = 27_000,
) -> Truth:
    """The episodes of the chosen ``shards`` (all by default), of which only those in ``there`` exist at the source."""
    there = sorted(dump.suffix for dump in writer.dumps) if there is None else sorted(there)
    shards = there if shards is None else sorted(shards)
    steps: dict[int, tuple[int, float, bool]] = {}
    first_steps = set()
    for episode in writer.episodes():
        first_steps.add(episode.first_step)
        for index in range(len(episode)):
            last = index == len(episode) - 1
            step = (int(episode.actions[index]), float(episode.rewards[index]), bool(last and episode.terminal))
            steps[episode.first_step + index] = step

    truth = Truth()
    rows: list[_Row] = []
    rows_midway = False
    before_new = None  # the tag of the row read last, None where nothing stands before in the data
    for dump in writer.dumps:
        if dump.suffix not in shards:
            continue
        tags = [int(tag) for tag in dump.step_ids[dump.new_rows()]]
        at_a_lap = dump.final and dump.suffix > 0 and dump.add_count == writer.capacity - 1
        earlier = [number for number in (there if dump.suffix == shards[0] else shards) if number < dump.suffix]
        if at_a_lap and earlier[-1:] != [dump.suffix - 1]:
            # The run ended right where a lap did, so this is a copy of the file before it; but that one is not there.
            tags = [int(dump.step_ids[row - 1]) for row in range(writer.capacity)]
        if tags and (at_a_lap or not _continues(writer, dump.suffix, shards)):
            # Nothing that was read stands right before: what is open is cut here.
            if rows:
                _add_episode(truth, rows, unknown_next, time_limit, rows_midway)
                rows = []
            truth.gaps += dump.suffix != shards[0]
            before_new = None
            known_start = not at_a_lap and _start_is_known(writer, dump.suffix, shards, there)
        for tag in tags:
            if tag == PAD:
                truth.pads += 1
                before_new = PAD
                continue
            if not rows:
                starts = tag in first_steps and (before_new is not None or known_start)
                rows_midway = not starts
            rows.append(_Row(tag, *steps[tag]))
            before_new = tag
            if steps[tag][2]:
                _add_episode(truth, rows, unknown_next, time_limit, rows_midway)
                rows = []
    if rows:
        _add_episode(truth, rows, unknown_next, time_limit, rows_midway)
    return truth


def _lap(writer: DQNReplayWriter, suffix: int) -> int:
    """Which lap a dump was saved in: a lap that was lost has no suffix, so they are counted in rows."""
    dump = writer.dumps[suffix]
    return (writer.add_count if dump.final else dump.add_count) // writer.capacity


def _continues(writer: DQNReplayWriter, suffix: int, shards: list[int]) -> bool:
    """Whether the chosen shard before this one was saved exactly one lap earlier."""
    place = shards.index(suffix)
    return place > 0 and _lap(writer, suffix) == _lap(writer, shards[place - 1]) + 1


def _start_is_known(writer: DQNReplayWriter, suffix: int, shards: list[int], there: list[int]) -> bool:
    """Whether a reader can tell that a shard, read after nothing, begins with an episode although it shows no padding."""
    if _lap(writer, suffix) == 0:
        return True
    if suffix == shards[0]:
        # The shard right before it, unwanted but there, shows how it ended.
        earlier = [number for number in there if number < suffix]
        return bool(earlier) and _lap(writer, earlier[-1]) + 1 == _lap(writer, suffix)
    # A lap lost by the writer ends with padding, so the next file begins an episode; in a final dump the lap is unknown.
    return shards[shards.index(suffix) - 1] == suffix - 1 and not writer.dumps[suffix].final


def ambiguous(writer: DQNReplayWriter) -> str | None:
    """Why the files cannot be told apart from those of another history; None when they can. A matter of tiny rings."""
    final = writer.dumps[-1] if writer.dumps and writer.dumps[-1].final else None
    if final is None:
        return None
    if final.suffix == 0:
        return "the first lap was lost" if writer.add_count >= writer.capacity else None
    if _lap(writer, final.suffix) - _lap(writer, final.suffix - 1) <= 1:
        return None
    before, stale = writer.dumps[final.suffix - 1], range(final.add_count, writer.capacity - 1)
    steps = [value for episode in writer.episodes() for value in zip(episode.actions, episode.rewards)]
    steps += [(0, 0.0)] * 2  # PAD and UNWRITTEN count from the end
    if all(steps[before.step_ids[row]] == steps[final.step_ids[row]] for row in stale):
        return "rows of different laps look the same"
    return None


# -- from the files ------------------------------------------------------------------------------------------------


def load_array(folder: Path, name: str, number: int) -> np.ndarray:
    """One array of one shard, by numpy and Python's own gzip."""
    prefix = "$store$_" if name in ARRAYS else ""
    data = gzip.decompress((folder / f"{prefix}{name}_ckpt.{number}.gz").read_bytes())
    return np.load(io.BytesIO(data), allow_pickle=False)


def numbers_in(folder: Path) -> list[int]:
    """The shards in a folder."""
    found = [re.search(r"add_count_ckpt\.(\d+)\.gz$", path.name) for path in folder.iterdir()]
    return sorted(int(match[1]) for match in found if match)


def file_truth(
    folder: Path, shards: list[int] | None = None, unknown_next: str = "truncate", time_limit: int = 27_000
) -> Truth:
    """The episodes in a folder of shards; frames are named (file number, file row)."""
    there = numbers_in(folder)
    shards = there if shards is None else sorted(shards)
    truth = Truth()
    rows: list[_Row] = []
    midway = False
    pads_due = 0
    newest: tuple[int, int | None] | None = None  # number and lap of the file read last
    earlier = [number for number in there if number < shards[0]]
    neighbour = (earlier[-1], _count(folder, earlier[-1])[0]) if earlier else None
    for number in shards:
        small = {name: load_array(folder, name, number).tolist() for name in ("action", "reward", "terminal")}
        capacity = len(small["action"])
        order, lap = _order(folder, number, newest or neighbour)
        is_next = newest is not None and newest[1] is not None and lap == newest[1] + 1
        if order and not is_next:
            if rows:
                _add_episode(truth, rows, unknown_next, time_limit, midway)
                rows = []
            truth.gaps += newest is not None
            if lap == 0:
                pads_due, midway = 3, False
            elif newest is None and neighbour is not None and neighbour[1] is not None and lap == neighbour[1] + 1:
                pads_due, midway = 0, True
                terminal = load_array(folder, "terminal", neighbour[0])
                for distance in range(4):  # rows from the neighbour's newest backwards
                    if terminal[capacity - 2 - distance] == 1:
                        pads_due, midway = 3 - distance, False
                        break
            else:
                pads_due = _leading_blanks(folder, number, order[:3], small)
                lost_by_writer = newest is not None and newest[0] + 1 == number and lap is not None
                midway = not pads_due and not lost_by_writer
        for row in order:
            if pads_due:
                pads_due -= 1
                truth.pads += 1
                continue
            terminal = small["terminal"][row] == 1
            rows.append(_Row((number, row), small["action"][row], small["reward"][row], terminal))
            if terminal:
                _add_episode(truth, rows, unknown_next, time_limit, midway)
                rows, pads_due, midway = [], 3, False
        newest = (number, lap)
    if rows:
        _add_episode(truth, rows, unknown_next, time_limit, midway)
    return truth


def _count(folder: Path, number: int) -> tuple[int | None, int]:
    """The lap that add_count states (None: it is a cursor, so the file is a final dump), and the capacity."""
    count, capacity = int(load_array(folder, "add_count", number)), len(load_array(folder, "action", number))
    if count % capacity == capacity - 1 and (count >= capacity or number == 0):
        return count // capacity, capacity
    return (0, capacity) if number == 0 else (None, capacity)


def _order(folder: Path, number: int, previous: tuple[int, int | None] | None) -> tuple[list[int], int | None]:
    """The file rows that are new, in time order, and the lap."""
    lap, capacity = _count(folder, number)
    count = int(load_array(folder, "add_count", number))
    if number == 0 and count < capacity:
        return list(range(count)), 0
    if lap is not None:
        return [capacity - 1, *range(capacity - 1)], lap
    if previous is not None:
        same = [True] * (capacity - 1)  # the last slot was never written in the first lap
        for name in ("action", "reward", "terminal"):
            one, other = load_array(folder, name, previous[0]), load_array(folder, name, number)
            same = [same[row] and bool(one[row] == other[row]) for row in range(capacity - 1)]
        if count == capacity - 1:
            return ([], previous[1]) if all(same) else ([capacity - 1, *range(count)], None)
        if all(same[count:]):
            lap = None if previous[1] is None else previous[1] + 1
    return [capacity - 1, *range(count)], lap


def _leading_blanks(folder: Path, number: int, rows: list[int], small: dict[str, list[Any]]) -> int:
    """How many of the first rows could be padding, told by content: what stands before them is not known."""
    frames = load_array(folder, "observation", number)
    blanks = 0
    for row in rows:
        if small["action"][row] or small["reward"][row] or small["terminal"][row] or frames[row].any():
            break
        blanks += 1
    return blanks


# -- runs with known contents, and datasets against the truth -----------------------------------------------------------

FRAME = (84, 84)


def frame(step: int) -> np.ndarray:
    """A frame that says which step it is; never black, and no two alike."""
    picture = np.full(FRAME, step * 37 % 255 + 1, np.uint8)
    picture.reshape(-1)[:4] = np.frombuffer(np.uint32(step + 1).tobytes(), np.uint8)
    return picture


def write_run(
    folder: Path,
    capacity: int,
    lengths: list[int],
    *,
    still_open: bool = False,
    final: bool = True,
    black: frozenset[int] = frozenset(),
    seed: int = 0,
) -> DQNReplayWriter:
    """Shards of episodes of these lengths; steps in ``black`` show a black frame, with action 0 and reward 0."""
    writer = DQNReplayWriter(folder, capacity, fast_gzip=True, gzip_level=0)
    random = np.random.default_rng(seed)
    step = 0
    for number, length in enumerate(lengths):
        for index in range(length):
            terminal = index == length - 1 and not (still_open and number == len(lengths) - 1)
            action, reward = int(random.integers(0, 18)), float(random.integers(-1, 2))
            if step in black:
                writer.add(np.zeros(FRAME, np.uint8), 0, 0.0, terminal)
            else:
                writer.add(frame(step), action, reward, terminal)
            step += 1
    writer.close(final)
    return writer


def save_array(folder: Path, name: str, number: int, content: np.ndarray | bytes, level: int = 0) -> Path:
    """Write one array of one shard: an array as ``.npy`` in gzip, bytes as they are."""
    from isal import igzip

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{'$store$_' if name in ARRAYS else ''}{name}_ckpt.{number}.gz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with igzip.IGzipFile(path, "wb", compresslevel=level, mtime=0) as file:
            np.lib.format.write_array(file, np.asarray(content), allow_pickle=False)
    return path


def save_shard(folder: Path, number: int, add_count: int, terminal: np.ndarray, **arrays: np.ndarray) -> None:
    """Write a whole shard by hand: black frames, actions and rewards 0, except for what is given."""
    rows = len(terminal)
    blank: dict[str, np.ndarray] = {"action": np.zeros(rows, np.int32), "reward": np.zeros(rows, np.float32)}
    for name, array in {**blank, "terminal": terminal.astype(np.uint8), **arrays}.items():
        if name != "observation":
            save_array(folder, name, number, array)
    save_array(folder, "add_count", number, np.array(add_count, np.int64))
    if "observation" in arrays:
        save_array(folder, "observation", number, arrays["observation"])
    else:
        save_black(folder, number, rows)


def save_black(folder: Path, number: int, rows: int, declared: int | None = None) -> Path:
    """An observation file of black frames, which may declare another number of rows than it has."""
    from isal import igzip

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"$store$_observation_ckpt.{number}.gz"
    header = {"descr": "|u1", "fortran_order": False, "shape": (rows if declared is None else declared, *FRAME)}
    with igzip.IGzipFile(path, "wb", compresslevel=1, mtime=0) as file:
        np.lib.format.write_array_header_1_0(file, header)
        block = bytes(1000 * FRAME[0] * FRAME[1])
        for first in range(0, rows, 1000):
            file.write(block[: min(1000, rows - first) * FRAME[0] * FRAME[1]])
    return path


def pictures(refs: list[Any], folder: Path | None = None, black: frozenset[int] = frozenset()) -> np.ndarray:
    """The frames behind references, uint8 ``[n, 84, 84]``; (number, row) pairs are looked up in the folder's files."""
    blank = np.zeros(FRAME, np.uint8)
    files: dict[int, np.ndarray] = {}
    found = []
    for ref in refs:
        if ref == BLANK or ref in black:
            found.append(blank)
        elif isinstance(ref, tuple):
            assert folder is not None
            if ref[0] not in files:
                files[ref[0]] = load_array(folder, "observation", ref[0])
            found.append(files[ref[0]][ref[1]])
        else:
            found.append(frame(ref))
    return np.stack(found) if found else np.zeros((0, *FRAME), np.uint8)


def assert_holds(dataset: Any, truth: Truth, folder: Path | None = None, black: frozenset[int] = frozenset()) -> None:
    """The dataset is the truth: every value of every step, every flag, and the episode table."""
    expected = truth.episodes
    table = dataset.episodes
    assert table.lengths.tolist() == [len(episode) for episode in expected]
    assert table.starts.tolist() == [sum(len(e) for e in expected[:number]) for number in range(len(expected))]
    assert table.outcomes.tolist() == [CODES[episode.outcome] for episode in expected]
    assert table.midway.tolist() == [episode.midway for episode in expected]
    assert table.returns.tolist() == [sum(episode.rewards) for episode in expected]

    everything = dataset[:]
    assert everything["action"].tolist() == [action for episode in expected for action in episode.actions]
    assert everything["next", "reward"].flatten().tolist() == [r for episode in expected for r in episode.rewards]
    terminated = [flag for episode in expected for flag in episode.terminated]
    truncated = [flag for episode in expected for flag in episode.truncated]
    assert everything["next", "terminated"].flatten().tolist() == terminated
    assert everything["next", "truncated"].flatten().tolist() == truncated
    done = [one or other for one, other in zip(terminated, truncated)]
    assert everything["next", "done"].flatten().tolist() == done
    for name in ("done", "terminated", "truncated"):
        assert not everything[name].any()

    here = pictures([ref for episode in expected for ref in episode.frames[:-1]], folder, black)
    after = pictures([ref for episode in expected for ref in episode.frames[1:]], folder, black)
    assert np.array_equal(everything["observation"].numpy(), here)
    assert np.array_equal(everything["next", "observation"].numpy(), after)

    counts = dataset.manifest.counts
    assert dataset.manifest.steps == truth.steps
    assert counts["given_up_steps"] == len(truth.given_up)
    assert counts["pad_rows"] == truth.pads
    assert len(counts["gaps"]) == truth.gaps


def stacks(truth: Truth, folder: Path | None = None, depth: int = 4) -> np.ndarray:
    """What an agent with a frame stack saw at each step, uint8 ``[steps, depth, 84, 84]``, zeros before the start."""
    refs = []
    for episode in truth.episodes:
        padded = [BLANK] * (depth - 1) + episode.frames
        refs += [padded[index : index + depth] for index in range(len(episode))]
    shown = pictures([ref for stack in refs for ref in stack], folder)
    return shown.reshape(len(refs), depth, *FRAME)
