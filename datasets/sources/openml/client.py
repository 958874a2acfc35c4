"""OpenML's JSON API: which dataset is meant, and what OpenML says about it.

https://www.openml.org/apis (version 1). Numbers and flags are strings in one endpoint and JSON numbers in another, lists are
lists, text with commas, or missing; `Description` has proper types.

Errors come as HTTP 412 with ``{"error": {"code", "message"}}`` (or, from copies, with 200). Of these only 107, a database
that is overloaded, can pass; the others are answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from ....errors import CorruptSourceError, FetchError, ObjectNotFoundError
from ...fetch import Location, RemoteObject
from ...fetch.retries import call_with_retries, transient

ROOT = "api/v1/json/data"
_OVERLOADED, _UNKNOWN = "107", ("372", "110", "111", "112", "113")
_LONGEST = 64 << 20
#: Datasets asked for at a time; there were about 6,000 in 2026.
PAGE = 1000


@dataclass(frozen=True)
class Description:
    """A dataset, in proper types."""

    id: int
    name: str
    version: int = 1
    format: str = "arff"
    status: str = "unknown"
    url: str | None = None
    md5: str | None = None
    targets: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    row_id: tuple[str, ...] = ()
    licence: str | None = None
    citation: str | None = None


class Listed(NamedTuple):
    """One dataset of a listing; ``rows`` where OpenML has counted them."""

    version: int
    id: int
    name: str
    rows: int | None


@dataclass
class Api:
    """Asks one place; ``paths`` are those that were answered, for a mirror to be complete."""

    location: Location
    paths: list[str] = field(default_factory=list)

    def describe(self, number: int) -> Description:
        """Raises ObjectNotFoundError for a dataset that does not exist, CorruptSourceError for a malformed answer."""
        path = f"{ROOT}/{number}"
        return description(self._ask(path).get("data_set_description"), number)

    def find(self, name: str, version: int | None) -> tuple[int, list[tuple[int, int]]]:
        """The id of a dataset by its name: the version asked for, else the oldest active one, else the oldest of all.

        Returns it with the (version, id) pairs that the search brought up. Raises ObjectNotFoundError.
        """
        base = f"{ROOT}/list/data_name/{name.lower()}/limit/2"
        base += "" if version is None else f"/data_version/{version}"
        for path in (f"{base}/status/active" if version is None else base, f"{base}/status/deactivated"):
            found = sorted(one[:2] for one in self._list(path) if version in (None, one.version))
            if found:
                return found[0][1], found
        wanted = name if version is None else f"{name} in version {version}"
        message = f"no dataset at {self.location.url} is called {wanted}"
        raise ObjectNotFoundError(message, hint="look for it on https://www.openml.org, or give its number: openml/61")

    def list_all(self, on_progress: Callable[[int, int], None]) -> list[Listed]:
        """All active datasets, page by page; ``on_progress`` receives how many came so far, twice: the end is not known."""
        found = list[Listed]()
        while True:
            page = self._list(f"{ROOT}/list/status/active/limit/{PAGE}/offset/{len(found)}")
            found += page
            on_progress(len(found), len(found))
            if len(page) < PAGE:
                return found

    def _list(self, path: str) -> list[Listed]:
        """The datasets that one answer lists; empty after the last page."""
        try:
            answer = self._ask(path)
        except ObjectNotFoundError:
            return []
        with _malformed(f"{self.location.url}/{path} is not a list of datasets"):
            return [listed(entry) for entry in _sequence(answer["data"].get("dataset") or [])]

    def _ask(self, path: str) -> dict[str, Any]:
        """One answer. Raises ObjectNotFoundError for 'no result' and 'unknown', FetchError for other refusals."""
        url = f"{self.location.url}/{quote(path) if '://' in self.location.url else path}"

        def once() -> dict[str, Any]:
            try:
                answer = _parsed(self._read(RemoteObject(url, path.rpartition("/")[2])))
            except FetchError as error:
                _check_refused(url, _parsed(getattr(error, "body", None) or ""), error)
                raise
            _check_refused(url, answer)
            if not isinstance(answer, dict):
                message = f"{url}: the answer is not OpenML's JSON"
                raise transient(message) if "://" in url else CorruptSourceError(message)
            return answer

        answer = call_with_retries(once, url=url, options=self.location.options)
        self.paths.append(path)
        return answer

    def _read(self, item: RemoteObject) -> str:
        data = bytearray()
        for piece in self.location.open(item):
            data += piece
            if len(data) > _LONGEST:
                raise CorruptSourceError(f"{item.url} is larger than {_LONGEST >> 20} MiB")
        return data.decode("utf-8", errors="replace")


def description(content: Any, number: int) -> Description:
    """A description from the API's JSON."""
    with _malformed(f"OpenML's description of dataset {number} is malformed"):
        return Description(
            id=int(content.get("id") or number),
            name=str(content["name"]),
            version=int(content.get("version") or 1),
            format=str(content.get("format") or "ARFF").lower(),
            status=str(content.get("status") or "unknown"),
            url=_text(content.get("url")),
            md5=(_text(content.get("md5_checksum")) or "").lower() or None,
            targets=_names(content.get("default_target_attribute")),
            ignored=_names(content.get("ignore_attribute")),
            row_id=_names(content.get("row_id_attribute")),
            licence=_text(content.get("licence")),
            citation=_text(content.get("citation")),
        )


def listed(content: Mapping[str, Any]) -> Listed:
    """An entry of a listing from the API's JSON."""
    qualities = {entry["name"]: entry["value"] for entry in _sequence(content.get("quality") or [])}
    rows = qualities.get("NumberOfInstances")
    rows = int(float(rows)) if rows else None
    return Listed(int(content["version"]), int(content["did"]), str(content["name"]), rows)


def path_of(url: str) -> str:
    """The path of one of OpenML's own URLs; raises CorruptSourceError for what points elsewhere."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    inside = host == "openml.org" or host.endswith((".openml.org", ".win.tue.nl"))
    if parts.scheme not in ("http", "https") or not inside or ".." in parts.path.split("/"):
        raise CorruptSourceError(f"{url} is not at OpenML, so it is not fetched")
    return parts.path.strip("/")


def _check_refused(url: str, answer: Any, cause: FetchError | None = None) -> None:
    """Raise the error that an answer with ``{"error": {"code", "message"}}`` stands for."""
    refused = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(refused, dict):
        return
    code = str(refused.get("code", ""))
    text = f"{url}: OpenML says {str(refused.get('message', ''))!r} (code {code})"
    if code == _OVERLOADED:
        raise transient(text) from cause
    kind = ObjectNotFoundError if code in _UNKNOWN else FetchError
    raise kind(text, hint="check the name or number on https://www.openml.org") from cause


@contextmanager
def _malformed(message: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptSourceError(f"{message}: {error!r}") from error


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _names(value: Any) -> tuple[str, ...]:
    """Column names given as a list, as text with commas, or not at all."""
    value = value.split(",") if isinstance(value, str) else value
    names = [str(item).strip() for item in value] if isinstance(value, list) else []
    return tuple(name for name in names if name)


def _text(value: Any) -> str | None:
    value = ", ".join(map(str, value)) if isinstance(value, list) else value
    return str(value) if value else None


def _sequence(value: Any) -> Sequence[Any]:
    """A list; OpenML's converter turns one of a single item into that item."""
    return value if isinstance(value, list) else [value]
