"""A state, its successor and the state of the following step: repeated, not joined, leading into another episode, jumping; and
actions and rewards that belong to the step before or after.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from ...storage.amounts import exact_percent
from ...storage.episodes import TERMINATED, EpisodeTable
from .blocks import Array, Leaves, StepBlock, Usual, every
from .findings import Finding, Hits, Severity, find

#: Share of steps with a repeated observation that is a warning: for measured numbers, and for counts, which often do not
#: change.
_REPEATED, _REPEATED_COUNTS = 0.2, 0.6
#: Episodes of fewer steps say nothing about being frozen.
_FROZEN = 5
#: A jump exceeds this many times the usual difference in more than this part of the columns that vary continuously.
_JUMP, _JUMP_ALONE, _JUMP_COLUMNS = 5.0, 50.0, 0.6
#: A jump is this many times as far as the steps beside it.
_ALONE = 3.0
#: At ends, where nearly all steps are compared at once, half of them exceed this many times the usual difference.
_MOVED = 1.5
#: A larger share of steps with jumps is how the data normally move.
_COMMON = 0.02


def same_rows(first: Array, second: Array) -> Array:
    """Which rows are equal, bool ``[n]``; NaN equals NaN."""
    equal = first == second
    if first.dtype.kind == "f" and np.isnan(first.sum()):  # one pass that allocates no memory
        equal |= np.isnan(first) & np.isnan(second)
    return every(equal)


def jumps(before: Array, after: Array, step: Array) -> Array:
    """Which rows jump, bool ``[n]``: most columns change by far more than the usual ``step`` (`Usual`) of each."""
    columns = np.flatnonzero(step)
    if not len(columns):
        return np.zeros(len(before), bool)
    far = _JUMP if len(columns) > 1 else _JUMP_ALONE
    with np.errstate(invalid="ignore", over="ignore"):
        change = _numbers(after, columns) - _numbers(before, columns)
        beyond = np.abs(change, out=change) > (far * step[columns]).astype(change.dtype)
    return np.asarray(np.ascontiguousarray(beyond.T).sum(0) > _JUMP_COLUMNS * len(columns))


def _numbers(rows: Array, columns: Array) -> Array:
    """Some columns as floats: differences of bytes wrap around."""
    rows = rows if len(columns) == rows.shape[1] else rows[:, columns]
    return rows if rows.dtype.kind == "f" else rows.astype(np.float64)


def distances(before: Array, after: Array, step: Array) -> Array:
    """How far each row moves, float64 ``[n]``: the median of the changes of columns, each in units of its usual ``step``."""
    columns = np.flatnonzero(step)
    with np.errstate(invalid="ignore", over="ignore"):
        ratios = np.abs(_numbers(after, columns) - _numbers(before, columns)) / step[columns]
    return np.asarray(np.median(np.nan_to_num(ratios), axis=1))


class LeafTransitions:
    """The successors of one observation leaf."""

    def __init__(self, name: str, table: EpisodeTable, usual: Usual, unchained: bool) -> None:
        self.name, self._unchained, self.steps = name, unchained, 0
        self.step = np.zeros(0) if usual.step is None else usual.step
        self.mismatch = Hits()
        self._own = self._late = 0
        #: By episode: whether any step changes the observation.
        self.changed = np.zeros(len(table), bool)
        self.moves, self.is_counted = bool(self.step.any()), not usual.measured
        self._last: Array | None = None
        #: Whether states differ from the first one of the dataset.
        self.varies = False
        self._first: Array | None = None

    def see(self, block: StepBlock) -> Mapping[str, Array]:
        """Masks ``[n]`` of a block: ``same`` (the successor is the state), ``zero`` and ``zero_state`` (one of them is zeros),
        ``jump``, and ``joins``: of a last step, the successor is the first state of the next episode (in this block)."""
        state, successor = block.rows[self.name], block.rows["next/" + self.name]
        self.steps += len(block)
        if self._first is None:
            self._first = state[:1].copy()
        self.varies = self.varies or not same_rows(state, np.broadcast_to(self._first, state.shape)).all()
        same = same_rows(state, successor)
        if not self._unchained:
            self._chain(block, state, successor, same)
        jump = jumps(state, successor, self.step) if self.moves else np.zeros(len(block), bool)
        episodes, begins = block.pieces
        self.changed[episodes] |= np.logical_or.reduceat(~same, begins)
        joins = np.zeros(len(block), bool)
        joins[:-1] = block.is_last[:-1] & same_rows(successor[:-1], state[1:])
        zero, zero_state = (every(rows == 0) for rows in (successor, state))
        return {"same": same, "jump": jump, "joins": joins, "zero": zero, "zero_state": zero_state}

    def _chain(self, block: StepBlock, state: Array, successor: Array, same: Array) -> None:
        """Compare each successor with the state of the following step."""
        if self._last is not None and not block.is_first[0] and not same_rows(self._last, state[:1])[0]:
            self.mismatch.add([block.low - 1])
        self._last = successor[-1:].copy()
        differs = ~same_rows(successor[:-1], state[1:]) & ~block.is_last[:-1]
        if differs.any():
            self.mismatch.add(block.numbers(np.append(differs, False)))
            self._own += int((differs & same[:-1]).sum())
            late = same_rows(successor[:-2], state[2:])
            self._late += int((differs[:-1] & late).sum())

    def findings(self) -> Iterator[Finding]:
        if not self.mismatch.count:
            return
        code, what = "successor_mismatch", "the successor of a step is not the state of the following step"
        if self._own >= 0.9 * self.mismatch.count:
            code, what = "successor_own", "the successor of a step is its own state"
        elif self._late >= 0.8 * self.mismatch.count:
            code, what = "successor_late", "the successor of a step is the state two steps later"
        yield find(code, what, self.mismatch, self.steps, leaf="next/" + self.name)


class Transitions:
    """What all observation leaves of a dataset together say about its transitions, without frames."""

    def __init__(
        self, leaves: Leaves, table: EpisodeTable, usual: Mapping[str, Usual], unchained: Collection[str]
    ) -> None:
        names = leaves.observations
        self._leaves = [LeafTransitions(name, table, usual[name], name in unchained) for name in names]
        self._actions, self._table, self._alone, self.steps = leaves.actions, table, not leaves.frames, 0
        self._acts = np.zeros(len(table), bool)
        self._terminated = np.asarray(table.outcome) == TERMINATED
        self._same, self._jump, self._zero = Hits(), Hits(), Hits()
        self._zero_states = 0
        #: How far the first, the last but one and the last step of each episode move, by `distances`.
        self._moves = {left: np.zeros(len(table), np.float32) for left in ("first", "before last", "last")}
        #: Episodes whose last successor is the first state of the next one.
        self._joins = np.zeros(len(table), bool)
        self._finals: list[Array] = []

    def see(self, block: StepBlock) -> None:
        if not self._leaves:
            return
        if self._finals:
            firsts = [block.rows[leaf.name][:1] for leaf in self._leaves]
            joined = all(same_rows(final, first)[0] for final, first in zip(self._finals, firsts))
            self._joins[block.episode[0] - 1] = joined
        masks = [leaf.see(block) for leaf in self._leaves]
        self.steps += len(block)
        everywhere = {name: np.logical_and.reduce([one[name] for one in masks]) for name in masks[0]}
        self._joins[block.episode[everywhere["joins"]]] = True
        self._see_actions(block)
        self._see_moves(block, masks)
        self._same.add(block.numbers(everywhere["same"]))
        self._zero_states += int(everywhere["zero_state"].sum())
        self._zero.add(block.numbers(everywhere["zero"] & block.is_last & ~self._terminated[block.episode]))
        ended = block.is_last[-1]
        self._finals = [block.rows["next/" + leaf.name][-1:].copy() for leaf in self._leaves] if ended else []

    def _see_moves(self, block: StepBlock, masks: Sequence[Mapping[str, Array]]) -> None:
        moving = [(leaf, one["jump"]) for leaf, one in zip(self._leaves, masks) if leaf.moves]
        if not moving:
            return
        jump = np.logical_and.reduce([one for _, one in moving])
        episodes, _ = block.pieces
        last = np.asarray(self._table.start[episodes]) + np.asarray(self._table.length[episodes]) - 1
        left = last[block.episode - block.episode[0]] - np.arange(block.low, block.high)
        inner = np.flatnonzero(jump & ~block.is_first & (left > 1))

        def moved(rows: Array) -> Array:
            far = [
                distances(block.rows[leaf.name][rows], block.rows["next/" + leaf.name][rows], leaf.step)
                for leaf, _ in moving
            ]
            return np.asarray(np.minimum.reduce(far))

        beside = np.maximum(moved(np.maximum(inner - 1, 0)), moved(np.minimum(inner + 1, len(block) - 1)))
        self._jump.add(inner[moved(inner) > _ALONE * beside] + block.low)  # a start from rest is fast for many steps
        for name, mask in (("first", block.is_first), ("before last", left == 1), ("last", left == 0)):
            rows = np.flatnonzero(mask)
            self._moves[name][block.episode[rows]] = moved(rows)

    def _see_actions(self, block: StepBlock) -> None:
        episodes, begins = block.pieces
        for name in self._actions:
            action = block.rows[name]
            differs = np.append(~same_rows(action[:-1], action[1:]) & ~block.is_last[:-1], False)
            self._acts[episodes] |= np.logical_or.reduceat(differs, begins)

    @property
    def _counted(self) -> bool:
        """Whether all observations are counts, choices or pixels: these stand still more often than measured numbers."""
        return all(leaf.is_counted for leaf in self._leaves)

    def findings(self) -> Iterator[Finding]:
        for leaf in self._leaves:
            yield from leaf.findings()
        if not self._leaves or not self.steps:
            return
        if not any(leaf.changed.any() for leaf in self._leaves):
            yield from self._stays()
            return
        yield from self._repeated()
        if self._zero.count and not self._zero_states:
            what = "the successor of a truncated step is zeros"
            yield find("successor_zero", what, self._zero, self.steps)
        shifted = self._shifted()
        if shifted is not None:
            yield shifted
            return
        if 0 < self._jump.count <= max(3, _COMMON * self.steps):
            what = "nearly all of the observation jumps inside an episode, as if another one began"
            yield find("observation_jump", what, self._jump, self.steps)
        yield from self._joined()

    def _shifted(self) -> Finding | None:
        """Flags that are a step off: each episode continues the one before, and in most of them the first or the last but one
        step leads across a reset."""
        long = np.asarray(self._table.length) >= 4
        if long.sum() < 3 or self._joins[:-1].mean() < 0.5:
            return None
        for name, words in (("first", "early: the first step"), ("before last", "late: the last step but one")):
            moved = self._moves[name][long]
            if np.median(moved) > 2 * _MOVED and np.median(self._moves["last"][long]) < _MOVED:
                what = f"the ends of episodes are a step too {words} of most jumps to where another one begins"
                hits = Hits.of(np.flatnonzero(long & (self._moves[name] > 2 * _MOVED)))
                return find("flags_shifted", what, hits, len(long), unit="episode")
        return None

    def _stays(self) -> Iterator[Finding]:
        """Steps that all lead to their own state, though states vary, each an episode: arrays are cut at such rows."""
        if not self._alone or int(self._table.length.max()) > 1 or not any(leaf.varies for leaf in self._leaves):
            return  # constant, or what the episode is about
        goes_on = np.flatnonzero(~self._terminated)
        if len(goes_on):
            what = "every step is an episode, and its successor is its own state"
            yield find("successor_own", what, Hits.of(goes_on), self.steps, severity="warning")

    def _joined(self) -> Iterator[Finding]:
        """Episodes whose last successor is the first state of the next one: the episode continues there, or the successor is
        wrong."""
        joins, terminated = self._joins, self._terminated
        for ended, code, what in (
            (terminated, "terminal_goes_on", "the next episode goes on from the state in which this one terminated"),
            (~terminated, "ends_go_on", "the next episode goes on from the state in which this one was truncated"),
        ):
            joined = joins & ended
            usual = 0.5 if self._counted or code == "ends_go_on" else 0.02
            if joined.sum() < 2 or joined.sum() <= usual * ended[:-1].sum():
                continue
            if np.median(self._moves["last"][joined]) > _MOVED:
                code, what = "successor_leaks", "the successor of the last step is the first state of the next episode"
            hits = Hits.of(np.flatnonzero(joined))
            yield find(code, what, hits, len(joins), unit="episode")

    def _repeated(self) -> Iterator[Finding]:
        share = self._same.count / self.steps
        many = _REPEATED_COUNTS if self._counted else _REPEATED
        if self._alone and self._same.count >= 5 and share >= 0.01:
            severity: Severity = "warning" if share >= many else "note"
            what = f"{exact_percent(share)} of the steps lead to the same observation again"
            yield find("observation_repeated", what, self._same, self.steps, severity=severity)
        long = np.asarray(self._table.length) >= _FROZEN
        for leaf in self._leaves:
            frozen = long & ~leaf.changed
            if not frozen.any() or frozen.sum() > 0.5 * long.sum():
                continue  # a goal, or the task of the episode
            acts = frozen & self._acts
            what = "the observation never changes in episodes" + (", whatever the action" if acts.any() else "")
            hits = Hits.of(np.flatnonzero(acts if acts.any() else frozen))
            severity = "warning" if acts.any() and not leaf.is_counted else "note"
            yield find("observation_frozen", what, hits, len(frozen), leaf=leaf.name, unit="episode", severity=severity)


# -- actions and rewards that belong to another step -------------------------------------------------------------------

# Linear models of a sample decide, by how well each explains what happened (`explained`). For rewards, a model predicts the
# reward of step t from state, action and successor of step t - 1, t or t + 1 (with squares and absolute values). For actions, a
# model predicts the change of the state in step t from the states t and t - 1, and then also from the action t - 1, t or t + 1.
# Only a large difference is a finding: smooth data explain everything nearly as well a step later.

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
