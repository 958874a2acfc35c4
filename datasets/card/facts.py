"""The facts of a dataset as named lines, for cards that leave this machine: nothing about its folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...storage import amounts
from ...storage.manifest import Manifest
from .overview import Overview

Facts = list[tuple[str, str]]


def state_facts(manifest: Manifest, found: Overview) -> Facts:
    """Steps, episodes and how they ended, lengths, returns, scores, size."""
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
            facts.append(("score", scores + _not_scored(found)))
    return facts


def _not_scored(found: Overview) -> str:
    """How many episodes do not count, because only a piece of them is in the data."""
    if not found.not_scored:
        return ""
    return f"; without {amounts.plural(found.not_scored, 'episode')} that the data hold a piece of"


def state_origin(manifest: Manifest) -> Facts:
    """Where the data come from, and under which licence. Places on this machine, and passwords, are left out."""
    source, provenance = manifest.source, manifest.provenance
    options = source.get("options")
    listed = ", ".join(f"{name} {value}" for name, value in options.items()) if isinstance(options, Mapping) else ""
    location = str(provenance.get("location") or "")
    facts = [
        ("source", source.get("name")),
        ("dataset", source.get("dataset")),
        ("options", listed),
        ("location", location if "://" in location and "@" not in location else None),
        ("created", describe_creation(provenance)),
        ("licence", manifest.licence or "not stated"),
    ]
    return [(name, str(value)) for name, value in facts if value]


def state_lineage(record: Mapping[str, Any]) -> Facts:
    """How a preprocessed dataset was made, and before it its input; see `preprocess.lineage`."""
    source = record.get("input", {})
    lines = [
        ("made from", f"{source.get('id')}, {source.get('steps', 0):,} steps, sha256 {_short(source.get('content'))}")
    ]
    for fn in record.get("functions", []):
        args = ", ".join(f"{name}={json.dumps(value)}" for name, value in fn.get("args", {}).items())
        lines.append(("function", f"{fn.get('function')}({args}), sha256 {_short(fn.get('source_sha256'))}"))
    how = {"per": record.get("per"), "batch": record.get("batch"), "seed": record.get("seed")}
    how.update(record.get("windows") or {})
    if record.get("num_frames"):
        how["first steps"] = record["num_frames"]
    lines.append(("how", ", ".join(f"{name} {value}" for name, value in how.items())))
    for what, names in (record.get("leaves") or {}).items():
        if names:
            lines.append((what, ", ".join(names)))
    for name, found in (record.get("statistics") or {}).items():
        lines.append(("statistics", f"{name}: {', '.join(found) if isinstance(found, Mapping) else 'kept'}"))
    lines.append(("versions", ", ".join(f"{name} {value}" for name, value in (record.get("versions") or {}).items())))
    before = source.get("lineage")
    if before:
        lines += [
            (f"before: {name}" if name == "made from" else name, text) for name, text in state_lineage(before)[:-1]
        ]
    return lines


def describe_unverified(provenance: Mapping[str, Any]) -> str | None:
    """How many raw files came without anything to compare their bytes with; None where all could be compared."""
    found = provenance.get("unverified")
    files, first = (found.get("files"), found.get("first")) if isinstance(found, Mapping) else (None, None)
    return f"{files:,} of the raw files came without checksums ({first})" if isinstance(files, int) and files else None


def describe_creation(provenance: Mapping[str, Any]) -> str | None:
    """When, and by which version; None where it is not stated."""
    created, version = provenance.get("created"), provenance.get("rbdata_version")
    return f"{created} by rbdata {version}" if created and version else created


def state_tensors(manifest: Manifest) -> list[tuple[str, str, str]]:
    """Key, dtype and shape of every tensor of a batch, by their TED keys."""
    keys = [(leaf.name, leaf) for leaf in manifest.schema]
    keys += [("next/" + leaf.name, leaf) for leaf in manifest.schema.states]
    ordered = sorted(keys, key=lambda entry: (entry[0].startswith("next/"), entry[0]))
    return [(name, leaf.dtype, str(list(leaf.shape))) for name, leaf in ordered]


def how_to_load(manifest: Manifest) -> tuple[str, str]:
    """A command that gets the dataset (empty where no source has it), and Python that loads it."""
    from .. import catalogue

    known = manifest.id.partition("/")[0] in catalogue.source_names()
    command = f"rbdata download {manifest.id}" if known else ""
    python = f"import rbdata\n\nbuffer = rbdata.load({manifest.id!r}, batch_size=256)\nbatch = buffer.sample()"
    return command, python


def _span(numbers: Mapping[str, Any]) -> str:
    mean, low, high = (amounts.real(numbers[name]) for name in ("mean", "min", "max"))
    return f"always {mean}" if low == high else f"mean {mean}, from {low} to {high}"


def _short(digest: str | None) -> str:
    return (digest or "?")[:12]
