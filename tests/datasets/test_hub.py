"""Datasets on the Hugging Face Hub: huggingface_hub's own client pushes to a server on this machine, and rbdata reads it."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import rbdata
from hub_server import TOKEN, HubServer, hub_server
from rbdata.cli import run
from rbdata.datasets import hub
from rbdata.datasets.fetch import FetchOptions
from rbdata.datasets.fetch.hugging_face import HubLocation, read_token
from rbdata.datasets.mirrors import ls
from rbdata.datasets.remote import open_remote
from rbdata.errors import (
    ChecksumError,
    DatasetExistsError,
    DatasetNotFoundError,
    FetchError,
    ForbiddenError,
    MissingExtraError,
    ObjectNotFoundError,
    TransientFetchError,
    UsageError,
)
from rbdata.storage.manifest import read_manifest

URL = "hf://datasets/me/x"
ID = "gymnasium/CartPole-v1"
QUICK = FetchOptions(attempts=2, backoff=0.01)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    # The client reads HF_ENDPOINT once, when it is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_URL_HOSTS", frozenset({"127.0.0.1"}))
    for name in ("HF_TOKEN_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    # The client waits seconds between its own attempts.
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=lambda seconds: None, time=time.time))
    with hub_server() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", running.url)
        yield running


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("root")
    for seed, name in ((1, "a"), (2, "b")):
        rbdata.download("gymnasium/CartPole-v1", root=top / name, steps=1200, seed=seed)
    return top


def push(root: Path, url: str = URL, **options) -> hub.Pushed:
    return hub.push(ID, url, **{"root": root, "licence": "mit", "fetch": QUICK, **options})


def large(folder: Path) -> set[str]:
    files = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    return {hashlib.sha256(data).hexdigest() for data in files if len(data) >= 4096}


def test_a_round_trip(server: HubServer, root: Path, tmp_path: Path):
    pushed = push(root / "a")
    held = server.repositories["me/x"]
    assert held.private and pushed.url == URL and pushed.sent == pushed.files
    folder = root / "a" / ID
    names = [*read_manifest(folder).files, "rbdata.json"]
    assert {name: held.files[name] for name in names} == {name: (folder / name).read_bytes() for name in names}
    card = held.files["README.md"].decode()
    head = card.split("---")[1]
    assert 'license: "mit"' in head and '"offline-rl"' in head
    assert f"rbdata.load('{URL}'" in card and f"rbdata download {URL}" in card and "| licence | mit |" in card

    here = rbdata.open_dataset(ID, root=root / "a")
    there = rbdata.open_dataset(URL, root=tmp_path / "c")
    assert bool((there.to_tensordict() == here.to_tensordict()).all())
    options = {"batch_size": 64, "seed": 3, "n_step": 3}
    one, other = rbdata.load(URL, root=tmp_path / "d", **options), rbdata.load(ID, root=root / "a", **options)
    for _ in range(5):
        assert bool((one.sample() == other.sample()).all())
    assert run(["verify", URL]) == 0
    assert [entry.name for entry in ls(URL)] == [ID]
    assert run(["download", URL, "--root", str(tmp_path / "copy")]) == 0
    assert run(["verify", ID, "--root", str(tmp_path / "copy")]) == 0
    copied = read_manifest(tmp_path / "copy" / ID)
    assert copied.provenance["mirror"] == f"{URL}@{held.branches['main']}"
    assert copied.content == read_manifest(folder).content


def test_nothing_is_sent_twice(server: HubServer, root: Path):
    push(root / "a")
    before, commits = list(server.puts), len(server.repositories["me/x"].commits)
    assert set(before) == large(root / "a" / ID) and len(set(before)) == len(before)
    again = push(root / "a")
    assert (again.sent, again.sent_bytes, server.puts) == (0, 0, before)
    assert len(server.repositories["me/x"].commits) == commits


def test_an_upload_cut_midway_goes_on(server: HubServer, root: Path):
    server.cut_puts_after = 2
    with pytest.raises(TransientFetchError) as caught:
        push(root / "a")
    assert "push again" in (caught.value.hint or "") and "signature" not in str(caught.value)
    assert len(server.puts) == 2 and "rbdata.json" not in server.repositories["me/x"].files
    server.cut_puts_after = None
    push(root / "a")
    assert sorted(server.puts) == sorted(large(root / "a" / ID))
    assert "rbdata.json" in server.repositories["me/x"].files


def test_a_commit_that_is_pinned_is_read_to_its_end(server: HubServer, root: Path, tmp_path: Path):
    push(root / "a")
    first = server.repositories["me/x"].branches["main"]
    opened = open_remote(URL, root=tmp_path / "c", fetch=QUICK)
    with pytest.raises(DatasetExistsError, match="--force"):
        push(root / "b")
    push(root / "b", force=True)
    held = server.repositories["me/x"]
    assert held.branches["main"] != first
    assert set(held.files) == {*read_manifest(root / "b" / ID).files, "rbdata.json", "README.md", ".gitattributes"}
    one, other = (rbdata.open_dataset(ID, root=root / name).to_tensordict() for name in "ab")
    assert bool((opened.to_tensordict() == one).all())
    assert bool((rbdata.open_dataset(f"{URL}@{first}", root=tmp_path / "d").to_tensordict() == one).all())
    assert bool((rbdata.open_dataset(URL, root=tmp_path / "e").to_tensordict() == other).all())


def test_another_dataset_of_the_id_is_not_taken_for_it(server: HubServer, root: Path, tmp_path: Path, capsys):
    push(root / "a")
    where = ["--root", str(tmp_path / "copy")]
    assert run(["download", URL, *where]) == 0
    assert run(["download", URL, *where]) == 0
    push(root / "b", force=True)
    assert run(["download", URL, *where]) != 0
    assert "--force" in capsys.readouterr().err
    assert run(["download", URL, "--force", *where]) == 0
    assert read_manifest(tmp_path / "copy" / ID).content == read_manifest(root / "b" / ID).content


def test_branches(server: HubServer, root: Path):
    push(root / "a")
    held = server.repositories["me/x"]
    held.commit(held.files, "try/1")
    before = held.branches["main"]
    push(root / "b", f"{URL}@try%2F1", force=True)
    assert held.branches["main"] == before
    with pytest.raises(ObjectNotFoundError, match="revision"):
        open_remote(f"{URL}@nowhere", fetch=QUICK)


def test_a_card_that_somebody_wrote_stays(server: HubServer, root: Path):
    push(root / "a")
    held = server.repositories["me/x"]
    held.commit({**held.files, "README.md": b"mine"})
    push(root / "a")
    assert held.files["README.md"] == b"mine"
    push(root / "a", force=True)
    assert held.files["README.md"] != b"mine"


def test_visibility_is_never_changed(server: HubServer, root: Path):
    push(root / "a", public=True)
    assert not server.repositories["me/x"].private
    with pytest.raises(UsageError, match="is public"):
        push(root / "a")
    push(root / "a", "hf://datasets/me/y")
    with pytest.raises(UsageError, match="is private"):
        push(root / "a", "hf://datasets/me/y", public=True)


def test_a_licence_is_asked_for(server: HubServer, root: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    words = ["mirror", "push", ID, URL, "--root", str(root / "a")]
    assert run(words) == 2
    assert "--license" in capsys.readouterr().err
    with pytest.raises(UsageError, match="licence"):
        push(root / "a", licence="MIT License!")
    assert run([*words[:3], str(root / "m"), "--public", "--root", str(root / "a")]) == 2
    assert not server.repositories
    with pytest.raises(UsageError, match="refuses the card"):
        push(root / "a", "hf://datasets/me/y", licence="nonsense")
    assert not server.puts and "rbdata.json" not in server.repositories["me/y"].files
    monkeypatch.setattr("rbdata.cli.console._is_terminal", lambda stream: stream is not sys.stdout)
    monkeypatch.setattr("sys.stdin.readline", lambda: "cc-by-4.0\n", raising=False)
    assert run(words) == 0
    assert b'license: "cc-by-4.0"' in server.repositories["me/x"].files["README.md"]


@pytest.mark.parametrize(
    ("at", "status", "headers", "error", "hint"),
    [
        ("preupload", 429, {"Retry-After": "17"}, TransientFetchError, "17 s"),
        ("/commit/", 429, {"Retry-After": "17"}, TransientFetchError, "17 s"),
        ("/commit/", 412, {}, ChecksumError, "push again"),
        ("/commit/", 401, {}, FetchError, ""),
        ("/commit/", 403, {}, ForbiddenError, "may write"),
        ("/commit/", 503, {}, TransientFetchError, "push again"),
        ("objects/batch", 403, {"X-Error-Message": f"token {TOKEN} is read-only"}, ForbiddenError, "may write"),
    ],
)
def test_refusals(server: HubServer, root: Path, at, status, headers, error, hint):
    server.answers += [(at, status, headers)] * 8  # the client repeats requests of its own
    with pytest.raises(error) as caught:
        push(root / "a")
    assert hint in (caught.value.hint or "")
    assert TOKEN not in str(caught.value)
    assert "rbdata.json" not in server.repositories["me/x"].files


def test_a_request_that_is_limited_once_is_repeated(server: HubServer, root: Path):
    server.answers += [("api/datasets/me/x", 429, {"Retry-After": "0"}), ("preupload", 429, {"Retry-After": "0"})]
    assert push(root / "a").sent > 0


def test_no_network(server: HubServer, root: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("nowhere.example", "127.0.0.1:9"):
        monkeypatch.setenv("HF_ENDPOINT", f"http://{name}")
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://{name}")
        with pytest.raises(TransientFetchError, match="did not answer"):
            push(root / "a")


def test_names_tokens_and_the_extra(server: HubServer, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for url in ("hf://me/x", f"{URL}/folder", "hf://datasets/me", f"{URL}@{'a' * 40}"):
        with pytest.raises(UsageError):
            push(root / "a", url)
    for url in (f"{URL}@", f"{URL}@a@b", "hf://datasets/m@e/x"):
        with pytest.raises(UsageError):
            HubLocation.from_url(url, QUICK)
    with pytest.raises(ForbiddenError):
        push(root / "a", "hf://datasets/you/x")
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises(ForbiddenError, match="no token") as caught:
        push(root / "a")
    assert "hf auth login" in (caught.value.hint or "")
    (tmp_path / "hf_home").mkdir(exist_ok=True)
    (tmp_path / "hf_home" / "token").write_text(TOKEN + "\n")
    assert read_token() == TOKEN
    assert push(root / "a").sent > 0
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError) as missing:
        push(root / "a")
    assert "rbdata[hub]" in (missing.value.hint or "")


def test_what_cannot_be_read(server: HubServer, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    push(root / "a")
    push(root / "a", "hf://datasets/me/y", public=True)
    server.repositories["me/y"].gated = True
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises(ObjectNotFoundError, match="no such dataset repository") as private:
        open_remote(URL, fetch=QUICK)
    assert "HF_TOKEN" in (private.value.hint or "")
    with pytest.raises(ForbiddenError) as gated:
        open_remote("hf://datasets/me/y", fetch=QUICK)
    assert "accept its terms" in (gated.value.hint or "")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.repositories["me/y"].commit({"a.txt": b"x"})
    with pytest.raises(DatasetNotFoundError):
        open_remote("hf://datasets/me/y", fetch=QUICK)
    assert run(["download", "hf://datasets/me/y", "--root", str(tmp_path)]) != 0


def test_bytes_that_the_hub_changed_are_noticed(server: HubServer, root: Path):
    server.spoil = next(iter(read_manifest(root / "a" / ID).files))
    with pytest.raises(ChecksumError, match="after the upload"):
        push(root / "a")


def test_the_token_is_in_no_output(server: HubServer, root: Path, capfd, tmp_path: Path):
    words = ["mirror", "push", ID, URL, "--license", "mit", "--root", str(root / "a"), "--debug"]
    assert run(words) == 0
    server.answers += [("/commit/", 403, {})]
    assert run([*words[:3], "hf://datasets/me/z", *words[4:]]) != 0
    assert run(["download", URL, "--root", str(tmp_path), "--debug"]) == 0
    told = "".join(capfd.readouterr())
    assert TOKEN not in told and "secret-signature" not in told
    assert all(token is None for path, token in server.tokens if path.startswith("/store"))
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert files and not any(TOKEN.encode() in data for data in files)


def test_loader_workers_read_the_same_commit(server: HubServer, root: Path, tmp_path: Path):
    import pickle

    push(root / "a")
    location = HubLocation.from_url(URL, QUICK).pinned()
    push(root / "b", force=True)
    copied = pickle.loads(pickle.dumps(replace(location)))
    held = server.repositories["me/x"]
    item = copied.stat("rbdata.json")
    data = b"".join(copied.open(item))
    assert data == (root / "a" / ID / "rbdata.json").read_bytes() != held.files["rbdata.json"]


def test_a_range_is_asked_for_again(server: HubServer, root: Path):
    push(root / "a")
    location = HubLocation.from_url(URL, QUICK).pinned()
    item = location.stat("rbdata.json")
    server.answers += [("/resolve/", 503, {})]
    assert location.read_range(item, 0, 100) == (root / "a" / ID / "rbdata.json").read_bytes()[:100]
    server.answers += [("/revision/", 503, {}), ("/tree/", 503, {})]
    again = HubLocation.from_url(URL, QUICK).pinned()
    assert dict(again.tree())["rbdata.json"].size == item.size
