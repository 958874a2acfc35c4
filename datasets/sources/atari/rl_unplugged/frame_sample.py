"""A look at the heads of some files: frames to train the dictionary on, and how large a frame is packed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from .....errors import CorruptSourceError
from ....fetch import Location
from ....formats.png import SIDE, PngError, decode_frames
from .decode import ROW_BYTES, EpisodeStream, bad_frame
from .files import EpisodeFile

#: Frames to train on, out of how many files at most, and how many frames to read for each.
SAMPLE_ROWS, SAMPLE_FILES, READ_FOR_EACH = 3_000, 16, 4
#: Bytes of frames that are kept to choose from: four times what 12,000 frames take.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Sample:
    """``rows`` are frames, uint8 ``[n, row_bytes]``; a row of a file takes about ``packed_bytes`` of it."""

    rows: np.ndarray
    packed_bytes: float
    rows_per_episode: float


def take_sample(location: Location, files: Sequence[EpisodeFile]) -> Sample:
    """Read the first episodes of files spread over the run; the choice depends on nothing but the files.

    Raises CorruptSourceError when there is no frame in any of them.
    """
    chosen = [files[i] for i in np.unique(np.linspace(0, len(files) - 1, SAMPLE_FILES).astype(int))]
    want = -(-SAMPLE_ROWS // len(chosen))
    samples, packed, rows, episodes = [], 0.0, 0, 0
    for file in chosen:
        frames: list[memoryview] = []
        owners: list[tuple[int, str]] = []
        size = held = 0
        with closing(EpisodeStream(location, file.obj)) as source:
            for where, episode in source.episodes():
                owners.append((len(frames), where))
                frames += episode.frames
                episodes += 1
                held += sum(map(len, episode.frames))
                size = held + 13 * len(frames)
                if len(frames) >= want * READ_FOR_EACH or held > _MOST_BYTES:
                    break
            packed += size * min(1.0, source.packed / max(1, source.unpacked))
        if not frames:
            continue
        rows += len(frames)
        picked = np.unique(np.linspace(0, len(frames) - 1, min(want, len(frames))).astype(int))
        decoded = np.empty((len(picked), SIDE, SIDE), np.uint8)
        try:
            decode_frames([frames[i] for i in picked], decoded)
        except PngError as error:
            at = int(picked[error.index])
            first, where = [owner for owner in owners if owner[0] <= at][-1]
            raise bad_frame(where, at - first, error) from error
        samples.append(decoded.reshape(-1, ROW_BYTES))
    if not rows:
        raise CorruptSourceError(f"no frames could be sampled from {location.url}", hint="the files hold no episode")
    return Sample(np.concatenate(samples), packed / rows, rows / max(1, episodes))
