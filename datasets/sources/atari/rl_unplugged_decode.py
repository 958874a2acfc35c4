"""One file of RL Unplugged's ordered episodes as blocks: fetched once, and decoded while it comes.

    network -> gunzip -> records -> episodes -> blocks

A record of ``atari_episodes_ordered`` is one episode of N rows:

    checkpoint_idx, episode_idx    int64    which 1 M-row checkpoint it is from, and its place there: the training order
    observations                   bytes    N PNGs, one frame a row
    actions                        int64    N
    clipped_rewards                float    N; unclipped_rewards are the same (what was logged had been clipped)
    discounts                      float    N; 0 in the last row of an episode that terminated, not 0 where it was cut
    episode_return, clipped_episode_return  float

A row is a frame, the action chosen on it, and what that action led to: the reward and discount of the last row are those of
the last transition, and are kept. What an episode that terminated, or was cut, would have shown next is not in the data.
Source: google-deepmind/deepmind-research, rl_unplugged/atari.py; tensorflow/datasets, rl_unplugged/rlu_atari.

How many rows there are, and which come first, is known only when all files have been read. So a file is a unit whose sections
are runs of episodes with ascending indices, and the places of these are known when they are read.

An episode has one more state row than steps: the last frame, or a row of zeros where its last successor is not in the data.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ....errors import CorruptSourceError
from ....storage.episodes import CUT, TERMINATED, TRUNCATED
from ...fetch import Location, RemoteObject, read_ahead
from ...formats.limits import check_rows
from ...formats.packed import gunzip
from ...formats.png import SIDE, PngError, decode_frames
from ...formats.tfrecord import Value, WireError, parse_example, read_records
from ...ingest.block import END_CUT, END_TERMINATED, END_TRUNCATED, Block
from ...ingest.counted_stream import CountedStream
from ...ingest.unit import Part, Unit
from .raw_files import RunFile
from .reader import ROW_BYTES
from .ring import MAX_ACTION

#: Episodes that a file of any size may hold; larger files hold one per 1 KiB, and a real episode takes 50 KiB and more.
_MOST_EPISODES, _LEAST_EPISODE = 1 << 14, 1 << 10
_HINT = "the file is damaged, or not of RL Unplugged's ordered Atari episodes; try another mirror"


@dataclass(frozen=True)
class DecodedEpisode:
    """One record's episode; ``where`` is what messages call it. ``terminal``: its last discount is 0."""

    where: str
    checkpoint: int
    index: int
    frames: list[bytes]
    action: np.ndarray
    reward: np.ndarray
    terminal: bool

    def __len__(self) -> int:
        return len(self.frames)


def to_episode(features: Mapping[str, Value], where: str) -> DecodedEpisode:
    """The episode in an example's lists. Raises CorruptSourceError, naming ``where``, for lists of anything else."""
    if "observations" not in features and "o_t" in features:
        message = f"{where} is a single transition of RL Unplugged's shuffled form (o_t, o_tp1), not an episode"
        hint = "episodes cannot be put together from it; use the files below atari_episodes_ordered/"
        raise CorruptSourceError(message, hint=hint)
    action, discount = _numbers(features, "actions", "i", where), _numbers(features, "discounts", "f", where)
    rewards = "clipped_rewards" if "clipped_rewards" in features else "unclipped_rewards"
    reward = _numbers(features, rewards, "f", where)
    frames = features.get("observations", [])
    if isinstance(frames, np.ndarray):
        _refuse(f"{where}: observations are numbers, not pictures")
    lengths = {"observations": len(frames), "actions": len(action), rewards: len(reward), "discounts": len(discount)}
    if len(set(lengths.values())) > 1:
        _refuse(f"{where}: lists of different lengths: " + ", ".join(f"{n} {name}" for name, n in lengths.items()))
    wild = (action < 0) | (action > MAX_ACTION) | ~np.isfinite(reward) | ~((discount >= 0) & (discount <= 1))
    if wild.any():
        row = int(np.argmax(wild))
        _refuse(f"{where}: row {row} has action {action[row]}, reward {reward[row]} and discount {discount[row]}")
    ends = np.flatnonzero(discount == 0)
    if len(ends) and ends[0] != len(discount) - 1:
        _refuse(f"{where}: the episode ends in row {ends[0]} of {len(discount)}, and goes on")
    checkpoint, index = (_index(features, name, where) for name in ("checkpoint_idx", "episode_idx"))
    return DecodedEpisode(where, checkpoint, index, frames, action.astype(np.int32), reward, bool(len(ends)))


def _numbers(features: Mapping[str, Value], name: str, kind: str, where: str) -> np.ndarray:
    if name not in features:
        _refuse(f"{where} has no {name}")
    value = features[name]
    if not isinstance(value, np.ndarray):
        if value:
            _refuse(f"{where}: {name} are not numbers")
        return np.empty(0, np.int64 if kind == "i" else np.float32)  # an empty list has no kind
    if value.dtype.kind != kind:
        _refuse(f"{where}: {name} are {value.dtype}")
    return value


def _index(features: Mapping[str, Value], name: str, where: str) -> int:
    value = _numbers(features, name, "i", where)
    if len(value) != 1 or value[0] < 0:
        _refuse(f"{where}: {name} is {value.tolist()}, not one number from 0 on")
    return int(value[0])


def _refuse(message: str) -> NoReturn:
    raise CorruptSourceError(message, hint=_HINT)


class EpisodeStream:
    """A file of episodes as a stream; ``source`` has what was fetched for it so far."""

    def __init__(self, location: Location, obj: RemoteObject) -> None:
        self._url, self.source = obj.url, CountedStream(location, obj)
        #: Bytes that unpacking has read, and written.
        self.packed = self.unpacked = 0

    def episodes(self) -> Generator[DecodedEpisode, None, None]:
        """Every record. Raises CorruptSourceError and the fetch errors."""
        hint, rows = "the file is not of RL Unplugged's Atari episodes", 0
        with closing(read_ahead(self._pieces(), 2)) as pieces:
            for record in read_records(pieces, self._url):
                where = f"{self._url}: record {record.number} (at byte {record.offset} of the unpacked file)"
                try:
                    episode = to_episode(parse_example(record.payload), where)
                except WireError as error:
                    raise CorruptSourceError(f"{where} is not a tf.train.Example: {error}", hint=hint) from error
                rows += len(episode)
                most = max(_MOST_EPISODES, self.source.fetched // _LEAST_EPISODE)
                if record.number >= most:
                    message = f"{self._url} holds more than {most} episodes in {self.source.fetched} bytes"
                    raise CorruptSourceError(message, hint=hint)
                check_rows(rows, self.source.fetched, self._url)
                del record  # its bytes are not needed while the episode is processed
                yield episode

    def _pieces(self) -> Iterator[bytes]:
        for piece in gunzip(self._counted(), self._url):
            self.unpacked += len(piece)
            yield piece

    def _counted(self) -> Iterator[bytes]:
        for piece in read_ahead(self.source, 16):
            self.packed += len(piece)
            yield piece


def decoded(episode: DecodedEpisode, rows: Sequence[int]) -> np.ndarray:
    """Frames of an episode, uint8 ``[n, 84, 84]``. Raises CorruptSourceError for one that cannot be decoded."""
    out = np.empty((len(rows), SIDE, SIDE), np.uint8)
    try:
        decode_frames([episode.frames[row] for row in rows], out)
    except PngError as error:
        message = f"{episode.where}: frame {rows[error.index]}: {error}"
        raise CorruptSourceError(message, hint=_HINT) from error
    return out


#: Frames to train on, the most files that they come from, and how many frames to read for each.
SAMPLE_ROWS, _SAMPLE_FILES, _READ_FOR_EACH = 3_000, 16, 4
#: Bytes of frames that are kept to choose from: four times what 12,000 frames take.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Sample:
    """``rows`` are frames, uint8 ``[n, row_bytes]``; a row of a file takes about ``packed_bytes`` of it."""

    rows: np.ndarray
    packed_bytes: float
    rows_per_episode: float


def take_sample(location: Location, files: Sequence[RunFile]) -> Sample:
    """Read the first episodes of files spread over the run; the choice depends on nothing but the files.

    Raises CorruptSourceError when there is no frame in any of them.
    """
    chosen = [files[i] for i in np.unique(np.linspace(0, len(files) - 1, _SAMPLE_FILES).astype(int))]
    want = -(-SAMPLE_ROWS // len(chosen))
    samples, packed, rows, episodes = [np.zeros((0, SIDE, SIDE), np.uint8)], 0.0, 0, 0
    for file in chosen:
        stream, held, count, size = EpisodeStream(location, file.obj), list[DecodedEpisode](), 0, 0
        with closing(stream.episodes()) as found:
            for episode in found:
                held.append(episode)
                count, size = count + len(episode), size + sum(map(len, episode.frames))
                if count >= want * _READ_FOR_EACH or size > _MOST_BYTES:
                    break
        # A row has 13 bytes of other features.
        packed += (size + 13 * count) * min(1.0, stream.packed / max(1, stream.unpacked))
        rows, episodes = rows + count, episodes + len(held)
        picked, first = np.unique(np.linspace(0, count - 1, min(want, count)).astype(int)), 0
        for episode in held:
            here = picked[(picked >= first) & (picked < first + len(episode))] - first
            samples.append(decoded(episode, here.tolist()))
            first += len(episode)
    if not rows:
        raise CorruptSourceError(f"no frames could be sampled from {location.url}", hint="the files hold no episode")
    return Sample(np.concatenate(samples).reshape(-1, ROW_BYTES), packed / rows, rows / max(1, episodes))


BLOCK_ROWS = 512
#: The fields that a unit says of an episode.
CHECKPOINT, INDEX, FILE_ROWS, STEPS, OUTCOME = range(5)
_ENDS = {TERMINATED: END_TERMINATED, TRUNCATED: END_TRUNCATED, CUT: END_CUT}


class Ending(NamedTuple):
    """What becomes of an episode's rows."""

    steps: int
    outcome: int
    blank: bool


def end_episode(rows: int, terminal: bool, unknown_next: str, time_limit: int) -> Ending:
    """Which steps an episode of this many rows gives, and how it ends; the same rule as for the ring files.

    After a terminal row comes a blank state. The last row of an episode that was cut, or that lasted ``time_limit`` rows and
    so was ended by the clock, has no known successor: it is given up (``truncate``) or gets a blank one (``zero``).
    """
    if not rows:
        return Ending(0, CUT, False)
    clocked = terminal and rows == time_limit
    if terminal and not clocked:
        return Ending(rows, TERMINATED, True)
    outcome = TRUNCATED if clocked else CUT
    return Ending(rows, outcome, True) if unknown_next == "zero" else Ending(rows - 1, outcome, False)


@dataclass(frozen=True)
class UnpluggedUnit(Unit):
    """One file, fetched and decoded as it comes. ``rows`` are its bytes, as rows are not known.

    It says of itself: ``episodes`` (of each: checkpoint, index in it, rows in the file, steps kept, outcome), ``crc32c`` and
    ``size`` of the object, ``silent_ends`` (terminated episodes without a reward in their last row), ``unclipped_rewards``.
    """

    obj: RemoteObject
    location: Location
    unknown_next: str
    time_limit: int

    def fits(self, part: Part) -> bool:
        """As far as its place states what the object is."""
        about = part.about
        return part.identity == self.identity and self.obj.may_hold(about["size"], about["crc32c"])

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        ended, silent, unclipped = list[tuple[int, ...]](), 0, 0
        stream = EpisodeStream(self.location, self.obj)
        source = stream.source
        place, before = (0, 0), (-1, -1)
        with closing(stream.episodes()) as episodes:
            for episode in episodes:
                here = (episode.checkpoint, episode.index)
                ending = end_episode(len(episode), episode.terminal, self.unknown_next, self.time_limit)
                ended.append((*here, len(episode), ending.steps, ending.outcome))
                silent += bool(episode.terminal and episode.reward[-1] == 0)
                unclipped += int((np.abs(episode.reward[: ending.steps]) > 1).sum())
                if before != (here[0], here[1] - 1):
                    place = here  # another file may have the episodes between
                before = here
                for columns, bits in _pieces_of(episode, ending):
                    done = min(source.fetched, self.rows)
                    yield Block(columns, bits, place=place, done=done, fetched=source.fetched, retries=source.retries)
        about = {"silent_ends": silent, "unclipped_rewards": unclipped, "crc32c": source.crc32c, "size": source.fetched}
        told = {"episodes": ended, **about}
        yield Block({}, place=place, done=self.rows, fetched=source.fetched, retries=source.retries, record=told)


def _pieces_of(episode: DecodedEpisode, ending: Ending) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Columns and bits of the steps that an episode gives, some frames at a time."""
    steps = ending.steps
    for low in range(0, steps, BLOCK_ROWS):
        high = min(low + BLOCK_ROWS, steps)
        frames = decoded(episode, range(low, high if high < steps or ending.blank else steps + 1))
        if high == steps and ending.blank:
            frames = np.concatenate([frames, np.zeros((1, SIDE, SIDE), np.uint8)])
        bits = np.zeros(high - low, np.uint8)
        bits[-1] = _ENDS[ending.outcome] if high == steps else 0
        yield {"observation": frames, "action": episode.action[low:high], "next/reward": episode.reward[low:high]}, bits
