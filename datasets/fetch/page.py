"""Reads the body of a response that is no file: a page of a listing, an answer of an API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import FetchError
from .headers import length
from .http_errors import raise_network_error, transient
from .location import Pages

if TYPE_CHECKING:
    import requests

LONGEST_PAGE = 64 << 20
_PIECE = 1 << 16


def read_page(
    response: requests.Response,
    url: str,
    what: str,
    hint: str | None = None,
    *,
    pages: Pages | None = None,
    longest: int = LONGEST_PAGE,
) -> bytes:
    """The decoded body of a response. Raises FetchError if it is larger than ``longest`` or takes longer than ``pages``
    allow, and the network errors; also for a body that ends before the length stated."""
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
