"""RL Unplugged files written by hand: protocol buffers, TFRecord framing and PNGs, sharing no line with the reader.

record = example({"actions": ints([0, 1]), "observations": blobs([png(frame), ...]), ...})
write_records(path, [record, ...])
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c
import numpy as np

# -- protocol buffers ------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def blobs(values: Iterable[bytes]) -> bytes:
    """A Feature that holds a BytesList."""
    return block(1, b"".join(block(1, value) for value in values))


def floats(values: Iterable[float], packed: bool = True) -> bytes:
    """A Feature that holds a FloatList."""
    parts = [struct.pack("<f", value) for value in values]
    return block(2, block(1, b"".join(parts)) if packed else b"".join(varint(1 << 3 | 5) + part for part in parts))


def ints(values: Iterable[int], packed: bool = True) -> bytes:
    """A Feature that holds an Int64List."""
    parts = [varint(value) for value in values]
    return block(3, block(1, b"".join(parts)) if packed else b"".join(varint(1 << 3) + part for part in parts))


def example(features: Mapping[str, bytes]) -> bytes:
    """An Example with these Features."""
    entries = (block(1, name.encode()) + block(2, feature) for name, feature in features.items())
    return block(1, b"".join(block(1, entry) for entry in entries))


# -- TFRecord --------------------------------------------------------------------------------------------------------


def masked(data: bytes) -> bytes:
    value = google_crc32c.value(data)
    return struct.pack("<I", (((value >> 15) | (value << 17 & 0xFFFFFFFF)) + 0xA282EAD8) % 2**32)


def framed(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def write_records(path: Path, records: Iterable[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(b"".join(map(framed, records)), 1, mtime=0))
    return path


# -- PNG -------------------------------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def filtered(image: np.ndarray, filters: Sequence[int]) -> bytes:
    """Scanlines of an 8-bit grey image, each with its filter, by the letter of the specification."""
    height, width = image.shape
    rows = image.astype(int).tolist()
    out = bytearray()
    for y in range(height):
        kind = filters[y % len(filters)]
        out.append(kind)
        for x in range(width):
            left = rows[y][x - 1] if x else 0
            up = rows[y - 1][x] if y else 0
            corner = rows[y - 1][x - 1] if x and y else 0
            estimate = left + up - corner
            near = min((left, up, corner), key=lambda value: abs(estimate - value))
            predicted = (0, left, up, (left + up) // 2, near)[kind]
            out.append((rows[y][x] - predicted) % 256)
    return bytes(out)


def png(
    image: np.ndarray,
    filters: Sequence[int] = (0,),
    *,
    level: int = 6,
    pieces: int = 1,
    extra: bytes = b"",
    header: bytes | None = None,
) -> bytes:
    """A grey PNG; ``pieces`` IDAT chunks, ``extra`` chunks before them, another ``header`` than the right one."""
    height, width = image.shape
    header = header or struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    if filters == (0,):
        data = np.pad(image, ((0, 0), (1, 0))).astype(np.uint8).tobytes()
    else:
        data = filtered(image, filters)
    packed = zlib.compress(data, level)
    cut = -(-len(packed) // pieces)
    parts = [packed[at : at + cut] for at in range(0, len(packed), cut)]
    body = b"".join(chunk(b"IDAT", part) for part in parts)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + body + chunk(b"IEND", b"")


# -- episodes --------------------------------------------------------------------------------------------------------


def frame(step: int) -> np.ndarray:
    """A frame that says which step it is; never black, and no two alike."""
    picture = np.full((84, 84), step * 37 % 255 + 1, np.uint8)
    picture.reshape(-1)[:4] = np.frombuffer(np.uint32(step + 1).tobytes(), np.uint8)
    return picture


@dataclass
class Made:
    """An episode as it goes in."""

    checkpoint: int
    index: int
    steps: list[int]
    terminal: bool = True
    action: list[int] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.action = self.action or [step % 18 for step in self.steps]
        self.reward = self.reward or [float(step % 3 - 1) for step in self.steps]

    @property
    def discount(self) -> list[float]:
        return [1.0] * (len(self.steps) - 1) + [0.0 if self.terminal else 1.0] if self.steps else []

    def features(self) -> dict[str, bytes]:
        total = sum(self.reward)
        return {
            "observations": blobs(png(frame(step), level=1) for step in self.steps),
            "actions": ints(self.action),
            "clipped_rewards": floats(self.reward),
            "unclipped_rewards": floats(self.reward),
            "discounts": floats(self.discount),
            "checkpoint_idx": ints([self.checkpoint]),
            "episode_idx": ints([self.index]),
            "episode_return": floats([total]),
            "clipped_episode_return": floats([total]),
        }

    def record(self, **changes: bytes) -> bytes:
        return example({**self.features(), **changes})


def make_episodes(lengths: Sequence[Sequence[int]], cut: Iterable[tuple[int, int]] = ()) -> list[Made]:
    """Episodes of these lengths, by checkpoint; those in ``cut`` (checkpoint, index) do not terminate."""
    made, step = [], 0
    for checkpoint, row in enumerate(lengths):
        for index, length in enumerate(row):
            steps = list(range(step, step + length))
            made.append(Made(checkpoint, index, steps, (checkpoint, index) not in set(cut)))
            step += length
    return made


def write_run(folder: Path, files: Sequence[Sequence[Made]], *, run: int = 1, total: int | None = None) -> Path:
    """One file for each list of episodes; ``folder`` is the mirror's, the game is Qbert. Returns the files' folder."""
    target = folder / "atari_episodes_ordered" / "Qbert"
    for number, episodes in enumerate(files):
        name = f"run_{run}-{number:05d}-of-{total or len(files):05d}"
        write_records(target / name, [episode.record() for episode in episodes])
    return target
