"""Rates by access pattern: of a dataset at a URL and of one here, and the command that shows them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rbdata.cli import run
from rbdata.datasets import rates
from rbdata.datasets.rates import Link, measure, usual_batch
from rbdata.errors import UsageError
from rbdata.storage.dataset import Dataset
from rbdata.storage.remote import remote_dataset
from servers import http_server
from storage_tools import make_episodes, write_dataset


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mirror")
    episodes = make_episodes([40, 30, 30], shape=(2048,), dtype="uint8", seed=3)
    write_dataset(root, episodes, "zstd", id="my/zstd", dictionary=False)
    return root


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(remote_dataset, "BLOCK_BYTES", 4096)


def test_at_a_url(mirror, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rates, "TOO_LONG", 1e9)  # measured, however slow this machine is
    with http_server(mirror) as server:
        words = ["bench", f"{server.url}/my/zstd", "--seconds", "0.5", "-n", "16", "--cache-dir", str(tmp_path)]
        assert run([*words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert run(["bench", f"{server.url}/my", "--cache-dir", str(tmp_path)]) == 1
        assert "holds no converted dataset" in capsys.readouterr().err
    assert (found["id"], found["steps"]) == ("my/zstd", 100)
    assert 0 < found["link"]["latency"] <= found["link"]["slow_latency"] and found["link"]["bytes_per_second"] > 0
    assert [rate["pattern"] for rate in found["rates"]] == list(rates.PATTERNS)
    for rate in found["rates"]:
        assert all(value == float(f"{value:.4g}") for value in rate.values() if isinstance(value, float))
        assert rate["first_batch"] > 0 and rate["steps_per_second"] > 0 and rate["again_per_second"] > 0
        assert rate["bound"] in ("link", "requests", "decoding", "processor") and not rate["calculated"]
    assert list(tmp_path.iterdir()) == []


def test_on_this_machine(mirror, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert run(["bench", str(mirror / "my/zstd"), "--seconds", "0.5", "-n", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dataset\tmy/zstd"
    assert [line.split("\t")[0] for line in lines[1:]] == list(rates.PATTERNS)
    assert {len(line.split("\t")) for line in lines[1:]} == {4}
    shown = [number for line in lines[1:] for number in line.split("\t")[1:3]]
    assert all(number == str(float(f"{float(number):.4g}")) for number in shown)


def test_a_slow_link_is_calculated(mirror, tmp_path):
    url, pattern = (mirror / "my/zstd").as_uri(), "stacks of 4, global"
    with rates._opened(url, tmp_path, None, None) as dataset:
        slow = Link(0.02, 0.03, 16, 4 << 20, 1000.0)
        rate = rates._calculated(dataset, pattern, 16, slow, 1.0)
        assert rates._calculated(dataset, pattern, 16, Link(0.02, 0.03, 16, 4 << 20, 1e9), 1.0) is None
        assert rate is not None and rate.calculated and rate.bound == "link"
        assert rate.first_batch == pytest.approx((dataset.cache.layout.whole_bytes + 16 * rate.bytes_per_step) / 1000)
    assert rates._of_link(Link(0.5, 0.5, 16, 1 << 20, 100e6)) == "requests"


def test_bad_input(mirror, tmp_path, capsys):
    with pytest.raises(UsageError, match=r"at least 0\.5"):
        measure(mirror / "my/zstd", seconds=0.1)
    assert run(["bench", str(mirror / "my/zstd"), "--seconds", "0"]) == 2
    (tmp_path / "file").write_text("")
    assert run(["bench", (mirror / "my/zstd").as_uri(), "--cache-dir", str(tmp_path / "file")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_batches_of_large_rows_are_small(tmp_path, capsys):
    """Frames of 2 MiB that are a few bytes on disk."""
    episodes = make_episodes([4, 3], shape=(1 << 21,), dtype="uint8")
    for episode in episodes:
        episode.states["observation"][:] = 7
    folder = write_dataset(tmp_path, episodes, "zstd", dictionary=False)
    assert usual_batch(Dataset(folder), 256) == 15
    assert run(["sample", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["batch_size"] == [15]
    assert next(row["mean"] for row in shown["tensors"] if row["key"] == "observation") == 7.0


def test_what_a_killed_measurement_left_is_removed(mirror, tmp_path):
    code = (
        "import sys; from pathlib import Path; from rbdata.storage.scratch import ScratchFolder;"
        "print((made := ScratchFolder(Path(sys.argv[1]), '.bench-')).path, flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    killed, runs = (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    )
    folders = []
    for process in (killed, runs):
        assert process.stdout is not None
        folders.append(Path(process.stdout.readline().strip()))
        (folders[-1] / "my").mkdir()
    killed.kill()
    killed.communicate()
    measure((mirror / "my/zstd").as_uri(), seconds=0.5, batch_size=16, cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == [folders[1]]
    runs.kill()
    runs.communicate()
