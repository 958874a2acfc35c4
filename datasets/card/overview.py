"""A dataset at a glance: how its episodes ended, the distributions of returns, lengths, rewards, actions and observations.

Figures, cards and the command line show these numbers. The work is bounded for datasets of any size: beyond ``MAX_STEPS``,
evenly spaced ranges of rows are read, and `Overview` states how many. A histogram counts single values if
there are few distinct ones, otherwise bins of equal width. The facts (`state_facts`, ...) are named lines for cards that leave
this machine: they name none of its folders.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import SchemaError
from ...storage import amounts
from ...storage.bounds import LeafBounds, leaf_bounds
from ...storage.codecs import codec_of
from ...storage.codecs.codec import Rows
from ...storage.episodes import OUTCOMES, EpisodeTable
from ...storage.integrity import open_array
from ...storage.leaf import Leaf
from ...storage.manifest import Manifest
from ...storage.reference_scores import ReferenceScores, reference_scores
from ...storage.schema import LARGE_ROW

# -- histograms ----------------------------------------------------------------------------------------------------------

#: Maximum number of bins: the characters that fit on a terminal of 40 columns beside an axis.
BINS = 28
#: Up to this many distinct values are counted one by one.
MAX_VALUES = 12
#: How many values are examined first to find out whether there are few distinct ones.
_PROBED = 512
#: Larger numbers are counted as this one, so that differences stay finite.
_LARGEST = 1e300


@dataclass(frozen=True)
class Histogram:
    """Counts of finite values, and their statistics (None if there are none).

    There is a count per entry of ``values``, or per bin between ``edges`` (one more edge than bins).
    """

    number: int
    not_finite: int
    counts: tuple[int, ...] = field(default=(), repr=False)
    values: tuple[float, ...] = field(default=(), repr=False)
    edges: tuple[float, ...] = field(default=(), repr=False)
    mean: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def shares(self) -> list[float]:
        """The counts as shares of all finite values."""
        total = sum(self.counts) or 1
        return [count / total for count in self.counts]

    def to_json(self) -> dict[str, Any]:
        """For programs: the counts with their ``values`` or their bins' ``edges``, and the statistics."""
        where = {"edges": list(self.edges)} if self.edges else {"values": list(self.values)}
        return {
            "count": self.number,
            "not_finite": self.not_finite,
            "mean": self.mean,
            "std": self.std,
            "min": self.low,
            "max": self.high,
            **where,
            "counts": list(self.counts),
        }


def count_values(values: np.ndarray, choices: Sequence[float] = ()) -> Histogram:
    """Return the histogram of an array of any shape. ``choices`` are values that are listed even if they do not occur."""
    flat = np.asarray(values).reshape(-1)
    exact = flat.dtype.kind in "iub"
    flat = flat.astype(np.float64)
    finite = flat if exact else flat[np.isfinite(flat)]
    missing = len(flat) - len(finite)
    if not len(finite):
        return Histogram(len(flat), missing)
    finite = finite.clip(-_LARGEST, _LARGEST)
    with np.errstate(over="ignore"):
        statistics = tuple(float(getattr(finite, name)()) for name in ("mean", "std", "min", "max"))
    listed = _listed(finite, choices)
    if listed:
        return Histogram(len(flat), missing, tuple(listed.values()), tuple(listed), (), *statistics)
    bins_wanted = min(BINS, max(5, int(2 * math.sqrt(len(finite)))))
    _, _, low, high = statistics
    whole = exact or bool((finite == np.rint(finite)).all())
    if whole and high - low < 1 << 52:
        # Bins whose width is an integer hold the same number of integers each; with other widths the counts alternate.
        width = math.ceil((high - low + 1) / bins_wanted)
        edges = np.arange(math.ceil((high - low + 1) / width) + 1) * width + (low - 0.5)
    else:
        edges = np.linspace(low, high, bins_wanted + 1)
    counts, _ = np.histogram(finite, edges)
    return Histogram(len(flat), missing, tuple(counts.tolist()), (), tuple(edges.tolist()), *statistics)


def _listed(finite: np.ndarray, choices: Sequence[float]) -> dict[float, int]:
    """Values and their counts, in order, if there are few distinct values that occur several times; otherwise empty."""
    if not choices and len(np.unique(finite[:_PROBED])) > MAX_VALUES:
        return {}
    found, counts = np.unique(finite, return_counts=True)
    if len(found) > 1 and len(finite) < 3 * len(found) and not choices:
        return {}
    every = dict.fromkeys(map(float, choices), 0) | dict(zip(found.tolist(), counts.tolist()))
    return dict(sorted(every.items())) if len(every) <= max(MAX_VALUES, len(choices)) else {}


# -- the overview --------------------------------------------------------------------------------------------------------

#: Maximum number of rows that are read, and the number of ranges they are read in.
MAX_STEPS, SAMPLE_RANGES = 1 << 16, 256
#: Elements of a leaf that are counted; further ones are left out.
_MAX_ELEMENTS = 32
#: Up to this many choices of a discrete action are listed even if they do not occur.
_MAX_CHOICES = 18


@dataclass(frozen=True)
class Distribution:
    """The values of a leaf whose rows have ``size`` elements: a histogram of each of the first ``_MAX_ELEMENTS``."""

    key: str
    size: int
    elements: tuple[Histogram, ...]

    @property
    def names(self) -> list[str]:
        """A name for each histogram: the key, with the number of the element if the row has several."""
        return [self.key] if self.size == 1 else [f"{self.key}[{number}]" for number in range(len(self.elements))]

    def to_json(self) -> dict[str, Any]:
        return {"size": self.size, "elements": [one.to_json() for one in self.elements]}


@dataclass(frozen=True)
class Overview:
    """The numbers described in the module. ``reference`` are the returns that score 0 and 100, if they are known.

    ``scores`` are the mean, min and max of the normalised scores of whole episodes, empty if there are none; ``not_scored``
    counts the episodes that are not whole.
    """

    steps: int
    episodes: int
    outcomes: dict[str, int]
    midway: int
    environment: str | None
    reference: ReferenceScores | None
    sampled_steps: int
    returns: Histogram
    lengths: Histogram
    rewards: Distribution
    actions: list[Distribution] = field(default_factory=list)
    observations: list[Distribution] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    not_scored: int = 0

    def to_json(self) -> dict[str, Any]:
        """For programs; the keys are stable."""
        return {
            "environment": self.environment,
            "outcomes": self.outcomes,
            "midway_episodes": self.midway,
            "reference_scores": [self.reference.low, self.reference.high] if self.reference else None,
            **({"scores": {**self.scores, "not_scored": self.not_scored}} if self.reference else {}),
            "sampled": {"steps": self.sampled_steps, "episodes": self.episodes},
            "distributions": {
                "return": self.returns.to_json(),
                "length": self.lengths.to_json(),
                "reward": self.rewards.to_json(),
                **{one.key: one.to_json() for one in (*self.actions, *self.observations)},
            },
        }


def overview(
    folder: Path,
    manifest: Manifest,
    table: EpisodeTable,
    rows: Mapping[str, Rows] | None = None,
    *,
    observations: bool = True,
) -> Overview:
    """Return the overview of a dataset, read through its opened ``rows`` if they are given.

    Without ``observations`` these are not read: of a dataset at a URL most would have to be fetched.

    Raises DamagedDatasetError if a leaf that is read is missing or too short.
    """
    bounds: Mapping[str, LeafBounds] = {}
    with suppress(SchemaError):  # spaces are only needed for choices that do not occur
        bounds = leaf_bounds(manifest.schema, manifest.spaces)

    def distribution(leaf: Leaf) -> Distribution:
        size = math.prod(leaf.shape)
        read = _read(folder, manifest, leaf, rows)
        counts = bounds[leaf.name].counts if leaf.name in bounds else None
        elements = []
        for number in range(min(size, _MAX_ELEMENTS)):
            choices = counts[number if len(counts) > 1 else 0] if counts else 0
            elements.append(count_values(read[:, number], range(choices) if choices <= _MAX_CHOICES else ()))
        return Distribution(leaf.name, size, tuple(elements))

    def small(leaves: Iterable[Leaf], key: str) -> list[Distribution]:
        return [distribution(leaf) for leaf in leaves if leaf.key[0] == key and leaf.row_bytes <= LARGE_ROW]

    reference = reference_scores(manifest)
    if reference is not None and reference.caveat:
        reference = None
    scores, not_scored = ({}, 0) if reference is None else _scores(reference, manifest, table)
    return Overview(
        manifest.steps,
        len(table),
        {name: int(np.count_nonzero(table.outcomes == code)) for code, name in OUTCOMES.items()},
        int(np.count_nonzero(table.midway)),
        manifest.environment,
        reference,
        sum(stop - start for start, stop in sample_ranges(manifest.steps, MAX_STEPS)),
        count_values(table.returns),
        count_values(table.lengths),
        distribution(manifest.schema["next/reward"]),
        small(manifest.schema.steps, "action"),
        small(manifest.schema, "observation") if observations else [],
        scores,
        not_scored,
    )


def _scores(reference: ReferenceScores, manifest: Manifest, table: EpisodeTable) -> tuple[dict[str, float], int]:
    """Mean, min and max of the scores of whole episodes, and the number of episodes that are not whole."""
    whole = table.whole
    count = int(np.count_nonzero(whole))
    statistics = manifest.returns if count == len(table) else {}
    if 0 < count < len(table):
        returns = table.returns[whole]
        statistics = {"mean": returns.mean(), "min": returns.min(), "max": returns.max()}
    names = ("mean", "min", "max") if statistics else ()
    return {name: float(reference.normalize(statistics[name])) for name in names}, len(table) - count


def sample_ranges(count: int, limit: int) -> list[tuple[int, int]]:
    """Evenly spaced ranges ``(start, stop)`` of ``count`` rows that hold at most ``limit`` in total; one range if all fit."""
    if count <= limit:
        return [(0, count)] if count else []
    size = limit // SAMPLE_RANGES
    return [(start, start + size) for start in np.linspace(0, count - size, SAMPLE_RANGES).astype(np.int64).tolist()]


def _read(folder: Path, manifest: Manifest, leaf: Leaf, opened: Mapping[str, Rows] | None) -> np.ndarray:
    """Rows of a leaf, all or a sample, flattened to ``[n, elements]``. Rows that can be mapped are read without torch."""
    count = manifest.rows(leaf)
    ranges = sample_ranges(count, MAX_STEPS)
    if opened is None and (leaf.constant is not None or codec_of(leaf).fixed_rows):
        array = open_array(folder, leaf, count)
        parts = [array[start:stop] for start, stop in ranges]
    else:
        rows = codec_of(leaf).open_rows(folder, count) if opened is None else opened[leaf.name]
        parts = [rows.block(start, stop).numpy() for start, stop in ranges]
    return np.concatenate(parts or [np.empty(0)]).reshape(-1, math.prod(leaf.shape))


# -- facts ---------------------------------------------------------------------------------------------------------------

Facts = list[tuple[str, str]]


def state_facts(manifest: Manifest, found: Overview) -> Facts:
    """Return steps, episodes and how they ended, lengths, returns, scores, size."""
    ended = [(name, number) for name, number in found.outcomes.items() if number]
    ends = ", ".join(f"{amounts.exact_percent(number / found.episodes)} {name}" for name, number in ended)
    facts = [("environment", found.environment)] if found.environment else []
    facts += [("steps", f"{manifest.steps:,}"), ("episodes", f"{manifest.episodes:,}"), ("ended", ends)]
    facts += [*describe_episodes(manifest, found), ("size", amounts.size(manifest.bytes))]
    return [(name, text) for name, text in facts if text]


def describe_episodes(manifest: Manifest, found: Overview) -> Facts:
    """Mean and range of lengths, returns and, where references are known, scores."""
    facts = [("length", _span(manifest.lengths))] if manifest.lengths else []
    finite = found.returns
    if finite.not_finite:
        of = f"{finite.not_finite:,} of {amounts.plural(finite.number, 'episode')} not finite"
        held = {"mean": finite.mean, "min": finite.low, "max": finite.high}
        return [*facts, ("return", f"{_span(held)}; {of}" if finite.counts else of)]
    if manifest.returns:
        facts.append(("return", _span(manifest.returns)))
        if found.reference:
            between = f"{amounts.real(found.reference.low)} to {amounts.real(found.reference.high)}"
            scores = f"{_span(found.scores)} (a return of {between} is 0 to 100)" if found.scores else "of no episode"
            if found.not_scored:
                scores += f"; without {amounts.plural(found.not_scored, 'episode')} of which the data hold only a part"
            facts.append(("score", scores))
    return facts


def state_origin(manifest: Manifest, licence: str = "", *, at_home: bool = False) -> Facts:
    """Return where the data come from, and their licence: ``licence``, or what the source states.

    ``at_home``, on the machine where the dataset is, with folders, how it was made, and the citation.
    """
    source, provenance = manifest.source, manifest.provenance
    options = source.get("options")
    given = (
        {} if not isinstance(options, Mapping) else {name: one for name, one in options.items() if one not in _UNSET}
    )
    location, created = str(provenance.get("location") or ""), provenance.get("created")
    is_public = "://" in location and "@" not in location
    version = provenance.get("rbdata_version")
    facts = {
        "source": source.get("name"),
        "dataset": source.get("dataset"),
        "options": ", ".join(f"{name} {value}" for name, value in given.items()),
        "location": location if at_home or is_public else None,
        "reason": provenance.get("why") if at_home else None,
        "created": f"{created} by rbdata {version}" if created and version else created,
        **(_work_done(source, provenance) if at_home else {}),
        "licence": licence or manifest.licence or "not stated",
        "citation": manifest.citation if at_home else None,
    }
    return [(name, str(value)) for name, value in facts.items() if value]


_UNSET: tuple[Any, ...] = (None, "", [], {})


def _work_done(source: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, str | None]:
    """What was appended, the raw files that were read, and those of them that came without checksums."""
    objects, added, unverified = source.get("objects", []), source.get("appended"), provenance.get("unverified")
    raw = sum(entry.get("size") or 0 for entry in objects)
    appended = bare = None
    if added:
        steps, episodes = (amounts.plural(sum(one[f"{name}s"] for one in added), name) for name in ("step", "episode"))
        last = f"last {added[-1]['created']}, from {added[-1]['from']}"
        appended = f"{amounts.plural(len(added), 'time')}, {steps} in {episodes}; {last}"
    if unverified:
        bare = f"{amounts.count(unverified['files'])} of the raw files came without checksums ({unverified['first']})"
    return {
        "appended": appended,
        "raw files": f"{amounts.count(len(objects))}, {amounts.size(raw)}" if raw else None,
        "unverified transfer": bare,
    }


def state_lineage(record: Mapping[str, Any]) -> Facts:
    """Return how a preprocessed dataset and, before it, its input were made; see `preprocess.lineage`."""
    source = record.get("input", {})
    made_from = f"{source.get('id')}, {source.get('steps', 0):,} steps, sha256 {_short(source.get('content'))}"
    lines = [("made from", made_from)]
    for fn in record.get("functions", []):
        args = ", ".join(f"{name}={json.dumps(value)}" for name, value in fn.get("args", {}).items())
        files = fn["files"] if isinstance(fn.get("files"), Mapping) else {}
        own = next(iter(files.values()), None) or fn.get("source_sha256")
        lines.append(("function", f"{fn.get('function')}({args})" + (f", sha256 {_short(own)}" if own else "")))
    how = {"per": record.get("per"), "batch": record.get("batch"), "seed": record.get("seed")}
    how.update(record.get("windows") or {})
    lines.append(("how", ", ".join(f"{name} {value}" for name, value in how.items())))
    for what, names in (record.get("leaves") or {}).items():
        if names:
            lines.append((what, ", ".join(names)))
    for name, found in (record.get("statistics") or {}).items():
        lines.append(("statistics", f"{name}: {', '.join(found) if isinstance(found, Mapping) else 'kept'}"))
    lines.append(("versions", ", ".join(f"{name} {value}" for name, value in (record.get("versions") or {}).items())))
    before = source.get("lineage")
    for name, text in state_lineage(before)[:-1] if before else ():
        lines.append((f"before: {name}" if name == "made from" else name, text))
    return lines


def state_tensors(manifest: Manifest) -> list[tuple[str, str, str]]:
    """Key, dtype and shape of every tensor of a batch, by their TED keys."""
    keys = [(name, leaf) for leaf in manifest.schema for name in leaf.names]
    ordered = sorted(keys, key=lambda entry: (entry[0].startswith("next/"), entry[0]))
    return [(name, leaf.dtype, str(list(leaf.shape))) for name, leaf in ordered]


def how_to_load(manifest: Manifest, url: str = "") -> tuple[str, str]:
    """A command that gives anyone the dataset ('' if no source does), and Python that loads it; from ``url`` if given."""
    from ... import settings
    from .. import catalogue

    head, _, name = manifest.id.partition("/")
    words = ["download", url] if url else None
    if not url and not manifest.lineage and head in catalogue.source_names():
        source = catalogue.load_source(head)
        words = source.words_to_get(manifest) if source.knows(name) else None
    command = settings.command(*words) if words else ""
    python = f"import rbdata\n\nbuffer = rbdata.load({(url or manifest.id)!r}, batch_size=256)\nbatch = buffer.sample()"
    return command, python


def no_source(manifest: Manifest) -> str:
    """Return what a card says of a dataset that no command of `how_to_load` gives to others."""
    from ... import settings

    push = settings.command("mirror", "push", manifest.id)
    return f"No source has this dataset: it is where it was made, and where `{push} PLACE` copies it."


def _span(numbers: Mapping[str, Any]) -> str:
    mean, low, high = (amounts.real(numbers[name]) for name in ("mean", "min", "max"))
    return f"always {mean}" if low == high else f"mean {mean}, from {low} to {high}"


def _short(digest: str | None) -> str:
    return (digest or "?")[:12]
