"""OpenML: tables made here, compared with scikit-learn's reader; the remote listing; raw files from two hosts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openml_server import API, error, openml_server
from rbdata.datasets import catalogue
from rbdata.datasets.acquire import download
from rbdata.datasets.fetch import FetchOptions
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.sources.openml.client import PAGE
from rbdata.datasets.sources.openml.source import OpenmlSource
from rbdata.errors import CorruptSourceError, TransientFetchError, UsageError
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from servers import closed_port

QUICK = FetchOptions(attempts=2, backoff=0.01)


@pytest.fixture
def server():
    with openml_server() as server:
        yield server


# -- generated tables, read by scikit-learn's parser as well --------------------------------------------------------

# No braces, which scikit-learn writes and cannot read, and no commas in names, which part the names of labels.
words = st.text(st.sampled_from("abcxyz 0123,'%é-"), min_size=1, max_size=8).filter(
    lambda text: text.strip() == text and text != "?"
)
titles = words.filter(lambda text: not {",", "'"} & {*text})  # a quote in a name it leaves bare
numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


@st.composite
def tables(draw):
    names = draw(st.lists(titles, min_size=2, max_size=5, unique=True))
    kinds = [draw(st.one_of(st.none(), st.lists(words, min_size=1, max_size=4, unique=True))) for _ in names[:-1]]
    kinds.append(["no", "yes"])
    cells = [numbers if kind is None else st.sampled_from(kind) for kind in kinds]
    some = [st.one_of(st.none(), cell) for cell in cells[:-1]] + [cells[-1]]
    rows = draw(st.lists(st.tuples(*some), min_size=1, max_size=30))
    return names, kinds, rows


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables())
def test_any_table_as_scikit_learn_writes_and_reads_it(table, tmp_path_factory):
    liac = pytest.importorskip("sklearn.externals._arff")
    names, kinds, rows = table
    kinds_of = [(name, "REAL" if kind is None else kind) for name, kind in zip(names, kinds)]
    arff = liac.dumps({"relation": "t", "attributes": kinds_of, "data": [list(row) for row in rows]})
    theirs = liac.load(arff, encode_nominal=True)["data"]
    with openml_server() as server:
        server.table(7, arff, default_target_attribute=names[-1])
        request = Request("openml/7", root=tmp_path_factory.mktemp("root"), mirror=server.url, fetch=QUICK)
        dataset = Dataset(download(request).path)
    assert verify(dataset.path).ok and len(dataset) == len(rows)
    expected = np.array([[np.nan if value is None else value for value in row] for row in theirs], float)
    np.testing.assert_array_equal(dataset["observation"].numpy(), expected[:, :-1].astype("f4"))
    np.testing.assert_array_equal(dataset["action"].numpy(), expected[:, -1])
    described = dataset.manifest.spaces["observation"]["columns"]
    assert [column["name"] for column in described] == names[:-1]
    assert [column.get("values") for column in described] == kinds[:-1]


# -- what the remote holds --------------------------------------------------------------------------------------------


def listed(did: int, name: str, version: int, rows: float | None) -> dict:
    quality = [] if rows is None else [{"name": "NumberOfInstances", "value": str(rows)}]
    return {"did": did, "name": name, "version": version, "status": "active", "format": "ARFF", "quality": quality}


def put_listing(server, entries: list[dict]) -> None:
    for at in range(0, len(entries) + 1, PAGE):
        path = f"{API}/list/status/active/limit/{PAGE}/offset/{at}"
        page = entries[at : at + PAGE]
        if page:
            server.put(path, {"data": {"dataset": page if len(page) > 1 else page[0]}})
        else:
            server.put(path, error(372, "No results"), 412)


def test_the_remote_listing_is_kept_with_its_date_and_works_offline(server, tmp_path, monkeypatch):
    recorded = json.loads(server.pages[f"{API}/list/data_name/iris/limit/2/status/active"][1])["data"]["dataset"]
    more = [listed(1000 + number, f"made_{number}", 1, 10.0) for number in range(PAGE - 4)]
    put_listing(server, [*recorded, listed(5, "3d spirals", 1, None), listed(8, "adult", 2, 48842.0), *more])
    monkeypatch.setenv("RBDATA_OPENML_MIRROR", server.url)
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path))
    source = OpenmlSource()
    assert source.cached_listing() is None and catalogue.remote_listings("openml") == {}
    told: list[int] = []
    listing = source.refresh_listing(None, QUICK, lambda done, total: told.append(done))
    assert listing.date.endswith("Z") and len(listing.datasets) == PAGE and told == [PAGE, PAGE]
    found = {f"openml/{one.name}": one for one in catalogue.remote_listings("openml")["openml"].datasets}
    assert found["openml/iris"].steps == found["openml/iris"].episodes == 150
    assert found["openml/iris@3"].steps == 150  # not the oldest: asked for with its version
    assert found["openml/5"].steps is None  # a name that no command line takes: by its number
    assert "openml/made_7" in catalogue.known_ids("openml")
    assert catalogue.resolve("made_7")[0] == "openml/made_7"
    with closed_port() as url:
        monkeypatch.setenv("RBDATA_OPENML_MIRROR", url)
        with pytest.raises(TransientFetchError):
            source.refresh_listing(None, QUICK, lambda done, total: None)
    monkeypatch.setenv("RBDATA_OPENML_MIRROR", server.url)
    server.faults.answer(503, times=50)
    assert source.cached_listing() == listing
    server.put(f"{API}/list/status/active/limit/{PAGE}/offset/0", {"data": {"dataset": [{"did": "no"}]}})
    with pytest.raises((CorruptSourceError, TransientFetchError)):
        source.refresh_listing(None, QUICK, lambda done, total: None)
    assert source.cached_listing() == listing


def test_sources_without_a_listing_say_so():
    source = catalogue.load_source("d4rl")
    assert source.cached_listing() is None and not source.lists_remotely
    with pytest.raises(UsageError, match="d4rl has no remote listing"):
        source.refresh_listing(None, QUICK, lambda done, total: None)
