"""Frames of video files (MP4 and other formats of FFmpeg: AV1, H.264, HEVC), decoded in order by PyAV; and frames to an MP4 of
H.264, as lerobot and browsers read it, which is lossy.

`Video` lists the packets of a file first, which takes no decoding: they tell how many frames there are, and when each is shown.
Every frame that is given is compared with that list, so that one that is missing, damaged or in another place is an error.
FFmpeg trusts its input: read in a worker process (`workers`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...errors import CorruptSourceError, MissingExtraError
from .limits import REFETCH, check_row_bytes

#: Bytes of decoded frames that are given at a time.
_BLOCK_BYTES = 8 << 20
#: Pixel formats that frames are given in, and their dtype and channels.
COLOUR, DEPTH = "rgb24", "gray12le"
_PIXELS = {COLOUR: ("uint8", (3,)), DEPTH: ("uint16", (1,))}


def require_av(what: str) -> None:
    """Raise MissingExtraError where PyAV is not installed, which reads ``what``."""
    from importlib.util import find_spec

    if find_spec("av") is None:
        raise MissingExtraError(f"{what} is video, and PyAV is not installed", hint="pip install 'rbdata[video]'")


class Video:
    """The first video stream of a file: its ``frames``, and the ``times`` at which they are shown, float64 ``[frames]`` in s.

    ``shape`` is that of one frame, ``[height, width, 3]`` uint8, or with ``pixels`` `DEPTH` ``[height, width, 1]`` uint16.
    Raises CorruptSourceError for a file that is not a video.
    """

    _container: Any = None

    def __init__(self, path: Path, name: str, pixels: str = COLOUR) -> None:
        require_av(name)
        from av.video.reformatter import VideoReformatter

        self._path, self.name, self._pixels = path, name, pixels
        #: One for all frames: setting up the conversion of a frame takes longer than a small frame.
        self._converter = VideoReformatter()
        self._open()
        times, keys = array("q"), array("q")
        with self._sound("the file"):
            for packet in self._container.demux(self._stream):
                if packet.pts is not None and not packet.is_discard:
                    times.append(packet.pts)
                    if packet.is_keyframe:
                        keys.append(packet.pts)
        self._pts = np.sort(np.array(times, np.int64))
        #: Frames at which decoding may begin.
        self._keys = np.searchsorted(self._pts, np.sort(np.array(keys, np.int64)))
        if (np.diff(self._pts) == 0).any():
            raise self._corrupt("two frames are shown at the same time")
        self.frames = len(self._pts)
        self.times = self._pts * float(self._stream.time_base or 0)
        context = self._stream.codec_context
        dtype, channels = _PIXELS[pixels]
        self.dtype, self.shape = np.dtype(dtype), (int(context.height), int(context.width), *channels)
        if not all(self.shape):
            raise self._corrupt("it states no size of its frames")
        check_row_bytes(int(np.prod(self.shape)) * self.dtype.itemsize, name)
        self._open()

    def close(self) -> None:
        """Close the file; it may be called again."""
        if self._container is not None:
            self._container.close()
            self._container = None

    def read(self, low: int, high: int) -> Iterator[np.ndarray]:
        """Frames ``low..high-1`` in blocks ``[k, *shape]``. Reading forward is cheap; reading back, or far ahead, starts at a
        key frame. Raises CorruptSourceError for frames that the file does not have."""
        if high > self.frames:
            raise self._corrupt(f"frame {high - 1} is wanted, and it has {self.frames}")
        if low >= high:
            return
        self._seek(low)
        size = max(1, _BLOCK_BYTES // (int(np.prod(self.shape)) * self.dtype.itemsize))
        for first in range(low, high, size):
            block = np.empty((min(size, high - first), *self.shape), self.dtype)
            for number in range(len(block)):
                block[number] = self._decode(first + number)
            yield block

    # -- decoding ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        import av

        self.close()
        with self._sound("the file"):
            self._container = av.open(str(self._path))
            streams = self._container.streams.video
        if not streams or streams[0].codec_context is None:
            raise self._corrupt("it has no video stream that FFmpeg decodes")
        self._stream = streams[0]
        with self._sound("the file"):
            # One thread: the processes share the processors already, and each thread holds frames.
            self._stream.codec_context.thread_count = 1
            self._stream.codec_context.options = {"err_detect": "explode"}
        self._decoded: Iterator[Any] = iter(self._container.decode(self._stream))
        #: The frame that is decoded next, and whether decoding began at a frame other than the first.
        self._next, self._sought = 0, False

    def _seek(self, low: int) -> None:
        """Have the decoder begin at frame ``low`` or before."""
        best = int(max(self._keys[self._keys <= low], default=0))
        if best <= self._next <= low:
            return
        self._open()
        if best:
            with self._sound("the file"):
                self._container.seek(int(self._pts[best]), stream=self._stream)
            self._next, self._sought = best, True

    def _decode(self, number: int) -> np.ndarray:
        """Frame ``number``, which the decoder has not passed yet."""
        try:
            frame = self._decode_up_to(number)
        except CorruptSourceError:
            if not self._sought:
                raise
            # Key frames that refer to frames before them cannot be decoded alone; the file does not mark them.
            self._open()
            frame = self._decode_up_to(number)
        with self._sound(f"frame {number}"):
            pixels: np.ndarray = self._converter.reformat(frame, format=self._pixels).to_ndarray()
        if pixels.size != int(np.prod(self.shape)):
            raise self._corrupt(f"frame {number} has {frame.height}x{frame.width} pixels, not {self.shape[:2]}")
        return pixels.reshape(self.shape)

    def _decode_up_to(self, number: int) -> Any:
        """Frame ``number`` as it is decoded; those before it are passed over."""
        with self._sound(f"frame {number}"):
            frame = next((one for one in self._decoded if one.pts is None or one.pts >= self._pts[number]), None)
        if frame is None:
            raise self._corrupt(f"it ends before frame {number} of {self.frames}")
        if frame.pts != self._pts[number] or frame.is_corrupt:
            raise self._corrupt(f"frame {number} is damaged")
        self._next = number + 1
        return frame

    @contextmanager
    def _sound(self, what: str) -> Iterator[None]:
        """Turn FFmpeg's errors into a CorruptSourceError; disk errors stay."""
        import av

        try:
            yield
        except av.FFmpegError as error:
            raise self._corrupt(f"{what} cannot be decoded ({error.strerror or error})") from error
        except (ValueError, OverflowError) as error:
            raise self._corrupt(f"{what} cannot be read ({error})") from error

    def _corrupt(self, why: str) -> CorruptSourceError:
        return CorruptSourceError(f"{self.name} is not a valid video: {why}", hint=REFETCH)


def resize(frames: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Frames ``[k, height, width, channels]`` in another (height, width).

    Colours by Pillow's BILINEAR, whose triangle filter is as wide as the old pixels below a new one; all other dtypes
    (depth) by their nearest pixel, because the mean of two depths is a depth that nothing has.
    """
    if frames.shape[1:3] == size:
        return frames
    if frames.dtype != np.uint8:
        rows, columns = ((np.arange(new) * 2 + 1) * old // (2 * new) for new, old in zip(size, frames.shape[1:3]))
        return frames[:, rows[:, None], columns]
    from PIL import Image

    resized = np.empty((len(frames), *size, frames.shape[3]), np.uint8)
    for frame, out in zip(frames, resized):
        picture = Image.fromarray(frame if frame.shape[2] > 1 else frame[:, :, 0])
        out[:] = np.asarray(picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)).reshape(out.shape)
    return resized


# -- writing -----------------------------------------------------------------------------------------------------------

#: Encoder, and its options: a key frame at every second frame, so that any frame is decoded from at most one other.
CODEC = "h264"
_ENCODER, _OPTIONS = "libx264", {"crf": "20", "g": "2", "bf": "0"}


def pixel_format(height: int, width: int) -> str:
    """How pixels are encoded: colours of 2 x 2 pixels together, which needs even sides, else each on its own."""
    return "yuv444p" if height % 2 or width % 2 else "yuv420p"


class VideoWriter:
    """Writes frames of ``height`` x ``width``, ``fps`` a second, to an open file as MP4. Needs PyAV (`require_av`).

    It is a file of Python, whose errors name what is wrong: FFmpeg does not distinguish a full disk from other faults.
    ``frames`` and ``bytes`` count what was written; the encoder holds some frames more.
    """

    def __init__(self, file: IO[bytes], height: int, width: int, fps: float) -> None:
        import av

        self.frames = self.bytes = 0
        self._container: Any = av.open(file, "w", format="mp4")
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

    def close(self) -> None:
        """Write what the encoder holds, and the index of the file."""
        with self._container:
            self._mux(None)

    def _mux(self, picture: Any) -> None:
        for packet in self._stream.encode(picture):
            self.bytes += packet.size
            self._container.mux(packet)
