"""OGBench files with known contents, and what must come out of them, by an independent reading in plain NumPy.

write(path, make([5, 3]))        # two episodes, of 5 and 3 steps: 6 and 4 rows
expected(path)                   # every column, with the masks of ogbench's ``load_dataset``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from ted_rules import check_invariants


def make(
    lengths: Sequence[int], shape: tuple[int, ...] = (3,), dtype: str = "float32", seed: int = 0, **more: Any
) -> dict[str, np.ndarray]:
    """Arrays of a file with the rows of episodes of these lengths; ``more`` are further arrays, or None to leave one out."""
    rng = np.random.default_rng(seed)
    rows = sum(lengths) + len(lengths)
    terminals = np.zeros(rows, bool)
    terminals[np.cumsum(np.array(lengths) + 1) - 1] = True
    low, high = (0, 256) if dtype == "uint8" else (-1000, 1000)
    arrays = {
        "observations": rng.integers(low, high, (rows, *shape)).astype(dtype),
        "actions": rng.normal(size=(rows, 2)).astype(np.float32),
        "terminals": terminals,
        "qpos": rng.normal(size=(rows, 15)).astype(np.float32),
        "qvel": rng.normal(size=(rows, 4)).astype(np.float32),
    }
    arrays.update(more)
    return {key: value for key, value in arrays.items() if value is not None}


def write(path: Path, arrays: Mapping[str, np.ndarray], packed: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save: Any = np.savez_compressed if packed else np.savez
    save(path, **arrays)
    return path


def expected(path: Path) -> dict[str, np.ndarray]:
    """The columns of a dataset, with ``lengths``. Episodes without a step are left out, one without a flag is cut."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    last = arrays["terminals"].astype(bool).reshape(-1)
    last[-1] = True
    steps, after = ~last, np.flatnonzero(~last) + 1
    names = {"observations": "observation", "actions": "action"}
    columns = {
        names.get(key, f"info/{key}"): values[steps]
        for key, values in arrays.items()
        if key not in ("terminals", "valids")
    }
    columns["next/observation"] = arrays["observations"][after]
    columns["next/truncated"] = last[after]
    columns["next/terminated"] = np.zeros(len(after), bool)
    ends = np.flatnonzero(last)
    lengths = np.diff(np.concatenate([[-1], ends])) - 1
    columns["lengths"] = lengths[lengths > 0]
    return columns


def assert_holds(dataset: Dataset, columns: Mapping[str, np.ndarray]) -> None:
    """Whether a dataset is sound and has these columns, to the last bit."""
    assert verify(dataset.path).ok and not check_invariants(dataset.path, dataset.manifest)
    assert np.array_equal(dataset.episodes.lengths, columns["lengths"])
    for key, wanted in columns.items():
        if key != "lengths":
            found = dataset[key].numpy()
            assert found.reshape(wanted.shape).tobytes() == np.ascontiguousarray(wanted).tobytes(), key
    assert set(columns) - {"lengths"} >= {key for key in dataset.rows if key.startswith("info/")}
