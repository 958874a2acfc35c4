"""A state, its successor and the state of the following step: repeated, not joined, or leading into another episode."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from ...storage.amounts import exact_percent
from ...storage.episodes import TERMINATED, EpisodeTable
from .blocks import Array, Leaves, StepBlock, Usual, every
from .findings import Finding, Hits, Severity, find

#: Share of steps with a repeated observation that is a warning: for measured numbers, and for counts, which often do not
#: change.
_REPEATED, _REPEATED_COUNTS = 0.2, 0.6
#: A last step that leads into another episode moves this many times as far as usual.
_MOVED = 1.5
#: A successor this close to the next state, in units of its usual change, is that state: computed twice, or rounded to float32.
_ROUNDING = 1e-3


def same_rows(first: Array, second: Array) -> Array:
    """Return which rows are equal, bool ``[n]``; NaN equals NaN."""
    equal = first == second
    if first.dtype.kind == "f" and np.isnan(first.sum()):  # one pass that allocates no memory
        equal |= np.isnan(first) & np.isnan(second)
    return every(equal)


class _StateChain:
    """Whether the successors of one observation leaf are the states of the following steps."""

    def __init__(self, name: str, step: Array | None, unchained: bool) -> None:
        self.name, self._unchained = name, unchained
        self._rounding = 0.0 if step is None else _ROUNDING * step
        self._mismatch, self._own, self._late = Hits(), 0, 0
        self._last: Array | None = None
        #: Whether states differ from the first one of the dataset.
        self.varies = False
        self._first: Array | None = None

    def see(self, block: StepBlock) -> dict[str, Array]:
        """Masks ``[n]`` of a block: ``same`` (the successor is the state), ``zero`` and ``zero_state`` (one of them is zeros),
        and ``joins``: of a last step, the successor is the first state of the next episode (in this block)."""
        state, successor = block.rows[self.name], block.rows["next/" + self.name]
        self._first = state[:1].copy() if self._first is None else self._first
        self.varies = self.varies or not same_rows(state, np.broadcast_to(self._first, state.shape)).all()
        same, follows = same_rows(state, successor), np.zeros(len(block), bool)
        follows[:-1] = self._follows(successor[:-1], state[1:])
        if not self._unchained:
            if self._last is not None and not block.is_first[0] and not self._follows(self._last, state[:1])[0]:
                self._mismatch.add([block.low - 1])
            self._last = successor[-1:].copy()
            differs = ~follows & ~block.is_last
            differs[-1] = False  # the next block says
            self._mismatch.add(block.numbers(differs))
            self._own += int((differs & same).sum())
            if differs.any():
                self._late += int((differs[:-2] & same_rows(successor[:-2], state[2:])).sum())
        zero, zero_state = (every(rows == 0) for rows in (successor, state))
        return {"same": same, "joins": follows & block.is_last, "zero": zero, "zero_state": zero_state}

    def _follows(self, successor: Array, state: Array) -> Array:
        follows = same_rows(successor, state)
        rest = np.flatnonzero(~follows)
        if len(rest) and state.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                follows[rest] = every(np.abs(successor[rest] - state[rest]) <= self._rounding)
        return follows

    def findings(self, steps: int) -> Iterator[Finding]:
        if not self._mismatch.count:
            return
        code, what = "successor_mismatch", "the successor of a step is not the state of the following step"
        if self._own >= 0.9 * self._mismatch.count:
            code, what = "successor_own", "the successor of a step is its own state"
        elif self._late >= 0.8 * self._mismatch.count:
            code, what = "successor_late", "the successor of a step is the state two steps later"
        yield find(code, what, self._mismatch, steps, leaf="next/" + self.name)


class Transitions:
    """What all observation leaves of a dataset together say about its transitions, without frames."""

    def __init__(
        self, leaves: Leaves, table: EpisodeTable, usual: Mapping[str, Usual], unchained: Collection[str]
    ) -> None:
        self._chains = [_StateChain(name, usual[name].step, name in unchained) for name in leaves.observations]
        self._table, self._alone, self.steps = table, not leaves.frames, 0
        self._usual = usual
        #: Whether all observations are counts, choices or pixels: these stand still more often than measured numbers.
        self._counted = not any(usual[name].measured for name in leaves.observations)
        self._terminated = np.asarray(table.outcomes) == TERMINATED
        self._same, self._zero, self._zero_states = Hits(), Hits(), 0
        #: Episodes whose last successor is the first state of the next one, and how far the last step of each moves.
        self._joins, self._moves = np.zeros(len(table), bool), np.zeros(len(table), np.float32)
        self._finals: list[Array] = []

    def see(self, block: StepBlock) -> None:
        if not self._chains:
            return
        if self._finals:
            firsts = [block.rows[chain.name][:1] for chain in self._chains]
            self._joins[block.episode[0] - 1] = all(same_rows(*pair)[0] for pair in zip(self._finals, firsts))
        masks = [chain.see(block) for chain in self._chains]
        self.steps += len(block)
        everywhere = {name: np.logical_and.reduce([one[name] for one in masks]) for name in masks[0]}
        self._joins[block.episode[everywhere["joins"]]] = True
        self._same.add(block.numbers(everywhere["same"]))
        self._zero_states += int(everywhere["zero_state"].sum())
        self._zero.add(block.numbers(everywhere["zero"] & block.is_last & ~self._terminated[block.episode]))
        last = np.flatnonzero(block.is_last)
        self._moves[block.episode[last]] = self._moved(block, last)
        ends = [block.rows["next/" + chain.name][-1:].copy() for chain in self._chains]
        self._finals = ends if block.is_last[-1] else []

    def _moved(self, block: StepBlock, rows: Array) -> Array:
        """How far these rows move, ``[n]``: the median of the changes of columns, each in units of its usual change."""
        ratios = []
        for chain in self._chains:
            step = self._usual[chain.name].step
            if step is None or not step.any():
                continue
            columns = np.flatnonzero(step)
            state, successor = (block.rows[name][rows][:, columns] for name in (chain.name, "next/" + chain.name))
            with np.errstate(invalid="ignore", over="ignore"):
                ratios.append(np.abs(successor.astype(np.float64) - state) / step[columns])
        return np.median(np.nan_to_num(np.concatenate(ratios, axis=1)), axis=1) if ratios else np.zeros(len(rows))

    def findings(self) -> Iterator[Finding]:
        for chain in self._chains:
            yield from chain.findings(self.steps)
        if not self._chains or not self.steps:
            return
        if self._same.count == self.steps:
            yield from self._stays()
            return
        share, many = self._same.count / self.steps, _REPEATED_COUNTS if self._counted else _REPEATED
        if self._alone and self._same.count >= 5 and share >= 0.01:
            severity: Severity = "warning" if share >= many else "note"
            what = f"{exact_percent(share)} of the steps lead to the same observation again"
            yield find("observation_repeated", what, self._same, self.steps, severity=severity)
        if self._zero.count and not self._zero_states:
            yield find("successor_zero", "the successor of a truncated step is zeros", self._zero, self.steps)
        yield from self._joined()

    def _stays(self) -> Iterator[Finding]:
        """Steps that all lead to their own state, though states vary, each an episode: arrays are cut at such rows."""
        if not self._alone or int(self._table.lengths.max()) > 1 or not any(chain.varies for chain in self._chains):
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
            if np.median(self._moves[joined]) > _MOVED:
                code, what = "successor_leaks", "the successor of the last step is the first state of the next episode"
            hits = Hits.of(np.flatnonzero(joined))
            yield find(code, what, hits, len(joins), unit="episode")
