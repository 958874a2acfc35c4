"""Every kind of fault before a web server and the emulator of Google Cloud Storage: the right bytes, or a typed error."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_proxy import BROKEN, NONSENSE, SHORT, WRONG, Asked, Fault, Proxy, faulty_proxy
from rbdata.datasets.fetch import FetchOptions, Verifier, open_location, stream
from rbdata.datasets.fetch.http import length, parse_index
from rbdata.datasets.fetch.location import RemoteObject, content_range
from rbdata.datasets.fetch.retries import retry_after_seconds
from rbdata.errors import ChecksumError, FetchError, TransientFetchError
from s3_server import s3_server
from servers import gcs_server, http_server

DATA = random.Random(4).randbytes(150_000)
QUICK = FetchOptions(attempts=2, backoff=0.0)
BROKEN_AT_ONCE = [kind for kind in BROKEN if kind not in ("stall", "drip", "drip-headers")]
#: Other bytes than those stored, which only a checksum shows.
UNSEEN = {"flip"}


def spoil(fault: Fault, number: int | None = None) -> Callable[[Asked], Fault | None]:
    """This fault for every request, or for one."""
    return lambda asked: fault if number in (None, asked.number) else None


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("files")
    (top / "run").mkdir()
    (top / "run" / "x.gz").write_bytes(DATA)
    return top


@pytest.fixture(scope="module")
def web(files: Path) -> Iterator[Proxy]:
    with http_server(files) as server, faulty_proxy(server.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def google(files: Path) -> Iterator[Proxy]:
    with gcs_server({"lab": files}) as server, faulty_proxy(server.host) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def s3() -> Iterator[Proxy]:
    pytest.importorskip("s3fs")
    with s3_server("lab") as server, faulty_proxy(server.url) as proxy, pytest.MonkeyPatch.context() as patch:
        server.client.put_object(Bucket="lab", Key="run/x.gz", Body=DATA)
        for name, value in {**server.environment, "AWS_ENDPOINT_URL": proxy.url}.items():
            patch.setenv(name, value)
        patch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")  # moto's, of any range
        yield proxy


@pytest.fixture(params=["web", "google"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Proxy, str]:
    proxy: Proxy = request.getfixturevalue(request.param)
    proxy.spoil = lambda asked: None
    proxy.strangers.clear()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
    return proxy, f"{proxy.url.replace('://', '://me:swordfish@')}/run" if request.param == "web" else "gs://lab/run"


@pytest.mark.parametrize("kind", [*BROKEN_AT_ONCE, *SHORT, *WRONG, "416", "503", "circle", "elsewhere", "changed"])
def test_the_same_bytes_or_an_error(place: tuple[Proxy, str], kind: str) -> None:
    proxy, url = place
    location = open_location(url, options=QUICK)
    obj = location.stat("x.gz")
    for fault, always in ((Fault(kind, 0.4, 3), False), (Fault(kind, 1.0, 4), True)):
        proxy.spoil = spoil(fault, None if always else len(proxy.asked))
        try:
            same = b"".join(stream(location, obj)) == DATA
        except FetchError as error:
            assert "swordfish" not in str(error)
            continue
        assert same or (kind in UNSEEN and not obj.checksums)
        assert [item.name for item in location.list()] == ["x.gz"] or always
    assert all("authorization" not in headers for headers in proxy.strangers)


@pytest.mark.parametrize("nonsense", range(len(NONSENSE)))
def test_listings_that_are_none(place: tuple[Proxy, str], nonsense: int) -> None:
    proxy, url = place
    location = open_location(url, options=QUICK)
    proxy.spoil = lambda asked: Fault("json", choice=nonsense)
    with pytest.raises(FetchError) as caught:
        location.list()
    assert url.rpartition("@")[2] in caught.value.message
    proxy.spoil = spoil(Fault("json", choice=0), len(proxy.asked))
    assert [item.name for item in location.list()] == ["x.gz"]  # an empty body is asked for again


def test_where_redirects_lead(place: tuple[Proxy, str]) -> None:
    proxy, url = place
    location = open_location(url, options=QUICK)
    for choice in range(4):
        proxy.spoil = spoil(Fault("away", choice=choice))
        with pytest.raises(FetchError) as caught:
            location.stat("x.gz")
        assert caught.value.exit_code == 1


@pytest.mark.parametrize("kind", ["shifted-openly", "whole", "begun-anew"])
@pytest.mark.parametrize("store", ["web", "google", "s3"])
def test_a_range_other_than_the_one_asked_for_is_not_taken(
    store: str, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the answer states of itself, where no checksum covers a range."""
    proxy: Proxy = request.getfixturevalue(store)
    proxy.spoil = lambda asked: None
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
    url = {"web": f"{proxy.url}/run", "google": "gs://lab/run", "s3": "s3://lab/run"}[store]
    location = open_location(url, options=QUICK)
    obj = location.stat("x.gz")
    assert location.read_range(obj, 7, 100) == DATA[7:107]
    proxy.spoil = lambda asked: Fault(kind, choice=100)
    with pytest.raises(FetchError) as refused:
        location.read_range(obj, 7, 100)
    assert "run/x.gz" in refused.value.message


def test_an_index_that_ends_early_is_not_taken(web: Proxy) -> None:
    """Its own end tag is all that a page without a length states about itself."""
    location = open_location(f"{web.url}/run", options=QUICK)
    for kind in ("short", "short-without-length"):
        web.spoil = spoil(Fault(kind, 0.9))
        with pytest.raises(TransientFetchError, match="ends early"):
            location.list()


def test_through_a_proxy_of_the_environment(web: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    web.spoil = lambda asked: None
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, web.url)
    location = open_location("http://somewhere.invalid/run", options=QUICK)
    assert b"".join(stream(location, location.stat("x.gz"))) == DATA


def test_comments_and_attributes_of_links() -> None:
    page = """<html><title>Index of /x</title><!-- <a href="no"> --><A class=y HREF = 'a&amp;b'><a data-href="no"><a href=c/>
        <a href="?C=N"><a href="/other/d"></html>"""
    index = parse_index(page, "http://host/x/")
    assert (index.files, index.folders, index.is_index, index.is_whole) == (("a&b",), ("c",), True, True)
    assert not parse_index("<html><a href=x>", "http://host/").is_whole


@pytest.mark.parametrize("text", ["²", "-1", "1e9", "5, 5", "9" * 5000, ""])
def test_numbers_in_headers_that_are_none(text: str) -> None:
    assert length({"Content-Length": text}) is None
    assert content_range({"Content-Range": f"bytes {text}-/{text}"}) == (None, None)


@pytest.mark.parametrize("text", ["soon", "nan", "-5", "Mon, 01 Jan 0001 00:00:00 -0000", "Mon, 99 Jan 99999 00:00:00"])
def test_waits_that_make_no_sense(text: str) -> None:
    assert retry_after_seconds({"Retry-After": text}) in (None, 0.0)


def test_git_blobs_are_verified() -> None:
    """The id that git gives to the file "hello" and a newline: `echo hello | git hash-object --stdin`."""
    stated = {"git": "ce013625030ba8dba906f756967f9e9ca394464a"}
    for content, sound in ((b"hello\n", True), (b"hellp\n", False)):
        verifier = Verifier(RemoteObject("hf://lab/x", "x", 6, stated))
        verifier.update(content)
        if sound:
            verifier.finish()
        else:
            with pytest.raises(ChecksumError, match="git"):
                verifier.finish()
