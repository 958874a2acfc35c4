"""TED, the TorchRL Episode Data format, and what must hold in it.

https://docs.pytorch.org/rl/stable/reference/data.html (TED). A flat, time-ordered TensorDict: the root is what is known
at time t (observation, action, done, terminated, truncated), ``next`` what the action led to (observation, reward, done,
terminated, truncated). ``done = terminated | truncated``; flags are bool ``[..., 1]``, rewards float32 ``[..., 1]``.
"""

from __future__ import annotations

import torch

from .dataset import Dataset
from .schema import FLAGS


def check_invariants(dataset: Dataset, block: int = 65_536) -> list[str]:
    """Everything that must hold in a dataset; returns what does not, in words (an empty list when all is well).

    Each kind of problem is reported once, with the first step where it is met.

    Checked for every row, in bounded memory: ``done == terminated | truncated``; rewards are finite; root flags are False;
    every episode ends with done and has none before; outcomes agree with the flags; inside an episode the next observation
    of a step is the observation of the following one (except for leaves that the lineage names as ``unchained``); returns
    are the sums of rewards. Keys and the episode table are checked when the dataset is opened.
    """
    if "reward" in dataset.schema:
        return ["a reward at the root: rewards belong under next"]
    episodes = dataset.episodes
    first: dict[str, int] = {}
    unchained = (dataset.manifest.lineage or {}).get("unchained", ())
    twins = [
        (leaf.name, "next/" + leaf.name)
        for leaf in dataset.schema.steps
        if "next/" + leaf.name in dataset.schema and leaf.name not in (*FLAGS, *unchained)
    ]
    returns = torch.zeros(len(episodes), dtype=torch.float64)
    outcome = torch.from_numpy(episodes.outcome.astype("int64"))
    last = dataset.episode_starts[1:] - 1
    for low in range(0, len(dataset), block):
        high = min(low + block, len(dataset))
        flags = {name: dataset.rows["next/" + name].block(low, high).squeeze(1) for name in FLAGS}
        reward = dataset.rows["next/reward"].block(low, high).squeeze(1)
        steps = torch.arange(low, high)
        episode = dataset.episode_of(steps)
        ends = last[episode] == steps
        found = {
            "done differs from terminated | truncated": flags["done"] != (flags["terminated"] | flags["truncated"]),
            "an episode does not end with done, or goes on after it": flags["done"] != ends,
            "a reward is not finite": ~torch.isfinite(reward),
            "the episode table says terminated, the flags do not (or the reverse)": ends
            & (flags["terminated"] != (outcome[episode] == 1)),
        }
        for name in FLAGS:
            found[f"root {name} is set"] = dataset.rows[name].block(low, high).squeeze(1)
        for name, successor in twins:
            if dataset.schema[name].shape != dataset.schema[successor].shape:
                return [f"{name} and {successor} have different shapes"]
            inner = torch.zeros(high - low, dtype=torch.bool)
            after = dataset.rows[name].block(low + 1, min(high + 1, len(dataset))).flatten(1)
            here = dataset.rows[successor].block(low, low + len(after)).flatten(1)
            inner[: len(after)] = ((after != here) & ~((after != after) & (here != here))).any(1)  # NaN is like NaN
            found[f"{successor} is not the following {name}"] = inner & ~ends
        for what, bad in found.items():
            if what not in first and bad.any():
                first[what] = low + int(bad.nonzero()[0])
        returns.index_add_(0, episode, reward.double())
    problems = [f"{what} (step {step})" for what, step in first.items()]
    if not torch.allclose(returns, torch.from_numpy(episodes.returns.astype("float64")), rtol=1e-9, atol=1e-6):
        problems.append("episode returns are not the sums of the rewards")
    return problems
