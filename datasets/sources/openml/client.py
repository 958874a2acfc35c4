"""OpenML's JSON API: which dataset is meant, and what OpenML says about it.

https://www.openml.org/apis (version 1). Numbers and flags are strings in one endpoint and JSON numbers and booleans in another,
lists are lists, JSON in a string, or missing; `Description` has proper types.

Errors come as HTTP 412 with ``{"error": {"code", "message"}}`` (or, from copies, with 200). Of these only 107, a database
that is overloaded, can pass; the others are answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from ....errors import CorruptSourceError, FetchError, ObjectNotFoundError, RbdataError
from ....storage.untrusted_json import parse_json
from ...fetch import Location, RemoteObject
from ...fetch.retries import call_with_retries, transient

ROOT = "api/v1/json/data"
_NO_RESULT, _OVERLOADED = "372", "107"
_UNKNOWN = ("111", "113", "110", "112")
_LONGEST = 64 << 20
#: Datasets asked for at a time; there were about 6,000 in 2026.
PAGE = 1000


@dataclass(frozen=True)
class Feature:
    """What the features endpoint says of a column. ``values``: of a nominal one; not always in the order declared."""

    name: str
    kind: str
    is_target: bool
    is_ignored: bool
    is_row_id: bool
    values: tuple[str, ...] | None


@dataclass(frozen=True)
class Description:
    """A dataset, in proper types."""

    id: int
    name: str
    version: int = 1
    format: str = "arff"
    status: str = "unknown"
    url: str | None = None
    parquet_url: str | None = None
    md5: str | None = None
    targets: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    row_id: tuple[str, ...] = ()
    licence: str | None = None
    citation: str | None = None
    features: tuple[Feature, ...] = ()


@dataclass(frozen=True)
class Listed:
    """One dataset of a listing; ``rows`` where OpenML has counted them."""

    id: int
    name: str
    version: int
    rows: int | None


@dataclass
class Api:
    """Asks one place; ``paths`` are those that were answered, for a mirror to be complete."""

    location: Location
    paths: list[str] = field(default_factory=list)

    def describe(self, number: int) -> Description:
        """Raises ObjectNotFoundError for a dataset that does not exist, CorruptSourceError for a malformed answer."""
        path = f"{ROOT}/{number}"
        answer = self._ask(path)
        content = answer.get("data_set_description")
        if not isinstance(content, dict):
            raise CorruptSourceError(f"{self.location.url}/{path} describes no dataset")
        return description(content, number, self._features(number))

    def find(self, name: str, version: int | None) -> tuple[int, list[tuple[int, int]]]:
        """The id of a dataset by its name: the version asked for, else the oldest active one, else the oldest of all.

        Returns it with the (version, id) pairs that the search brought up. Raises ObjectNotFoundError.
        """
        base = f"{ROOT}/list/data_name/{name.lower()}/limit/2"
        base += "" if version is None else f"/data_version/{version}"
        for path in (f"{base}/status/active" if version is None else base, f"{base}/status/deactivated"):
            found = sorted((one.version, one.id) for one in self._list(path) if version in (None, one.version))
            if found:
                return found[0][1], found
        wanted = name if version is None else f"{name} in version {version}"
        message = f"no dataset at {self.location.url} is called {wanted}"
        raise ObjectNotFoundError(message, hint="look for it on https://www.openml.org, or give its number: openml/61")

    def list_all(self, on_progress: Callable[[int, int], None]) -> list[Listed]:
        """All active datasets, page by page; ``on_progress`` hears how many came so far, twice: the end is not known."""
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
            return [listed(entry) for entry in _inside(self._ask(path), "data", "dataset")]
        except ObjectNotFoundError:
            return []
        except RbdataError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise CorruptSourceError(f"{self.location.url}/{path} is not a list of datasets") from error

    def _features(self, number: int) -> tuple[Feature, ...]:
        """Empty where OpenML has none (it computes them some time after the upload, and sometimes cannot)."""
        try:
            answer = self._ask(f"{ROOT}/features/{number}")
        except (ObjectNotFoundError, ApiError):
            return ()
        return tuple(feature(entry) for entry in _inside(answer, "data_features", "feature") if isinstance(entry, dict))

    def _ask(self, path: str) -> dict[str, Any]:
        """One answer. Raises ObjectNotFoundError for 'no result' and 'unknown', ApiError for other refusals."""
        quoted = quote(path) if "://" in self.location.url else path
        url = f"{self.location.url}/{quoted}"
        item = RemoteObject(url, path.rpartition("/")[2])

        def once() -> dict[str, Any]:
            try:
                answer = self._read(item)
            except FetchError as error:
                _check_refused(url, _loads(getattr(error, "said", "") or ""), error)
                raise
            _check_refused(url, answer)
            if not isinstance(answer, dict):
                message = f"{url}: the answer is not OpenML's JSON"
                raise transient(message) if "://" in url else CorruptSourceError(message)
            return answer

        answer = call_with_retries(once, url=url, options=self.location.options)
        self.paths.append(path)
        return answer

    def _read(self, item: RemoteObject) -> Any:
        data = bytearray()
        for piece in self.location.open(item):
            data += piece
            if len(data) > _LONGEST:
                raise CorruptSourceError(f"{item.url} is larger than {_LONGEST >> 20} MiB")
        return _loads(bytes(data).decode("utf-8", errors="replace"))


class ApiError(FetchError):
    """OpenML refuses a request, with a code and a sentence."""


def description(content: Mapping[str, Any], number: int, features: tuple[Feature, ...] = ()) -> Description:
    """A description from the API's JSON."""
    try:
        return Description(
            id=int(content.get("id") or number),
            name=str(content["name"]),
            version=int(content.get("version") or 1),
            format=str(content.get("format") or "ARFF").lower(),
            status=str(content.get("status") or "unknown"),
            url=_text(content.get("url")),
            parquet_url=_text(content.get("parquet_url")),
            md5=(_text(content.get("md5_checksum")) or "").lower() or None,
            targets=_names(content.get("default_target_attribute")),
            ignored=_names(content.get("ignore_attribute")),
            row_id=_names(content.get("row_id_attribute")),
            licence=_text(content.get("licence")),
            citation=_text(content.get("citation")),
            features=features,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptSourceError(f"OpenML's description of dataset {number} is malformed: {error!r}") from error


def feature(content: Mapping[str, Any]) -> Feature:
    """A feature from the API's JSON."""
    values = content.get("nominal_value", content.get("nominal_values"))
    if isinstance(values, str):
        values = _loads(values)
    return Feature(
        name=str(content.get("name")),
        kind=str(content.get("data_type", "")).lower(),
        is_target=_flag(content.get("is_target")),
        is_ignored=_flag(content.get("is_ignore")),
        is_row_id=_flag(content.get("is_row_identifier")),
        values=tuple(map(str, values)) if isinstance(values, list) else None,
    )


def listed(content: Mapping[str, Any]) -> Listed:
    """An entry of a listing from the API's JSON."""
    qualities = {entry["name"]: entry["value"] for entry in _sequence(content.get("quality") or [])}
    rows = qualities.get("NumberOfInstances")
    rows = int(float(rows)) if rows else None
    return Listed(int(content["did"]), str(content["name"]), int(content["version"]), rows)


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
    if code == _NO_RESULT or code in _UNKNOWN:
        raise ObjectNotFoundError(text, hint="check the name or number on https://www.openml.org") from cause
    raise ApiError(text, hint="look at the dataset's page on https://www.openml.org") from cause


def _loads(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None


def _names(value: Any) -> tuple[str, ...]:
    """Column names given as a list, as a list in JSON, as a comma list, or not at all."""
    if isinstance(value, str):
        value = value.split(",")
    names = [str(item).strip() for item in value] if isinstance(value, list) else []
    return tuple(name for name in names if name)


def _text(value: Any) -> str | None:
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return str(value) if value else None


def _flag(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def _inside(answer: Mapping[str, Any], outer: str, inner: str) -> Sequence[Any]:
    """The list in an answer; empty where there is none."""
    found = answer.get(outer)
    return _sequence(found.get(inner) or []) if isinstance(found, dict) else []


def _sequence(value: Any) -> Sequence[Any]:
    """A list; OpenML's converter turns one of a single item into that item."""
    return value if isinstance(value, list) else [value]
