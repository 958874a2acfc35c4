"""A location on a web server with directory indexes; single objects from any web server.

The headers of a response state size, version and checksums of an object.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urljoin, urlsplit

from ...errors import FetchError, ForbiddenError, ObjectNotFoundError, UsageError
from .location import (
    CONNECTIONS,
    Location,
    Names,
    Objects,
    PerProcess,
    RemoteObject,
    content_range,
    hex_of_base64,
    is_plain_name,
    size_in,
)
from .retries import MISSING, NO_RANGES, OTHER, FetchOptions, replaced, status_error, transient, translated

if TYPE_CHECKING:
    import requests

# An incomplete piece is lost when the connection breaks, and requested again.
_PIECE = 1 << 17

#: Words in the title of a directory index.
_TITLES = ("index of", "directory listing", "directory index", "listing of")


@dataclass(frozen=True)
class HttpLocation(Location):
    """A `Location` on a web server. Its listings have no sizes and versions; `refresh` requests them (HEAD)."""

    login: tuple[str, str] | None = field(default=None, repr=False)
    _session: PerProcess[requests.Session] = field(default_factory=PerProcess, init=False, repr=False, compare=False)

    @classmethod
    def from_url(cls, url: str, options: FetchOptions) -> HttpLocation:
        try:
            parts = urlsplit(url)
            valid = bool(parts.hostname) and parts.port != 0 and not parts.query and not parts.fragment
        except ValueError:
            valid = False
        if not valid:
            shown = url.rpartition("@")[2].partition("?")[0].partition("#")[0]
            message = f"{shown}: not the URL of a folder on a web server"
            raise UsageError(message, hint="give http(s)://host/folder, without '?' or '#'")
        _, at, host = parts.netloc.rpartition("@")
        login = (unquote(parts.username or ""), unquote(parts.password or "")) if at else None
        # Users may write '$' or a space unquoted; URLs are compared and requested quoted.
        path = "/".join(_quoted(unquote(part, errors="surrogateescape")) for part in parts.path.split("/"))
        return cls(f"{parts.scheme.lower()}://{host}{path}".rstrip("/"), options, login)

    def _read(self, obj: RemoteObject, start: int, length: int | None) -> Generator[bytes, None, None]:
        headers = {}
        if start or length is not None:
            headers["Range"] = f"bytes={start}-{'' if length is None else start + length - 1}"
            if obj.version is not None:
                # A replaced object is sent from its start (200), and detected by its version.
                headers["If-Range"] = obj.version
        with self.request("GET", obj.url, headers) as response:
            _reject_web_page(response, obj)
            skip = check_same_object(obj, start, response.status_code, response.headers)
            if length is not None and (skip or (response.status_code == 200 and length != obj.size)):
                raise FetchError(f"{obj.url}: the server sends whole files only", hint=NO_RANGES)
            # As transferred: neither unpacked nor decoded.
            for piece in () if response.status_code == 416 else response.raw.stream(_PIECE, decode_content=False):
                if skip < len(piece):
                    yield piece[skip:]
                skip = max(0, skip - len(piece))

    def _url_of(self, path: str) -> str:
        return "/".join([self.url, *(_quoted(part) for part in path.split("/") if part)])

    def request(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> requests.Response:
        """One request; returns a response with a status of success (or 416 for a range) and an unread body, raises for
        others."""
        headers = {"Accept-Encoding": accepted_encoding(url), **(headers or {})}
        with translated(url):
            response = self._session.get(self._new_session).request(
                method, url, headers=headers, stream=True, allow_redirects=True, timeout=self.options.timeouts
            )
        if not 200 <= response.status_code < 300 and not (response.status_code == 416 and "Range" in headers):
            with response:
                failure = status_error(response.status_code, url, response.headers)
                if "json" in response.headers.get("Content-Type", ""):  # OpenML's has a code
                    with suppress(Exception):
                        vars(failure)["body"] = response.text
            raise failure
        return response

    def _new_session(self) -> requests.Session:
        import requests

        session = requests.Session()
        for scheme in ("https://", "http://"):
            session.mount(scheme, requests.adapters.HTTPAdapter(pool_connections=4, pool_maxsize=CONNECTIONS))
        # requests drops the login of a session when a redirect leads to another host.
        session.auth = self.login
        return session

    def _describe(self, obj: RemoteObject) -> RemoteObject:
        try:
            response = self.request("HEAD", obj.url)
        except FetchError as error:
            # Some servers do not support HEAD (405, 501), and signed links are often signed for GET only (403).
            if error.status not in (403, 405, 501):
                raise
            response = self.request("GET", obj.url)
        with response:
            if response.request.method == "HEAD":  # there is no body: the connection can be used again
                response.raw.release_conn()
            final = urlsplit(response.url).path
            if final.endswith("/") and final.rstrip("/") == urlsplit(obj.url).path:
                raise ObjectNotFoundError(f"{obj.url} is a folder, not a file", hint=MISSING)
            _reject_web_page(response, obj)
            headers = response.headers
            size, version = length(headers), stated_version(headers)
            return replace(obj, size=size, checksums=stated_checksums(headers), version=version)

    def _listing(self, url: str) -> tuple[Objects, Names]:
        url += "/"
        hint = "the server must serve directory indexes (index pages); otherwise use another mirror (--mirror)"
        try:
            response = self.request("GET", url)
        except (ForbiddenError, ObjectNotFoundError) as error:
            error.hint = (
                f"{error.hint}; to list a folder, the server must serve a directory index (an index page) of it"
            )
            raise
        with response:
            if _page_path(response.url) != _page_path(url):
                message = f"{url}: redirected to {response.url.partition('?')[0]} instead of a directory index"
                raise FetchError(message, hint=hint)
            page = response.content
        if not page.strip():
            raise transient(f"{url}: the directory index is empty")
        index = parse_index(page.decode("utf-8", errors="replace"), response.url)
        if not is_web_page(response.headers) or (index.is_whole and not index.is_index):
            kind = response.headers.get("Content-Type", "of unknown type")
            raise FetchError(f"{url} is not a directory index ({kind})", hint=hint)
        if not index.is_whole:
            raise transient(f"{url}: the directory index ends early, after {len(page)} bytes")
        return [RemoteObject(url + _quoted(name), name) for name in index.files], [*index.folders]


def _reject_web_page(response: requests.Response, obj: RemoteObject) -> None:
    if response.status_code in (200, 206) and is_web_page(response.headers) and ".htm" not in obj.name.lower():
        where = "" if response.url == obj.url else f" ({response.url.partition('?')[0]})"
        message = f"{obj.url}: received a web page{where} instead of the file"
        raise FetchError(message, hint="the mirror may require a login or may have moved: open the URL in a browser")


def _page_path(url: str) -> str:
    return unquote(urlsplit(url).path).rstrip("/")


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="surrogateescape")


# -- headers -----------------------------------------------------------------------------------------------------------


def accepted_encoding(url: str) -> str:
    """The Accept-Encoding that makes the server send the bytes as stored.

    'identity' for every server but Google's, which unpacks objects stored with gzip encoding for it.
    """
    host = urlsplit(url).hostname or ""
    return "gzip" if host == "storage.googleapis.com" or host.endswith(".storage.googleapis.com") else "identity"


def stated_version(headers: Mapping[str, str]) -> str | None:
    """The strong ETag, else Last-Modified, for If-Range. A weak ETag does not guarantee equal bytes."""
    tag = headers.get("ETag", "")
    if tag.startswith('"'):
        return tag
    return headers.get("Last-Modified")


def stated_checksums(headers: Mapping[str, str]) -> dict[str, str]:
    """Checksums of the object, from the headers of a complete response. (An ETag is not an MD5.)"""
    found = {}
    for item in headers.get("x-goog-hash", "").split(","):
        name, _, value = item.strip().partition("=")
        if name in ("crc32c", "md5"):
            found[name] = hex_of_base64(value)
    if "Content-MD5" in headers:
        found["md5"] = hex_of_base64(headers["Content-MD5"])
    return {name: value for name, value in found.items() if value}


def check_same_object(obj: RemoteObject, offset: int, status: int, headers: Mapping[str, str]) -> int:
    """How many leading bytes to skip in this response to a request for `bytes=offset-`.

    Raises ChecksumError if the response is of another version of the object, FetchError if it is invalid.
    """
    first, total = content_range(headers)
    if status == 416:
        if obj.size is None and total == offset:
            return 0
        raise replaced(obj.url, f"it no longer has byte {offset}")
    # Compare an ETag only with an ETag: some servers state one for GET and none for HEAD.
    stated = headers.get("ETag" if (obj.version or "").startswith('"') else "Last-Modified")
    if obj.version and stated and stated != obj.version and not stated.startswith("W/"):
        raise replaced(obj.url, f"version {stated} instead of {obj.version}")
    size = total if status == 206 else length(headers)
    if obj.size is not None and size is not None and obj.size != size:
        raise replaced(obj.url, f"{size} bytes instead of {obj.size}")
    if status == 206 and first != offset:
        raise FetchError(f"{obj.url}: requested bytes from {offset}, received bytes from {first}", hint=OTHER)
    if status not in (200, 206):
        raise status_error(status, obj.url, headers)
    # With 200, the server ignores ranges and sends the object from its start.
    return offset if status == 200 else 0


def length(headers: Mapping[str, str]) -> int | None:
    return size_in(headers.get("Content-Length", ""))


def is_web_page(headers: Mapping[str, str]) -> bool:
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return kind in ("text/html", "application/xhtml+xml")


# -- directory indexes: Apache, nginx, lighttpd, Caddy, `python -m http.server` ----------------------------------------


@dataclass(frozen=True)
class Index:
    """Direct children of one folder, decoded and sorted."""

    files: tuple[str, ...]
    folders: tuple[str, ...]
    is_index: bool
    """Whether the page is a directory index; the status is 200 for any other web page too."""
    is_whole: bool
    """False for a page that begins an ``<html>`` and does not end it."""


def parse_index(page: str, url: str) -> Index:
    """The children that the index page at `url` links to.

    Only links one level below the page count. Sort links (``?C=N;O=D``), parents, other servers and names that are not
    plain (``..%2f``) are omitted.
    """
    found = _Links()
    found.feed(page)
    found.close()
    is_index = any(title in found.heading.lower() for title in _TITLES)
    children: dict[bool, set[str]] = {False: set(), True: set()}  # by whether they are folders
    here, server = _segments(url), urlsplit(url).netloc
    for link in found.links:
        with suppress(ValueError):
            target = urlsplit(urljoin(url, link))
            if target.netloc != server or target.query or target.scheme not in ("http", "https"):
                continue
            names = _segments(target.geturl())
            is_index |= names == here[:-1]
            if names and names[:-1] == here and is_plain_name(names[-1]):
                children[target.path.endswith("/")].add(names[-1])
    files, folders = sorted(children[False] - children[True]), sorted(children[True])
    is_whole = "<html" not in page.lower() or "</html" in page.lower()
    return Index(tuple(files), tuple(folders), is_index or bool(files or folders), is_whole)


class _Links(HTMLParser):
    """What a page links to, and the text of its headings."""

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, None] = {}
        self.heading, self._in_heading = "", False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_heading = tag in ("title", "h1")
        target = (dict(attrs).get("href") or "").strip() if tag == "a" else ""
        if target:
            self.links[target] = None

    def handle_data(self, data: str) -> None:
        if self._in_heading:
            self.heading += data

    def handle_endtag(self, tag: str) -> None:
        self._in_heading = False


def _segments(url: str) -> list[str]:
    return [unquote(part, errors="surrogateescape") for part in urlsplit(url).path.split("/") if part]
