"""Datasets are mapped without keeping files open: a mixture may have more files than a process may open."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import numpy as np
import rbdata
from processes import run_forked


def make(root: Path, number: int) -> Path:
    rows = {"obs": np.full((3, 2), number, np.float32), "act": np.zeros((3, 1)), "rew": np.ones(3)}
    return rbdata.from_arrays({**rows, "done": np.arange(3) == 2}, f"my/x{number}", root=root)


def test_a_mixture_of_more_datasets_than_files_may_be_open(tmp_path: Path) -> None:
    for number in range(12):
        make(tmp_path, number)
    code = f"""
import resource, sys
import rbdata
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {resource.getrlimit(resource.RLIMIT_NOFILE)[1]}))
buffer = rbdata.load([f"my/x{{number}}" for number in range(12)], root=sys.argv[1], batch_size=36, replacement=False)
assert sorted(buffer.sample()["observation"][:, 0].int().tolist()) == sorted(3 * list(range(12)))
"""
    assert run_forked(code, str(tmp_path)) == 0


def test_a_dataset_keeps_no_file_open_and_frees_its_maps(tmp_path: Path) -> None:
    path = make(tmp_path, 7)
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = [rbdata.open_dataset(path) for _ in range(10)]
    rows = kept[0]["observation"][:]
    assert [one["observation"][0].tolist() for one in kept] == [[7, 7]] * 10
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert Path("/proc/self/maps").read_text().count(str(path))
    del kept
    gc.collect()
    assert rows[-1].tolist() == [7, 7]  # what was read stays
