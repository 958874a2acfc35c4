"""What a fetch leaves on the disk when a server or the network fails it, for every transport: the object, or nothing.

| fault                                    | here                                | further tests                             |
| ---------------------------------------- | ----------------------------------- | ----------------------------------------- |
| lost connections                         | reset, garbage                      | test_faults.py, test_file.py (continued)  |
| wrong lengths                            | short, long                         | test_faults.py                            |
| wrong bytes, another range than asked    | flip                                | test_spoiled.py                           |
| changed objects                          | changed                             | test_file.py, test_mirrors_s3.py          |
| 403, 404, 429, 5xx                       | 403, 404, 503                       | test_faults.py (waits)                    |
| slow servers                             | stall                               | test_faults.py                            |
| full disk, killed processes              | the same code for every transport   | test_file.py                              |
| a folder that changes or cannot be read  |                                     | test_faults.py (TestDirectories)          |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hub_server as hub
import pytest
from faulty_proxy import Asked, Fault, Proxy, faulty_proxy
from rbdata.datasets.fetch import FetchOptions, Location, fetch_to_file, open_location
from rbdata.errors import FetchError, ForbiddenError, ObjectNotFoundError, TransientFetchError
from s3_server import s3_server
from servers import gcs_server, http_server

DATA = random.Random(5).randbytes(150_000)
QUICK = FetchOptions(attempts=2, backoff=0.0, silence_timeout=30.0)
#: The class of the error where the fault does not pass.
KINDS: dict[str, type[FetchError]] = {
    **dict.fromkeys(("reset", "garbage", "stall", "503"), TransientFetchError),
    **dict.fromkeys(("short", "long", "flip", "changed"), FetchError),
    "403": ForbiddenError,
    "404": ObjectNotFoundError,
}
URLS = {"http": "{}/run", "gs": "gs://lab/run", "s3": "s3://lab/run", "hf": "hf://lab/run"}


@pytest.fixture(scope="module", params=URLS)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, Location]]:
    """A proxy before a server that holds ``run/x.gz``, and the location ``run``."""
    kind, files = request.param, tmp_path_factory.mktemp("files")
    (files / "run").mkdir()
    (files / "run" / "x.gz").write_bytes(DATA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "LARGE", 1 << 30)  # files come from the Hub itself, without a redirect around the proxy
        if kind == "s3":
            pytest.importorskip("s3fs")
        server: Callable[[], Any] = {
            "http": lambda: http_server(files),
            "gs": lambda: gcs_server({"lab": files}),
            "s3": lambda: s3_server("lab"),
            "hf": hub.hub_server,
        }[kind]
        with server() as running, faulty_proxy(getattr(running, "host", None) or running.url) as proxy:
            if kind == "s3":
                running.client.put_object(Bucket="lab", Key="run/x.gz", Body=DATA)
                for name, value in {**running.environment, "AWS_ENDPOINT_URL": proxy.url}.items():
                    patch.setenv(name, value)
                patch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")  # moto's, of any range
            if kind == "hf":
                running.repositories["lab/run"] = hub.Repository(private=False)
                running.repositories["lab/run"].commit({"x.gz": DATA})
            for name in ("STORAGE_EMULATOR_HOST", "HF_ENDPOINT"):
                patch.setenv(name, proxy.url)
            patch.delenv("HF_TOKEN", raising=False)
            yield proxy, open_location(URLS[kind].format(proxy.url), options=QUICK)


@pytest.mark.parametrize("kind", KINDS)
def test_the_object_or_nothing(store: tuple[Proxy, Location], kind: str, tmp_path: Path) -> None:
    proxy, location = store
    proxy.spoil = lambda asked: None
    target = tmp_path / "x.gz"
    obj = location.stat("x.gz")
    if kind == "flip" and not obj.checksums:
        pytest.skip("the server states no checksum")
    proxy.spoil = lambda asked: Fault(kind, 0.5)
    impatient = open_location(location.url, options=FetchOptions(attempts=1, silence_timeout=0.5))
    with pytest.raises(KINDS[kind]) as caught:
        fetch_to_file(impatient if kind == "stall" else location, obj, target)
    assert obj.name in caught.value.message
    assert not target.exists()
    # Once the server is sound again, the next run goes on, or starts over.
    proxy.spoil = lambda asked: None
    fetch_to_file(location, obj, target)
    assert target.read_bytes() == DATA
    assert [path.name for path in tmp_path.iterdir()] == ["x.gz"]


def spoil_one(kind: str, number: int) -> Callable[[Asked], Fault | None]:
    return lambda asked: Fault(kind, 0.5) if asked.number == number else None


def test_a_fault_that_passes(store: tuple[Proxy, Location], tmp_path: Path) -> None:
    proxy, location = store
    proxy.spoil = lambda asked: None
    obj = location.stat("x.gz")
    for kind in ("close", "429"):
        proxy.spoil = spoil_one(kind, len(proxy.asked))
        fetch_to_file(location, obj, tmp_path / kind)
        assert (tmp_path / kind).read_bytes() == DATA
