"""What TED promises, checked in the files of a dataset by NumPy alone: the truth to which conversions are held."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rbdata.storage.episodes import TERMINATED, open_episodes
from rbdata.storage.integrity import open_array
from rbdata.storage.manifest import Manifest
from rbdata.storage.schema import FLAGS


def check_invariants(folder: Path, manifest: Manifest, block: int = 65_536) -> list[str]:
    """Check the invariants of TED; returns the violations in words (an empty list if there are none).

    Each kind of problem is reported once, with the first step that has it.

    Checked for every row, in bounded memory and without torch: ``done == terminated | truncated``; rewards are finite; root
    flags are False; every episode ends with done and has none before; outcomes agree with the flags; inside an episode the
    next observation of a step is the observation of the following one (except for leaves that the lineage names as
    ``unchained``); returns are the sums of rewards. Keys are checked with the manifest, the episode table when it is opened.
    """
    schema, count = manifest.schema, manifest.steps
    if "reward" in schema:
        return ["a reward at the root: rewards belong under next"]
    episodes = open_episodes(folder, manifest.episodes, count)
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
    rows = {name: open_array(folder, schema[name], count) for name in needed}
    returns = np.zeros(len(episodes))
    start = np.asarray(episodes.starts)
    last = np.append(start[1:], count) - 1
    for low in range(0, count, block):
        high = min(low + block, count)
        flags = {name: rows["next/" + name][low:high].reshape(-1) for name in FLAGS}
        reward = rows["next/reward"][low:high].reshape(-1)
        ending = slice(*np.searchsorted(last, (low, high)))  # episodes that end in this block
        at = last[ending] - low
        ends, unlike = np.zeros((2, high - low), bool)
        ends[at] = True
        unlike[at] = flags["terminated"][at] != (episodes.outcomes[ending] == TERMINATED)
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
        met = slice(ending.start, ending.stop + (not ends[-1]))  # and the episode that continues after the block
        begins = np.maximum(start[met], low) - low
        with np.errstate(all="ignore"):  # rewards that are not finite
            returns[met] += np.add.reduceat(reward, begins, dtype=np.float64)
    problems = [f"{what} (step {step})" for what, step in first.items()]
    if not np.allclose(returns, episodes.returns, rtol=1e-9, atol=1e-6):
        problems.append("episode returns are not the sums of the rewards")
    return problems
