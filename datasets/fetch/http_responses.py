"""HTTP responses: size, version and checksums of an object from the headers, and the bodies of listings and APIs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ...errors import FetchError
from .location import Pages, RemoteObject
from .retries import raise_network_error, replaced, status_error, transient

if TYPE_CHECKING:
    import requests

#: Limit in bytes of a page of a listing, or of a response of an API.
_LONGEST_PAGE = 64 << 20
_PIECE = 1 << 16


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


def hex_of_base64(text: str) -> str:
    """Base64 as lowercase hex; '' for text that is not base64."""
    try:
        return base64.b64decode(text, validate=True).hex()
    except (binascii.Error, ValueError):
        return ""


def check_same_object(obj: RemoteObject, offset: int, status: int, headers: Mapping[str, str]) -> int:
    """How many leading bytes to skip in this response to a request for `bytes=offset-`.

    Raises ObjectChangedError if the response is of another version of the object, FetchError if it is invalid.
    """
    first, total = content_range(headers)
    # Compare an ETag only with an ETag: some servers state one for GET and none for HEAD.
    stated = headers.get("ETag" if (obj.version or "").startswith('"') else "Last-Modified")
    if status == 416:
        if obj.size is None and total == offset:
            return 0
        raise replaced(obj.url, f"it no longer has byte {offset}")
    if obj.version and stated and stated != obj.version and not stated.startswith("W/"):
        raise replaced(obj.url, f"version {stated} instead of {obj.version}")
    size = total if status == 206 else length(headers)
    if obj.size is not None and size is not None and obj.size != size:
        raise replaced(obj.url, f"{size} bytes instead of {obj.size}")
    if status == 206:
        if first != offset:
            message = f"{obj.url}: requested bytes from {offset}, received bytes from {first}"
            raise FetchError(message, hint="use another mirror (--mirror)")
        return 0
    if status != 200:
        raise status_error(status, obj.url, headers)
    # The server ignores ranges and sends the object from its start.
    return offset


def content_range(headers: Mapping[str, str]) -> tuple[int | None, int | None]:
    """First byte and total size from ``bytes 5-9/10``, ``bytes */10``, ``bytes 5-9/*``."""
    span, _, total = headers.get("Content-Range", "").removeprefix("bytes").strip().partition("/")
    return _count(span.partition("-")[0]), _count(total)


def check_first(status: int, headers: Mapping[str, str], start: int) -> None:
    """Raise ValueError if the response to a request for bytes from ``start`` states that it starts elsewhere."""
    first = content_range(headers)[0] if status == 206 else 0
    if first != start:
        raise ValueError(f"bytes from {first} instead of {start}")


def length(headers: Mapping[str, str]) -> int | None:
    return _count(headers.get("Content-Length", ""))


def _count(text: str) -> int | None:
    """A number of bytes; None for other text and for impossible sizes."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def is_web_page(headers: Mapping[str, str]) -> bool:
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return kind in ("text/html", "application/xhtml+xml")


def read_page(
    response: requests.Response,
    url: str,
    what: str,
    hint: str | None = None,
    *,
    pages: Pages | None = None,
    longest: int = _LONGEST_PAGE,
) -> bytes:
    """The decoded body of a response.

    Raises FetchError if it is larger than ``longest`` or takes longer than ``pages`` allow, TransientFetchError if it ends
    before the stated length, and the network errors.
    """
    page = bytearray()
    try:
        for piece in response.iter_content(_PIECE):
            page += piece
            if len(page) > longest:
                raise FetchError(f"{url}: {what} is larger than {longest >> 20} MiB", hint=hint)
            if pages is not None:
                pages.check_time()
    except Exception as error:
        raise_network_error(error, url)
    stated, received = length(response.headers), response.raw.tell()
    if stated is not None and received < stated:
        raise transient(f"{url}: connection lost after {received} of {stated} bytes")
    return bytes(page)
