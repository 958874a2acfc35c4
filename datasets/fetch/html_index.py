"""Parses the directory index pages of web servers: Apache, nginx, lighttpd, Caddy, `python -m http.server`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
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
    is_whole: bool
    """False for a page that begins an ``<html>`` and does not end it."""


#: A start tag of a link up to its end or the next tag, and what it links to. Neither pattern backtracks: pages have megabytes.
_LINK = re.compile(r"<a\s([^<>]*)", re.IGNORECASE)
_TARGET = re.compile(r"""(?<![\w-])href\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
#: A name as most are, which needs no parsing: a page may have half a million.
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
#: Longer ones are no names of files.
_LONGEST_LINK = 4096


def parse_index(page: str, url: str) -> Index:
    """The children that the index page at `url` links to.

    Only links one level below the page count. Sort links (``?C=N;O=D``), parents, other servers and names that are not
    plain (``..%2f``) are omitted. Takes time in proportion to the page, whatever is in it.
    """
    page = _without_comments(page)
    files: set[str] = set()
    folders: set[str] = set()
    has_parent = False
    here, server = _segments(url), urlsplit(url).netloc
    is_folder = url.endswith("/") and not urlsplit(url).query
    for link in dict.fromkeys(_links(page)):
        if is_folder and _NAME.fullmatch(link.removesuffix("/")):
            (folders if link.endswith("/") else files).add(link.removesuffix("/"))
            continue
        try:
            target = urlsplit(urljoin(url, link))
        except ValueError:
            continue
        if target.netloc != server or target.query or target.scheme not in ("http", "https"):
            continue
        names = _segments(target.geturl())
        if names == here[:-1]:
            has_parent = True
        if len(names) != len(here) + 1 or names[:-1] != here or not is_plain_name(names[-1]):
            continue
        (folders if target.path.endswith("/") else files).add(names[-1])
    lower = page.lower()
    titled = any(word in _content(lower, tag) for tag in ("title", "h1") for word in _TITLES)
    is_index = bool(titled or files or folders or has_parent)
    is_whole = "<html" not in lower or "</html" in lower
    return Index(tuple(sorted(files - folders)), tuple(sorted(folders)), is_index, is_whole)


def _links(page: str) -> Iterator[str]:
    for tag in _LINK.finditer(page):
        found = _TARGET.search(tag[1])
        link = html.unescape(next(filter(None, found.groups()), "")).strip() if found else ""
        if link and len(link) <= _LONGEST_LINK:
            yield link


def _without_comments(page: str) -> str:
    first, *rest = page.split("<!--")
    return first + "".join(part.partition("-->")[2] for part in rest)


def _content(page: str, tag: str) -> str:
    """What the first element of a name holds, its tag's attributes included; no more than a title may have."""
    start = page.find(f"<{tag}")
    return page[start : start + _LONGEST_LINK].partition(f"</{tag}")[0] if start >= 0 else ""


def _segments(url: str) -> list[str]:
    return [unquote(part, errors="surrogateescape") for part in urlsplit(url).path.split("/") if part]
