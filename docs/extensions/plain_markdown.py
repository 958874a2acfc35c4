"""Pages are plain Markdown, to be read on a code host as well; what only the site needs is added while Sphinx reads them.

- ``<!-- generated: NAME -->`` is replaced by generated text: ``api``, ``changelog``.
- The lists of links below the headings of ``index.md`` become the site's navigation.
- Links to files outside of ``docs/`` become links to the repository, or plain text if its address is not known.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import api_reference
from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
TOP = DOCS.parent
GENERATED = re.compile(r"<!-- generated: (\w+) -->")
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def changelog() -> Iterator[str]:
    """The repository's changelog without its title, which the page has; its links are seen from the folder above."""
    return iter((TOP / "CHANGELOG.md").read_text().replace("](docs/", "](").splitlines()[1:])


GENERATORS: dict[str, Callable[[], Iterable[str]]] = {
    "api": api_reference.lines,
    "changelog": changelog,
}


def complete(app: Sphinx, page: str, source: list[str]) -> None:
    """The handler of Sphinx's event ``source-read``."""
    text = GENERATED.sub(lambda match: "\n".join(GENERATORS[match[1]]()), source[0])
    if page == "index":
        text += "\n".join(navigation(text))
    source[0] = LINK.sub(lambda match: outside(match, (DOCS / page).parent), text)


def navigation(text: str) -> Iterator[str]:
    """A hidden table of contents for every heading of the second level that has links to pages below it."""
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        pages = [target for _, target in LINK.findall(section) if target.endswith(".md") and "://" not in target]
        if pages:
            caption = section.splitlines()[0]
            yield from ("", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", "")


def outside(match: re.Match[str], folder: Path) -> str:
    """The link itself if it stays inside of the folder ``docs``."""
    title, target = match.groups()
    place, _, fragment = target.partition("#")
    file = (folder / place).resolve()
    if "://" in target or not place or DOCS in file.parents:
        return match[0]
    if not file.exists():
        raise FileNotFoundError(f"{folder}: the link to {target} leads nowhere")
    address = repository()
    if address is None:
        return f"`{file.relative_to(TOP)}`"
    kind = "tree" if file.is_dir() else "blob"
    return f"[{title}]({address}/{kind}/main/{file.relative_to(TOP)}{'#' * bool(fragment)}{fragment})"


def repository() -> str | None:
    """Where the repository is, as ``pyproject.toml`` states it."""
    urls = tomllib.loads((TOP / "pyproject.toml").read_text())["project"].get("urls", {})
    return next((urls[name].rstrip("/") for name in ("Repository", "Source", "Homepage") if name in urls), None)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", complete)
    return {"parallel_read_safe": True}
