"""Croissant metadata of a dataset (MLCommons, https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html).

The file belongs beside ``rbdata.json``, in the folder of the dataset or where it is published: paths are relative to it.
``rbdata.json`` has the checksums of all other files; Croissant is given its sha256.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ..storage import amounts
from ..storage.codecs import codec_of
from ..storage.leaf import Leaf
from ..storage.manifest import FILENAME, Manifest
from .overview import Overview

SUFFIXES = (".json", ".jsonld")

_TYPES = {
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
        "description": describe(manifest, found),
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
                "field": [_field(leaf) for leaf in manifest.schema],
            }
        ],
    }
    return json.dumps(record, indent=1) + "\n"


def describe(manifest: Manifest, found: Overview) -> str:
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


def _field(leaf: Leaf) -> dict[str, Any]:
    kind = "state, also the next one" if leaf.kind == "state" else "step"
    shape = {"isArray": True, "arrayShape": ",".join(map(str, leaf.shape))} if leaf.shape else {}
    return {
        "@type": "cr:Field",
        "@id": f"steps/{leaf.name}",
        "name": f"steps/{leaf.name}",
        "description": f"{leaf.dtype} {list(leaf.shape)}, one row per {kind}, in {codec_of(leaf).files[0]} ({leaf.codec}).",
        "dataType": _TYPES[leaf.dtype],
        **shape,
        "source": {"fileSet": {"@id": "tensors"}, "extract": {"fileProperty": "content"}},
    }
