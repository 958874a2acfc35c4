"""OpenML through the real client, over HTTP: recorded answers, faults, and tables of our own."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from openml_server import API, error, openml_server
from rbdata.datasets.acquire import download
from rbdata.datasets.catalogue import resolve
from rbdata.datasets.convert import convert
from rbdata.datasets.fetch import FetchOptions
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.sources.openml.client import description
from rbdata.datasets.sources.openml.source import OpenmlSource
from rbdata.errors import (
    ChecksumError,
    CorruptSourceError,
    DatasetNotFoundError,
    FetchError,
    ForbiddenError,
    ObjectNotFoundError,
    TransientFetchError,
    UsageError,
)
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from ted_rules import check_invariants

QUICK = FetchOptions(attempts=3, backoff=0.01)


@pytest.fixture(scope="module")
def recorded():
    """One server for all who only read."""
    with openml_server() as server:
        yield server


@pytest.fixture
def server():
    with openml_server() as server:
        yield server


def get(url: str, root: Path, name: str, force: bool = False, **extra) -> Dataset:
    options = ConvertOptions(extra=extra)
    request = Request(f"openml/{name}", root=root, mirror=str(url), fetch=QUICK, options=options, force=force)
    return checked(download(request).path)


def checked(folder: Path) -> Dataset:
    report = verify(folder)
    assert report.ok, report.problems
    dataset = Dataset(folder)
    assert check_invariants(dataset.path, dataset.manifest) == []
    assert dataset["next/terminated"].all() and not dataset["next/truncated"].any()
    assert (dataset["next/reward"] == 1).all() and not dataset["next/observation"].any()
    assert (dataset.episodes.lengths == 1).all()
    return dataset


def rows_of(server, path: str) -> tuple[list[str], list[list[str]]]:
    """Names and cells of a plain table, read by the csv module."""
    lines = server.pages[path][1].decode().splitlines()
    names = [line.split()[1].strip("'\"") for line in lines if line.lower().startswith("@attribute")]
    begin = [line.strip().lower() for line in lines].index("@data") + 1
    body = [line for line in lines[begin:] if line.strip() and not line.startswith("%")]
    return names, list(csv.reader(body, quotechar="'", skipinitialspace=True))


def decoded(dataset: Dataset) -> list[dict[str, object]]:
    """Observations as the table had them: numbers, values, None for missing."""
    described = dataset.manifest.spaces["observation"]["columns"]
    rows = []
    for vector in dataset["observation"].tolist():
        row: dict[str, object] = {}
        for column in described:
            value = vector[column["at"]]
            row[column["name"]] = (
                None if value != value else column["values"][int(value)] if "values" in column else value
            )
        rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("number", "path"),
    [
        (61, "data/v1/download/61/iris.arff"),
        (3, "data/v1/download/3/kr-vs-kp.arff"),
        (561, "data/v1/download/52739/cpu.arff"),
        (62, "data/v1/download/52352/zoo.arff"),
        (40675, "data/v1/download/4965250/glass2.arff"),
        (42585, "data/v1/download/21854866/penguins.arff"),
        (1590, "data/v1/download/1595261/adult.arff"),
        (1119, "data/v1/download/54002/adult-census.arff"),
        (2, "data/v1/download/1666876/anneal.arff"),
        (40966, "data/v1/download/17928620/MiceProtein.arff"),
    ],
)
def test_real_tables_value_for_value(number, path, recorded, tmp_path):
    dataset = get(recorded.url, tmp_path, str(number))
    names, cells = rows_of(recorded, path)
    assert len(dataset) == len(cells)
    action = dataset.manifest.spaces["action"]
    (label,) = action["columns"]
    for found, code, row in zip(decoded(dataset), dataset["action"].tolist(), cells):
        stated = dict(zip(names, row))
        for name, value in found.items():
            text = stated[name].strip().strip('"')
            if isinstance(value, float):
                assert value == np.float32(text)
            else:
                assert value == (None if text == "?" else text)
        assert (action["labels"][code] if "labels" in action else code) == (
            stated[label].strip().strip('"') if "labels" in action else np.float32(stated[label])
        )
    assert set(names) == {*decoded(dataset)[0], label, *dataset.manifest.source["left_out"]}


def test_trap_50_the_sparse_file(recorded, tmp_path):
    dataset = get(recorded.url, tmp_path, "292")
    lines = recorded.pages["data/v1/download/49822/Australian.sparse_arff"][1].decode().splitlines()
    rows = [line.strip("{}") for line in lines if line.startswith("{")]
    assert len(rows) == len(dataset) == 85
    for row, vector, code in zip(rows, dataset["observation"].tolist(), dataset["action"].tolist()):
        cells = {int(cell.split()[0]): cell.split()[1] for cell in row.split(",")}
        assert vector == [np.float32(cells.get(at, 0)) for at in range(1, 15)]
        assert ["1", "-1"][code] == cells.get(0, "1")


def test_trap_51_every_recorded_description_parses(recorded):
    for path, (_, data) in recorded.pages.items():
        content = json.loads(data) if path.startswith("api/") else {}
        if "data_set_description" in content:
            number = int(path.rpartition("/")[2])
            about = description(content["data_set_description"], number)
            assert isinstance(about.id, int) and about.version >= 1 and about.url and len(about.md5 or "") == 32
    quirks = {"name": "x", "version": 3, "ignore_attribute": ["a", "b"], "default_target_attribute": "c,d", "id": "5"}
    about = description(quirks, 5)
    assert (about.ignored, about.targets, about.row_id) == (("a", "b"), ("c", "d"), ())
    with pytest.raises(CorruptSourceError, match="malformed"):
        description({"version": "1"}, 5)


def test_trap_52_codes_are_in_declared_order_not_sorted(recorded, tmp_path):
    adult = get(recorded.url, tmp_path, "1590")
    assert adult.manifest.spaces["action"]["labels"] == [">50K", "<=50K"]
    workclass = adult.manifest.spaces["observation"]["columns"][1]
    assert workclass["values"][:2] == ["Private", "Self-emp-not-inc"]
    kr = get(recorded.url, tmp_path, "3")
    assert kr.manifest.spaces["action"]["labels"] == ["won", "nowin"]


def test_trap_54_md5(server, tmp_path):
    get(server.url, tmp_path, "61")
    path = "data/v1/download/61/iris.arff"
    status, data = server.pages[path]
    server.pages[path] = (status, data.replace(b"5.1,3.5", b"5.2,3.5", 1))
    with pytest.raises(ChecksumError, match="md5"):
        get(server.url, tmp_path, "61", force=True)
    assert len(checked(tmp_path / "openml" / "61")) == 150  # the sound one is still there
    changed = get(server.url, tmp_path, "61", force=True, accept_changed=True)
    assert changed["observation"][0, 0] == np.float32(5.2)


def test_trap_55_ignored_row_ids_several_labels_and_none(recorded, tmp_path):
    assert get(recorded.url, tmp_path, "62").manifest.source["left_out"] == {"animal": "OpenML says to ignore it"}
    assert get(recorded.url, tmp_path, "1119").manifest.source["left_out"] == {"ID": "it identifies the row"}
    emotions = get(recorded.url, tmp_path, "40589")
    assert emotions["action"].shape == (13, 6) and emotions["action"].dtype == torch.int64
    assert emotions.manifest.spaces["action"]["nvec"] == [2] * 6
    with pytest.raises(UsageError, match="no label of its own") as caught:
        get(recorded.url, tmp_path, "42074")
    assert "--target" in (caught.value.hint or "") and "points" in (caught.value.hint or "")
    wine = get(recorded.url, tmp_path, "42074", target="points")
    assert wine["action"].dtype == torch.float32 and wine["action"].tolist()[:3] == [96, 96, 96]
    assert len(wine.manifest.source["left_out"]) == 8
    with pytest.raises(UsageError, match="is text"):
        get(recorded.url, tmp_path / "2", "42074", target="country")
    with pytest.raises(UsageError, match="no column nothing"):
        get(recorded.url, tmp_path / "2", "61", target="nothing")
    with pytest.raises(UsageError, match="mixed"):
        get(recorded.url, tmp_path / "2", "61", target="class,petalwidth")
    two = get(recorded.url, tmp_path / "2", "61", target="petalwidth,petallength", exclude="class")
    assert two["action"].shape == (150, 2) and two["observation"].shape == (150, 2)


def test_trap_56_only_an_overloaded_database_is_asked_again(server, tmp_path):
    server.overload(2)
    get(server.url, tmp_path, "61")
    server.overload(50)
    with pytest.raises(TransientFetchError, match="overloaded"):
        get(server.url, tmp_path, "62")
    server.overloads.clear()
    for code, kind in ((111, ObjectNotFoundError), (372, ObjectNotFoundError), (364, FetchError)):
        server.put(f"{API}/7", error(code, "Some words"), 412)
        before = len(server.faults.requests)
        with pytest.raises(kind, match="Some words"):
            get(server.url, tmp_path, "7")
        asked = [path for _, path, _ in server.faults.requests[before:] if path == f"/{API}/7"]
        assert len(asked) == 1
    server.put(f"{API}/7", error(111, "Unknown dataset"), 200)  # as copies answer it
    with pytest.raises(ObjectNotFoundError, match="Unknown dataset"):
        get(server.url, tmp_path, "7")


def test_trap_57_versions(recorded, tmp_path):
    iris = get(recorded.url, tmp_path, "iris")
    assert (iris.manifest.source["number"], iris.manifest.source["version"]) == (61, 1)
    assert any("other versions" in note and "969" in note for note in iris.manifest.notes)
    assert get(recorded.url, tmp_path, "iris@1").manifest.source["number"] == 61


def test_trap_57_deactivated(recorded, tmp_path):
    glass = get(recorded.url, tmp_path, "glass2@1")
    assert glass.manifest.source["status"] == "deactivated"
    assert any("deactivated" in note for note in glass.manifest.notes)
    with pytest.raises(ObjectNotFoundError, match="iris in version 77"):
        get(recorded.url, tmp_path, "iris@77")
    with pytest.raises(ObjectNotFoundError, match="is called nosuchthing"):
        get(recorded.url, tmp_path, "nosuchthing")


TABLE = (
    "@relation t\n@attribute n numeric\n@attribute c {u, v, w}\n@attribute s string\n@attribute y {no, yes}\n@data\n"
    "1,u,'a',no\n?,v,'b',yes\n3,?,'c',yes\n8,w,'d',?\n16777217,u,'e',no\n"
)


def test_trap_58_missing_values_by_the_policy_stated(server, tmp_path):
    server.table(7, TABLE.replace("'d',?", "'d',no"), default_target_attribute="y")
    nan = float("nan")
    keep = get(server.url, tmp_path, "7")
    np.testing.assert_array_equal(
        keep["observation"].numpy(), np.array([[1, 0], [nan, 1], [3, nan], [8, 2], [2**24, 0]], "f4")
    )
    assert keep.manifest.counts["missing_values"] == 2 and keep.manifest.counts["rounded_integers"] == 1
    drop = get(server.url, tmp_path, "7", force=True, missing="drop")
    assert drop["observation"][:, 0].tolist() == [1, 8, 2**24] and drop["action"].tolist() == [0, 0, 0]
    assert drop.manifest.counts["dropped_rows"] == 2
    assert any("2 of 5 rows" in note for note in drop.manifest.notes)
    for policy, words in (("error", "misses a value"), ("code", "misses a number")):
        with pytest.raises(UsageError, match=f"row 1 of t .* {words}"):
            get(server.url, tmp_path, "7", force=True, missing=policy)
    coded = get(server.url, tmp_path, "7", force=True, missing="code", exclude="n")
    assert coded["observation"].squeeze(1).tolist() == [0, 1, 3, 2, 0]
    hot = get(server.url, tmp_path, "7", force=True, missing="code", exclude="n", one_hot=True)
    assert hot["observation"].tolist()[2] == [0, 0, 0, 1]
    hot = get(server.url, tmp_path, "7", force=True, one_hot=True)
    assert hot["observation"].tolist()[2] == [3, 0, 0, 0]
    assert [column["at"] for column in hot.manifest.spaces["observation"]["columns"]] == [0, 1]


def test_a_row_without_a_label(server, tmp_path):
    server.table(7, TABLE, default_target_attribute="y")
    with pytest.raises(UsageError, match=r"row 3 of t .* has no label"):
        get(server.url, tmp_path, "7")
    assert len(get(server.url, tmp_path, "7", missing="drop")) == 2


def test_trap_58_standardised_only_when_asked(recorded, tmp_path):
    raw = get(recorded.url, tmp_path, "42585")
    scaled = get(recorded.url, tmp_path, "42585", force=True, standardize="numeric")
    columns = scaled.manifest.spaces["observation"]["columns"]
    for column in columns:
        values, back = raw["observation"][:, column["at"]].double(), scaled["observation"][:, column["at"]].double()
        if column["kind"] == "nominal":
            assert "mean" not in column and torch.equal(values.nan_to_num(-1), back.nan_to_num(-1))
            continue
        known = values[~values.isnan()]
        assert column["mean"] == pytest.approx(known.mean().item(), rel=1e-6)
        assert column["std"] == pytest.approx(known.std(unbiased=False).item(), rel=1e-6)
        torch.testing.assert_close(back * column["std"] + column["mean"], values, rtol=1e-5, atol=1e-5, equal_nan=True)
    everything = get(recorded.url, tmp_path, "42585", force=True, standardize="all")
    assert all("mean" in column for column in everything.manifest.spaces["observation"]["columns"])


def test_a_constant_column_becomes_zero(server, tmp_path):
    rows = "".join(f"0.1,{number},a\n" for number in range(7))
    server.table(7, "@attribute k real\n@attribute n real\n@attribute y {a, b}\n@data\n" + rows)
    dataset = get(server.url, tmp_path, "7", target="y", standardize="numeric")
    assert dataset["observation"][:, 0].tolist() == [0] * 7
    assert dataset["observation"][:, 1].std(unbiased=False) == pytest.approx(1, rel=1e-6)


def test_numbers_that_float32_does_not_hold(server, tmp_path):
    rows = "".join(f"{n},{target},a\n" for n, target in ((1, 1), ("1e39", 2), (3, "-1e40"), (4, 4)))
    server.table(7, "@attribute n real\n@attribute t real\n@attribute y {a, b}\n@data\n" + rows)
    with pytest.raises(
        UsageError, match=r"the column n of t .* holds 1e\+39, which float32 does not, in step 1"
    ) as caught:
        get(server.url, tmp_path, "7", target="y")
    assert "--exclude n" in (caught.value.hint or "")
    with pytest.raises(UsageError, match=r"the column t of t .* holds -1e\+40, which float32 does not, in step 2"):
        get(server.url, tmp_path, "7", target="t", exclude="n")
    dataset = get(server.url, tmp_path, "7", target="y", standardize="numeric")  # which makes them small
    assert torch.isfinite(dataset["observation"]).all() and dataset["observation"][1, 0] > 1.7
    server.table(8, "@attribute n real\n@attribute y {a, b}\n@data\n1,a\n1e300,b\n3,a\n")
    with pytest.raises(UsageError, match=r"n .*has no finite mean and deviation"):
        get(server.url, tmp_path, "8", target="y", standardize="numeric")


PRESET_TABLE = (
    "@attribute age numeric\n@attribute workclass {p, g}\n@attribute occupation {x, y}\n@attribute class {lo, hi}\n@data\n"
    "10,p,x,lo\n20,g,y,hi\n30,?,x,lo\n40,p,?,hi\n50,p,y,lo\n"
)


def test_presets(server, tmp_path):
    server.table(179, PRESET_TABLE, default_target_attribute="class")
    number = get(server.url, tmp_path, "adult_num")
    assert len(number) == 3 and number["action"].tolist() == [0, 1, 1]
    assert number.manifest.source["left_out"] == {"class": "excluded"}
    torch.testing.assert_close(number["observation"].mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    hot = get(server.url, tmp_path, "adult_onehot")
    assert hot["observation"].shape == (3, 3) and hot["observation"][:, 1:].tolist() == [[1, 0], [0, 1], [1, 0]]
    assert any("Preset adult_onehot" in note for note in hot.manifest.notes)
    kept = get(server.url, tmp_path, "adult_num", force=True, standardize="none")  # what is asked for wins
    assert kept["observation"][:, 0].tolist() == [10, 20, 50]
    server.table(
        24, "@attribute a {p, q}\n@attribute class {e, p}\n@data\nq,e\n?,p\n", default_target_attribute="class"
    )
    assert get(server.url, tmp_path, "mushroom_onehot")["observation"].tolist() == [[0, 1, 0], [0, 0, 1]]


def test_names():
    source = OpenmlSource()
    assert all(map(source.knows, ("61", "iris", "adult@2", "mnist_784", "adult_num", "kr-vs-kp")))
    assert not any(map(source.knows, ("", "0", "a/b", "a b", "x@", "@2", "../x", "x@0")))
    assert {"adult_num", "magic", "iris"} <= set(source.names())
    assert resolve("iris")[0] == "openml/iris" and resolve("openml/anything@3")[0] == "openml/anything@3"
    with pytest.raises(DatasetNotFoundError):
        resolve("anything-at-all")  # a bare name is not taken for one of a provider that may have it


def test_network_faults(server, tmp_path):
    server.faults.cut(after=900)
    server.faults.cut(after=700, reset=True)
    get(server.url, tmp_path, "3")
    spans = [span for path, span in server.faults.gets() if path.endswith("kr-vs-kp.arff")]
    assert spans[0] is None and spans[1] and len(spans) >= 2
    for status, kind in ((403, ForbiddenError), (503, TransientFetchError), (502, TransientFetchError)):
        server.faults.answer(status, times=3)
        with pytest.raises(kind):
            get(server.url, tmp_path, "61")
        server.faults._answers.clear()
    server.put(f"{API}/61", b"<html>maintenance</html>")
    with pytest.raises(TransientFetchError, match="not OpenML's JSON; gave up"):
        get(server.url, tmp_path, "61")
    server.describe(62, url="http://evil.example/zoo.arff")
    with pytest.raises(CorruptSourceError, match="not at OpenML"):
        get(server.url, tmp_path, "62")
    assert [path.name for path in (tmp_path / "openml").iterdir() if path.is_dir()] == ["3"]


def test_offline_and_kept_raw(tmp_path):
    with openml_server() as server:
        url = server.url
        options = ConvertOptions()
        request = Request("openml/iris", root=tmp_path, mirror=url, fetch=QUICK, options=options, keep_raw=True)
        first = checked(download(request).path)
    get(url, tmp_path, "iris")  # the server is gone, what is there is there
    again = get(str(tmp_path / ".raw" / "openml"), tmp_path / "2", "iris")
    assert torch.equal(first["observation"], again["observation"])


def test_a_folder_with_a_table(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine.arff").write_bytes(TABLE.replace("'e'", "'\xe9'").encode("latin-1"))
    options = ConvertOptions(extra={"target": "c", "missing": "drop"})
    outcome = convert(tmp_path / "t", "openml", Request("my/table", root=tmp_path, options=options))
    dataset = checked(outcome.path)
    assert dataset["action"].tolist() == [0, 1 - 1] and outcome.manifest.source["dataset"] == "mine"
    digest = hashlib.sha256((tmp_path / "t" / "mine.arff").read_bytes()).hexdigest()
    assert outcome.manifest.source["objects"][0]["sha256"] == digest


@pytest.mark.parametrize(
    "extra",
    [
        {"missing": "perhaps"},
        {"standardize": True},
        {"one_hot": "yes"},
        {"target": ["a"]},
        {"target": ","},
        {"colour": 1},
    ],
)
def test_options_that_make_no_sense(extra, recorded, tmp_path):
    with pytest.raises(UsageError):
        get(recorded.url, tmp_path, "61", **extra)


def test_an_empty_table(server, tmp_path):
    server.table(7, "@attribute a real\n@attribute y {n}\n@data\n% nothing\n")
    with pytest.raises(CorruptSourceError, match="holds no rows"):
        get(server.url, tmp_path, "7", target="y")
