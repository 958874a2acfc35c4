"""The part of the Hugging Face Hub that readers and writers of dataset repositories use, on this machine.

    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)

Repositories, their commits and the store of large files are kept in memory. The real client, huggingface_hub, writes to it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, unquote, urlsplit

from servers import Faults, _Handler, _serving

LARGE = 4096
TOKEN = "hf_sesame0123456789"


def git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repository:
    private: bool
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        number = f"{len(self.commits)} {sorted(files)}".encode()
        oid = hashlib.sha1(number).hexdigest()
        self.commits[oid] = dict(files)
        self.branches[branch] = oid
        return oid

    def find(self, revision: str) -> str | None:
        return self.branches.get(revision, revision if revision in self.commits else None)

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[self.branches["main"]]


@dataclass
class HubServer:
    url: str
    faults: Faults
    repositories: dict[str, Repository] = field(default_factory=dict)
    store: dict[str, bytes] = field(default_factory=dict)
    puts: list[str] = field(default_factory=list)
    """sha256 of each file that arrived in the store."""
    answers: list[tuple[str, int, dict[str, str]]] = field(default_factory=list)
    """The next request whose path has this in it gets this status with these headers."""
    cut_puts_after: int | None = None
    """Files that the store takes before it drops connections."""
    spoil: str = ""
    """The file of which the next commit holds other bytes."""
    tokens: list[tuple[str, str | None]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    faults = Faults()
    hub = HubServer("", faults)

    class Handler(_Handler):
        def handle_request(self) -> None:
            self.log_request_of_client()
            parts = urlsplit(self.path)
            hub.tokens.append((parts.path, self.headers.get("Authorization")))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if self.command == "POST" else b""
            with hub.lock:
                answer = next((one for one in hub.answers if one[0] in parts.path), None)
                if answer:
                    hub.answers.remove(answer)
            if answer:
                return self.refuse(answer[1], "no", **answer[2])
            path = [unquote(part) for part in parts.path.split("/") if part]
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            if path[0] == "store":
                return self.do_store(path[1])
            if path == ["api", "validate-yaml"]:
                refused = "nonsense" in json.loads(body)["content"]
                errors = [{"message": '"license" must be one of ...'}] if refused else []
                return self.send_json({"errors": errors, "warnings": []}, 400 if refused else 200)
            if path == ["api", "repos", "create"]:
                return self.create(json.loads(body))
            if path[0] == "datasets" and path[3:] == ["info", "lfs", "objects", "batch"]:
                return self.lfs_batch(f"{path[1]}/{path[2].removesuffix('.git')}", json.loads(body))
            name = "/".join(path[2:4] if path[0] == "api" else path[1:3])
            repository = self.allowed(name)
            if repository is None:
                return None
            if path[0] == "datasets":
                return self.resolve(repository, path[4], "/".join(path[5:]))
            verb, *rest = path[4:] or ["info"]
            if verb == "commit":
                return self.commit(name, rest[0], body)
            oid = repository.find(rest[0] if rest else "main")
            if oid is None:
                return self.refuse(404, "Invalid rev id", **{"X-Error-Code": "RevisionNotFound"})
            if verb == "preupload":
                files, held, small = json.loads(body)["files"], repository.commits[oid], range(1, LARGE)
                modes = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["size"] >= LARGE else "regular",
                        "shouldIgnore": False,
                        "oid": git_oid(held[file["path"]]) if len(held.get(file["path"], b"")) in small else None,
                    }
                    for file in files
                ]
                return self.send_json({"files": modes})
            if verb == "tree":
                return self.tree(repository.commits[oid], "/".join(rest[1:]), "recursive" in query)
            return self.send_json({"id": name, "sha": oid, "private": repository.private, "siblings": []})

        do_GET = do_HEAD = do_POST = do_PUT = handle_request

        def send_json(self, answer: object, status: int = 200, **headers: str) -> None:
            self.send_small(status, json.dumps(answer).encode(), "application/json", headers)

        def refuse(self, status: int, why: str, **headers: str) -> None:
            self.send_json({"error": why}, status, **{"X-Error-Message": why, **headers})

        @property
        def is_owner(self) -> bool:
            return self.headers.get("Authorization") == f"Bearer {TOKEN}"

        def allowed(self, name: str) -> Repository | None:
            repository = hub.repositories.get(name)
            if repository is None or (repository.private and not self.is_owner):
                # The missing and the private look alike.
                status = 404 if self.is_owner else 401
                self.refuse(status, "Repository not found", **{"X-Error-Code": "RepoNotFound"})
                return None
            return repository

        def create(self, wanted: dict) -> None:
            if not self.is_owner:
                return self.refuse(401, "Invalid username or password.")
            name = f"{wanted['organization']}/{wanted['name']}"
            if not name.startswith("me/"):
                return self.refuse(403, f"You don't have the rights to create {name}")
            if name in hub.repositories:
                return self.refuse(409, "You already created this dataset repo")
            private = bool(wanted.get("private", False)) or wanted.get("visibility") == "private"
            hub.repositories[name] = Repository(private)
            hub.repositories[name].commit({".gitattributes": b"*.bin filter=lfs\n"})
            return self.send_json({"url": f"{hub.url}/datasets/{name}", "name": name})

        def lfs_batch(self, name: str, asked: dict) -> None:
            if not self.is_owner:
                return self.refuse(401, "no")
            objects = []
            for one in asked["objects"]:
                found = {"oid": one["oid"], "size": one["size"]}
                if one["oid"] not in hub.store:
                    store = hub.url.replace("127.0.0.1", "localhost")
                    href = f"{store}/store/{one['oid']}?signature=secret-signature"
                    found["actions"] = {"upload": {"href": href, "header": {}}}
                objects.append(found)
            return self.send_json({"transfer": "basic", "objects": objects})

        def do_store(self, oid: str) -> None:
            if self.command == "PUT":
                with hub.lock:
                    if hub.cut_puts_after is not None and len(hub.puts) >= hub.cut_puts_after:
                        self.close_connection = True
                        self.connection.shutdown(socket.SHUT_RDWR)
                        return None
                    if "Content-Length" in self.headers:
                        data = self.rfile.read(int(self.headers["Content-Length"]))
                    else:
                        data = b""
                        while size := int(self.rfile.readline(), 16):
                            data += self.rfile.read(size)
                            self.rfile.readline()
                        self.rfile.readline()
                    if hashlib.sha256(data).hexdigest() != oid:
                        return self.refuse(400, "wrong bytes")
                    hub.store[oid] = data
                    hub.puts.append(oid)
                return self.send_json({})
            data = hub.store[oid]
            asked = self.asked_range(len(data))
            if asked is None:
                return self.send_data(data, 200, {"ETag": '"its-own"'})
            start, end = asked
            return self.send_data(data[start:end], 206, {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

        def commit(self, name: str, branch: str, body: bytes) -> None:
            repository = hub.repositories[name]
            if not self.is_owner:
                return self.refuse(403, "read-only token")
            lines = [json.loads(line) for line in body.splitlines()]
            parent = lines[0]["value"].get("parentCommit")
            if parent is not None and parent != repository.branches[branch]:
                return self.refuse(412, "A commit has happened since. Please refresh and try again.")
            files = dict(repository.commits[repository.branches[branch]])
            for line in lines[1:]:
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = hub.store[value["oid"]]
                else:
                    del files[value["path"]]
            if hub.spoil:
                files[hub.spoil] = files[hub.spoil][::-1] + b"!"
            oid = repository.commit(files, branch)
            return self.send_json(
                {"commitOid": oid, "commitUrl": f"{hub.url}/datasets/{name}/commit/{oid}", "success": True}
            )

        def tree(self, files: dict[str, bytes], folder: str, recursive: bool) -> None:
            prefix = f"{folder}/" if folder else ""
            inside = {path: data for path, data in files.items() if path.startswith(prefix)}
            if folder and not inside:
                return self.refuse(404, "not here", **{"X-Error-Code": "EntryNotFound"})
            entries: dict[str, dict[str, object]] = {}
            for path, data in inside.items():
                rest = path[len(prefix) :].split("/")
                if len(rest) > 1 and not recursive:
                    entries[prefix + rest[0]] = {
                        "type": "directory",
                        "path": prefix + rest[0],
                        "oid": "a" * 40,
                        "size": 0,
                    }
                    continue
                entries[path] = {"type": "file", "path": path, "oid": git_oid(data), "size": len(data)}
                if len(data) >= LARGE:
                    sha256 = hashlib.sha256(data).hexdigest()
                    entries[path]["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 130}
            return self.send_json([entries[path] for path in sorted(entries)])

        def resolve(self, repository: Repository, revision: str, path: str) -> None:
            oid = repository.find(revision)
            if oid is None or path not in repository.commits[oid]:
                return self.refuse(404, "Entry not found", **{"X-Error-Code": "EntryNotFound"})
            if repository.gated and not self.is_owner:
                return self.refuse(403, "Access to the dataset is restricted", **{"X-Error-Code": "GatedRepo"})
            data = repository.commits[oid][path]
            sha256 = hashlib.sha256(data).hexdigest()
            headers = {"ETag": f'"{sha256}"', "X-Repo-Commit": oid}
            if len(data) < LARGE:
                asked = self.asked_range(len(data))
                if asked is None:
                    return self.send_data(data, 200, headers)
                start, end = asked
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
                return self.send_data(data[start:end], 206, headers)
            hub.store[sha256] = data
            store = hub.url.replace("127.0.0.1", "localhost")  # another host, as far as a client can see
            headers["Location"] = f"{store}/store/{quote(sha256)}?signature=secret-signature"
            return self.send_small(302, b"", "text/plain", headers)

    Handler.faults = faults
    with _serving(Handler, faults) as url:
        hub.url = url
        yield hub
