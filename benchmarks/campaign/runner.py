"""Campaigns one at a time, each in its own process: without the settings and credentials of this machine."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from report import Report

HERE = Path(__file__).resolve().parent

#: Rounds of a full run, in the order of the table.
ROUNDS = {
    "transfers": 1_000,
    "kills": 300,
    "inputs": 1_000_000,
    "folders": 10_000,
    "concurrency": 1_000,
    "remote": 200,
    "own_code": 2_000,
}

_OWN = ("RBDATA_", "MINARI_", "HF_", "HUGGING_FACE_", "AWS_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR")


def campaigns() -> list[str]:
    """The campaigns that are there."""
    return [name for name in ROUNDS if (HERE / f"{name}.py").is_file()]


def run(name: str, rounds: int, seed: int) -> Report:
    """Run a campaign in its own process; one that dies is a fault."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(name, rounds, seed, there))
    child.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        child.join()
        return Report(name, seed, faults=[f"the campaign itself ended with {child.exitcode} (seed {seed})"])
    finally:
        child.join()


def _work(name: str, rounds: int, seed: int, answer: Connection) -> None:
    from rbdata.datasets.workers.worker_process import end_with_parent

    end_with_parent()
    with tempfile.TemporaryDirectory(prefix="rbdata-campaign-") as folder:
        for variable in [one for one in os.environ if one.startswith(_OWN)]:
            del os.environ[variable]
        places = {"RBDATA_ROOT": "root", "MINARI_DATASETS_PATH": "minari", "CLOUDSDK_CONFIG": "gcloud", "TMPDIR": "tmp"}
        os.environ.update({variable: f"{folder}/{below}" for variable, below in places.items()}, RBDATA_CONFIG="")
        Path(folder, "tmp").mkdir()
        tempfile.tempdir = None  # TMPDIR is looked up again
        try:
            answer.send(importlib.import_module(name).run(rounds, seed))
        except Exception:
            print(traceback.format_exc(), file=sys.stderr)
            answer.send(Report(name, seed, faults=[f"the campaign itself failed (seed {seed}): {sys.exc_info()[1]!r}"]))
