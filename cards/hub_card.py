"""A README for a dataset repository of the Hugging Face Hub: a head in YAML, and the facts in Markdown."""

from __future__ import annotations

import json
import re

from ..errors import printable
from ..storage.manifest import Manifest
from .card_file import MARK
from .facts import Facts, how_to_load, state_facts, state_origin, state_tensors
from .overview import Overview

SUFFIXES = (".md",)

#: Licences as the Hub names them (https://huggingface.co/docs/hub/repositories-licenses), by how they begin.
_LICENCES = {
    r"cc[- ]by[- ]4\.0\b": "cc-by-4.0",
    r"cc[- ]by[- ]sa[- ]4\.0\b": "cc-by-sa-4.0",
    r"cc0\b|public domain": "cc0-1.0",
    r"mit\b": "mit",
    r"apache[- ]2\.0\b": "apache-2.0",
    r"bsd[- ]3\b": "bsd-3-clause",
}
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))
_LARGER = ((10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"))


def make_readme(manifest: Manifest, found: Overview) -> str:
    """The text of the file."""
    command, python = how_to_load(manifest)
    tensors = [("key", "dtype", "shape"), ("---", "---", "---"), *state_tensors(manifest)]
    parts = [
        f"---\n{_head(manifest, found)}---\n",
        f"# {_inline(manifest.id)}\n",
        _table(state_facts(manifest, found)),
        (f"```sh\n{command}\n```\n\n" if command else "") + f"```python\n{python}\n```\n",
        "## Tensors\n\n" + "\n".join("| " + " | ".join(map(_inline, row)) + " |" for row in tensors) + "\n",
        "## Origin\n\n" + _table(state_origin(manifest)),
    ]
    if manifest.notes:
        parts.append("## Notes\n\n" + "\n".join(f"- {_inline(note)}" for note in manifest.notes) + "\n")
    if manifest.citation:
        parts.append("## Citation\n\n" + "".join(f"    {printable(line)}\n" for line in manifest.citation.splitlines()))
    return "\n".join(parts) + f"\n<!-- {MARK} -->\n"


def hub_licence(licence: str | None) -> str:
    """The Hub's name of a licence; ``unknown`` where none is stated, ``other`` for those it has no name for."""
    if not licence or re.match(r"(not stated|unknown)", licence, re.IGNORECASE):
        return "unknown"
    return next((name for begin, name in _LICENCES.items() if re.match(begin, licence, re.IGNORECASE)), "other")


def _head(manifest: Manifest, found: Overview) -> str:
    # Strings in JSON are strings in YAML too, whatever is in them.
    licence = hub_licence(manifest.licence)
    size = next((name for most, name in (*_SIZES, *_LARGER) if manifest.steps < most), "10B<n<100B")
    tags = ["offline-rl", "rbdata", str(manifest.source.get("name") or "")]
    tags += [found.environment] if found.environment else []
    entries = {
        "pretty_name": manifest.id,
        "license": licence,
        **({"license_name": "stated-by-the-source"} if licence == "other" else {}),
        "task_categories": ["reinforcement-learning"],
        "tags": list(dict.fromkeys(filter(None, tags))),
        "size_categories": [size],
    }
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in entries.items())


def _table(facts: Facts) -> str:
    rows = "\n".join(f"| {_inline(name)} | {_inline(text)} |" for name, text in facts)
    return f"| | |\n| --- | --- |\n{rows}\n"


def _inline(text: str) -> str:
    """Text of strangers in one line of Markdown: nothing in it is markup."""
    flat = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return re.sub(r"([\\`*_{}\[\]<>#|!~&])", r"\\\1", flat)
