"""TED TensorDicts with known contents, and what must hold in TED, looked at row by row and without rbdata."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase


def load_plainly(folder: Path) -> TensorDict:
    """As a program without rbdata would, with pickling disabled where tensordict can (from 0.14)."""
    known = inspect.signature(TensorDict.load_memmap).parameters
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return TensorDict.load_memmap(folder, **({"allow_pickle": False} if "allow_pickle" in known else {}))


def episode(
    length: int,
    *,
    outcome: str = "terminated",
    shape: tuple[int, ...] = (3,),
    dtype: str = "float32",
    seed: int = 0,
    pixels: tuple[int, ...] | None = None,
) -> TensorDict:
    """One episode as TED, batch ``[length]``; with ``pixels`` an observation folder of ``vector`` and ``pixels`` (uint8)."""
    rng = np.random.default_rng([seed, length])
    states = {"observation": rng.standard_normal((length + 1, *shape)).astype(dtype)}
    if dtype == "uint8":
        states = {"observation": rng.integers(0, 256, (length + 1, *shape)).astype(dtype)}
    if pixels is not None:
        frames = rng.integers(0, 256, (length + 1, *pixels)).astype("uint8")
        states = {"observation/vector": states["observation"], "observation/pixels": frames}
    td = TensorDict({}, [length])
    for name, rows in states.items():
        path = tuple(name.split("/"))
        after = ("next", *path)
        td[path] = torch.from_numpy(rows[:-1].copy())
        td[after] = torch.from_numpy(rows[1:].copy())
    td["action"] = torch.from_numpy(rng.integers(0, 6, length))
    td["next", "reward"] = torch.from_numpy(rng.standard_normal((length, 1)).astype("float32"))
    for flag in ("done", "terminated", "truncated"):
        td[flag] = torch.zeros(length, 1, dtype=torch.bool)
        ends = torch.zeros(length, 1, dtype=torch.bool)
        ends[-1] = flag in ("done", outcome)
        td["next", flag] = ends
    return td


def episodes(lengths: Sequence[int], **options: object) -> list[TensorDict]:
    """Several, terminated and truncated in turn."""
    return [
        episode(length, outcome=("terminated", "truncated")[number % 2], seed=number, **options)  # type: ignore[arg-type]
        for number, length in enumerate(lengths)
    ]


def arrays(td: TensorDictBase) -> dict[str, np.ndarray]:
    """The leaves by path, copies."""
    return {"/".join(key) if isinstance(key, tuple) else key: td[key].numpy().copy() for key in td.keys(True, True)}


def ted_problems(td: TensorDictBase) -> list[str]:
    """What is wrong with these steps as TED: plain loops, one sentence for each row and kind."""
    leaf = arrays(td)
    problems = []
    for name in ("done", "terminated", "truncated"):
        for path in (name, "next/" + name):
            if leaf[path].dtype != bool or leaf[path].shape != (len(td), 1):
                problems.append(f"{path} is {leaf[path].dtype} {leaf[path].shape}")
        if leaf[name].any():
            problems.append(f"root {name} is set")
    if leaf["next/reward"].dtype != np.float32 or leaf["next/reward"].shape != (len(td), 1):
        problems.append(f"reward is {leaf['next/reward'].dtype} {leaf['next/reward'].shape}")
    for row in range(len(td)):
        done = leaf["next/done"][row]
        if done != (leaf["next/terminated"][row] | leaf["next/truncated"][row]):
            problems.append(f"done of {row}")
        if row + 1 == len(td):
            if not done:
                problems.append("the last step is not done")
        elif not done:
            for path in leaf:
                twin = "next/" + path
                if twin in leaf and path not in ("done", "terminated", "truncated"):
                    here, after = leaf[twin][row], leaf[path][row + 1]
                    if not np.array_equal(here, after, equal_nan=here.dtype.kind == "f"):
                        problems.append(f"{twin} of {row} is not the {path} after it")
    return problems
