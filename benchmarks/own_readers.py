"""Our readers of zip, PNG and ARFF beside the libraries that could replace them: ``python benchmarks/own_readers.py``.

Each line has seconds of the library, seconds of ours, and the quotient. ``formats/`` keeps a reader of its own where it is more
than 1.5 times faster, or where the library brings TensorFlow (TFRecord). On a shared core of 2026: frames in an npz 4.5 times
(zipfile of Python 3.11), PNGs of RL Unplugged 1.8 (Pillow), a dense ARFF table of numbers 2.5 (the parser in scikit-learn).
"""

from __future__ import annotations

import io
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image
from rbdata.datasets.formats.arff import ArffTable
from rbdata.datasets.formats.packed import ZipArchive
from rbdata.datasets.formats.png import SIDE, decode_frames
from sklearn.externals import _arff


def moving_frames(count: int, height: int, *channels: int) -> np.ndarray:
    """Frames that change a little from one to the next, uint8."""
    noise = np.random.default_rng(0).integers(0, 32, (height, height, *channels)).astype(np.uint8) * 8
    frames = np.stack([np.roll(noise, number // 8, axis=0) for number in range(count)])
    frames[:, ::7] = 3
    return frames


def npz_of_frames() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The members of an OGBench file of pixels, unpacked in pieces."""
    file = io.BytesIO()
    np.savez_compressed(file, observations=moving_frames(20_000, 64, 3))

    def pieces() -> Iterator[bytes]:
        with zipfile.ZipFile(file).open("observations.npy") as member:
            while piece := member.read(1 << 18):
                yield piece

    return lambda: deque(pieces(), 0), lambda: deque(ZipArchive(file.getvalue(), "x").stream("observations.npy"), 0)


def png_frames() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The frames of an episode of RL Unplugged."""
    pictures = []
    for frame in moving_frames(4096, SIDE):
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "PNG")
        pictures.append(file.getvalue())
    out = np.empty((len(pictures), SIDE, SIDE), np.uint8)

    def by_pillow() -> None:
        for number, picture in enumerate(pictures):
            out[number] = np.asarray(Image.open(io.BytesIO(picture)))

    return by_pillow, lambda: decode_frames(pictures, out)


def arff_table() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A dense table of numbers and one nominal column."""
    values = np.random.default_rng(0).normal(size=(20_000, 20)).round(4)
    head = [*(f"@attribute a{number} numeric" for number in range(20)), "@attribute y {n,y}", "@data"]
    rows = [",".join(map(str, row)) + f",{'ny'[number % 2]}" for number, row in enumerate(values.tolist())]
    text = "\n".join(["@relation t", *head, *rows])

    def by_scikit_learn() -> None:
        np.array([row[:-1] for row in _arff.load(text, encode_nominal=True)["data"]], np.float64)

    return by_scikit_learn, lambda: deque(ArffTable(text.splitlines(), "t").blocks(), 0)


def seconds(run: Callable[[], Any]) -> float:
    """The least of three."""
    found = []
    for _ in range(3):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return min(found)


if __name__ == "__main__":
    for case in (npz_of_frames, png_frames, arff_table):
        theirs, ours = map(seconds, case())
        print(f"{case.__name__}: {theirs:.3f} s, {ours:.3f} s, {theirs / ours:.1f}")
