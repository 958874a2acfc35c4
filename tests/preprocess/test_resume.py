"""Killed and continued: the same bytes as if nothing had happened."""

from __future__ import annotations

import os
import signal
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest
from preprocess_tools import lasting, make_input, run
from processes import start_command, wait_until
from rbdata.cli import run as rbdata
from rbdata.datasets.local import list_local
from rbdata.preprocess.request import Listener, PreprocessRequest
from rbdata.preprocess.run import preprocess
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify

#: Where there is a file ``hold``, it waits at the step that this says: the run is caught in the middle.
FUNCTION = """
import time
from pathlib import Path
import torch
def fn(td, step):
    hold = Path({hold!r})
    while hold.exists() and int(step[0]) >= int(hold.read_text()):
        time.sleep(0.01)
    td["noise"] = torch.rand(len(td))
    td["next", "reward"] = td["next", "reward"] * 2
    return td
"""


@pytest.fixture
def fn(tmp_path) -> str:
    (tmp_path / "mine.py").write_text(FUNCTION.format(hold=str(tmp_path / "hold")))
    make_input(tmp_path, "zstd", count=40)
    return f"{tmp_path}/mine.py:fn"


def dest_files(root: Path, name: str) -> dict:
    """What lasts of a dataset, but for its own id."""
    files = lasting(root / "my" / name)
    for key in ("id", "lineage"):
        files["rbdata.json"].pop(key)
    return files


class TestStopped:
    def test_between_chunks(self, tmp_path, fn):
        """Stopped after each of its chunks in turn, and gone on with."""
        options = {"batch_size": 7, "procs": 0}
        run(tmp_path, fn, dest="my/calm", **options)

        class Stop(Exception):
            pass

        def stop(index: int) -> None:
            raise Stop

        request = PreprocessRequest("my/input", [fn], "my/stopped", root=tmp_path, **options)
        stops, seen = 0, []
        while True:
            try:
                outcome = preprocess(request, Listener(on_part_done=stop, on_estimate=seen.append))
                break
            except Stop:
                stops += 1
                (partial,) = (entry for entry in list_local(tmp_path) if entry.id == "my/stopped")
                assert partial.state == "partial"
                assert partial.done == pytest.approx(stops / seen[0].parts)
        assert {estimate.parts for estimate in seen} == {stops}
        assert stops > 3
        assert outcome.action == "written"
        assert dest_files(tmp_path, "stopped") == dest_files(tmp_path, "calm")

    @pytest.mark.parametrize("what", ["changed rows", "record", "dictionary"])
    def test_files_lost_meanwhile(self, tmp_path, fn, what):
        """What is said to be done must be there; else it is done again."""
        options = {"batch_size": 7, "procs": 0, "codec": "zstd" if what == "dictionary" else "auto"}
        run(tmp_path, fn, dest="my/calm", **options)
        seen = []

        def stop(index: int) -> None:
            seen.append(index)
            if len(seen) == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            preprocess(
                PreprocessRequest("my/input", [fn], "my/lost", root=tmp_path, **options), Listener(on_part_done=stop)
            )
        working = tmp_path / "my" / ".lost.writing"
        if what == "changed rows":
            path = next((working / ".parts").glob("*/next.reward.*.rows"))
            path.write_bytes(bytes(path.stat().st_size))
        elif what == "record":
            next((working / ".parts").glob("*/part.json")).unlink()
        else:
            (working / "observation" / "dictionary").unlink()
        run(tmp_path, fn, dest="my/lost", **options)
        assert dest_files(tmp_path, "lost") == dest_files(tmp_path, "calm")


class TestKilled:
    @pytest.fixture
    def command(self, tmp_path, fn):
        """The words of a run of about 400 steps in 8 chunks, whose result is that of ``my/calm``."""
        run(tmp_path, fn, dest="my/calm", batch_size=7, procs=0)
        words = ("preprocess", "my/input", "--fn", fn, "--root", str(tmp_path), "--batch-size", "7", "--procs", "2")
        return [*words, "--dest", "my/stopped"]

    def start(self, root, command, hold):
        """Start the run and let it finish chunks, but none from the step ``hold`` on."""
        parts = root / "my" / ".stopped.writing" / ".parts"
        before = len(list(parts.glob("*/part.json")))
        (root / "hold").write_text(str(hold))
        process = start_command(command, root / "said")
        wait_until(lambda: len(list(parts.glob("*/part.json"))) > before)
        return process

    def test_the_run_or_a_worker(self, tmp_path, command):
        """By SIGKILL, in the middle of a chunk. ``benchmarks/campaign/kills.py`` kills at random moments."""
        forkserver.ensure_running()
        for of_worker, hold in ((False, 120), (True, 230)):
            others = set(psutil.Process().children(recursive=True))
            process = self.start(tmp_path, command, hold)
            workers = [one for one in psutil.Process().children(recursive=True) if one not in others]
            workers = [one for one in workers if one.pid != process.pid]
            assert workers and process.is_alive()
            (workers[0] if of_worker else process).kill()
            process.join()
            assert process.exitcode == (1 if of_worker else -signal.SIGKILL)
            psutil.wait_procs(workers)
        (tmp_path / "hold").unlink()
        assert rbdata(command) == 0
        assert dest_files(tmp_path, "stopped") == dest_files(tmp_path, "calm")
        assert verify(tmp_path / "my" / "stopped").ok

    def test_ctrl_c(self, tmp_path, command, capfd):
        """Exit code 130, what is finished is kept, and the message says how to go on."""
        process = self.start(tmp_path, command, 120)
        os.kill(process.pid, signal.SIGINT)
        process.join()
        said = (tmp_path / "said").read_text()
        assert process.exitcode == 130
        assert "of my/stopped are kept" in said
        assert f"continue with: rbdata preprocess my/input --fn {tmp_path}" in said
        assert "Traceback" not in said
        (tmp_path / "hold").unlink()
        assert rbdata(command) == 0
        assert "continuing:" in capfd.readouterr().err
        assert dest_files(tmp_path, "stopped") == dest_files(tmp_path, "calm")


def test_statistics_are_kept(tmp_path):
    """Those that were found are not looked for again, and come out the same."""
    make_input(tmp_path)
    options = {"batch_size": 7, "procs": 0}
    calm = run(tmp_path, "rbdata:normalize_observations", dest="my/calm", **options)

    def stop(index: int) -> None:
        raise KeyboardInterrupt

    request = PreprocessRequest("my/input", ["rbdata:normalize_observations"], "my/stopped", root=tmp_path, **options)
    with pytest.raises(KeyboardInterrupt):
        preprocess(request, Listener(on_part_done=stop))
    told: list[str] = []
    preprocess(request, Listener(on_stage=told.append))
    assert told and not [stage for stage in told if "first pass" in stage]
    assert dest_files(tmp_path, "stopped") == dest_files(tmp_path, "calm")
    found = Dataset(tmp_path / "my" / "stopped").statistics["normalize_observations"]["observation"]
    assert found == calm.statistics["normalize_observations"]["observation"]
