"""The facts of a dataset as named lines, for cards that leave this machine: nothing about its folders."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .. import amounts
from ..storage.manifest import Manifest
from .overview import Overview

Facts = list[tuple[str, str]]


def state_facts(manifest: Manifest, found: Overview) -> Facts:
    """Steps, episodes and how they ended, lengths, returns, scores, size."""
    ended = [(name, number) for name, number in found.outcomes.items() if number]
    ends = ", ".join(f"{amounts.exact_percent(number / found.episodes)} {name}" for name, number in ended)
    facts = [("environment", found.environment)] if found.environment else []
    facts += [("steps", f"{manifest.steps:,}"), ("episodes", f"{manifest.episodes:,}"), ("ended", ends)]
    for name, numbers in (("length", manifest.lengths), ("return", manifest.returns)):
        facts += [(name, _span(numbers))] if numbers and math.isfinite(sum(numbers.values())) else []
    if found.returns.not_finite:
        facts.append(("return", f"{found.returns.not_finite:,} of {found.returns.number:,} episodes not finite"))
    elif found.reference and manifest.returns:
        facts.append(("score", _span({name: found.score(manifest.returns[name]) for name in ("mean", "min", "max")})))
    return [(name, text) for name, text in [*facts, ("size", amounts.size(manifest.bytes))] if text]


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
        (
            "converted",
            provenance.get("created") and f"{provenance['created']} by rbdata {provenance.get('rbdata_version')}",
        ),
        ("licence", manifest.licence or "not stated"),
    ]
    return [(name, str(value)) for name, value in facts if value]


def state_tensors(manifest: Manifest) -> list[tuple[str, str, str]]:
    """Key, dtype and shape of every tensor of a batch, by their TED keys."""
    keys = [(leaf.name, leaf) for leaf in manifest.schema]
    keys += [("next/" + leaf.name, leaf) for leaf in manifest.schema.states]
    ordered = sorted(keys, key=lambda entry: (entry[0].startswith("next/"), entry[0]))
    return [(name, leaf.dtype, str(list(leaf.shape))) for name, leaf in ordered]


def how_to_load(manifest: Manifest) -> tuple[str, str]:
    """A command that gets the dataset (empty where no source has it), and Python that loads it."""
    from ..datasets import catalogue

    known = manifest.id.partition("/")[0] in catalogue.source_names()
    command = f"rbdata download {manifest.id}" if known else ""
    python = f"import rbdata\n\nbuffer = rbdata.load({manifest.id!r}, batch_size=256)\nbatch = buffer.sample()"
    return command, python


def _span(numbers: Mapping[str, Any]) -> str:
    mean, low, high = (amounts.real(numbers[name]) for name in ("mean", "min", "max"))
    return f"mean {mean}, from {low} to {high}"
