"""D4RL over the network: the site's layout and flat ones, interrupted, resumed, changed under our feet, offline."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from contents import content
from d4rl_truth import assert_holds, checked, expected, make, write
from rbdata.datasets.acquire import download
from rbdata.datasets.catalogue import describe, known_ids, resolve
from rbdata.datasets.fetch import FetchOptions
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Listener, Request
from rbdata.datasets.sources.d4rl import registry
from rbdata.datasets.sources.d4rl.source import D4rlSource
from rbdata.errors import (
    ChecksumError,
    CorruptSourceError,
    FetchError,
    ForbiddenError,
    ObjectNotFoundError,
    TransientFetchError,
)
from rbdata.storage.dataset import Dataset
from servers import http_server

NAME, FILE = "hopper-medium-replay-v2", "hopper_medium_replay-v2.hdf5"
QUICK = FetchOptions(attempts=3, backoff=0.01)


@pytest.fixture
def mirror(tmp_path_factory):
    """The site's layout, with one file of 1 MB."""
    top = tmp_path_factory.mktemp("mirror")
    arrays = make([5000, 6000], ["terminal", "timeout"], successors=True, width=11)
    write(top / "gym_mujoco_v2" / FILE, arrays)
    return top


def get(url, root: Path, name: str = NAME, **more) -> Dataset:
    extra = more.pop("extra", {})
    request = Request(
        f"d4rl/{name}", root=root, mirror=str(url), fetch=QUICK, options=ConvertOptions(extra=extra), **more
    )
    return checked(download(request).path)


def test_the_registry_is_whole():
    entries = registry.registry()
    assert len(entries) == 179 and sum(entry.listed for entry in entries.values()) == 155
    theirs = pytest.importorskip("torchrl.data.datasets.d4rl_infos").D4RL_DATASETS
    assert {name: f"{registry.HOME}/{entry.path}" for name, entry in entries.items()} == theirs
    files = {entry.path for entry in entries.values()}
    assert len({path.rpartition("/")[2] for path in files}) == len(files)  # flat mirrors are unambiguous
    assert set(registry.PINNED) <= {entry.file.removesuffix(".hdf5") for entry in entries.values()}
    assert sum(entry.low is None for entry in entries.values()) == 1
    assert all(entry.low < entry.high for entry in entries.values() if entry.low is not None)
    assert entries["pen-human-longhorizon-v0"].horizon == 200
    assert "d4rl/hopper-medium-v2" in known_ids("d4rl")
    assert resolve("hopper-medium-v2")[0] == "d4rl/hopper-medium-v2"


@pytest.mark.parametrize("layout", ["site", "flat", "above"])
def test_every_layout_over_http_and_from_a_folder(layout, mirror, tmp_path):
    file = mirror / "gym_mujoco_v2" / FILE
    top = {"site": mirror, "flat": file.parent, "above": tmp_path / "top"}[layout]
    if layout == "above":
        target = top / "datasets" / "offline_rl" / "gym_mujoco_v2" / FILE
        target.parent.mkdir(parents=True)
        target.write_bytes(file.read_bytes())
    with http_server(top) as server:
        over_http = get(server.url, tmp_path / "1")
    from_folder = get(top, tmp_path / "2")
    assert content(over_http.path) == content(from_folder.path)
    assert_holds(over_http, expected(file, "both"))
    (entry,) = over_http.manifest.source["objects"]
    assert entry["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest() and entry["size"] == file.stat().st_size


def test_a_broken_connection_goes_on_where_it_broke(mirror, tmp_path):
    with http_server(mirror) as server:
        server.faults.cut(after=300_000)
        server.faults.cut(after=100_000, reset=True)
        dataset = get(server.url, tmp_path)
        spans = [span for path, span in server.faults.gets() if path.endswith(FILE)]
    assert spans[0] is None and all(span and span != "bytes=0-" for span in spans[1:]) and len(spans) == 3
    assert_holds(dataset, expected(mirror / "gym_mujoco_v2" / FILE, "both"))


def test_an_interrupted_download_is_continued_by_the_next_run(mirror, tmp_path):
    with http_server(mirror) as server:
        request = Request(f"d4rl/{NAME}", root=tmp_path, mirror=server.url, fetch=QUICK)
        server.faults.cut(after=300_000)
        server.faults.cut(after=0, times=QUICK.attempts - 1)
        with pytest.raises(FetchError):
            download(request)
        assert not (tmp_path / "d4rl" / NAME).exists()
        before = len(server.faults.gets())
        dataset = checked(download(request).path)
        again = [span for path, span in server.faults.gets()[before:] if path.endswith(FILE)]
    assert len(again) == 1 and again[0] and int(again[0].removeprefix("bytes=").rstrip("-")) >= 200_000
    assert content(dataset.path) == content(get(mirror, tmp_path / "2").path)
    assert [path.name for path in (tmp_path / "d4rl").iterdir() if not path.name.startswith(f".{NAME}.lock")] == [NAME]


def test_offline_what_is_there_needs_no_server(mirror, tmp_path):
    with http_server(mirror) as server:
        get(server.url, tmp_path)
        url = server.url
    get(url, tmp_path)  # the server is gone


def test_raw_files_that_are_kept_are_a_mirror(mirror, tmp_path):
    with http_server(mirror) as server:
        first = get(server.url, tmp_path, keep_raw=True)
    kept = tmp_path / ".raw" / "d4rl"
    assert (kept / "gym_mujoco_v2" / FILE).is_file()
    assert content(get(kept, tmp_path / "2").path) == content(first.path)


@pytest.fixture
def public(mirror, tmp_path_factory, monkeypatch):
    """The places of the catalogue: a flat copy, which is tried first, and the site."""
    flat = tmp_path_factory.mktemp("flat")
    (flat / FILE).write_bytes((mirror / "gym_mujoco_v2" / FILE).read_bytes())
    with http_server(flat) as copy, http_server(mirror) as home:
        monkeypatch.setattr(D4rlSource, "copy", copy.url)
        monkeypatch.setattr(D4rlSource, "home", home.url)
        yield copy, home


def ask(root: Path, name: str = NAME, fetch: FetchOptions = QUICK, **more):
    stages: list[str] = []
    listener = Listener(on_stage=stages.append)
    try:
        return download(Request(f"d4rl/{name}", root=root, fetch=fetch, **more), listener), stages
    except Exception as error:
        return error, stages


def test_places_are_asked_in_the_order_of_the_catalogue(public, tmp_path):
    copy, home = public
    places = [place.url for place in describe(f"d4rl/{NAME}").places]
    assert places == [registry.FLAT_COPY, registry.HOME]
    outcome, stages = ask(tmp_path / "1")
    assert outcome.manifest.provenance["location"] == copy.url and "why" not in outcome.manifest.provenance
    assert not any(home.url in stage for stage in stages)
    # A file that the catalogue does not say the copy has is looked for at the site alone.
    error, stages = ask(tmp_path / "2", "hopper-medium-v0")
    assert isinstance(error, ObjectNotFoundError) and not any(copy.url in stage for stage in stages)


@pytest.mark.parametrize("status", [403, 404, 500])
def test_the_next_place_is_asked_where_one_cannot_be_read(public, status, tmp_path):
    copy, home = public
    copy.faults.answer(status, times=50)
    outcome, stages = ask(tmp_path)
    assert outcome.manifest.provenance["location"] == home.url
    assert outcome.manifest.provenance["why"].startswith(f"because {copy.url}: ")
    assert f"HTTP {status}" in outcome.manifest.provenance["why"] or status == 404
    assert [url in stage for url, stage in zip((copy.url, home.url), stages)] == [True, True]


@pytest.mark.parametrize(
    ("statuses", "kind"),
    [
        ((403, 404), ForbiddenError),
        ((404, 404), ObjectNotFoundError),
        ((403, 500), TransientFetchError),
        ((404, 503), TransientFetchError),
    ],
)
def test_where_no_place_can_be_read_each_answer_is_named(public, statuses, kind, tmp_path):
    for place, status in zip(public, statuses):
        place.faults.answer(status, times=50)
    error, _ = ask(tmp_path)
    assert type(error) is kind and error.message.startswith(f"d4rl/{NAME} is not available: ")
    said = {403: "access denied (HTTP 403)", 404: "not found", 500: "HTTP 500", 503: "HTTP 503"}
    assert all(f"{place.url}: {said[status]}" in error.message for place, status in zip(public, statuses))
    assert "--mirror" in error.hint and "RBDATA_D4RL_MIRROR" in error.hint
    assert not any(tmp_path.iterdir())


def test_a_wrong_checksum_is_final(public, tmp_path, monkeypatch):
    _, home = public
    monkeypatch.setitem(registry.PINNED, FILE.removesuffix(".hdf5"), "0" * 64)
    error, stages = ask(tmp_path)
    assert isinstance(error, ChecksumError) and "not the file that is known" in error.message
    assert not any(home.url in stage for stage in stages) and not list(tmp_path.rglob("*.hdf5"))


def test_an_interrupted_download_goes_on_from_the_next_place(public, tmp_path):
    copy, home = public
    copy.faults.cut(after=40_000)
    error, _ = ask(tmp_path, fetch=FetchOptions(attempts=1))
    assert isinstance(error, FetchError)
    copy.faults.answer(503, times=50)
    outcome, _ = ask(tmp_path)
    assert outcome.manifest.provenance["location"] == home.url
    checked(outcome.path)


def test_on_resuming_plan_and_progress_state_the_same_bytes(mirror, tmp_path):
    with http_server(mirror) as server:
        server.faults.cut(after=400_000)
        request = Request(f"d4rl/{NAME}", root=tmp_path, mirror=server.url, fetch=FetchOptions(attempts=1))
        with pytest.raises(FetchError):
            download(request)
        plans, fetched = [], []
        download(
            request,
            Listener(on_estimate=plans.append, on_fetched=lambda name, done, total: fetched.append((done, total))),
        )
    left = plans[0].fetch_bytes
    assert 0 < left < (mirror / "gym_mujoco_v2" / FILE).stat().st_size - 100_000
    assert fetched[-1] == (left, left)
    assert {total for _, total in fetched} == {left}


def test_repair_asks_the_other_place(public, tmp_path):
    copy, _ = public
    outcome, _ = ask(tmp_path)
    before = content(outcome.path)
    (outcome.path / "action.memmap").unlink()
    copy.faults.answer(503, times=50)
    assert ask(tmp_path)[0].action == "repaired"
    assert content(outcome.path) == before


def test_a_web_page_instead_of_the_file(mirror, tmp_path):
    with http_server(mirror) as server:
        server.faults.html = True
        with pytest.raises(FetchError, match="web page"):
            get(server.url, tmp_path)
    assert not any(tmp_path.glob("d4rl/*"))


def test_a_useless_file_is_not_kept(mirror, tmp_path):
    file = mirror / "gym_mujoco_v2" / FILE
    sound = file.read_bytes()
    with http_server(mirror) as server:
        file.write_bytes(sound[:100_000])  # the mirror's own copy is cut
        with pytest.raises(CorruptSourceError, match="not a whole HDF5 file"):
            get(server.url, tmp_path)
        assert not list(tmp_path.rglob("*.hdf5"))
        file.write_bytes(sound)
        get(server.url, tmp_path)


def test_pinned_files_at_home(mirror, tmp_path, monkeypatch):
    file = mirror / "gym_mujoco_v2" / FILE
    monkeypatch.setitem(registry.PINNED, FILE.removesuffix(".hdf5"), "0" * 64)
    with http_server(mirror) as server:
        elsewhere = get(server.url, tmp_path / "1")  # a mirror is the user's choice: said, not refused
        assert any("not the one known" in note for note in elsewhere.manifest.notes)
        monkeypatch.setattr(D4rlSource, "home", server.url)
        monkeypatch.setattr(D4rlSource, "copy", server.url)
        with pytest.raises(ChecksumError, match="not the file that is known"):
            download(Request(f"d4rl/{NAME}", root=tmp_path / "2", fetch=QUICK))
        assert not list((tmp_path / "2").rglob("*.hdf5"))
        accepted = ConvertOptions(extra={"accept_changed": True})
        download(Request(f"d4rl/{NAME}", root=tmp_path / "3", fetch=QUICK, options=accepted))
        monkeypatch.setitem(registry.PINNED, FILE.removesuffix(".hdf5"), hashlib.sha256(file.read_bytes()).hexdigest())
        download(Request(f"d4rl/{NAME}", root=tmp_path / "2", fetch=QUICK))


def test_a_dry_run_says_what_would_be_fetched(mirror, tmp_path):
    outcome = download(Request(f"d4rl/{NAME}", root=tmp_path / "root", mirror=str(mirror), dry_run=True))
    assert outcome.estimate is not None and (outcome.estimate.steps, outcome.estimate.fetch_bytes) == (11_000, 0)
    with http_server(mirror) as server:
        outcome = download(Request(f"d4rl/{NAME}", root=tmp_path / "root", mirror=server.url, dry_run=True))
    assert outcome.estimate is not None
    assert outcome.estimate.fetch_bytes == (mirror / "gym_mujoco_v2" / FILE).stat().st_size
