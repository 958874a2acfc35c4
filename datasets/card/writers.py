"""The cards of a dataset: an HTML page, a README for the Hugging Face Hub, and Croissant metadata for catalogues.

The page is self-contained: facts, the figure, a sheet of frames. The README has YAML front matter and the facts in Markdown.
Croissant (MLCommons, https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html) belongs beside ``rbdata.json``, in the
folder of the dataset or where it is published, as its paths are relative. It states the sha256 of ``rbdata.json``, which has
the checksums of all other files.

Manifests are untrusted: every text is escaped, and the page forbids scripts and requests of any kind.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...errors import UsageError, printable
from ...storage import amounts
from ...storage.codecs import codec_of
from ...storage.episodes import EpisodeTable
from ...storage.leaf import Leaf
from ...storage.manifest import FILENAME, Manifest
from .figure import draw_figure, render_figure
from .overview import Facts, Overview, how_to_load, no_source, state_facts, state_lineage, state_origin, state_tensors

#: What every page of rbdata says; a README that does not is a user's own, and stays (`datasets.hub`).
MARK = "written by rbdata"


def _escape(text: str) -> str:
    """Untrusted text for HTML: markup escaped, control characters replaced."""
    shown = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
    return html.escape(shown, quote=True)


HTML_SUFFIXES = (".html", ".htm")

_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #5d6878; --line: #dfe3e9; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1b212a; --ink: #e6eaf0; --soft: #9aa6b6;
  --line: #2e3743; } }
* { box-sizing: border-box; overflow-wrap: anywhere; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 20px 16px 40px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 8px 0 2px; } h2 { font-size: 1.05rem; margin: 0 0 10px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px; margin-top: 14px; }
img { display: block; max-width: 100%; height: auto; background: white; border-radius: 6px; }
pre { border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px; white-space: pre-wrap; }
table { border-collapse: collapse; } td { padding: 2px 16px 2px 0; vertical-align: top; }
td:first-child, footer { color: var(--soft); }
"""


def make_html(folder: Path, manifest: Manifest, found: Overview, table: EpisodeTable) -> str:
    """Return one self-contained page: facts, the figure and a sheet of frames."""
    command, python = how_to_load(manifest)
    shell = f"<pre>{_escape(command)}</pre>" if command else f"<p>{_escape(no_source(manifest).replace('`', ''))}</p>"
    parts = [("At a glance", _rows(state_facts(manifest, found))), ("Load it", f"{shell}<pre>{_escape(python)}</pre>")]
    if found.steps:
        figure = render_figure(draw_figure(manifest.id, found, table), ".svg").replace(b"'DejaVu Sans'", b"system-ui")
        parts.append(("Returns and distributions", _image("svg+xml", figure, "returns, lengths, rewards and actions")))
        sheet = _sheet(folder)
        parts += [("Frames", _image("png", sheet, "frames of a few episodes"))] if sheet else []
    parts += [("Tensors", _rows(state_tensors(manifest))), ("Origin", _rows(state_origin(manifest)))]
    if manifest.lineage:
        parts.append(("Lineage", _rows(state_lineage(manifest.lineage))))
    if manifest.notes:
        parts.append(("Notes", "".join(f"<p>{_escape(note)}</p>" for note in manifest.notes)))
    if manifest.citation:
        parts.append(("Citation", f"<pre>{_escape(manifest.citation)}</pre>"))
    title = _escape(manifest.id)
    sections = "".join(f"<section><h2>{name}</h2>{content}</section>\n" for name, content in parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{MARK}">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body><main>
<h1>{title}</h1>
{sections}<footer><p>{MARK.capitalize()} {__version__}.</p></footer>
</main></body>
</html>
"""


def _rows(rows: Sequence[Sequence[str]]) -> str:
    lines = ("".join(f"<td>{_escape(text)}</td>" for text in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _image(kind: str, data: bytes, words: str) -> str:
    return f'<img alt="{words}" src="data:image/{kind};base64,{base64.b64encode(data).decode()}">'


def _sheet(folder: Path) -> bytes | None:
    """A sheet of frames as PNG; None for a dataset without frames."""
    from ...storage.dataset import Dataset
    from .frames import choose_strips, draw_sheet, encode_image, leaves_with_frames

    dataset = Dataset(folder)
    try:
        leaves_with_frames(dataset)
    except UsageError:
        return None
    return encode_image(draw_sheet(dataset, choose_strips(dataset)), ".png")


README_SUFFIXES = (".md",)
CROISSANT_SUFFIXES = (".json", ".jsonld")

# -- the README --------------------------------------------------------------------------------------------------------

#: The Hub's names of licences (https://huggingface.co/docs/hub/repositories-licenses), by how a licence text begins.
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


def make_readme(manifest: Manifest, found: Overview, *, url: str = "", licence: str = "") -> str:
    """The text of the file. ``url``: where readers find the dataset; ``licence``: the Hub's name of a licence, which replaces
    the source's in the front matter."""
    command, python = how_to_load(manifest, url)
    tensors = [("key", "dtype", "shape"), ("---", "---", "---"), *state_tensors(manifest)]
    parts = [
        f"---\n{_head(manifest, found, licence or hub_licence(manifest.licence))}---\n",
        f"# {_inline(manifest.id)}\n",
        _table(state_facts(manifest, found)),
        (f"```sh\n{command}\n```\n\n" if command else f"{no_source(manifest)}\n\n") + f"```python\n{python}\n```\n",
        "## Tensors\n\n" + "\n".join("| " + " | ".join(map(_inline, row)) + " |" for row in tensors) + "\n",
        "## Origin\n\n" + _table(state_origin(manifest, licence)),
    ]
    if manifest.notes:
        parts.append("## Notes\n\n" + "\n".join(f"- {_inline(note)}" for note in manifest.notes) + "\n")
    if manifest.citation:
        parts.append("## Citation\n\n" + "".join(f"    {printable(line)}\n" for line in manifest.citation.splitlines()))
    return "\n".join(parts) + f"\n<!-- {MARK} -->\n"


def hub_licence(licence: str | None) -> str:
    """Return the Hub's name of a licence; ``unknown`` if none is stated, ``other`` if the Hub has no name for it."""
    if not licence or re.match(r"(not stated|unknown)", licence, re.IGNORECASE):
        return "unknown"
    return next((name for begin, name in _LICENCES.items() if re.match(begin, licence, re.IGNORECASE)), "other")


def _head(manifest: Manifest, found: Overview, licence: str) -> str:
    # Every JSON string is a YAML string.
    size = next((name for limit, name in (*_SIZES, *_LARGER) if manifest.steps < limit), "10B<n<100B")
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
    """Untrusted text as one line of Markdown, with all markup escaped."""
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
    """Return the metadata as JSON: the dataset, its files, and the fields of one step."""
    content = (folder / FILENAME).read_bytes()
    where = f" of {found.environment}" if found.environment else ""
    what = f"{amounts.plural(manifest.steps, 'step')} in {amounts.plural(manifest.episodes, 'episode')}{where}"
    about = [f"Offline reinforcement learning: {what}, as tensors.", *manifest.notes]
    record: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": manifest.id,
        "description": " ".join(about),
        "url": f"rbdata:{manifest.id}",
        "license": manifest.licence or "not stated",
        "citeAs": manifest.citation or "not stated",
        "version": "1.0.0",
        "datePublished": str(manifest.provenance.get("created") or "1970-01-01")[:10],
        "keywords": ["reinforcement learning", "offline reinforcement learning", *filter(None, [found.environment])],
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": FILENAME,
                "name": FILENAME,
                "description": "The manifest: schema, episodes, origin, and the checksums of all other files.",
                "contentUrl": FILENAME,
                "contentSize": f"{len(content)} B",
                "encodingFormat": "application/json",
                "sha256": hashlib.sha256(content).hexdigest(),
            },
            # One file set for all leaves: Croissant requires joins between sources of fields, but rows correspond by number.
            {
                "@type": "cr:FileSet",
                "@id": "tensors",
                "name": "tensors",
                "description": "The rows of the tensors, as docs/format.md of rbdata describes them.",
                "encodingFormat": "application/octet-stream",
                "includes": [path for leaf in manifest.schema for path in codec_of(leaf).files],
            },
        ],
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
