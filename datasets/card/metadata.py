"""What other sites read of a dataset: a README for a repository of the Hugging Face Hub, and Croissant metadata for catalogues.

The README has a head in YAML and the facts in Markdown. Croissant (MLCommons,
https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html) belongs beside ``rbdata.json``, in the folder of the dataset
or where it is published: paths are relative to it. ``rbdata.json`` has the checksums of all other files; Croissant is given
its sha256.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ...errors import printable
from ...storage import amounts
from ...storage.codecs import codec_of
from ...storage.leaf import Leaf
from ...storage.manifest import FILENAME, Manifest
from .facts import Facts, how_to_load, state_facts, state_origin, state_tensors
from .overview import Overview
from .target import MARK

README_SUFFIXES = (".md",)
CROISSANT_SUFFIXES = (".json", ".jsonld")

# -- the README --------------------------------------------------------------------------------------------------------

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
    """The Hub's name of a licence; ``unknown`` where none is stated, ``other`` for a licence without one."""
    if not licence or re.match(r"(not stated|unknown)", licence, re.IGNORECASE):
        return "unknown"
    return next((name for begin, name in _LICENCES.items() if re.match(begin, licence, re.IGNORECASE)), "other")


def _head(manifest: Manifest, found: Overview) -> str:
    # Every JSON string is a YAML string.
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


# -- Croissant ---------------------------------------------------------------------------------------------------------

_CROISSANT_TYPES = {
    "bool": "sc:Boolean",
    **{f"{sign}int{bits}": f"cr:{'U' if sign else ''}Int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"cr:Float{bits}" for bits in (16, 32, 64)},
}

#: Names of the Croissant vocabulary that mean the same in the file.
_TERMS = (
    "arrayShape column containedIn equivalentProperty extract field fileProperty fileObject fileSet format includes "
    "excludes isArray isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace "
    "samplingRate separator source subField transform"
)

_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "conformsTo": "dct:conformsTo",
    "citeAs": "cr:citeAs",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{name: f"cr:{name}" for name in _TERMS.split()},
    "examples": {"@id": "cr:examples", "@type": "@json"},
}


def make_croissant(folder: Path, manifest: Manifest, found: Overview) -> str:
    """The metadata as JSON: the dataset, its files, and the fields of one step."""
    provenance = manifest.provenance
    record: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": manifest.id,
        "description": _describe(manifest, found),
        "url": f"rbdata:{manifest.id}",
        "license": manifest.licence or "not stated",
        "citeAs": manifest.citation or "not stated",
        "version": "1.0.0",
        "datePublished": str(provenance.get("created") or "1970-01-01")[:10],
        "keywords": ["reinforcement learning", "offline reinforcement learning", *filter(None, [found.environment])],
        "distribution": [_manifest_file(folder), _tensor_files(manifest)],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "steps",
                "name": "steps",
                "description": "One record a step (transition), by the keys of TED.",
                "field": [_croissant_field(leaf) for leaf in manifest.schema],
            }
        ],
    }
    return json.dumps(record, indent=1) + "\n"


def _describe(manifest: Manifest, found: Overview) -> str:
    """A sentence about the dataset, and the notes of its manifest."""
    where = f" of {found.environment}" if found.environment else ""
    what = f"{amounts.plural(manifest.steps, 'step')} in {amounts.plural(manifest.episodes, 'episode')}"
    return " ".join([f"Offline reinforcement learning: {what}{where}, as tensors.", *manifest.notes])


def _manifest_file(folder: Path) -> dict[str, Any]:
    content = (folder / FILENAME).read_bytes()
    return {
        "@type": "cr:FileObject",
        "@id": FILENAME,
        "name": FILENAME,
        "description": "The manifest: schema, episodes, origin, and the checksums of all other files.",
        "contentUrl": FILENAME,
        "contentSize": f"{len(content)} B",
        "encodingFormat": "application/json",
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _tensor_files(manifest: Manifest) -> dict[str, Any]:
    """One set for all: Croissant requires a join between the sources of fields, and our rows are joined by their number."""
    return {
        "@type": "cr:FileSet",
        "@id": "tensors",
        "name": "tensors",
        "description": "The rows of the tensors, as docs/format.md of rbdata describes them.",
        "encodingFormat": "application/octet-stream",
        "includes": [path for leaf in manifest.schema for path in codec_of(leaf).files],
    }


def _croissant_field(leaf: Leaf) -> dict[str, Any]:
    kind = "state, also the next one" if leaf.kind == "state" else "step"
    shape = {"isArray": True, "arrayShape": ",".join(map(str, leaf.shape))} if leaf.shape else {}
    return {
        "@type": "cr:Field",
        "@id": f"steps/{leaf.name}",
        "name": f"steps/{leaf.name}",
        "description": f"{leaf.dtype} {list(leaf.shape)}, one row per {kind}, in {codec_of(leaf).files[0]} ({leaf.codec}).",
        "dataType": _CROISSANT_TYPES[leaf.dtype],
        **shape,
        "source": {"fileSet": {"@id": "tensors"}, "extract": {"fileProperty": "content"}},
    }
