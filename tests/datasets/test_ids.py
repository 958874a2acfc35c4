"""An id never stands for other data: names of recordings, datasets that a mirror has too, and what cards say of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rbdata
from rbdata.cli import run as command_line
from rbdata.datasets.acquire import download
from rbdata.datasets.fetch import FetchOptions
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.errors import DatasetExistsError, DatasetNotFoundError
from rbdata.storage.manifest import read_manifest, write_manifest

POLICY = "def lean(observation):\n    return int(observation[2] > 0)\n"


def lean(observation):
    return int(observation[2] > 0)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "pol.py").write_text(POLICY)
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_name_of_a_recording_never_stands_for_another_one(here, capsys):
    """A name that is nowhere is not recorded anew: the command of a card, a typing error, `download=True`."""
    name = "gymnasium/CartPole-v1@lost"
    words = ["download", name]
    for more in ([], ["--seed", "3"], ["--dry-run"], ["--mirror", str(here / "empty")]):
        (here / "empty").mkdir(exist_ok=True)
        assert command_line([*words, *more, "-q"]) == DatasetNotFoundError.exit_code
        assert "--mirror" in (said := capsys.readouterr().err) and "--policy" in said
    assert command_line(["download", "gymnasium/CartPole-v1", "--name", "lost", "-q"]) == DatasetNotFoundError.exit_code
    with pytest.raises(DatasetNotFoundError, match="only whoever recorded it"):
        rbdata.load(name, download=True)
    with pytest.raises(DatasetNotFoundError, match="--mirror PLACE"):
        rbdata.load(name)
    assert not rbdata.list_datasets()
    assert command_line([*words, "--mirror", str(here / "empty"), "--steps", "40", "-q"]) == 0  # asked for in words
    assert (
        command_line(["download", "gymnasium/CartPole-v1", "--mirror", str(here / "empty"), "-q"])
        == DatasetNotFoundError.exit_code
    )


def test_a_recording_is_compared_with_that_of_the_mirror_that_is_named(here, capsys):
    """Both have one name, and different steps: "complete" would be said of other data."""
    name = "gymnasium/CartPole-v1@hop"
    assert command_line(["download", name, "--steps", "50", "--root", str(here / "lab"), "-q"]) == 0
    assert command_line(["download", name, "--steps", "50", "--seed", "9", "-q"]) == 0
    capsys.readouterr()
    words = ["download", name, "--mirror", str(here / "lab")]
    assert command_line(words) == DatasetExistsError.exit_code
    assert "is not the dataset of" in (said := capsys.readouterr().err) and "--force" in said
    assert command_line([*words, "--force", "-q"]) == 0
    assert command_line([*words, "-q"]) == 0  # now the same
    assert rbdata.open_dataset(name).manifest.source["options"]["seed"] == 0
    (here / "other").mkdir()
    assert command_line(["download", name, "--mirror", str(here / "other")]) == DatasetExistsError.exit_code
    assert "holds none of that name" in capsys.readouterr().err


@pytest.mark.parametrize(
    "made, again",
    [
        ({"steps": 40}, "rbdata download gymnasium/CartPole-v1 --steps 40"),
        ({"steps": 40, "name": "x", "seed": 3}, "rbdata download gymnasium/CartPole-v1@x --steps 40 --seed 3"),
        ({"episodes": 2, "name": "x"}, "rbdata download gymnasium/CartPole-v1@x --episodes 2 --policy random"),
        ({"steps": 40, "name": "x", "policy": "pol.py:lean"}, None),
        ({"steps": 40, "name": "x", "policy": lean}, None),
    ],
)
def test_cards_of_recordings_name_a_command_that_records_the_same_or_none(made, again, here):
    path = rbdata.record("CartPole-v1", **made)
    assert command_line(["inspect", str(path), "--card", "card.md", "-q"]) == 0
    text = (here / "card.md").read_text()
    assert ("rbdata mirror push" in text) == (again is None)
    assert ("rbdata download" in text) == (again is not None) and (again or "") in text
    if again:
        assert command_line([*again.split()[1:], "--root", "there", "-q"]) == 0
        (other,) = rbdata.list_datasets(root="there")
        assert rbdata.open_dataset(other.path).manifest.content == rbdata.open_dataset(path).manifest.content


def test_cards_of_own_data_say_that_no_source_has_them(here):
    arrays = {
        "observation": np.zeros((4, 2)),
        "action": np.zeros(4),
        "reward": np.zeros(4),
        "episode": np.zeros(4, int),
    }
    path = rbdata.from_arrays(arrays, "my/x")
    assert command_line(["inspect", str(path), "--card", "card.md", "-q"]) == 0
    text = (here / "card.md").read_text()
    assert "No source has this dataset" in text and "rbdata download" not in text


def test_a_provider_s_dataset_is_compared_with_the_same_one_of_a_mirror(here):
    """Of the same request only: another codec makes other files by right."""
    data = Path(__file__).parents[1] / "data" / "exorl"

    def get(place, root="root", codec="raw"):
        options, quick = ConvertOptions(codec), FetchOptions(attempts=1)
        return download(Request("exorl/walker/rnd", here / root, str(place), 0, options, quick)).action

    assert [get(data, "lab"), get(data)] == ["written", "written"]
    manifest = read_manifest(here / "lab" / "exorl/walker/rnd")
    for place in (data, here / "lab", "http://127.0.0.1:9/none"):  # raw files say nothing of the converted ones
        assert get(place) == "complete"
    write_manifest(here / "lab" / "exorl/walker/rnd", replace(manifest, counts={**manifest.counts, "gaps": 7}))
    with pytest.raises(DatasetExistsError, match="is not the dataset of"):
        get(here / "lab")
    other = replace(manifest, source={**manifest.source, "options": {"codec": "zstd"}})
    write_manifest(here / "lab" / "exorl/walker/rnd", other)
    assert get(here / "lab") == "complete"
