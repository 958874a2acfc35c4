"""Parses the directory index pages of web servers: Apache, nginx, lighttpd, Caddy, `python -m http.server`."""

from __future__ import annotations

from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

from .location import is_plain_name

_TITLES = ("index of", "directory listing", "directory index", "listing of")


@dataclass(frozen=True)
class Index:
    """Direct children of one folder, decoded and sorted."""

    files: tuple[str, ...]
    folders: tuple[str, ...]
    is_index: bool
    """Whether the page is a directory index; the status is 200 for any other web page too."""


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.title = ""
        self._inside: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links.extend(value.strip() for key, value in attrs if key == "href" and value)
        elif tag in ("title", "h1"):
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.title += data


def parse_index(page: str, url: str) -> Index:
    """The children that the index page at `url` links to.

    Only links one level below the page count. Sort links (``?C=N;O=D``), parents, other servers and names that are not
    plain (``..%2f``) are omitted.
    """
    parser = _Links()
    parser.feed(page)
    parser.close()
    files: set[str] = set()
    folders: set[str] = set()
    has_parent = False
    here = _segments(url)
    for link in parser.links:
        try:
            target = urlsplit(urljoin(url, link))
        except ValueError:
            continue
        if target.netloc != urlsplit(url).netloc or target.query or target.scheme not in ("http", "https"):
            continue
        names = _segments(target.geturl())
        if names == here[:-1]:
            has_parent = True
        if len(names) != len(here) + 1 or names[:-1] != here or not is_plain_name(names[-1]):
            continue
        (folders if target.path.endswith("/") else files).add(names[-1])
    titled = any(word in parser.title.lower() for word in _TITLES)
    is_index = bool(titled or files or folders or has_parent)
    return Index(tuple(sorted(files - folders)), tuple(sorted(folders)), is_index)


def _segments(url: str) -> list[str]:
    return [unquote(part, errors="surrogateescape") for part in urlsplit(url).path.split("/") if part]
