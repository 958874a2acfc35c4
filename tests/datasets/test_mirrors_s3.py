"""Reading S3 through fsspec: the same contract as the other places, against a real server."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from rbdata.datasets.fetch import FetchOptions, fetch_to_file, open_location, read_all, stream
from rbdata.errors import (
    ChecksumError,
    ForbiddenError,
    MissingExtraError,
    ObjectNotFoundError,
    TransientFetchError,
    UsageError,
)
from s3_server import S3Server, s3_server

NAME = "$store$_reward_ckpt.0.gz"
QUICK = FetchOptions(attempts=2, backoff=0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server("reading") as found:
        found.client.put_object(Bucket="reading", Key=f"dqn/Pong/1/{NAME}", Body=b"0123456789" * 300_000)
        found.client.put_object(Bucket="reading", Key="dqn/Pong/1/b/deep", Body=b"deep")
        found.client.put_object(Bucket="reading", Key="dqn/Pong/10/x", Body=b"x")
        found.client.put_object(Bucket="reading", Key="empty/", Body=b"")
        found.client.put_object(Bucket="reading", Key="public/x", Body=b"x", ACL="public-read")
        yield found


@pytest.fixture(autouse=True)
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


def test_lists_as_every_place_does() -> None:
    location = open_location("s3://reading/dqn/")
    assert location.url == "s3://reading/dqn"
    (found,) = location.list("Pong/1")
    assert (found.name, found.url, found.size) == (NAME, f"s3://reading/dqn/Pong/1/{NAME}", 3_000_000)
    assert found.checksums["md5"] and found.version
    assert location.folders("Pong") == ["1", "10"]
    assert location.folders("Pong/1") == ["b"]
    assert location.list("Pong") == []
    assert open_location("s3://reading").folders() == ["dqn", "empty", "public"]
    assert location.stat(f"Pong/1/{NAME}").checksums == found.checksums
    for missing in ("Pong/2", "Pong/1/b/deep", "Po"):
        with pytest.raises(ObjectNotFoundError):
            location.list(missing)
    for missing in ("Pong/1/nothing", "Pong/1"):
        with pytest.raises(ObjectNotFoundError):
            location.stat(missing)
    with pytest.raises(ObjectNotFoundError):
        open_location("s3://no-such-bucket/x").list()
    with pytest.raises(UsageError):
        location.list("../other")


@pytest.mark.parametrize("start", [1, 3_000_000])
def test_streams_from_anywhere(start: int) -> None:
    location = pickle.loads(pickle.dumps(open_location("s3://reading/dqn/Pong/1")))
    pieces = [*stream(location, location.stat(NAME), start=start)]
    assert b"".join(pieces) == (b"0123456789" * 300_000)[start:]
    assert max(map(len, pieces), default=0) <= 1 << 20


def test_into_a_file(tmp_path: Path) -> None:
    location = open_location("s3://reading/dqn/Pong/1")
    found = fetch_to_file(location, location.stat(NAME), tmp_path / "x")
    assert (tmp_path / "x").stat().st_size == found.size == 3_000_000


def test_an_object_replaced_meanwhile_is_noticed(server: S3Server) -> None:
    location = open_location("s3://reading/other")
    server.client.put_object(Bucket="reading", Key="other/x", Body=b"a" * 2_000_000)
    obj = location.stat("x")
    pieces = location.open(obj)
    next(pieces)
    server.client.put_object(Bucket="reading", Key="other/x", Body=b"b" * 2_000_000)
    with pytest.raises(ChecksumError):
        list(pieces)
    with pytest.raises(ChecksumError):
        list(location.open(obj, 5))


def test_without_credentials_it_asks_anonymously(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    location = open_location("s3://reading/public")
    assert read_all(location, location.stat("x"), limit_bytes=10) == b"x"
    with pytest.raises(ForbiddenError, match="access denied") as caught:
        open_location("s3://reading/dqn/Pong/10").stat("x")
    assert "--mirror" in (caught.value.hint or "")


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from servers import closed_port

    with closed_port() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(TransientFetchError, match="gave up after 2 attempts"):
            open_location("s3://reading/x", options=QUICK).list()


def test_what_is_not_installed_or_unknown() -> None:
    with pytest.raises(UsageError, match="unsupported URL scheme nosuch://"):
        open_location("nosuch://host/x")
    with pytest.raises(MissingExtraError) as caught:
        open_location("abfs://container/x")
    assert caught.value.hint
    with pytest.raises(UsageError, match="password") as refused:
        open_location("sftp://me:secret@host/x")
    assert "secret" not in str(refused.value)
    with pytest.raises(UsageError, match="no bucket"):
        open_location("s3://")
