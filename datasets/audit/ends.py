"""How episodes begin and end: flags, the episode table, returns, time limits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...storage.amounts import count, real
from ...storage.episodes import CUT, TERMINATED, EpisodeTable
from ...storage.schema import FLAGS
from .blocks import Array, StepBlock
from .findings import Finding, Hits, find

#: What the flags of a step may contradict.
_DISAGREE = {
    "flags_disagree": "done is not terminated or truncated",
    "end_inside": "a flag says that the episode ends, the episode table that it goes on",
    "no_end": "the last step of an episode has no flag set",
    "outcome_disagrees": "the flags and the episode table disagree about terminated",
}


class Flags:
    """The flags of all steps, compared with each other and with the episode table; sums of rewards by episode."""

    def __init__(self, table: EpisodeTable) -> None:
        self._table, self.steps = table, 0
        #: Episodes whose return is not the sum of their rewards, and the sum of the first; the sum so far of an open episode.
        self._unequal_returns, self._first_sum, self._open = Hits(), 0.0, 0.0
        self._found = {code: Hits() for code in _DISAGREE}
        self._root = {flag: Hits() for flag in FLAGS}
        self.ends_twice = Hits()

    def see(self, block: StepBlock) -> None:
        self.steps += len(block)
        none = np.zeros(len(block), bool)
        done, terminated, truncated = (block.rows.get("next/" + flag, none) for flag in FLAGS)
        last = block.is_last
        says = np.zeros(len(block), bool)
        says[last] = self._table.outcomes[block.episode[last]] == TERMINATED
        masks = {
            "flags_disagree": done != (terminated | truncated),
            "end_inside": (done | terminated | truncated) & ~last,
            "no_end": last & ~(done | terminated | truncated),
            "outcome_disagrees": last & (terminated != says) & (done | terminated | truncated),
        }
        for code, mask in masks.items():
            self._found[code].add(block.numbers(mask))
        for flag in FLAGS:
            if flag in block.rows:
                self._root[flag].add(block.numbers(block.rows[flag]))
        self.ends_twice.add(block.numbers(terminated & truncated))
        episodes, begins = block.pieces
        with np.errstate(all="ignore"):  # rewards that are not finite
            sums = np.add.reduceat(block.rows["next/reward"], begins, dtype=np.float64)
            sums[0] += self._open
            ended = len(sums) if block.is_last[-1] else len(sums) - 1
            self._open = 0.0 if block.is_last[-1] else float(sums[-1])
            stated = np.asarray(self._table.returns[episodes])[:ended]
            differing = np.flatnonzero(~np.isclose(sums[:ended], stated, rtol=1e-6, atol=1e-4, equal_nan=True))
        if len(differing):
            self._first_sum = self._first_sum if self._unequal_returns.count else float(sums[differing[0]])
            self._unequal_returns.add(differing + episodes.start)

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong with the flags, and returns of the table that are not the sums of the rewards."""
        for code, hits in self._found.items():
            if hits.count:
                leaf = "next/done" if code == "flags_disagree" else ""
                yield find(code, _DISAGREE[code], hits, self.steps, leaf=leaf)
        for flag, hits in self._root.items():
            if hits.count:
                what = "the state in which the action was taken is marked as an end"
                yield find("root_flag_set", what, hits, self.steps, leaf=flag)
        if self.ends_twice.count:
            yield find("ends_twice", "terminated and truncated are both set", self.ends_twice, self.steps)
        if self._unequal_returns.count:
            stated = float(self._table.returns[self._unequal_returns.first[0]])
            what = f"the table states returns such as {real(stated)}, the rewards add up to {real(self._first_sum)}"
            yield find(
                "return_mismatch", what, self._unequal_returns, len(self._table), unit="episode", leaf="next/reward"
            )


def check_table(table: EpisodeTable) -> Iterator[Finding]:
    """Time limits that are stored as terminations, episodes of one step, episodes that are not whole."""
    length, episodes = np.asarray(table.lengths), len(table)
    if not episodes or int(length.max()) == 1:  # bandits
        return
    terminated, whole = table.outcomes == TERMINATED, table.whole
    longest = int(length[whole].max()) if whole.any() else 0
    at_limit = whole & (length == longest)
    capped = at_limit & terminated
    if capped.sum() == at_limit.sum() >= max(5, 0.05 * episodes) and is_time_limit(length[whole]):
        what = f"episodes of {count(longest)} steps, none longer, are terminated: that is a time limit"
        yield find("time_limit_terminated", what, Hits.of(np.flatnonzero(capped)), episodes, unit="episode")
    short = length == 1
    if short.any() and np.median(length[~short]) >= 20:
        what = f"episodes of one step, where half of the others have {count(int(np.median(length[~short])))} or more"
        yield find("short_episodes", what, Hits.of(np.flatnonzero(short)), episodes, unit="episode")
    for code, mask, what in (
        ("begins_midway", table.midway, "the beginning is not in the data"),
        ("ends_cut", table.outcomes == CUT, "the data end, or leave steps out, before the episode does"),
    ):
        if np.count_nonzero(mask) > 1:  # the last one of a log is cut
            yield find(code, what, Hits.of(np.flatnonzero(mask)), episodes, unit="episode")


def is_time_limit(lengths: Array) -> bool:
    """Whether the largest length of episodes looks like a limit: a round number that occurs far more often than those before.

    Round numbers are multiples of ten and powers of two, from 16 on, give or take one. If all episodes have the same length, it
    may belong to the task (a game with that many moves).
    """
    longest = int(lengths.max())
    near = (longest - 1, longest, longest + 1)
    is_round = longest >= 16 and any(number % 10 == 0 or number & (number - 1) == 0 for number in near)
    before = [int((lengths == longest - back).sum()) for back in range(1, 6)]
    shorter = int((lengths < longest).sum())
    return is_round and (lengths == longest).sum() >= 4 * max(1, *before) and shorter >= 0.05 * len(lengths)
