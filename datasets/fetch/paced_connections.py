"""Connections that time out when a server sends too slowly, and fail when it closes them inside the headers of a response; and
the bodies of listings and APIs, which are limited in bytes and time. Importing it imports requests.

The time-out of a socket restarts with every byte, so a server that trickles bytes never times out. Here a response, including
its headers, must also arrive at `MIN_RATE` on average, measured over waits that add up to the time-out. Time between reads
does not count, nor does the wait for the first byte.

http.client treats headers that the end of the connection cuts off as complete, which would make an empty object of such a
response.
"""

from __future__ import annotations

import http.client
import io
import time
from typing import Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, ProxyManager
from urllib3.connection import HTTPConnection, HTTPSConnection

from ...errors import FetchError
from .location import LONGEST_RESPONSE, Pages, size_in
from .retries import MIN_RATE, raise_network_error, transient

#: Limit in bytes of a page of a listing, or of a response of an API.
_LONGEST_PAGE = 64 << 20
_PIECE = 1 << 16


def read_page(
    response: Response,
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
    stated, received = size_in(response.headers.get("Content-Length", "")), response.raw.tell()
    if stated is not None and received < stated:
        raise transient(f"{url}: connection lost after {received} of {stated} bytes")
    return bytes(page)


class PacedAdapter(HTTPAdapter):
    """An adapter of requests whose connections time out as described above. A response that is not streamed (Google's client
    asks for objects that way) is read here, up to `LONGEST_RESPONSE` and within the time of a listing."""

    def send(
        self, request: PreparedRequest, stream: bool = False, timeout: Any = None, *args: Any, **more: Any
    ) -> Response:
        response: Any = super().send(request, stream, timeout, *args, **more)
        if not stream:
            url = str(request.url).partition("?")[0]
            pages = Pages(url, timeout[1]) if isinstance(timeout, tuple) else None
            with response:
                response._content = read_page(response, url, "the response", pages=pages, longest=LONGEST_RESPONSE)
            response._content_consumed = True
        return response

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, **more)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: Any, **more: Any) -> Any:
        manager: Any = super().proxy_manager_for(proxy, **more)
        if type(manager) is ProxyManager:  # a SOCKS manager has other connection classes
            manager.pool_classes_by_scheme = _POOLS
        return manager


class _PacedFile(io.RawIOBase):
    """The bytes of one response as they arrive from a socket."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._file = connection, connection.makefile("rb", buffering=0)
        self._begun = self.ended = False
        self._waited, self._received = 0.0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        began = time.monotonic()
        count: int | None = self._file.readinto(buffer)
        if self._begun:
            self._waited += time.monotonic() - began
        self._begun, self.ended = True, count == 0
        self._received += count or 0
        window = self._connection.gettimeout()
        if window is not None and self._waited >= window:
            if count and self._received < MIN_RATE * self._waited:
                raise TimeoutError(f"timed out: less than {MIN_RATE} bytes per second")
            self._waited, self._received = 0.0, 0
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp.close()
        self._file = _PacedFile(sock)
        self.fp = io.BufferedReader(self._file)

    def begin(self) -> None:
        super().begin()
        if self._file.ended:
            raise http.client.RemoteDisconnected("the server closed the connection inside the headers")


class _HttpPool(HTTPConnectionPool):
    class ConnectionCls(HTTPConnection):
        response_class = _Response


class _HttpsPool(HTTPSConnectionPool):
    class ConnectionCls(HTTPSConnection):
        response_class = _Response


_POOLS = {"http": _HttpPool, "https": _HttpsPool}
