"""Videos for tests, written by PyAV's encoders."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np

#: Encoder and its options by codec; what they print is turned off. libx265 needs 64 rows: with fewer it damages the heap.
ENCODERS = {
    "h264": ("libx264", {"g": "4"}),
    "h264-b": ("libx264", {"g": "12", "bf": "3", "x264-params": "open-gop=1"}),
    "hevc": ("libx265", {"x265-params": "log-level=none:keyint=8:open-gop=1"}),
    "av1": ("libsvtav1", {"g": "2", "preset": "12", "svtav1-params": "lp=1"}),
    "depth": ("libx265", {"x265-params": "lossless=1:log-level=none"}),
}


def moving_frames(count: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    """Blocks of 8 x 8 pixels that change a little from one frame to the next, uint8 ``[count, height, width, 3]``."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(-9, 10, (count, height // 8, width // 8, 3))
    steps[0] += rng.integers(40, 200, steps.shape[1:])
    return np.clip(np.cumsum(steps, 0), 0, 255).astype(np.uint8).repeat(8, 1).repeat(8, 2)


def write_video(path: Path, frames: np.ndarray, codec: str = "h264", fps: float = 10) -> None:
    """Frames uint8 ``[n, h, w, 3]``, or for ``depth`` codes uint16 ``[n, h, w]``, shown ``fps`` times a second.

    For root SVT-AV1 gives the calling thread real-time priority (SCHED_FIFO, 99), which the thread and all processes that it
    starts keep: a test that waits for a busy process would then wait for ever. So a thread of its own encodes, and ends.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_encode, path, frames, codec, fps).result()


def _encode(path: Path, frames: np.ndarray, codec: str, fps: float) -> None:
    encoder, options = ENCODERS[codec]
    pixels, given = ("gray12le", "gray12le") if codec == "depth" else ("yuv420p", "rgb24")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(encoder, rate=fps, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pixels
        for frame in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, format=given)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def decoded(path: Path, pixels: str = "rgb24") -> np.ndarray:
    """All frames as PyAV gives them."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format=pixels) for frame in container.decode(video=0)])
