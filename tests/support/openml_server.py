"""OpenML on this machine: its own recorded answers, served as it serves them (errors as 412), with faults.

with openml_server() as server:
    server.url, server.faults            # as of tests/servers.py
    server.overload(2)                   # the next two API answers are "database overloaded" (code 107)
    server.put("api/v1/json/data/7", b"...", status=200)
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from paths import DATA
from servers import Faults, _Handler, _serving

RECORDED = DATA / "openml"
API = "api/v1/json/data"


@dataclass
class OpenmlServer:
    url: str
    faults: Faults
    pages: dict[str, tuple[int, bytes]]
    overloads: list[int] = field(default_factory=list)

    def put(self, path: str, body: bytes | dict, status: int = 200) -> None:
        self.pages[path] = (status, json.dumps(body).encode() if isinstance(body, dict) else body)

    def describe(self, number: int, **changes: Any) -> None:
        """Change a recorded description; None removes a field."""
        content = json.loads(self.pages[f"{API}/{number}"][1])
        content["data_set_description"].update(changes)
        kept = {key: value for key, value in content["data_set_description"].items() if value is not None}
        self.put(f"{API}/{number}", {"data_set_description": kept})

    def table(self, number: int, arff: str, **more: Any) -> None:
        """A dataset of our own; ``more`` goes into its description."""
        path = f"data/v1/download/{number}/t.arff"
        about = {"id": str(number), "name": "t", "version": "1", "status": "active", "format": "ARFF"}
        about |= {"url": f"https://www.openml.org/{path}", **more}
        self.put(path, arff.encode())
        self.put(f"{API}/{number}", {"data_set_description": about})
        self.put(f"{API}/features/{number}", error(274, "No features found"), 412)

    def overload(self, times: int) -> None:
        self.overloads += [1] * times


def error(code: int, message: str) -> dict:
    return {"error": {"code": str(code), "message": message}}


def recorded() -> dict[str, tuple[int, bytes]]:
    """Every recorded answer by its path on the site."""
    pages: dict[str, tuple[int, bytes]] = {}
    for file in sorted(RECORDED.glob("id_*/*.gz")):
        data, name = gzip.decompress(file.read_bytes()), file.name.removesuffix(".gz")
        number = file.parent.name.removeprefix("id_")
        if match := re.fullmatch(r"api-v1-jd-(\d+)\.json", name):
            pages[f"{API}/{match[1]}"] = (200, data)
        elif match := re.fullmatch(r"api-v1-jdf-(\d+)\.json", name):
            pages[f"{API}/features/{match[1]}"] = (200, data)
        elif match := re.fullmatch(r"api-v1-jdl-dn-(.+)-l-2(-.*)\.json", name):
            rest = match[2].replace("-s-act-", "/status/active").replace("-s-dact", "/status/deactivated")
            path = f"{API}/list/data_name/{match[1]}/limit/2" + rest.replace("-dv-", "/data_version/")
            pages[path] = (412 if b'"error"' in data else 200, data)
        elif name.endswith(".arff"):
            about = json.loads(gzip.decompress((file.parent / f"api-v1-jd-{number}.json.gz").read_bytes()))
            pages[urlsplit(about["data_set_description"]["url"]).path.strip("/")] = (200, data)
    return pages


@contextlib.contextmanager
def openml_server() -> Iterator[OpenmlServer]:
    faults, pages = Faults(), recorded()
    state: list[OpenmlServer] = []

    class Handler(_Handler):
        def do_GET(self) -> None:
            self.log_request_of_client()
            path = unquote(urlsplit(self.path).path).strip("/")
            answer = faults.take_answer(folder=False)
            if answer is not None:
                return self.send_small(answer[0], b"no", "text/plain", answer[1])
            if path.startswith("api/") and state[0].overloads:
                state[0].overloads.pop()
                return self.send_small(412, json.dumps(error(107, "Database overloaded")).encode(), "application/json")
            missing = (412, json.dumps(error(372, "No results")).encode()) if path.startswith("api/") else (404, b"no")
            status, data = pages.get(path, missing)
            if status != 200 or path.startswith("api/"):
                return self.send_small(status, data, "application/json; charset=utf-8")
            headers = {"Content-Type": "application/octet-stream", "ETag": f'"{len(data)}-{hash(data)}"'}
            asked = self.asked_range(len(data))
            if asked is None:
                return self.send_data(data, 200, headers)
            headers["Content-Range"] = f"bytes {asked[0]}-{asked[1] - 1}/{len(data)}"
            return self.send_data(data[asked[0] : asked[1]], 206, headers)

        do_HEAD = do_GET

    Handler.faults = faults
    with _serving(Handler, faults) as url:
        state.append(OpenmlServer(url, faults, pages))
        yield state[0]
