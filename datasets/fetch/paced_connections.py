"""Connections that time out when a server sends too slowly, and fail when it closes them inside the headers of an answer.

The time-out of a socket starts again with every byte, so that a server that sends one now and then would never time out. Here
an answer, its headers included, must also arrive at `LEAST_RATE` on average, once as long as that time-out was spent on
waiting for it. Time in which nobody reads does not count, nor does the wait for the first byte.

http.client takes headers that end with the connection for whole ones, so that an answer cut there would be an empty object.
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

from .http_responses import read_page
from .location import LONGEST_ANSWER, Pages
from .retries import LEAST_RATE


class PacedAdapter(HTTPAdapter):
    """An adapter of requests whose connections time out as described above. Of an answer that is not read piece by piece (those
    of Google's client about objects) it reads up to `LONGEST_ANSWER`, in the time of a listing."""

    def send(
        self, request: PreparedRequest, stream: bool = False, timeout: Any = None, *args: Any, **more: Any
    ) -> Response:
        response: Any = super().send(request, stream, timeout, *args, **more)
        if not stream:
            url = str(request.url).partition("?")[0]
            pages = Pages(url, timeout[1]) if isinstance(timeout, tuple) else None
            with response:
                response._content = read_page(response, url, "the answer", pages=pages, longest=LONGEST_ANSWER)
            response._content_consumed = True
        return response

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, **more)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: Any, **more: Any) -> Any:
        manager: Any = super().proxy_manager_for(proxy, **more)
        if type(manager) is ProxyManager:  # that of SOCKS has connections of its own
            manager.pool_classes_by_scheme = _POOLS
        return manager


class _Answer(io.RawIOBase):
    """The bytes of one answer as they arrive from a socket."""

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
            if count and self._received < LEAST_RATE * self._waited:
                raise TimeoutError(f"timed out: less than {LEAST_RATE} bytes per second")
            self._waited, self._received = 0.0, 0
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp.close()
        self._answer = _Answer(sock)
        self.fp = io.BufferedReader(self._answer)

    def begin(self) -> None:
        super().begin()
        if self._answer.ended:
            raise http.client.RemoteDisconnected("the server closed the connection inside the headers")


class _HttpPool(HTTPConnectionPool):
    class ConnectionCls(HTTPConnection):
        response_class = _Response


class _HttpsPool(HTTPSConnectionPool):
    class ConnectionCls(HTTPSConnection):
        response_class = _Response


_POOLS = {"http": _HttpPool, "https": _HttpsPool}
