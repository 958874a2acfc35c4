"""Whether actions and rewards belong to their step, or to the one before or after: by how well each explains what happened.

Linear models of a sample decide (`explained`). For rewards, a model predicts the reward of step t from state, action and
successor of step t - 1, t or t + 1 (with squares and absolute values). For actions, a model predicts the change of the state in
step t from the states t and t - 1, and then also from the action t - 1, t or t + 1. Only a large difference is a finding:
smooth data explain everything nearly as well a step later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...storage.amounts import exact_percent
from .blocks import Array, StepBlock
from .findings import Finding, Hits, find

#: Limits of the sample: steps, columns of states, columns of actions.
_STEPS, _STATES, _ACTIONS = 8192, 32, 16
#: Steps for each coefficient of a model.
_ENOUGH = 6
#: A shift explains at least the first share, the step itself at most the second; the shift's residual is this many times
#: smaller.
_EXPLAINED, _UNEXPLAINED, _SMALLER = 0.75, 0.3, 4.0
#: Or the step itself explains more, at most this share, and the shift's residual is this many times smaller.
_WELL, _MUCH_SMALLER = 0.95, 20.0
#: Actions that their own state explains this well are not evidence: the policy may follow the state that they would have
#: caused.
_POLICY = 0.5

_WORDS = {-1: "the step before", 1: "the step after"}


def explained(features: Array, targets: Array) -> Array:
    """How well a linear model of ``features`` ``[n, k]`` explains each column of ``targets`` ``[n, m]``, float64 ``[m]``: 1 is
    all of its variance, 0 no better than a constant.

    The model is fitted to the first half of the rows, and again without the tenth that it fits worst; of the second half, the
    largest twentieth of the squares is left out. So a few wrong rows, which other checks name, have no influence.
    """
    scale = features.std(0)
    inputs = (features - np.median(features, axis=0)) / np.where(scale > 0, scale, 1)
    half = len(inputs) // 2
    judged, actual = inputs[half:], targets[half:]
    fitted, wanted = inputs[:half], targets[:half]
    spread = _trimmed(np.square(actual - actual.mean(0)))
    scale = np.where(spread > 0, spread, 1)
    for _ in range(2):
        mean = wanted.mean(0)
        gram = fitted.T @ fitted + 1e-6 * len(fitted) * np.eye(inputs.shape[1])
        weights = np.linalg.solve(gram, fitted.T @ (wanted - mean))
        errors = (np.square(wanted - mean - fitted @ weights) / scale).mean(1)
        good = errors <= np.quantile(errors, 0.9)
        fitted, wanted = fitted[good], wanted[good]
    rest = _trimmed(np.square(actual - mean - judged @ weights))
    return np.where(spread > 0, 1 - rest / scale, 0.0)


def _trimmed(squares: Array) -> Array:
    """The mean of each column without its largest twentieth."""
    return np.asarray(np.sort(squares, axis=0)[: max(1, len(squares) * 19 // 20)].mean(0))


class InnerSteps:
    """Steps of a sample that have a step before and one after in their episode, by offset from it: -1, 0, 1."""

    def __init__(self, sample: Sequence[StepBlock], observations: Sequence[str], actions: Sequence[str]) -> None:
        successors = ["next/" + name for name in observations]
        keys = {"state": observations, "successor": successors, "action": actions, "reward": ["next/reward"]}
        rows = {name: np.concatenate([_joined(block, some) for block in sample]) for name, some in keys.items()}
        inner = []
        for block in sample:
            middle = np.zeros(len(block), bool)
            middle[1:-1] = ~(block.is_first[1:-1] | block.is_last[1:-1])
            inner.append(middle)
        at = np.random.default_rng(0).permutation(np.flatnonzero(np.concatenate(inner)))[:_STEPS]
        finite = np.ones(len(at), bool)
        for values in rows.values():
            good = np.isfinite(values).all(1)
            finite &= good[at] & good[at - 1] & good[at + 1]
        self._at, self._rows = at[finite], rows
        self._columns = _varying(rows["state"], _STATES)
        rows["action"] = _coded(rows["action"], sample, actions)[:, :_ACTIONS]

    def __len__(self) -> int:
        return len(self._at)

    def of(self, name: str, offset: int = 0) -> Array:
        """Rows ``[n, elements]`` at an offset: state, successor, action or reward."""
        rows = self._rows[name][self._at + offset]
        return rows[:, self._columns] if name in ("state", "successor") else rows


def _joined(block: StepBlock, keys: Sequence[str]) -> Array:
    """The columns of some keys, float64 ``[n, elements]``; no columns without keys (actions may be text)."""
    columns = [block.rows[key].reshape(len(block), -1) for key in keys]
    return np.concatenate([np.empty((len(block), 0)), *columns], axis=1, dtype=np.float64)


def _varying(states: Array, most: int) -> Array:
    """Evenly chosen columns among those that vary."""
    with np.errstate(invalid="ignore"):
        columns = np.flatnonzero(np.nan_to_num(states.std(0)) > 0)
    return columns[np.linspace(0, len(columns) - 1, min(most, len(columns))).astype(np.int64)]


def _coded(actions: Array, sample: Sequence[StepBlock], names: Sequence[str]) -> Array:
    """Actions as numbers; a single choice as a column for each value."""
    single = len(names) == 1 and actions.shape[1] == 1 and sample[0].rows[names[0]].dtype.kind in "iub"
    if not single:
        return actions
    return np.asarray(actions == np.unique(actions)[None, :_ACTIONS], np.float64)


def check_alignment(windows: InnerSteps) -> Iterator[Finding]:
    """Actions and, where these are right, rewards that belong to another step than their own."""
    finding = _actions(windows) or _rewards(windows)
    if finding is not None:
        yield finding


def _rewards(windows: InnerSteps) -> Finding | None:
    reward = windows.of("reward")
    shares = {}
    for offset in (-1, 0, 1):
        state, successor, action = (windows.of(name, offset) for name in ("state", "successor", "action"))
        features = np.concatenate(
            [state, successor, action, np.square(successor), np.abs(successor), np.square(action)], axis=1
        )
        if len(windows) < _ENOUGH * features.shape[1] or not reward.std():
            return None
        shares[offset] = float(explained(features, reward)[0])
    better = _better(shares)
    if better is None:
        return None
    own, other = exact_percent(max(0.0, shares[0])), exact_percent(shares[better])
    what = f"rewards are explained by {_WORDS[better]} (to {other}), not by their own ({own})"
    return find("reward_shifted", what, Hits(len(windows)), len(windows), leaf="next/reward", unit="sampled step")


def _actions(windows: InnerSteps) -> Finding | None:
    state, before = windows.of("state"), windows.of("state", -1)
    change = windows.of("successor") - state
    width = 2 * state.shape[1] + windows.of("action").shape[1]
    if not change.shape[1] or not windows.of("action").shape[1] or len(windows) < _ENOUGH * width:
        return None
    known = np.concatenate([state, before], axis=1)
    rest = 1 - explained(known, change)
    gains = {}
    for offset in (-1, 0, 1):
        share = explained(np.concatenate([known, windows.of("action", offset)], axis=1), change)
        gains[offset] = np.where(rest > 1e-6, 1 - (1 - share) / np.maximum(rest, 1e-12), 0.0)
    moved = np.maximum.reduce(list(gains.values())) > _UNEXPLAINED
    if moved.sum() < max(1, 0.2 * len(moved)):
        return None  # actions explain next to nothing
    shares = {offset: float(gain[moved].mean()) for offset, gain in gains.items()}
    better = _better(shares)
    if better is None or (better == 1 and explained(state, windows.of("action")).mean() > _POLICY):
        return None
    what = f"the change of the state is explained by the action of {_WORDS[better]}, not by the step's own"
    return find("action_shifted", what, Hits(len(windows)), len(windows), leaf="action", unit="sampled step")


def _better(shares: dict[int, float]) -> int | None:
    """The shift that explains much more than the step itself, None if there is none."""
    best = max(shares, key=lambda offset: shares[offset])
    if best == 0 or shares[best] < _EXPLAINED:
        return None
    times = (1 - shares[0]) / max(1e-9, 1 - shares[best])
    is_unlike = shares[0] < _UNEXPLAINED and times > _SMALLER
    return best if is_unlike or (shares[0] < _WELL and times > _MUCH_SMALLER) else None
