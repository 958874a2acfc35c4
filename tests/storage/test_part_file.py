"""The rows of one leaf in a part."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from rbdata.storage.leaf import Leaf
from rbdata.storage.part_file import encoder_of


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_compresses_with_threads_of_its_own(tmp_path: Path) -> None:
    """Who has converted, and forks, converts there too: a child that waited for threads of its parent would never end."""
    leaf = Leaf("x", "step", "uint8", (50,), codec="zstd")
    rows = np.random.default_rng(0).integers(0, 5, (400, 50), np.uint8)
    starts = np.arange(400, dtype=np.uint64) * 50
    (tmp_path / "x").mkdir()
    (tmp_path / "x/dictionary").write_bytes(b"")

    def encoded() -> bytes:
        encode = encoder_of(leaf, tmp_path, threads=2)
        assert encode is not None
        return encode(rows.tobytes(), starts, 50)[0]

    expected = encoded()
    child = os.fork()
    if not child:
        signal.alarm(120)
        os._exit(encoded() != expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
