"""What several test modules share: nothing of the developer's machine, nor of the test before, decides a result."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
from contextlib import suppress
from multiprocessing import forkserver

import pytest
from effort import examples
from hypothesis import settings
from rbdata.cli.console import out

# Modules and tests are never freed: no collection of garbage searches them.
gc.disable()


def pytest_collection_modifyitems(items):
    """What waits most comes first: a Ray that is started with other tests left to run beside it, and in one worker."""
    items.sort(key=lambda item: item.path.name != "test_ray_cluster.py")


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


# Machines are shared: no test may depend on speed.
settings.register_profile("no deadline", deadline=None, max_examples=examples(100))
settings.load_profile("no deadline")

# A process by "forkserver" gets its work as a spawned one does, and need not import torch again, whoever starts the server.
_PRELOAD = [
    "torch",
    "tensordict",
    "h5py",
    "rbdata.storage.replay",
    "rbdata.preprocess.worker",
    "rbdata.datasets.workers.local_engine",
]
_set_preload = multiprocessing.set_forkserver_preload
multiprocessing.set_forkserver_preload = lambda modules: _set_preload([*modules, *_PRELOAD])
multiprocessing.set_forkserver_preload([])


def _ensure_running(plain=forkserver._forkserver.ensure_running):
    """A forked child of a test uses the server of its parent. It would start one of its own, which imports torch."""
    with suppress(ChildProcessError):
        plain()


forkserver._forkserver.ensure_running = forkserver.ensure_running = _ensure_running

# Once, not before every test: fixtures of whole modules set some of these. Test processes that tests start inherit it.
for _name in list(os.environ):
    if _name.startswith(
        ("RBDATA_", "MINARI_", "HF_", "HUGGING_FACE_", "AWS_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR")
    ):
        del os.environ[_name]


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def own_settings(monkeypatch, tmp_path_factory):
    """No test looks at, or writes to, what the developer's machine has configured."""
    own = tmp_path_factory.getbasetemp() / f"by-default-{next(_numbers)}"  # made only where something is written
    monkeypatch.setenv("RBDATA_CONFIG", "")
    monkeypatch.setenv("RBDATA_ROOT", str(own / "root"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(own / "minari"))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(own / "no-gcloud"))
    out.configure(())
    # What a test replaces in a module acts where it does not ask for worker processes.
    monkeypatch.setenv("RBDATA_PROCS", "0")
