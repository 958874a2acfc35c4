"""Killed and continued: the same bytes as if nothing had happened. Twenty kills in a row: ``benchmarks/preprocess.py``."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from preprocess_tools import lasting, make_input, run
from processes import RBDATA, start_interruptible
from rbdata.datasets.local import list_local
from rbdata.preprocess.request import Listener, PreprocessRequest
from rbdata.preprocess.run import preprocess
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify

SLOW = """
import time
import torch
def fn(td):
    time.sleep(0.01)
    td["noise"] = torch.rand(len(td))
    td["next", "reward"] = td["next", "reward"] * 2
    return td
"""


@pytest.fixture
def slow(tmp_path) -> str:
    (tmp_path / "slow.py").write_text(SLOW)
    make_input(tmp_path, "zstd")
    return f"{tmp_path}/slow.py:fn"


def words(root: Path, fn: str, dest: str, *more: object) -> list[str]:
    """A run of about 60 batches, in 4 chunks."""
    return [
        *("preprocess", "my/input", "--fn", fn, "--dest", dest, "--root", str(root), "--batch-size", "7"),
        *map(str, more),
    ]


def dest_files(root: Path, name: str) -> dict:
    """What lasts of a dataset, but for its own id."""
    files = lasting(root / "my" / name)
    for key in ("id", "lineage"):
        files["rbdata.json"].pop(key)
    return files


class TestStopped:
    def test_between_chunks(self, tmp_path, slow):
        """Stopped after each of its chunks in turn, and gone on with."""
        options = {"batch_size": 7, "procs": 0}
        calm = run(tmp_path, slow, dest="my/calm", **options)

        class Stop(Exception):
            pass

        def stop(index: int) -> None:
            raise Stop

        request = PreprocessRequest("my/input", [slow], "my/stopped", root=tmp_path, **options)
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
        assert stops >= len(calm.manifest.parts) > 3
        assert outcome.action == "written"
        assert dest_files(tmp_path, "stopped") == dest_files(tmp_path, "calm")

    @pytest.mark.parametrize("what", ["rows", "changed rows", "record", "dictionary"])
    def test_files_lost_meanwhile(self, tmp_path, slow, what):
        """What is said to be done must be there; else it is done again."""
        options = {"batch_size": 7, "procs": 0, "codec": "zstd" if what == "dictionary" else "auto"}
        run(tmp_path, slow, dest="my/calm", **options)
        seen = []

        def stop(index: int) -> None:
            seen.append(index)
            if len(seen) == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            preprocess(
                PreprocessRequest("my/input", [slow], "my/lost", root=tmp_path, **options), Listener(on_part_done=stop)
            )
        working = tmp_path / "my" / ".lost.writing"
        if what == "rows":
            next((working / ".parts").glob("*/next.reward.*.rows")).unlink()
        elif what == "changed rows":
            path = next((working / ".parts").glob("*/next.reward.*.rows"))
            path.write_bytes(bytes(path.stat().st_size))
        elif what == "record":
            next((working / ".parts").glob("*/part.json")).unlink()
        else:
            (working / "observation" / "dictionary").unlink()
        run(tmp_path, slow, dest="my/lost", **options)
        assert dest_files(tmp_path, "lost") == dest_files(tmp_path, "calm")


def test_a_run_that_finds_everything_done_removes_what_a_killed_one_left(tmp_path, slow):
    run(tmp_path, slow, dest="my/done", procs=0)
    (tmp_path / "my" / ".done.lock").write_text('{"pid": 1073741824, "host": "gone"}')
    os.utime(tmp_path / "my" / ".done.lock", (0, 0))
    run(tmp_path, slow, dest="my/done", procs=0)
    assert not (tmp_path / "my" / ".done.lock").exists()


class TestKilled:
    def test_at_random_moments(self, tmp_path, slow):
        """The whole run or one of its workers, by SIGKILL; CI has a few kills, the benchmark twenty."""
        run(tmp_path, slow, dest="my/calm", batch_size=7, procs=0)
        rng = random.Random(int(os.environ.get("RBDATA_TEST_SEED", "0")))
        kills = int(os.environ.get("RBDATA_TEST_KILLS", "3"))
        for number in range(kills):
            process = subprocess.Popen(
                [*RBDATA, *words(tmp_path, slow, "my/killed", "--procs", 2)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            # Chunks appear once processes are up; before that there is nothing to lose.
            parts = tmp_path / "my" / ".killed.writing" / ".parts"
            before = len(list(parts.glob("*/part.json")))
            deadline = time.monotonic() + 30
            while process.poll() is None and time.monotonic() < deadline:
                if len(list(parts.glob("*/part.json"))) > before and number:
                    break
                if number == 0 and parts.exists():
                    break
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.1))
            children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            workers = []  # and their server
            for child in children:
                with suppress(psutil.Error):  # one that has just ended
                    workers += [child] * ("forkserver" in " ".join(child.cmdline()))
            if workers and number % 2:
                rng.choice(workers).kill()
            else:
                process.kill()
            process.wait(600)
        dataset = run(tmp_path, slow, dest="my/killed", batch_size=7, procs=0)
        assert dest_files(tmp_path, "killed") == dest_files(tmp_path, "calm")
        assert verify(dataset.path).ok

    def test_ctrl_c(self, tmp_path, slow):
        """Exit code 130, what is finished is kept, and the message says how to go on."""
        run(tmp_path, slow, dest="my/calm", batch_size=7, procs=0)
        command = [*RBDATA, *words(tmp_path, slow, "my/stopped", "--procs", 1)]
        process = start_interruptible(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        parts = tmp_path / "my" / ".stopped.writing" / ".parts"
        while process.poll() is None and not any(parts.glob("*/part.json")):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=600)
        assert (process.returncode, out) == (130, "")
        assert "of my/stopped are kept" in told
        assert f"continue with: rbdata preprocess my/input --fn {slow}" in told
        assert "Traceback" not in told
        again = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert again.returncode == 0
        assert "continuing:" in again.stderr
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
