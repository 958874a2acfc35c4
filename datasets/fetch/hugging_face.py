"""Dataset repositories of the Hugging Face Hub: ``hf://owner``, ``hf://datasets/owner/repository@revision/folder``.

``datasets/`` may be left out. A revision is a branch, a tag or a commit, with ``%2F`` for a slash in it; without one it is
``main``.

Listings come from the Hub's JSON API (https://huggingface.co/docs/hub/api), bytes from its ``resolve`` URLs:

    GET /api/datasets?author=<owner>                            [{"id": "owner/repository"}, ...]
    GET /api/datasets/<owner>/<repository>/revision/<revision>  {"sha": the commit}
    GET /api/datasets/<owner>/<repository>/tree/<commit>/<path> [{"type": "file" or "directory", "path", "size", "oid",
                                                                 "lfs": {"oid": sha256, ...}}, ...]
    GET /datasets/<owner>/<repository>/resolve/<commit>/<path>  the bytes, usually by a redirect to a store

Long listings are paged (header Link, rel "next"). The commit is requested once, so that one run reads one version of a
repository; a location that is `pinned` reads it in other processes as well. Files in large-file storage have a sha256.
HF_ENDPOINT names another server than huggingface.co. The token in HF_TOKEN, or else that of `hf auth login`, is sent if there
is one (private repositories, higher limits).
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, unquote

from ...errors import ForbiddenError, ObjectNotFoundError, UsageError
from .http import HttpLocation
from .location import (
    Location,
    Names,
    Objects,
    PerProcess,
    RemoteObject,
    check_path,
    is_plain_name,
    join_path,
)
from .retries import MISSING, FetchOptions

if TYPE_CHECKING:
    import requests

# `Location` has a method called `list`, which hides the type inside the class.
Tree: TypeAlias = list[tuple[str, RemoteObject]]

HOST = "https://huggingface.co"
_PRIVATE = "check the spelling; for a private repository set HF_TOKEN, or log in with `hf auth login`"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubLocation(Location):
    """A `Location` at the Hub; the repositories of an owner are its top folders."""

    _state: PerProcess[_Session] = field(default_factory=PerProcess, init=False, repr=False, compare=False)

    @classmethod
    def from_url(cls, url: str, options: FetchOptions) -> HubLocation:
        path = check_path(url.partition("://")[2].rstrip("/"))
        repository, inside = _split(f"hf://{path}")
        folder, _, name = repository.rpartition("/")
        _, mark, revision = name.partition("@")
        if not path or "@" in (folder + inside if repository else path):
            raise UsageError(f"{url}: no owner in the URL", hint="give hf://owner or hf://datasets/owner/repository")
        if (mark and not revision) or "@" in revision:
            raise UsageError(f"{url}: no revision after the @", hint="give a branch, a tag or a commit")
        return cls(f"hf://{path}", options)

    @property
    def repository(self) -> str:
        """``owner/repository``; '' for a location that is an owner."""
        return _name_and_revision(_split(self.url)[0])[0]

    @property
    def revision(self) -> str:
        """The branch, tag or commit that is read."""
        return _name_and_revision(_split(self.url)[0])[1]

    def pinned(self) -> HubLocation:
        """The same folder in the commit that the revision names now: what it reads never changes."""
        repository, inside = _split(self.url)
        if not repository:
            return self
        commit = self._with_retries(lambda: self._session().commit(repository), self.url)
        return replace(self, url="hf://" + join_path(f"{repository.partition('@')[0]}@{commit}", inside))

    def tree(self, folder: str = "") -> Tree:
        """Every object below a folder, with its path relative to this location, in few requests."""
        repository, inside = _split(self._url_of(check_path(folder)))
        if not repository:
            raise UsageError(f"{self.url} is not a repository")

        def find() -> Objects:
            entries = self._tree(repository, inside, "?recursive=true")
            return [_to_object(repository, entry) for entry in entries if entry["type"] == "file"]

        found = self._with_retries(find, self.url)
        return sorted(((self.path_of(obj), obj) for obj in found), key=lambda pair: pair[0])

    def _read(self, obj: RemoteObject, start: int, length: int | None) -> Generator[bytes, None, None]:
        repository, inside = _split(obj.url)
        session = self._session()
        # The version that the store states is not the Hub's; size and sha256 identify the object.
        name, commit = _name_and_revision(repository)[0], session.commit(repository)
        store_url = f"{session.http.url}/datasets/{quote(name)}/resolve/{commit}/{quote(inside)}"
        try:
            yield from session.http._read(replace(obj, url=store_url, version=None), start, length)
        except ForbiddenError as error:
            # The Hub lists the file but does not send it: the repository is gated, or the token may not read it.
            refusal = ForbiddenError(
                f"{obj.url}: the Hub refuses the file (HTTP {error.status})",
                hint=f"if the repository is gated, accept its terms at {endpoint()}/datasets/{name}, and set HF_TOKEN",
            )
            refusal.status = error.status
            raise refusal from error

    def _session(self) -> _Session:
        return self._state.get(lambda: _Session(self.options))

    def _listing(self, url: str) -> tuple[Objects, Names]:
        repository, inside = _split(url)
        if not repository:
            owner = quote(url.removeprefix("hf://").removeprefix("datasets/"), safe="")
            found = self._session().pages(f"api/datasets?author={owner}&limit=1000", url)
            return [], [str(entry["id"]).rpartition("/")[2] for entry in found]
        # Those of a commit are requested once, as every `stat` needs a listing.
        held = self._session().folders
        entries = held.get((repository, inside)) or [*self._tree(repository, inside)]
        if _COMMIT.fullmatch(_name_and_revision(repository)[1]):
            held[repository, inside] = entries
        here = [entry for entry in entries if entry["path"].rpartition("/")[0] == inside]
        objects = [_to_object(repository, entry) for entry in here if entry["type"] == "file"]
        return objects, [entry["path"].rpartition("/")[2] for entry in here if entry["type"] == "directory"]

    def _describe(self, obj: RemoteObject) -> RemoteObject:
        folder, _, name = obj.url.rpartition("/")
        if not _split(obj.url)[1]:
            raise UsageError(f"{obj.url} is a folder, not a file", hint="give the path of a file")
        for item in self._listing(folder)[0]:
            if item.name == name:
                return item
        raise ObjectNotFoundError(f"{obj.url}: no such file", hint=MISSING)

    def _tree(self, repository: str, inside: str, query: str = "") -> Iterator[dict[str, Any]]:
        session = self._session()
        name = quote(_name_and_revision(repository)[0])
        path = join_path(f"api/datasets/{name}/tree/{session.commit(repository)}", quote(inside))
        for entry in session.pages(path + query, join_path(f"hf://{repository}", inside)):
            at = entry["path"]
            if all(map(is_plain_name, at.split("/"))) and (not inside or at.startswith(inside + "/")):
                yield entry


def _split(url: str) -> tuple[str, str]:
    """The repository as the URL writes it ([datasets/]owner/name[@revision]) and the path in it; '' for what it lacks."""
    parts = url.removeprefix("hf://").split("/")
    depth = 3 if parts[0] == "datasets" else 2
    return ("/".join(parts[:depth]), "/".join(parts[depth:])) if len(parts) >= depth else ("", "")


def _name_and_revision(repository: str) -> tuple[str, str]:
    """``owner/name`` and the revision of a repository in a URL."""
    name, _, revision = repository.removeprefix("datasets/").partition("@")
    return name, unquote(revision) or "main"


def read_token() -> str:
    """The token of the Hub, '' if there is none: HF_TOKEN, else the file that `hf auth login` writes.

    https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables names the variables. Raises UsageError
    for an invalid token, without quoting it.
    """
    origin, token = "HF_TOKEN", os.environ.get("HF_TOKEN", "")
    if not token.strip():
        home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
        origin = os.environ.get("HF_TOKEN_PATH") or f"{home}/token"
        with suppress(OSError):
            token = Path(origin).expanduser().read_text()
    token = token.strip()  # token files end with a newline
    if not (token.isascii() and token.isprintable()):
        hint = "set it again, without quotes or line breaks"
        raise UsageError(f"{origin} contains characters that are invalid in a token", hint=hint)
    return token


def endpoint() -> str:
    """The address of the Hub, or of the mirror that HF_ENDPOINT names."""
    url = (os.environ.get("HF_ENDPOINT") or HOST).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"HF_ENDPOINT is not the address of a server: {url}", hint="write https://host")
    return url


def _to_object(repository: str, entry: dict[str, Any]) -> RemoteObject:
    large = entry.get("lfs") or {}
    # Files outside large-file storage are git blobs, identified by git's checksum.
    name, oid = ("sha256", large["oid"]) if large else ("git", entry["oid"])
    return RemoteObject(
        url=f"hf://{repository}/{entry['path']}",
        name=entry["path"].rpartition("/")[2],
        size=int(large.get("size", entry["size"])),
        checksums={name: oid} if len(oid) == {"sha256": 64, "git": 40}[name] else {},
        version=oid,
    )


class _Session:
    """The state of one process: a connection, and the commits requested so far."""

    def __init__(self, options: FetchOptions) -> None:
        self.http = _Http(endpoint(), options)
        self.folders: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._commits: dict[str, str] = {}

    def commit(self, repository: str) -> str:
        """The commit of the revision at the first call."""
        name, revision = _name_and_revision(repository)
        if _COMMIT.fullmatch(revision):
            return revision
        if repository not in self._commits:
            url = f"{self.http.url}/api/datasets/{quote(name)}/revision/{quote(revision, safe='')}"
            commit = self._request(url, f"hf://{repository}")[0]["sha"]
            if not _COMMIT.fullmatch(commit):
                raise ValueError(f"{commit!r} is not a commit")
            self._commits[repository] = commit
        return self._commits[repository]

    def pages(self, path: str, place: str) -> Iterator[dict[str, Any]]:
        """The entries of a listing: of repositories, or of files and folders."""
        url: str | None = f"{self.http.url}/{path}"
        while url is not None:
            entries, url = self._request(url, place)
            yield from entries

    def _request(self, url: str, place: str) -> tuple[Any, str | None]:
        """A JSON response and the URL of the next page."""
        try:
            with self.http.request("GET", url) as response:
                return response.json(), response.links.get("next", {}).get("url")
        except (ForbiddenError, ObjectNotFoundError) as error:
            # The Hub does not distinguish missing from private repositories.
            message = f"{place}: no such dataset repository, revision or folder (HTTP {error.status})"
            raise ObjectNotFoundError(message, hint=_PRIVATE) from error


class _Http(HttpLocation):
    """The Hub's server. The token is sent to it only, not to servers that it redirects to."""

    def _new_session(self) -> requests.Session:
        import requests

        session, token = super()._new_session(), read_token()

        class Bearer(requests.auth.AuthBase):
            def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
                request.headers["Authorization"] = f"Bearer {token}"
                return request

        if token:
            session.auth = Bearer()
        return session
