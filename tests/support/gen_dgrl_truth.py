"""Gen-DGRL archives with known contents, and what must come out of them, by Python's own pickle and tarfile.

write(tmp_path / "chaser.tar.xz", [episode(5), episode(7)])     # episodes of 5 and 7 steps
expected(path)                                                  # every column
"""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from ted_rules import check_invariants


def episode(steps: int, seed: int = 0, side: int = 64) -> dict[str, np.ndarray]:
    """The arrays of a file as the project's writer makes them; the last frame is another episode's."""
    rng = np.random.default_rng(seed + 1000 * steps)
    frames = np.zeros((steps + 1, 3, side, side), np.float32)
    drawn = min(8, side)
    frames[:, 0, :drawn, :drawn] = rng.integers(0, 256, (steps + 1, drawn, drawn))
    rewards = np.zeros((steps, 1), np.float32)
    rewards[-1] = 10
    dones = np.zeros(steps, np.float32)
    dones[-1] = 1
    return {"observations": frames, "actions": rng.integers(0, 15, (steps, 1)), "rewards": rewards, "dones": dones}


def file_name(arrays: Mapping[str, Any], number: int, kind: str = "npy") -> str:
    steps, total = len(arrays["rewards"]), float(np.sum(arrays["rewards"]))
    return f"20230329T0922{number:02}_{number}_{steps}_{100 + number}_{total:.2f}.{kind}"


def packed(arrays: Mapping[str, Any], kind: str = "npy", protocol: int = 3) -> bytes:
    """A pickled dictionary as ``np.save`` writes it, or an npz."""
    buffer = io.BytesIO()
    if kind == "npz":
        np.savez_compressed(buffer, **dict(arrays))
    else:
        np.lib.format.write_array_header_1_0(buffer, {"descr": "|O", "fortran_order": False, "shape": ()})
        pickle.dump(np.array(arrays, object), buffer, protocol)
    return buffer.getvalue()


def write(path: Path, episodes: Sequence[Mapping[str, Any]], folder: str = "chaser", **how: Any) -> Path:
    """An archive with a file for each episode."""
    kind = how.get("kind", "npy")
    files = {f"{folder}/{file_name(one, number, kind)}": packed(one, **how) for number, one in enumerate(episodes)}
    return write_files(path, files)


def write_files(path: Path, files: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    how: Any = {"mode": "w:xz", "preset": 1} if path.name.endswith(".xz") else {"mode": "w"}
    with tarfile.open(path, **how) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def expected(path: Path, limit: int = 1000, zero: bool = False, game: str | None = None) -> dict[str, np.ndarray]:
    """The columns of a dataset, episode by episode in the order of the archive."""
    columns: dict[str, list[np.ndarray]] = {}

    def add(key: str, values: Any) -> None:
        columns.setdefault(key, []).append(np.asarray(values))

    with tarfile.open(path) as archive:
        for member in archive:
            if not member.isfile() or (game and game not in member.name):
                continue
            file: Any = archive.extractfile(member)
            loaded = np.load(file, allow_pickle=True)
            arrays = loaded.item() if isinstance(loaded, np.ndarray) else dict(loaded)
            seed, total = member.name.rpartition(".")[0].split("_")[-2:]
            rows = steps = len(arrays["actions"])
            late = rows >= limit and bool(arrays["dones"][-1])
            steps -= late and not zero
            if not steps:
                continue
            frames = arrays["observations"].astype(np.uint8)
            following = frames[1 : steps + 1].copy()
            if steps == rows and arrays["dones"][-1]:
                following[-1] = 0
            last = np.arange(steps) == steps - 1
            add("observation", frames[:steps])
            add("next/observation", following)
            add("action", arrays["actions"][:steps, 0].astype(np.int64))
            add("next/reward", arrays["rewards"][:steps, 0])
            add("next/terminated", last & bool(arrays["dones"][-1]) & (not late))
            add("next/truncated", last & (late or not arrays["dones"][-1]))
            add("info/level_seed", np.full(steps, int(seed)))
            add("info/stated_return", np.full(steps, float(total), np.float32))
            add("lengths", [steps])
    return {key: np.concatenate(values) for key, values in columns.items()}


def assert_holds(dataset: Dataset, columns: Mapping[str, np.ndarray]) -> None:
    """Whether a dataset is sound and has these columns, to the last bit."""
    assert verify(dataset.path).ok and not check_invariants(dataset.path, dataset.manifest)
    assert np.array_equal(dataset.episodes.lengths, columns["lengths"])
    for key, wanted in columns.items():
        if key != "lengths":
            found = dataset[key].numpy()
            assert found.reshape(wanted.shape).tobytes() == np.ascontiguousarray(wanted).tobytes(), key
