"""The cards of a dataset: an HTML page, a README for the Hugging Face Hub, and Croissant metadata for catalogues.

The page is self-contained, has a dark and a light theme, and suits phones and desktops. The README has YAML front matter and
the facts in Markdown. Croissant (MLCommons, https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html) belongs beside
``rbdata.json``, in the folder of the dataset or where it is published, as its paths are relative. It states the sha256 of
``rbdata.json``, which has the checksums of all other files.

Manifests are untrusted: every text is escaped, and the page forbids scripts and requests of any kind.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._version import __version__
from ...errors import UsageError, printable
from ...storage import amounts
from ...storage.codecs import codec_of
from ...storage.episodes import EpisodeTable
from ...storage.leaf import Leaf
from ...storage.manifest import FILENAME, Manifest
from .figure import add_scores, draw_elements, draw_histogram, draw_returns, svg_chart
from .overview import (
    Distribution,
    Facts,
    Overview,
    how_to_load,
    no_source,
    return_series,
    state_facts,
    state_lineage,
    state_origin,
    state_tensors,
)
from .target import MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _escape(text: str) -> str:
    """Untrusted text for HTML: markup escaped, control characters replaced."""
    shown = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
    return html.escape(shown, quote=True)


HTML_SUFFIXES = (".html", ".htm")

#: Up to this many episodes are drawn as dots, and number of episodes whose frames are shown.
_MAX_DOTS, _FRAME_EPISODES = 800, 3
#: The longer side of a frame in pixels, before the browser enlarges it.
_SIDE = 160

_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #5d6878; --line: #dfe3e9;
  --bar: #2f6db3; --band: #bcd3ee; --cut: #c2540a; --code: #eef1f5; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1b212a; --ink: #e6eaf0; --soft: #9aa6b6;
  --line: #2e3743; --bar: #6ea8e8; --band: #2b4a6d; --cut: #ff9a57; --code: #12171e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 20px 16px 40px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 8px 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0 0 10px; }
h3 { font-size: .9rem; margin: 0 0 4px; font-weight: 600; overflow-wrap: anywhere; }
p { margin: 0 0 8px; } .soft, figcaption, footer { color: var(--soft); font-size: .87rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px; margin-top: 14px;
  min-width: 0; }
.grid { display: grid; gap: 18px; grid-template-columns: repeat(auto-fit, minmax(min(290px, 100%), 1fr)); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(220px, 100%), 1fr)); gap: 12px 22px; margin: 0; }
.facts dt, .list dt { color: var(--soft); font-size: .82rem; } .facts dd { margin: 0; overflow-wrap: anywhere; }
.list { margin: 0; display: grid; grid-template-columns: minmax(80px, max-content) 1fr; gap: 4px 16px; }
.list dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
pre + pre { margin-top: 10px; }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px; margin: 0;
  overflow-x: auto; font: 13px/1.5 ui-monospace, monospace; }
.wrap { white-space: pre-wrap; overflow-wrap: anywhere; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } tr:last-child td { border-bottom: 0; }
code { font: .92em ui-monospace, monospace; } .grid + .scroll { margin-top: 18px; } footer { margin-top: 14px; }
svg { display: block; width: 100%; height: auto; }
.strip { display: flex; flex-wrap: wrap; gap: 6px; margin: 4px 0 12px; }
.strip img { width: calc((100% - 42px) / 8); height: auto; image-rendering: pixelated; border-radius: 3px; }
svg.narrow { display: none; }
@media (max-width: 640px) { svg.wide { display: none; } svg.narrow { display: block; }
  .strip img { width: calc((100% - 18px) / 4); }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; } th, td { padding-right: 8px; }
  .list { grid-template-columns: 1fr; gap: 0; } .list dd { margin-bottom: 6px; } }
"""


def make_html(folder: Path, manifest: Manifest, found: Overview, table: EpisodeTable) -> str:
    command, python = how_to_load(manifest)
    shell = f"<pre>{_escape(command)}</pre>" if command else f"<p>{_escape(no_source(manifest).replace('`', ''))}</p>"
    parts = [
        _section("At a glance", _definitions(state_facts(manifest, found), "facts")),
        _section("Load it", f"{shell}<pre>{_escape(python)}</pre>"),
    ]
    if found.steps:
        sampled = found.sampled_steps < found.steps
        sample = f" (of a sample of {found.sampled_steps:,} steps)" if sampled else ""
        parts.append(_section("Returns over time", _returns(found, table)))
        parts += [_section(f"Distributions{sample}", _distributions(found)), _frames(folder)]
    parts.append(_section("Tensors", _tensors(manifest)))
    parts.append(_section("Origin", _definitions(state_origin(manifest), "list")))
    if manifest.lineage:
        parts.append(_section("Lineage", _definitions(state_lineage(manifest.lineage), "list")))
    if manifest.notes:
        parts.append(_section("Notes", "".join(f"<p>{_escape(note)}</p>" for note in manifest.notes)))
    if manifest.citation:
        parts.append(_section("Citation", f'<pre class="wrap">{_escape(manifest.citation)}</pre>'))
    title = _escape(manifest.id)
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
<p class="soft">Dataset for offline reinforcement learning</p>
<h1>{title}</h1>
{"".join(parts)}
<footer><p>{MARK.capitalize()} {__version__}.</p></footer>
</main></body>
</html>
"""


def _section(title: str, content: str) -> str:
    return f"<section><h2>{_escape(title)}</h2>{content}</section>\n"


def _definitions(facts: Facts, kind: str) -> str:
    entries = [f"<dt>{_escape(name)}</dt><dd>{_escape(text)}</dd>" for name, text in facts]
    if kind == "facts":
        entries = [f"<div>{entry}</div>" for entry in entries]
    return f'<dl class="{kind}">{"".join(entries)}</dl>'


def _returns(found: Overview, table: EpisodeTable) -> str:
    series = return_series(table, _MAX_DOTS)

    def draw(axes: Axes) -> None:
        draw_returns(axes, found, series)
        add_scores(axes, found)

    sizes = (("wide", (10, 3)), ("narrow", (4.2, 3)))
    return "".join(svg_chart("returns over steps", size, draw, kind) for kind, size in sizes)


def _distributions(found: Overview) -> str:
    charts = [("return of an episode", found.returns), ("length of an episode", found.lengths)]
    charts += [("reward of a step", found.rewards.elements[0])]
    charts += [(one.key, one.elements[0]) for one in found.actions if one.size == 1]
    several = [one for one in found.actions if one.size > 1]
    drawn = "".join(
        f"<div><h3>{_escape(name)}</h3>{svg_chart(name, (3.6, 1.9), partial(draw_histogram, histogram=one))}</div>"
        for name, one in charts
    )
    return f'<div class="grid">{drawn}</div>' + (_elements(several) if several else "")


def _elements(actions: Sequence[Distribution]) -> str:
    """Distributions and statistics of actions with several elements."""
    rows = [row for one in actions for row in zip(one.names, one.elements)]
    lines = "".join(
        f"<tr><td><code>{_escape(name)}</code></td>"
        + "".join(f"<td>{'-' if value is None else f'{value:.4g}'}</td>" for value in (one.mean, one.low, one.high))
        + "</tr>"
        for name, one in rows
    )
    chart = svg_chart("elements of actions", (7, 0.7 + 0.16 * len(rows)), partial(draw_elements, actions=actions))
    head = "<tr><th>element</th><th>mean</th><th>min</th><th>max</th></tr>"
    return f'{chart}<div class="scroll"><table>{head}{lines}</table></div>'


def _frames(folder: Path) -> str:
    """Frames of a few episodes; '' for a dataset without frames."""
    from ...storage.dataset import Dataset
    from .frames import choose_strips, describe_strip, encode_image, enlarged, frame_leaf, read_pictures

    dataset = Dataset(folder)
    try:
        leaf = frame_leaf(dataset)
    except UsageError:
        return ""
    strips = []
    for strip in choose_strips(dataset)[:_FRAME_EPISODES]:
        images = []
        for step, one in zip(strip.steps, read_pictures(dataset, leaf, strip.steps)):
            small = enlarged(one, _SIDE) if max(one.size) > _SIDE else one
            data = base64.b64encode(encode_image(small, ".png")).decode()
            images.append(f'<img alt="step {step - strip.first}" src="data:image/png;base64,{data}">')
        caption = _escape(describe_strip(dataset, strip))
        strips.append(f'<figcaption>{caption}</figcaption><div class="strip">{"".join(images)}</div>')
    return _section("Frames", "".join(strips))


def _tensors(manifest: Manifest) -> str:
    rows = "".join(
        f"<tr><td><code>{_escape(key)}</code></td><td>{_escape(dtype)}</td><td>{_escape(shape)}</td></tr>"
        for key, dtype, shape in state_tensors(manifest)
    )
    return f'<div class="scroll"><table><tr><th>key</th><th>dtype</th><th>shape</th></tr>{rows}</table></div>'


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
    """The Hub's name of a licence; ``unknown`` if none is stated, ``other`` if the Hub has no name for it."""
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
    """The metadata as JSON: the dataset, its files, and the fields of one step."""
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
