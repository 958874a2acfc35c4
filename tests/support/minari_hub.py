"""The part of the Hugging Face Hub that readers of dataset repositories use, on this machine.

    with hub({"farama-minari": folder}) as server:     # folder/<repository>/...
        monkeypatch.setenv("HF_ENDPOINT", server.url)

Listings are paged, files over a few KB are "large" (with sha256, and served by a redirect to a store), as at the real one. The
real client, huggingface_hub, reads from it as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from servers import Faults, _Handler, _serving

LARGE = 4096
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    url: str
    faults: Faults
    page_size: int = 1000
    private: set[str] = field(default_factory=set)
    """Repositories (owner/name) that want a token."""
    wrong_sha: bool = False
    seen_tokens: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Authorization of every request."""


@contextlib.contextmanager
def hub(owners: Mapping[str, Path]) -> Iterator[Hub]:
    faults = Faults()
    handle = Hub("", faults)

    class Handler(_Handler):
        def do_GET(self) -> None:
            self.log_request_of_client()
            parts = urlsplit(self.path)
            handle.seen_tokens.append((parts.path, self.headers.get("Authorization")))
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            path = [unquote(part) for part in parts.path.split("/") if part]
            answer = faults.take_answer(folder=path[0] == "api")
            if answer is not None:
                return self.send_small(answer[0], b"no", "text/plain", answer[1])
            if path[:2] == ["api", "datasets"]:
                return self.send_api(path[2:], query)
            if path[0] == "datasets" and path[3] == "resolve":
                return self.send_resolved(path)
            if path[0] == "store":
                return self.send_stored(owners[path[1]].joinpath(*path[2:]))
            return self.send_small(404, b"{}", "application/json")

        do_HEAD = do_GET

        def allowed(self, owner: str, repository: str) -> bool:
            there = owner in owners and (owners[owner] / repository).is_dir()
            closed = f"{owner}/{repository}" in handle.private and self.headers.get("Authorization") != "Bearer sesame"
            if there and not closed:
                return True
            # As the real one does: the missing and the private look alike.
            self.send_small(
                401, b'{"error":"Repository not found"}', "application/json", {"X-Error-Code": "RepoNotFound"}
            )
            return False

        def send_api(self, path: list[str], query: dict[str, str]) -> None:
            if not path:
                top = owners.get(query.get("author", ""))
                names = sorted(entry.name for entry in top.iterdir() if entry.is_dir()) if top else []
                return self.send_page([{"id": f"{query['author']}/{name}"} for name in names], query)
            owner, repository, *rest = path
            if not self.allowed(owner, repository):
                return None
            if not rest or rest[0] == "revision":
                body = {"id": f"{owner}/{repository}", "sha": COMMIT, "siblings": []}
                return self.send_small(200, json.dumps(body).encode(), "application/json")
            top = owners[owner] / repository
            folder = top.joinpath(*rest[2:])
            if rest[0] != "tree" or rest[1] not in (COMMIT, "main") or not folder.is_dir():
                return self.send_small(
                    404, b'{"error":"not here"}', "application/json", {"X-Error-Code": "EntryNotFound"}
                )
            recursive = query.get("recursive", "").lower() == "true"
            found = folder.rglob("*") if recursive else folder.iterdir()
            return self.send_page([self.described(entry, top) for entry in sorted(found)], query)

        def described(self, entry: Path, top: Path) -> dict[str, object]:
            record: dict[str, object] = {"path": entry.relative_to(top).as_posix(), "oid": "a" * 40, "size": 0}
            if entry.is_dir():
                return {**record, "type": "directory"}
            data = entry.read_bytes()
            record.update(type="file", size=len(data), oid=hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest())
            if len(data) >= LARGE:
                sha256 = hashlib.sha256(data + b"!" if handle.wrong_sha else data).hexdigest()
                record["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 130}
            return record

        def send_page(self, entries: list[dict[str, object]], query: dict[str, str]) -> None:
            first = int(query.get("cursor", "0"))
            headers = {}
            if first + handle.page_size < len(entries):
                more = "&".join(
                    f"{key}={quote(value)}" for key, value in {**query, "cursor": str(first + handle.page_size)}.items()
                )
                headers["Link"] = f'<{handle.url}{urlsplit(self.path).path}?{more}>; rel="next"'
            page = entries[first : first + handle.page_size]
            self.send_small(200, json.dumps(page).encode(), "application/json", headers)

        def send_resolved(self, path: list[str]) -> None:
            _, owner, repository, _, commit, *inside = path
            if not self.allowed(owner, repository):
                return None
            file = owners[owner].joinpath(repository, *inside)
            if commit not in (COMMIT, "main") or not file.is_file():
                return self.send_small(404, b"Entry not found", "text/plain", {"X-Error-Code": "EntryNotFound"})
            data = file.read_bytes()
            etag = hashlib.sha256(data).hexdigest() if len(data) >= LARGE else hashlib.sha1(data).hexdigest()
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"', "Content-Type": "text/plain"}
            if len(data) < LARGE:  # from the Hub itself; the faults are those of the store
                return self.send_small(200, data, "text/plain", {"ETag": headers["ETag"]})
            where = "/".join(map(quote, ["store", owner, repository, *inside]))
            store = handle.url.replace("127.0.0.1", "localhost")  # another host, as far as a client can see
            headers.update(
                {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{etag}"', "Location": f"{store}/{where}"}
            )
            return self.send_small(302, b"", "text/plain", headers)

        def send_stored(self, file: Path) -> None:
            # The store has names of its own for what it holds.
            data = file.read_bytes()
            headers = {"ETag": '"its-own"', "Content-Type": "binary/octet-stream"}
            asked = self.asked_range(len(data))
            if asked is None:
                return self.send_data(data, 200, headers)
            start, end = asked
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            return self.send_data(data[start:end], 206, headers)

    Handler.faults = faults
    with _serving(Handler, faults) as url:
        handle.url = url
        yield handle
