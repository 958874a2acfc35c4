"""D4RL files with known contents, and what must come out of them, worked out row by row.

write(path, make(lengths, ends))     # trajectories of these lengths, "terminal", "timeout" or "none" at their ends
expected(path, by="both")            # every TED column, by plain loops over h5py's arrays
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from rbdata.datasets.convert import convert
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from ted_rules import check_invariants


def make(
    lengths: Sequence[int], ends: Sequence[str], *, successors: bool = False, dtype: str = "float32", width: int = 3
) -> dict[str, np.ndarray]:
    """Arrays of a file; every number is different, so that no row can pass for another."""
    rows = sum(lengths)
    observations = (np.arange(rows * width).reshape(rows, width) + 1).astype(dtype)
    terminals, timeouts = np.zeros(rows, bool), np.zeros(rows, bool)
    last = np.cumsum(lengths) - 1
    for row, end in zip(last, ends):
        terminals[row] = "terminal" in end
        timeouts[row] = "timeout" in end
    arrays = {
        "observations": observations,
        "actions": (-np.arange(rows * 2).reshape(rows, 2) - 1).astype(dtype),
        "rewards": (np.arange(rows) / 4).astype(dtype),
        "terminals": terminals,
        "timeouts": timeouts,
    }
    if successors:
        after = np.empty_like(observations)
        after[:-1] = observations[1:]
        after[last] = 1000 + np.arange(len(lengths))[:, None]
        arrays["next_observations"] = after
    return arrays


def write(path: Path, arrays: Mapping[str, Any], **storage: Any) -> Path:
    """Write a file; ``storage`` goes to h5py (compression, chunks, shuffle)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, value in arrays.items():
            scalar = np.ndim(value) == 0
            file.create_dataset(key, data=value, **({} if scalar else storage))
    return path


def expected(
    path: Path, by: str, *, horizon: int | None = None, terminals_end: bool = True, zero: bool = False
) -> dict[str, np.ndarray]:
    """The TED columns of a file, and ``row`` (which file row each step is) and ``episode``."""
    with h5py.File(path) as file:
        obs, act, rew = (file[key][()] for key in ("observations", "actions", "rewards"))
        term = file["terminals"][()].reshape(-1).astype(bool)
        time = file["timeouts"][()].reshape(-1).astype(bool) if "timeouts" in file else np.zeros(len(obs), bool)
        nxt = file["next_observations"][()] if "next_observations" in file else None
    out: dict[str, list[Any]] = {key: [] for key in ("observation", "next/observation", "action", "next/reward", "row")}
    flags: dict[str, list[bool]] = {key: [] for key in ("next/done", "next/terminated", "next/truncated")}
    episode: list[int] = []
    begin, number = 0, 0
    for row in range(len(obs)):
        clock = time[row] if by in ("timeouts", "both") else False
        if by == "horizon":
            assert horizon is not None
            clock = row - begin == horizon - 1
        ends = by in ("terminals", "both") or (by == "horizon" and terminals_end)
        if not (clock or (ends and term[row]) or row == len(obs) - 1):
            continue
        steps = list(range(begin, row + 1))
        known = nxt is not None or term[row]
        if not known and not zero:
            steps.pop()
        for step in steps:
            is_last = step == steps[-1]
            if nxt is not None:
                after = nxt[step]
            elif step == row:
                after = np.zeros_like(obs[row])
            else:
                after = obs[step + 1]
            out["observation"].append(obs[step])
            out["next/observation"].append(after)
            out["action"].append(act[step])
            out["next/reward"].append(np.float32(np.reshape(rew[step], ())))
            out["row"].append(step)
            terminated = bool(is_last and term[step])
            truncated = bool(is_last and (not terminated or (clock and step == row) or step != row))
            flags["next/terminated"].append(terminated)
            flags["next/truncated"].append(truncated)
            flags["next/done"].append(is_last)
            episode.append(number)
        number += bool(steps)
        begin = row + 1
    arrays = {key: np.array(value) for key, value in out.items()}
    arrays["next/reward"] = arrays["next/reward"].astype("float32")[:, None]
    arrays.update({key: np.array(value)[:, None] for key, value in flags.items()})
    arrays["episode"] = np.array(episode)
    return arrays


def to_dataset(
    file: Path, root: Path, *, force: bool = False, unknown_next: Any = "truncate", procs: int = 0, **extra: Any
) -> Dataset:
    """Convert the one file of a folder as ``my/run``, and check all that must hold in any dataset."""
    options = ConvertOptions(unknown_next=unknown_next, extra=extra)
    outcome = convert(file.parent, "d4rl", Request("my/run", root=root, procs=procs, options=options, force=force))
    return checked(outcome.path)


def checked(folder: Path) -> Dataset:
    report = verify(folder)
    assert report.ok, report.problems
    dataset = Dataset(folder)
    assert check_invariants(dataset.path, dataset.manifest) == []
    return dataset


def assert_holds(dataset: Dataset, truth: Mapping[str, np.ndarray]) -> None:
    """Every value, exactly, with its dtype and shape."""
    for key, values in truth.items():
        if key in ("row", "episode"):
            continue
        found = dataset[key].numpy()
        assert found.dtype == values.dtype.newbyteorder("="), key
        assert found.shape == values.shape, key
        np.testing.assert_array_equal(found, values, err_msg=key)
    assert torch.equal(dataset.episode_of(torch.arange(len(dataset))), torch.from_numpy(truth["episode"]))
    for flag in ("done", "terminated", "truncated"):
        assert not dataset[flag].any()
