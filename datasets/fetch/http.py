"""A mirror behind a web server that shows directory indexes; single objects from any web server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from ...errors import FetchError, ObjectNotFoundError, UsageError
from .headers import (
    accepted_encoding,
    check_same_object,
    is_web_page,
    length,
    stated_checksums,
    stated_version,
)
from .html_index import Index, parse_index
from .http_errors import MISSING, raise_network_error, status_error, status_of, transient
from .location import FetchOptions, Names, Objects, RemoteObject, checked_offset, checked_path, joined, require_inside
from .per_process import PerProcess
from .retry import retrying

if TYPE_CHECKING:
    import requests

# Small pieces first: what a broken connection had not delivered as a whole piece is asked for again.
FIRST_PIECE = 1 << 16
PIECE = 1 << 18
LONGEST_INDEX = 64 << 20
LONGEST_REFUSAL = 1 << 16
CONNECTIONS = 8


@dataclass(frozen=True)
class HttpLocation:
    """A `Location` behind HTTP. Sizes and versions are not in its listings; `refresh` asks for them (HEAD)."""

    url: str
    options: FetchOptions = field(default_factory=FetchOptions)
    login: tuple[str, str] | None = field(default=None, repr=False)
    _session: PerProcess[requests.Session] = field(default_factory=PerProcess, init=False, repr=False, compare=False)

    @classmethod
    def from_url(cls, url: str, options: FetchOptions) -> HttpLocation:
        try:
            parts = urlsplit(url)
            host = parts.netloc.rpartition("@")[2]
            valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            valid = False
        if not valid or parts.query or parts.fragment:
            message = f"{url.partition('?')[0].rpartition('@')[2]}: not the URL of a folder on a web server"
            raise UsageError(message, hint="give http(s)://host/folder, without '?' or '#'")
        login = (unquote(parts.username or ""), unquote(parts.password or "")) if "@" in parts.netloc else None
        # The user may have written '$' or a space as such; objects are compared and asked for quoted.
        path = "/".join(_quoted(unquote(part, errors="surrogateescape")) for part in parts.path.split("/"))
        return cls(f"{parts.scheme.lower()}://{host}{path}".rstrip("/"), options, login)

    def list(self, folder: str = "") -> Objects:
        folder = checked_path(folder)
        return [RemoteObject(url=self._at(joined(folder, name)), name=name) for name in self._index(folder).files]

    def folders(self, folder: str = "") -> Names:
        return [*self._index(checked_path(folder)).folders]

    def stat(self, path: str) -> RemoteObject:
        path = checked_path(path)
        if not path:
            message = f"{self.url} is a folder, not an object"
            raise UsageError(message, hint="give the object's path")
        obj = RemoteObject(url=self._at(path), name=path.rpartition("/")[2])
        return retrying(lambda: self._describe(obj), url=obj.url, options=self.options)

    def refresh(self, obj: RemoteObject) -> RemoteObject:
        require_inside(obj, self.url)
        return retrying(lambda: self._describe(obj), url=obj.url, options=self.options)

    def open(self, obj: RemoteObject, offset: int = 0) -> Iterator[bytes]:
        require_inside(obj, self.url)
        checked_offset(obj, offset)
        if obj.size is not None and offset == obj.size:
            return
        headers = {}
        if offset:
            headers["Range"] = f"bytes={offset}-"
            if obj.version is not None:
                # Another object than ours comes whole (200) and is recognised by its version.
                headers["If-Range"] = obj.version
        response = self._ask("GET", obj.url, headers)
        try:
            _refuse_web_page(response, obj)
            skip = check_same_object(obj, offset, response.status_code, response.headers)
            yield from _body(response, obj, skip)
        finally:
            response.close()

    # -- asking ------------------------------------------------------------------------------------------------------

    def _at(self, path: str) -> str:
        return "/".join([self.url, *(_quoted(part) for part in path.split("/"))])

    def _ask(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> requests.Response:
        """One request; its response has a status of success (or 416) and an unread body."""
        session = self._session.get(self._new_session)
        try:
            response = session.request(
                method,
                url,
                headers={"Accept-Encoding": accepted_encoding(url), **(headers or {})},
                stream=True,
                allow_redirects=True,
                timeout=(self.options.connect_timeout, self.options.silence_timeout),
            )
        except Exception as error:
            raise_network_error(error, url)
        if response.status_code >= 400 and response.status_code != 416:
            refusal = status_error(response.status_code, url, response.headers)
            # Kept for callers that know what the server may say (OpenML's error codes).
            vars(refusal)["said"] = _said(response)
            response.close()
            raise refusal
        return response

    def _new_session(self) -> requests.Session:
        import requests

        session = requests.Session()
        # `Accept: */*` and the user agent stay; retries are ours.
        adapter = requests.adapters.HTTPAdapter(pool_connections=4, pool_maxsize=CONNECTIONS, max_retries=0)
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        # As the session's own login, requests drops it when a redirect leads to another host.
        session.auth = self.login
        return session

    # -- one object --------------------------------------------------------------------------------------------------

    def _describe(self, obj: RemoteObject) -> RemoteObject:
        try:
            response = self._ask("HEAD", obj.url)
        except FetchError as error:
            # Some servers know no HEAD (405, 501), and signed links are often signed for GET alone (403).
            if status_of(error) not in (403, 405, 501):
                raise
            response = self._ask("GET", obj.url)
        with response:
            final = urlsplit(response.url).path
            if final.endswith("/") and final.rstrip("/") == urlsplit(obj.url).path:
                message = f"{obj.url} is a folder, not an object"
                raise ObjectNotFoundError(message, hint=MISSING)
            _refuse_web_page(response, obj)
            headers = response.headers
            return replace(
                obj, size=length(headers), checksums=stated_checksums(headers), version=stated_version(headers)
            )

    # -- one folder --------------------------------------------------------------------------------------------------

    def _index(self, folder: str) -> Index:
        url = (self._at(folder) if folder else self.url) + "/"
        return retrying(lambda: self._read_index(url), url=url, options=self.options)

    def _read_index(self, url: str) -> Index:
        hint = "the server must show directory indexes; otherwise use another mirror (--mirror)"
        with self._ask("GET", url) as response:
            if _page_path(response.url) != _page_path(url):
                message = (
                    f"{url}: the server sends us to {response.url.partition('?')[0]} instead of listing the folder"
                )
                raise FetchError(message, hint=hint)
            if not is_web_page(response.headers):
                message = f"{url} is {response.headers.get('Content-Type', 'something')}, not a directory index"
                raise FetchError(message, hint=hint)
            page = bytearray()
            try:
                for piece in response.iter_content(PIECE):
                    page += piece
                    if len(page) > LONGEST_INDEX:
                        message = f"{url}: a directory index of more than {LONGEST_INDEX >> 20} MiB"
                        raise FetchError(message, hint=hint)
            except Exception as error:
                raise_network_error(error, url)
            stated = length(response.headers)
            if stated is not None and "Content-Encoding" not in response.headers and len(page) < stated:
                raise transient(f"{url}: the connection broke after {len(page)} of {stated} bytes")
            index = parse_index(page.decode("utf-8", errors="replace"), response.url)
        if not index.is_index:
            message = f"{url} is a web page, not a directory index"
            raise FetchError(message, hint=hint)
        return index


# -- one answer --------------------------------------------------------------------------------------------------------


def _refuse_web_page(response: requests.Response, obj: RemoteObject) -> None:
    if response.status_code in (200, 206) and is_web_page(response.headers) and ".htm" not in obj.name.lower():
        where = "" if response.url == obj.url else f" ({response.url.partition('?')[0]})"
        message = f"{obj.url}: the server answered with a web page{where}, not with the file"
        raise FetchError(message, hint="the mirror may want a login or may have moved: open the URL in a browser")


def _said(response: requests.Response) -> str:
    """What a refusal says in JSON; '' where it says it in another way, or too slowly."""
    if "json" not in response.headers.get("Content-Type", ""):
        return ""
    try:
        return response.raw.read(LONGEST_REFUSAL, decode_content=True).decode("utf-8", errors="replace")
    except Exception:
        return ""


def _page_path(url: str) -> str:
    return unquote(urlsplit(url).path).rstrip("/")


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="surrogateescape")


def _body(response: requests.Response, obj: RemoteObject, skip: int) -> Iterator[bytes]:
    """The body as it came over the wire: neither unpacked nor decoded; its first `skip` bytes left out."""
    if response.status_code == 416:
        return
    stated = length(response.headers)
    raw: Any = response.raw
    received, piece_size = 0, FIRST_PIECE
    while True:
        try:
            piece = raw.read(piece_size, decode_content=False)
        except Exception as error:
            raise_network_error(error, obj.url)
        if not piece:
            break
        received += len(piece)
        if received >= 16 * FIRST_PIECE:
            piece_size = PIECE
        if skip >= len(piece):
            skip -= len(piece)
            continue
        yield piece[skip:] if skip else piece
        skip = 0
    if stated is not None and received < stated:
        raise transient(f"{obj.url}: the connection broke after {received} of {stated} bytes")
