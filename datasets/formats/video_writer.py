"""Frames to an MP4 of H.264, as lerobot and browsers read it; lossy. `video` reads videos."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

#: Encoder, and its options: a key frame at every second frame, so that any frame is decoded from at most one other.
CODEC = "h264"
_ENCODER, _OPTIONS = "libx264", {"crf": "20", "g": "2", "bf": "0"}


def pixel_format(height: int, width: int) -> str:
    """How pixels are encoded: colours of 2 x 2 pixels together, which needs even sides, else each on its own."""
    return "yuv444p" if height % 2 or width % 2 else "yuv420p"


class OutputFile(io.FileIO):
    """A file that a library writes to. After `give_up` it discards all writes: libraries write the rest of their data when they
    are closed, also on a full disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._is_given_up = False

    def give_up(self) -> None:
        self._is_given_up = True

    def write(self, data: Any) -> int:
        """Writes all of it."""
        view = memoryview(data).cast("B")
        done = len(view) if self._is_given_up else 0
        while done < len(view):
            done += super().write(view[done:]) or 0
        return done


class VideoWriter:
    """Writes frames of ``height`` x ``width``, ``fps`` a second, to a new file. Needs PyAV (`video.require_av`).

    ``frames`` and ``bytes`` count what was written; the encoder holds some frames more.
    """

    def __init__(self, path: Path, height: int, width: int, fps: float) -> None:
        import av

        self.frames = self.bytes = 0
        #: PyAV gets an open file, whose errors name what is wrong: FFmpeg does not distinguish a full disk from other faults.
        self._file = OutputFile(path)
        self._container: Any = av.open(self._file, "w", format="mp4")
        rate = Fraction(fps).limit_denominator(1001)
        self._stream: Any = self._container.add_stream(_ENCODER, rate=rate, options=_OPTIONS)
        self._stream.height, self._stream.width = height, width
        self._stream.pix_fmt = pixel_format(height, width)

    def write(self, frames: np.ndarray) -> None:
        """Append frames, uint8 ``[k, height, width, 3]`` (RGB) or ``[k, height, width, 1]`` (grey)."""
        import av

        for frame in frames:
            pixels = np.ascontiguousarray(frame[..., 0] if frame.shape[2] == 1 else frame)
            self._mux(av.VideoFrame.from_ndarray(pixels, format="gray" if pixels.ndim == 2 else "rgb24"))
            self.frames += 1

    def finish(self) -> None:
        """Write what the encoder holds, and the index of the file."""
        self._mux(None)
        self._container.close()
        self._file.close()

    def abandon(self) -> None:
        """Close a file that is not to be used."""
        self._file.give_up()
        self._container.close()
        self._file.close()

    def _mux(self, picture: Any) -> None:
        for packet in self._stream.encode(picture):
            self.bytes += packet.size
            self._container.mux(packet)
