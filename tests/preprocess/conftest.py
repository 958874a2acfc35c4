"""What tests of preprocessing share: worker processes, whose server takes seconds to start, and datasets that runs read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from preprocess_tools import make_input
from rbdata.datasets.workers.local_engine import LocalEngine
from rbdata.preprocess.planning import WORKER
from storage_tools import contents


@pytest.fixture(scope="session")
def two_processes() -> Iterator[LocalEngine]:
    with LocalEngine(2, [WORKER]) as engine:
        yield engine


@pytest.fixture
def workers(two_processes: LocalEngine) -> Iterator[LocalEngine]:
    """Two workers that no other test has used."""
    yield two_processes
    two_processes.end_workers()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root with ``my/input`` and, of frames, ``my/frames``. No run changes its input."""
    root = tmp_path_factory.mktemp("shared")
    make_input(root)
    make_input(root, "zstd", id="my/frames")
    before = contents(root / "my" / "input")
    yield root
    assert contents(root / "my" / "input") == before


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with ``my/flat``, whose rows are vectors, and ``my/zstd``, whose rows are frames."""
    root = tmp_path_factory.mktemp("inputs")
    for layout in ("flat", "zstd"):
        make_input(root, layout, id=f"my/{layout}")
    return root
