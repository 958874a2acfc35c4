"""Dataset repositories of the Hugging Face Hub: ``hf://owner``, ``hf://owner/repository/folder``.

Listings come from the Hub's JSON API (https://huggingface.co/docs/hub/api), bytes from its ``resolve`` URLs:

    GET /api/datasets?author=<owner>                            [{"id": "owner/repository"}, ...]
    GET /api/datasets/<owner>/<repository>/revision/main        {"sha": the commit}
    GET /api/datasets/<owner>/<repository>/tree/<commit>/<path> [{"type": "file" or "directory", "path", "size", "oid",
                                                                 "lfs": {"oid": sha256, ...}}, ...]
    GET /datasets/<owner>/<repository>/resolve/<commit>/<path>  the bytes, usually by a redirect to a store

Long listings are paged (header Link, rel "next"). The commit is requested once, so that one run reads one version of a
repository. Files in large-file storage have a sha256. HF_ENDPOINT names another server than huggingface.co; HF_TOKEN is
sent if it is set (private repositories, higher limits).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, urlsplit

from ...errors import FetchError, ForbiddenError, ObjectNotFoundError, UsageError
from .http import HttpLocation
from .http_errors import MISSING, raise_network_error, status_of, transient
from .location import (
    FetchOptions,
    Names,
    Objects,
    RemoteObject,
    check_offset,
    check_path,
    is_plain_name,
    join_path,
    require_inside,
)
from .per_process import PerProcess
from .retry import call_with_retries

if TYPE_CHECKING:
    import requests

# `Location` has a method called `list`, which hides the type inside the class.
Entries: TypeAlias = list[RemoteObject | str]
Tree: TypeAlias = list[tuple[str, RemoteObject]]

HOST = "https://huggingface.co"
_LONGEST_PAGE = 64 << 20
_MOST_PAGES = 10_000
_PRIVATE = "check the spelling; for a private repository set HF_TOKEN"


@dataclass(frozen=True)
class HubLocation:
    """A `Location` at the Hub; the repositories of an owner are its top folders."""

    url: str
    options: FetchOptions = field(default_factory=FetchOptions)
    _state: PerProcess[_Session] = field(default_factory=PerProcess, init=False, repr=False, compare=False)

    @classmethod
    def from_url(cls, url: str, options: FetchOptions) -> HubLocation:
        path = check_path(url.partition("://")[2].rstrip("/"))
        owner = path.partition("/")[0]
        if not owner or "@" in path:
            message = f"{url}: no owner in the URL"
            raise UsageError(message, hint="give hf://owner or hf://owner/repository")
        return cls(f"hf://{path}", options)

    def list(self, folder: str = "") -> Objects:
        return [item for item in self._entries(folder) if isinstance(item, RemoteObject)]

    def folders(self, folder: str = "") -> Names:
        if not self._inside(folder)[1]:
            return self._repositories()
        return sorted(item for item in self._entries(folder) if isinstance(item, str))

    def tree(self, folder: str) -> Tree:
        """Every object below a folder, with its path relative to this location, in few requests."""
        owner, repository, inside = self._inside(folder)
        if not repository:
            raise UsageError(f"{self.url} is not a repository")
        found = []
        for entry in self._tree(owner, repository, inside, recursive=True):
            if entry["type"] == "file":
                item = self._object(owner, repository, entry)
                found.append((require_inside(item, self.url), item))
        return sorted(found, key=lambda pair: pair[0])

    def stat(self, path: str) -> RemoteObject:
        path = check_path(path)
        parent, _, name = path.rpartition("/")
        if not self._inside(path)[2]:
            raise UsageError(f"{self.url}/{path} is a folder, not an object", hint="give the object's path")
        for item in self.list(parent):
            if item.name == name:
                return item
        raise ObjectNotFoundError(f"{self.url}/{path}: no such object", hint=MISSING)

    def refresh(self, obj: RemoteObject) -> RemoteObject:
        return self.stat(require_inside(obj, self.url))

    def open(self, obj: RemoteObject, offset: int = 0) -> Iterator[bytes]:
        check_offset(obj, offset)
        owner, repository, inside = self._inside(require_inside(obj, self.url))
        session = self._session()
        commit = session.commit(owner, repository)
        http = session.http
        # The version that the store states is not the Hub's; size and sha256 identify the object.
        store_url = f"{http.url}/datasets/{_quoted(owner, repository)}/resolve/{commit}/{_quoted(*inside.split('/'))}"
        yield from http.open(replace(obj, url=store_url, version=None), offset)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _session(self) -> _Session:
        return self._state.get(lambda: _Session(self.options))

    def _inside(self, path: str) -> tuple[str, str, str]:
        """Owner, repository and path in the repository; '' for those that the path does not reach."""
        parts = join_path(self.url[len("hf://") :], check_path(path)).split("/")
        return parts[0], parts[1] if len(parts) > 1 else "", "/".join(parts[2:])

    def _repositories(self) -> Names:
        owner = self._inside("")[0]
        found = self._session().pages(f"api/datasets?author={quote(owner, safe='')}&limit=1000", self.url)
        names = [str(entry.get("id", "")).rpartition("/")[2] for entry in found]
        return sorted(name for name in names if is_plain_name(name))

    def _entries(self, folder: str) -> Entries:
        """The objects directly in a folder, and the names of its folders."""
        owner, repository, inside = self._inside(folder)
        if not repository:
            return []
        entries: Entries = []
        for entry in self._tree(owner, repository, inside, recursive=False):
            name = entry["path"].rpartition("/")[2]
            entries.append(name if entry["type"] == "directory" else self._object(owner, repository, entry))
        return sorted(entries, key=lambda item: item if isinstance(item, str) else item.name)

    def _tree(self, owner: str, repository: str, inside: str, *, recursive: bool) -> Iterator[dict[str, Any]]:
        session = self._session()
        commit = session.commit(owner, repository)
        path = join_path(f"api/datasets/{_quoted(owner, repository)}/tree/{commit}", _quoted(*inside.split("/")))
        query = "?recursive=true" if recursive else ""
        for entry in session.pages(path + query, join_path(f"hf://{owner}/{repository}", inside)):
            kind, at = entry.get("type"), entry.get("path")
            if (
                kind not in ("file", "directory")
                or not isinstance(at, str)
                or not all(map(is_plain_name, at.split("/")))
            ):
                continue
            if not inside or at.startswith(inside + "/"):
                yield entry

    def _object(self, owner: str, repository: str, entry: dict[str, Any]) -> RemoteObject:
        large = entry.get("lfs") or {}
        sha256 = large.get("oid")
        return RemoteObject(
            url=f"hf://{owner}/{repository}/{entry['path']}",
            name=entry["path"].rpartition("/")[2],
            size=int(large.get("size", entry.get("size", 0))),
            checksums={"sha256": sha256} if isinstance(sha256, str) and len(sha256) == 64 else {},
            version=sha256 or entry.get("oid"),
        )


class _Session:
    """The state of one process: a connection, and the commits requested so far."""

    def __init__(self, options: FetchOptions) -> None:
        self.options = options
        self.http = _Http((os.environ.get("HF_ENDPOINT") or HOST).rstrip("/"), options)
        self._commits: dict[tuple[str, str], str] = {}

    def commit(self, owner: str, repository: str) -> str:
        """The commit of ``main`` at the first call."""
        key = (owner, repository)
        if key not in self._commits:
            place = f"hf://{owner}/{repository}"
            answer = self._request(f"{self.http.url}/api/datasets/{_quoted(owner, repository)}/revision/main", place)[0]
            sha = answer.get("sha") if isinstance(answer, dict) else None
            if not isinstance(sha, str) or not is_plain_name(sha):
                raise FetchError(
                    f"{place}: the Hub states no commit", hint="try again later, or use a mirror (--mirror)"
                )
            self._commits[key] = sha
        return self._commits[key]

    def pages(self, path: str, place: str) -> Iterator[dict[str, Any]]:
        """The entries of a listing, page by page."""
        url: str | None = f"{self.http.url}/{path}"
        for _ in range(_MOST_PAGES):
            assert url is not None
            entries, url = self._request(url, place)
            if not isinstance(entries, list):
                raise FetchError(f"{place}: the response of the Hub is not a list")
            yield from (entry for entry in entries if isinstance(entry, dict))
            if url is None:
                return
        raise FetchError(f"{place}: the listing has more than {_MOST_PAGES} pages")

    def _request(self, url: str, place: str) -> tuple[Any, str | None]:
        """A JSON response and the URL of the next page, with retries."""
        try:
            return call_with_retries(lambda: self._request_once(url), url=place, options=self.options)
        except (ForbiddenError, ObjectNotFoundError) as error:
            # The Hub does not distinguish missing from private repositories.
            message = f"{place}: no such dataset repository or folder (HTTP {status_of(error)})"
            raise ObjectNotFoundError(message, hint=_PRIVATE) from error

    def _request_once(self, url: str) -> tuple[Any, str | None]:
        import json

        with self.http.request("GET", url) as response:
            body = bytearray()
            try:
                for piece in response.iter_content(1 << 18):
                    body += piece
                    if len(body) > _LONGEST_PAGE:
                        raise FetchError(f"{url}: the response is larger than {_LONGEST_PAGE >> 20} MiB")
            except FetchError:
                raise
            except Exception as error:
                raise_network_error(error, url)
            next_url = response.links.get("next", {}).get("url")
        try:
            answer = json.loads(body)
        except ValueError as error:
            raise transient(f"{url}: the response is not JSON ({bytes(body[:60])!r})") from error
        if next_url is not None and urlsplit(next_url).netloc != urlsplit(url).netloc:
            raise FetchError(f"{url}: the next page of the listing is on another server ({urlsplit(next_url).netloc})")
        return answer, next_url


class _Http(HttpLocation):
    """The Hub's server. The token is sent to it only, not to servers that it redirects to."""

    def _new_session(self) -> requests.Session:
        import requests

        session = super()._new_session()
        token = os.environ.get("HF_TOKEN")
        if token:

            class Bearer(requests.auth.AuthBase):
                def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
                    request.headers["Authorization"] = f"Bearer {token}"
                    return request

            session.auth = Bearer()
        return session


def _quoted(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)
