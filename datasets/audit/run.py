"""Runs an audit: opens datasets, reads each once in blocks, and hands the blocks to the checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol

from ...errors import RbdataError, SchemaError, UsageError
from ...storage import plugins
from ...storage.bounds import LeafBounds, leaf_bounds
from ...storage.dataset import Dataset
from ...storage.episodes import TERMINATED
from ...storage.manifest import Manifest
from ...storage.reference_scores import original_source
from .blocks import BlockReader, Leaves, StepBlock, Usual
from .duplicates import Duplicates
from .ends import Flags, check_table
from .findings import Audited, AuditReport, Finding, Hits, find, ordered
from .frames import check_frames, sample_frames
from .pairs import Summary, compare
from .transitions import Transitions
from .values import ColumnValues, RewardValues, constants

#: Called with what is being done, the steps done, and all steps.
Progress = Callable[[str, int, int], None]
Range = tuple[float, float]


class Check(Protocol):
    """Looks at all blocks in order, then says what it found."""

    def see(self, block: StepBlock) -> None: ...
    def findings(self) -> Iterator[Finding]: ...


def audit_datasets(
    datasets: Sequence[Dataset],
    *,
    reward_range: Range | None = None,
    on_progress: Progress = lambda what, done, total: None,
) -> AuditReport:
    """Audit each dataset, and each pair of them. Raises UsageError for an empty reward range."""
    if reward_range is not None and not reward_range[0] <= reward_range[1]:
        raise UsageError(f"a reward range from {reward_range[0]} to {reward_range[1]} is empty")
    audited, findings = [], []
    summaries: list[Summary] = []
    for dataset in datasets:
        run = _Audit(dataset, reward_range, on_progress)
        findings += [replace(finding, dataset=dataset.id) for finding in run.findings()]
        audited.append(run.audited())
        summary = run.summary()
        for before in summaries:
            pair = compare(before, summary)
            findings += [replace(finding, dataset=summary.id, other=before.id) for finding in pair]
        summaries.append(summary)
    return AuditReport(tuple(audited), ordered(findings))


class _Audit:
    def __init__(self, dataset: Dataset, reward_range: Range | None, on_progress: Progress) -> None:
        self._began = time.monotonic()
        self.dataset, self._on_progress = dataset, on_progress
        self._malformed, self._bounds = _read_bounds(dataset)
        text = frozenset(name for name, one in self._bounds.items() if one.space.get("type") == "Text")
        self.leaves = Leaves.of(dataset, text)
        self._range = stated_range(dataset.manifest, reward_range)
        self._duplicates: Duplicates | None = None
        self._sampled: dict[str, int] = {}
        self._skipped: dict[str, str] = {}

    def findings(self) -> Iterator[Finding]:
        dataset, leaves, table = self.dataset, self.leaves, self.dataset.episodes
        if self._malformed:
            yield find("space_malformed", self._malformed, Hits(1), 1, unit="space")
        yield from check_table(table)
        if not len(dataset):
            return
        reader = BlockReader(dataset, leaves)
        sample = reader.sample()
        usual = {name: Usual.of(name, sample) for name in (*leaves.columns, "next/reward")}
        del sample
        roles = {"observation": leaves.observations, "action": leaves.actions, "other": leaves.others}
        values = {
            role: [ColumnValues(name, role, self._bounds.get(name), usual[name]) for name in names]
            for role, names in roles.items()
        }
        rewards, flags = RewardValues(self._range, usual["next/reward"]), Flags(table)
        measured = any(usual[name].measured for name in leaves.observations)
        names = (*leaves.observations, *leaves.actions)
        same = self._duplicates = Duplicates(names, table, measured=measured, blind=not leaves.observations)
        moves: list[Check] = []
        is_bandit = int(table.lengths.max()) == 1 and bool((table.outcomes == TERMINATED).all())
        if not is_bandit:  # no step of one leads anywhere
            moves.append(Transitions(leaves, table, usual, (dataset.manifest.lineage or {}).get("unchained", ())))
        checks: list[Check] = [rewards, flags, *moves, same, *chain.from_iterable(values.values())]
        for block in reader.blocks():
            for check in checks:
                check.see(block)
            self._on_progress(dataset.id, block.high, len(dataset))
        yield from rewards.findings()
        for role, some in values.items():
            for one in some:
                yield from one.findings()
            if role != "other":
                yield from constants(role, some, alone=role == "action" or not leaves.frames)
        for rest in (flags, *moves, same):
            yield from rest.findings()
        for name in leaves.frames:
            frames = sample_frames(dataset, name, leaves.actions)
            self._sampled[name] = sum(len(one.steps) for one in frames)
            yield from check_frames(name, frames)

    def summary(self) -> Summary:
        return Summary(self.dataset.id, self.dataset.schema, self._duplicates)

    def audited(self) -> Audited:
        dataset, leaves = self.dataset, self.leaves
        if self._range is None:
            self._skipped["reward range"] = "no range is stated: give one with --reward-range"
        if leaves.text:
            self._skipped["text"] = f"values of {', '.join(leaves.text)}"
        checked = ("next/reward", "flags", *leaves.columns)
        seconds = round(time.monotonic() - self._began, 3)
        return Audited(dataset.id, len(dataset), len(dataset.episodes), seconds, checked, self._sampled, self._skipped)


def _read_bounds(dataset: Dataset) -> tuple[str, dict[str, LeafBounds]]:
    """What is wrong with the stated spaces ('': nothing), and the bounds by leaf."""
    try:
        return "", leaf_bounds(dataset.schema, dataset.manifest.spaces)
    except (SchemaError, UsageError) as error:
        return error.message, {}


def stated_range(manifest: Manifest, given: Range | None) -> tuple[float, float, str] | None:
    """The range of rewards: the one given, else the one that the source states, if preprocessing has not changed rewards."""
    if given is not None:
        return *given, "as given"
    source, changed = original_source(manifest)
    if changed:
        return None
    try:
        return plugins.load(str(source.get("name"))).reward_range(source)
    except RbdataError:  # without a source, or from a plug-in that is not installed
        return None
