"""TED, the TorchRL Episode Data format, and what must hold in it.

https://docs.pytorch.org/rl/stable/reference/data.html (TED). A flat, time-ordered TensorDict: the root is what is known
at time t (observation, action, done, terminated, truncated), ``next`` what the action led to (observation, reward, done,
terminated, truncated). ``done = terminated | truncated``; flags are bool ``[..., 1]``, rewards float32 ``[..., 1]``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from .codecs import codec_of
from .episodes import TERMINATED, open_episodes
from .leaf import Leaf
from .manifest import Manifest
from .memory_map import map_array
from .schema import FLAGS


class Folder(Protocol):
    """A dataset's folder and its manifest; a `Dataset` is one."""

    @property
    def path(self) -> Path: ...
    @property
    def manifest(self) -> Manifest: ...


def check_invariants(dataset: Folder, block: int = 65_536) -> list[str]:
    """Everything that must hold in a dataset; returns what does not, in words (an empty list when all is well).

    Each kind of problem is reported once, with the first step where it is met.

    Checked for every row, in bounded memory and without torch: ``done == terminated | truncated``; rewards are finite; root
    flags are False; every episode ends with done and has none before; outcomes agree with the flags; inside an episode the
    next observation of a step is the observation of the following one (except for leaves that the lineage names as
    ``unchained``); returns are the sums of rewards. Keys are checked with the manifest, the episode table when it is opened.
    """
    manifest = dataset.manifest
    schema, count = manifest.schema, manifest.steps
    if "reward" in schema:
        return ["a reward at the root: rewards belong under next"]
    episodes = open_episodes(dataset.path, manifest.episodes, count)
    first: dict[str, int] = {}
    unchained = (manifest.lineage or {}).get("unchained", ())
    twins = [
        (leaf.name, "next/" + leaf.name)
        for leaf in schema.steps
        if "next/" + leaf.name in schema and leaf.name not in (*FLAGS, *unchained)
    ]
    for name, successor in twins:
        if schema[name].shape != schema[successor].shape:
            return [f"{name} and {successor} have different shapes"]
    needed = {*FLAGS, "next/reward", *("next/" + flag for flag in FLAGS), *(name for pair in twins for name in pair)}
    rows = {name: open_array(dataset.path, schema[name], count) for name in needed}
    returns = np.zeros(len(episodes))
    start = np.asarray(episodes.start)
    last = np.append(start[1:], count) - 1
    for low in range(0, count, block):
        high = min(low + block, count)
        flags = {name: rows["next/" + name][low:high].reshape(-1) for name in FLAGS}
        reward = rows["next/reward"][low:high].reshape(-1)
        ending = slice(*np.searchsorted(last, (low, high)))  # episodes that end in this block
        at = last[ending] - low
        ends, unlike = np.zeros((2, high - low), bool)
        ends[at] = True
        unlike[at] = flags["terminated"][at] != (episodes.outcome[ending] == TERMINATED)
        found = {
            "done differs from terminated | truncated": flags["done"] != (flags["terminated"] | flags["truncated"]),
            "an episode does not end with done, or goes on after it": flags["done"] != ends,
            "a reward is not finite": ~np.isfinite(reward),
            "the episode table says terminated, the flags do not (or the reverse)": unlike,
        }
        for name in FLAGS:
            found[f"root {name} is set"] = rows[name][low:high].reshape(-1)
        for name, successor in twins:
            inner = np.zeros(high - low, bool)
            after = rows[name][low + 1 : high + 1]
            here = rows[successor][low : low + len(after)]
            differs = (after != here) & ~((after != after) & (here != here))  # NaN is like NaN
            inner[: len(after)] = differs.any(axis=tuple(range(1, differs.ndim)))
            found[f"{successor} is not the following {name}"] = inner & ~ends
        for what, bad in found.items():
            if what not in first and bad.any():
                first[what] = low + int(bad.argmax())
        met = slice(ending.start, ending.stop + (not ends[-1]))  # and the one that goes on after it
        begins = np.maximum(start[met], low) - low
        with np.errstate(all="ignore"):  # rewards that are not finite
            returns[met] += np.add.reduceat(reward, begins, dtype=np.float64)
    problems = [f"{what} (step {step})" for what, step in first.items()]
    if not np.allclose(returns, episodes.returns, rtol=1e-9, atol=1e-6):
        problems.append("episode returns are not the sums of the rewards")
    return problems


def open_array(folder: Path, leaf: Leaf, count: int) -> np.ndarray:
    """The rows of a step leaf, ``[count, *shape]``, mapped. Raises DamagedDatasetError."""
    if leaf.constant is not None:
        return np.broadcast_to(np.array(leaf.constant or 0, leaf.np_dtype), (count, *leaf.shape))
    if codec_of(leaf).fixed_rows:
        items = count * leaf.row_bytes // leaf.np_dtype.itemsize
        return map_array(folder / leaf.memmap, leaf.np_dtype, items).reshape(count, *leaf.shape)
    return codec_of(leaf).open_rows(folder, count).block(0, count).numpy()
