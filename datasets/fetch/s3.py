"""Requests to S3 and stores that speak as it does: listings page by page, ranges of one version, answers of a bounded size.

s3fs reads a listing, an answer and the body of an object to their ends, which a server need not send.
"""

from __future__ import annotations

import os
from functools import cache
from inspect import signature
from typing import Any

from ...errors import FetchError
from .headers import check_first
from .http_errors import replaced
from .location import LONGEST_ANSWER, Pages

PIECE = 1 << 18
#: What a listing states, one thing or another: the client makes an empty answer of anything else.
_STATED = {"Name", "Prefix", "KeyCount", "MaxKeys", "IsTruncated", "Contents", "CommonPrefixes"}


def list_folder(fs: Any, path: str, url: str, silence_timeout: float) -> list[dict[str, Any]]:
    """The entries of a folder, as ``fs.ls`` gives them. Raises FileNotFoundError where there is none, and as `Pages` does."""
    from fsspec.asyn import sync
    from fsspec.exceptions import FSTimeoutError

    bucket, key, _ = fs.split_path(path)
    prefix = f"{key.rstrip('/')}/" if key else ""
    pages, entries, more = Pages(url, silence_timeout), list[dict[str, Any]](), {"Bucket": bucket, "Prefix": prefix}
    while True:
        try:
            answer = sync(
                fs.loop, fs._call_s3, "list_objects_v2", timeout=max(0.1, pages.seconds_left), Delimiter="/", **more
            )
        except FSTimeoutError:
            pages.check_time()
            raise
        if _STATED.isdisjoint(answer):
            raise ValueError("not a listing")
        objects, folders = answer.get("Contents", []), [one["Prefix"] for one in answer.get("CommonPrefixes", [])]
        token = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
        if answer.get("IsTruncated") and not token:
            raise ValueError("a page of the listing is not the last and does not lead to another")
        pages.add([*(one["Key"] for one in objects), *folders], token)
        entries += [
            {"name": one["Key"], "type": "file", "size": one["Size"], "ETag": one.get("ETag")}
            | ({} if "ETag" in one else {"LastModified": one.get("LastModified")})
            for one in objects
            if one["Key"].startswith(prefix) and "/" not in one["Key"][len(prefix) :]
        ]
        entries += [
            {"name": name, "type": "directory"}
            for name in folders
            if name.startswith(prefix) and name.count("/") == prefix.count("/") + 1
        ]
        if token is None:
            break
        more["ContinuationToken"] = token
    if key and not entries:
        raise FileNotFoundError(path)
    return entries


def read_range(fs: Any, path: str, start: int, length: int, seconds: float, version: str | None = None) -> bytes:
    """A range of an object (of this version of it, if one is given), within so many seconds; a byte more than asked for where
    the store sends more. Raises ObjectChangedError where it holds another version, and as `check_first` does."""
    from fsspec.asyn import sync

    bucket, key, _ = fs.split_path(path)
    pinned = {"IfMatch": f'"{version}"'} if version else {}

    async def read() -> bytes:
        span = f"bytes={start}-{start + length - 1}"
        answer = await fs._call_s3("get_object", Bucket=bucket, Key=key, Range=span, **pinned)
        data = bytearray()
        try:
            status = answer["ResponseMetadata"]["HTTPStatusCode"]
            check_first(status, {"Content-Range": answer.get("ContentRange", "")}, start)
            while len(data) <= length and (piece := await answer["Body"].read(min(PIECE, length + 1 - len(data)))):
                data += piece
        finally:
            answer["Body"].close()
        return bytes(data)

    try:
        return bytes(sync(fs.loop, read, timeout=seconds))
    except OSError as error:
        answer = getattr(error.__cause__, "response", None) or {}
        if version and answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in (412, 416):
            raise replaced(f"s3://{path}") from error
        raise


#: Clients that this process got from its parent by a fork.
_inherited: list[Any] = []


def close_in_own_process(fs: Any) -> None:
    """Have a file system that is collected in a fork of this process leave its client open: that would be closed through event
    loops that are the parent's, whose connections would end or hang."""
    close, process = fs.close_session, os.getpid()

    def close_session(loop: Any, client: Any) -> None:
        if os.getpid() == process:
            close(loop, client)
        else:
            _inherited.append(client)  # aiohttp complains of clients that are collected while they are open

    fs.close_session = close_session


@cache
def bounded_session() -> dict[str, Any]:
    """The setting of aiobotocore (of those releases that have it) by which an answer other than an object is read up to
    LONGEST_ANSWER."""
    from aiobotocore.config import AioConfig
    from aiobotocore.httpsession import AIOHTTPSession

    if "http_session_cls" not in signature(AioConfig.__init__).parameters:
        return {}

    class Bounded(AIOHTTPSession):
        async def send(self, request: Any) -> Any:
            streams, request.stream_output = request.stream_output, True
            try:
                response = await super().send(request)
            finally:
                request.stream_output = streams
            if not streams or response.status_code >= 300:
                try:
                    response._content = await self._read(response)
                except BaseException:
                    response.raw.close()  # or aiohttp complains of it when it is collected
                    raise
            return response

        async def _read(self, response: Any) -> bytes:
            data = bytearray()
            async for piece in response.raw.content.iter_chunked(PIECE):
                data += piece
                if len(data) > LONGEST_ANSWER:
                    url = response.url.partition("?")[0]
                    message = f"{url}: the answer is larger than {LONGEST_ANSWER >> 20} MiB"
                    raise FetchError(message, hint="use another mirror (--mirror)")
            return bytes(data)

    return {"http_session_cls": Bounded}
