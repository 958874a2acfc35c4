"""Findings of an audit, and the report that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

from ...storage.amounts import count, plural

Severity = Literal["error", "warning", "note"]
#: From the worst to the least.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
#: How many numbers of steps or episodes a finding keeps.
FIRST = 5


@dataclass(frozen=True)
class Kind:
    """A kind of finding: its usual severity, and what it does to a learner."""

    severity: Severity
    effect: str


_error, _warning, _note = (partial(Kind, severity) for severity in SEVERITIES)

#: Grouped by subject. The codes are stable.
GROUPS: Mapping[str, Mapping[str, Kind]] = {
    "Values": {
        "reward_not_finite": _error("one such reward makes the loss, and then every weight, NaN"),
        "reward_out_of_range": _warning("value targets leave the range that the task allows"),
        "reward_constant": _note("returns depend on the length of episodes alone"),
        "reward_zero": _note("there is nothing to learn from rewards: this is for goals, imitation or relabelling"),
        "reward_outlier": _warning("a few steps dominate the loss, and reward scaling hides all others"),
        "observation_not_finite": _error("one such value makes the network's output, and then every weight, NaN"),
        "observation_constant": _warning("the policy sees nothing of the state"),
        "observation_constant_column": _note("normalisation divides by a deviation of 0 here"),
        "observation_outlier": _warning("normalisation squeezes all other values together"),
        "observation_out_of_space": _warning("scaling by the stated bounds leaves its range"),
        "action_not_finite": _error("one such value makes the loss, and then every weight, NaN"),
        "action_constant": _warning("nothing can be learnt about any other action"),
        "action_constant_column": _note("nothing can be learnt about other values of this part of the action"),
        "action_outlier": _warning("scaling by the largest action squeezes all others together"),
        "action_out_of_space": _warning("a policy bounded to the space cannot repeat these actions"),
        "action_no_choice": _error("an embedding or a one-hot code of the action fails or reads outside its table"),
        "other_not_finite": _note("only learners that read this leaf are affected"),
        "space_malformed": _error("bounds of values cannot be checked, nor networks sized by the space"),
    },
    "Flags, episodes and returns": {
        "flags_disagree": _error("learners that read done and those that read terminated see other episodes"),
        "root_flag_set": _error("slices and recurrent states are cut at the start of episodes"),
        "end_inside": _error("slices end early, and what follows belongs to no episode"),
        "no_end": _error("slices, returns and recurrent states run on into the next episode"),
        "outcome_disagrees": _error("filters by outcome and value targets treat the end differently"),
        "ends_twice": _note("the end counts as terminated: its value is not bootstrapped"),
        "time_limit_terminated": _warning("the value of states near the time limit is learnt as 0"),
        "short_episodes": _note("flags that are off by a step leave episodes of one step behind"),
        "begins_midway": _note("returns of these episodes cover only a part of them"),
        "ends_cut": _note("returns of these episodes cover only a part of them"),
        "return_mismatch": _error("filters by return and reward scaling use numbers that the rewards do not have"),
    },
    "Transitions": {
        "successor_mismatch": _error("value targets use a state that did not follow"),
        "successor_own": _error("value targets use the state itself: no action seems to have an effect"),
        "successor_late": _error("value targets use a state that lies a step too late"),
        "successor_zero": _warning("value targets of truncated steps use the value of a state of zeros"),
        "successor_leaks": _warning("value targets at these ends use the start of another episode"),
        "terminal_goes_on": _warning("states that go on are learnt to have no future"),
        "ends_go_on": _note("consecutive episodes are pieces of one trajectory, not independent samples"),
        "observation_repeated": _warning("actions seem to have no effect in these steps"),
    },
    "Duplicates": {
        "episode_duplicate": _warning("these episodes count twice, and leak if they are split for validation"),
        "transition_duplicate": _warning("these transitions count several times"),
    },
    "Frames": {
        "frame_constant": _warning("the policy sees nothing of the state in these frames"),
        "frame_black_all": _error("the policy sees nothing of the state"),
        "frame_dark": _warning("dividing by 255 leaves the network an input of nearly 0"),
        "frame_frozen": _warning("the policy sees no motion in these episodes"),
    },
    "Two datasets": {
        "leaves_differ": _note("what is trained on the one cannot be evaluated on the other"),
        "episode_shared": _warning("validation measures what was memorised"),
        "transition_shared": _warning("validation measures what was memorised"),
    },
}
#: By code.
KINDS: Mapping[str, Kind] = {code: kind for group in GROUPS.values() for code, kind in group.items()}


@dataclass(frozen=True)
class Finding:
    """One fault of a dataset.

    ``code`` is stable, for programs. ``leaf`` is the TED key, empty if the finding is not about a single leaf. ``count`` steps
    (or episodes, columns, frames: ``unit``) out of ``total`` have it; ``first`` are the numbers of the first few. ``what`` says
    it in a sentence, ``effect`` what it does to a learner. ``other`` is the id of the second dataset, if there is one.
    """

    dataset: str
    code: str
    severity: Severity
    leaf: str
    unit: str
    count: int
    total: int
    first: tuple[int, ...]
    what: str
    effect: str
    other: str | None = None

    @property
    def where(self) -> str:
        """``3 of 200 steps: 17, 40, 41``"""
        numbers = ", ".join(map(count, self.first))
        more = ", ..." if len(self.first) < self.count and self.first else ""
        return f"{count(self.count)} of {plural(self.total, self.unit)}" + (f": {numbers}{more}" if numbers else "")

    def __str__(self) -> str:
        about = f" {self.leaf}:" if self.leaf else ""
        return f"{self.severity} {self.code}:{about} {self.what} ({self.where}): {self.effect}"


@dataclass
class Hits:
    """How many rows have a fault, and the numbers of the first few."""

    count: int = 0
    first: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: Any) -> Hits:
        """Return the rows of these numbers, see `add`."""
        found = cls()
        found.add(numbers)
        return found

    def add(self, numbers: Any) -> None:
        """Add the numbers of rows, an int64 array ``[n]`` in ascending order."""
        if len(numbers):
            self.count += len(numbers)
            if len(self.first) < FIRST:
                self.first += tuple(int(one) for one in numbers[: FIRST - len(self.first)])


def find(
    code: str,
    what: str,
    hits: Hits,
    total: int,
    *,
    leaf: str = "",
    unit: str = "step",
    severity: Severity | None = None,
) -> Finding:
    """Return the finding of a kind, of a dataset that is not named yet (`Audited`)."""
    kind, where = KINDS[code], (leaf, unit, hits.count, total, hits.first)
    return Finding("", code, severity or kind.severity, *where, what, kind.effect)


@dataclass(frozen=True)
class Audited:
    """One dataset of an audit: what was read, in how many ``seconds``, and what was not.

    ``sampled`` are the leaves of which a part of the rows was read, with the number of steps; ``skipped`` the checks that
    were not made, with the reason.
    """

    id: str
    steps: int
    episodes: int
    seconds: float
    checked: tuple[str, ...] = ()
    sampled: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class AuditReport:
    """The result of `rbdata.audit`: the datasets, and the findings from the worst to the least."""

    datasets: tuple[Audited, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def codes(self) -> list[str]:
        """The codes of errors and warnings, in order."""
        return [finding.code for finding in self.findings if finding.severity != "note"]

    def to_json(self) -> dict[str, Any]:
        """For programs; the keys and codes are stable."""
        findings = [asdict(finding) for finding in self.findings]
        return {"ok": self.ok, "datasets": [asdict(one) for one in self.datasets], "findings": findings}

    def __repr__(self) -> str:
        ids = ", ".join(one.id for one in self.datasets)
        return f"AuditReport({ids}: {summary(self.findings)})"


def summary(findings: Sequence[Finding]) -> str:
    """``2 errors, 1 note``, or ``no findings``"""
    counts = {name: sum(finding.severity == name for finding in findings) for name in SEVERITIES}
    return ", ".join(plural(number, name) for name, number in counts.items() if number) or "no findings"


def ordered(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """From the worst to the least; otherwise in the order in which the checks gave them."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))
