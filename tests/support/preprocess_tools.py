"""What the tests of preprocessing share: functions, a plain loop over a dataset, and what it must come to.

``plain`` does what preprocessing promises, in the dullest way: the whole dataset in memory, one process, one loop.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from rbdata.preprocess.request import make_requests
from rbdata.preprocess.run import preprocess
from rbdata.storage.dataset import Dataset
from rbdata.storage.manifest import read_manifest
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict

FRAME = (24, 24, 3)  # 1,728 bytes: large enough to be stored once


def make_input(root: Path, layout: str = "flat", *, count: int = 24, seed: int = 0, id: str = "my/input") -> Path:
    """A dataset of about 250 steps; frames unless it is ``flat``. Written once for all tests, and copied for each."""
    return Path(shutil.copytree(_input(layout, count, seed, id), root / id))


#: Removed when the process ends.
_inputs = tempfile.TemporaryDirectory(prefix="rbdata-test-inputs-")


@cache
def _input(layout: str, count: int, seed: int, id: str) -> Path:
    lengths = np.random.default_rng(seed).integers(1, 20, count).tolist()
    frames: dict[str, Any] = {"shape": FRAME, "dtype": "uint8"} if layout != "flat" else {}
    root = Path(tempfile.mkdtemp(dir=_inputs.name))
    return write_dataset(root, make_episodes(lengths, seed=seed, **frames), layout, id=id, parts=3 if frames else 1)


def run(root: Path, functions: Any, dest: str = "my/output", source: Any = "my/input", **options: Any) -> Dataset:
    """Preprocess, in this process unless told otherwise, and open what comes out."""
    options.setdefault("procs", 0)
    engine = options.pop("open_engine", None)
    given = functions if isinstance(functions, list) else [functions]
    (request,) = make_requests(source, given, dest, root=root, **options)
    return Dataset(preprocess(request, engine=engine).path)


def fails(
    root: Path, fn: Any, error: type[Exception], match: str | None = None, *, kept: bool = False, **options: Any
) -> Any:
    """The error, which leaves nothing behind, unless chunks were finished before it (``kept``)."""
    with pytest.raises(error, match=match) as caught:
        run(root, fn, dest="my/bad", **options)
    left = [path for path in (root / "my").iterdir() if "bad" in path.name]
    assert [path.name for path in left] == ([".bad.writing"] if kept else [])
    for path in left:
        shutil.rmtree(path)
    return caught.value


def plain(dataset: Dataset, fn: Callable[[TensorDict], Any], per: str, batch: int) -> tuple[TensorDict, list[int]]:
    """All results one after the other, and the lengths of the episodes they make."""
    data = dataset.to_tensordict()
    table = dataset.episodes
    results: list[TensorDict] = []
    if per == "episode":
        for start, length in zip(table.starts.tolist(), table.lengths.tolist()):
            result = fn(data[start : start + length].clone())
            if result is not None:
                results.append(result)
    elif per == "sample":
        results = [TensorDict.stack([fn(data[step].clone()) for step in range(len(data))])]
    else:
        results = [fn(data[low : low + batch].clone()) for low in range(0, len(data), batch)]
    whole: Any = torch.cat(results)
    ends = whole["next", "done"].reshape(-1).nonzero().reshape(-1).tolist()
    return whole, np.diff([-1, *ends]).tolist()


def check_files(folder: Path, whole: TensorDict, lengths: list[int]) -> None:
    """Every leaf's bytes are those of the plain results; compressed ones row by row."""
    manifest = read_manifest(folder)
    assert manifest.steps == len(whole)
    ends = np.cumsum(lengths) - 1
    for leaf in manifest.schema:
        rows = (
            whole[tuple(leaf.name.split("/"))]
            if leaf.constant is None
            else torch.zeros(len(whole), 1, dtype=torch.bool)
        )
        if leaf.kind == "state":
            after = whole["next", leaf.name]
            rows = torch.cat(
                [torch.cat([rows[end + 1 - n : end + 1], after[end : end + 1]]) for end, n in zip(ends, lengths)]
            )
        data = rows.contiguous().numpy()
        if leaf.codec == "raw":
            path = folder.joinpath(*leaf.key).with_suffix(".memmap")
            assert path.read_bytes() == data.tobytes(), leaf.name
        else:
            check_compressed(folder.joinpath(*leaf.key), data)


def check_compressed(folder: Path, rows: np.ndarray) -> None:
    """A compressed leaf is its rows, each compressed on its own with the dictionary that lies beside them."""
    options: dict[str, Any] = {"write_content_size": 1, "write_checksum": 0, "write_dict_id": 0}
    parameters = zstandard.ZstdCompressionParameters.from_level(3, **options)
    dictionary = (folder / "dictionary").read_bytes()
    digest = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    compressor = zstandard.ZstdCompressor(dict_data=digest, compression_params=parameters)
    frames = [compressor.compress(row.tobytes()) for row in rows]
    assert (folder / "blob").read_bytes() == b"".join(frames)
    offsets = np.fromfile(folder / "offsets", "<i8")
    assert offsets.tolist() == [0, *np.cumsum([len(frame) for frame in frames]).tolist()]


def lasting(folder: Path) -> dict[str, Any]:
    """Every file of a dataset; of the manifest all but when and where it was made."""
    files: dict[str, Any] = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "rbdata.json"
    }
    manifest = json.loads((folder / "rbdata.json").read_text())
    for name in ("provenance", "checksum"):
        manifest.pop(name)
    return {**files, "rbdata.json": manifest}


# -- functions ------------------------------------------------------------------------------------------------------------


def double_rewards(td: TensorDict) -> TensorDict:
    td["next", "reward"] = td["next", "reward"] * 2
    td["seen"] = td["observation"].flatten(td.ndim).float().mean(-1)
    return td


def in_place(td: TensorDict) -> TensorDict:
    td["next", "reward"].mul_(2)
    td["observation"].add_(1)
    td["next", "observation"].add_(1)
    return td


def smaller(td: TensorDict) -> TensorDict:
    """Other shapes and dtypes, and no action any more."""
    td["observation"] = td["observation"].half()[..., ::2]
    td["next", "observation"] = td["next", "observation"].half()[..., ::2]
    return td.exclude("action")


def every_other(td: TensorDict) -> TensorDict | None:
    """Drops short episodes and every second step of the others, its end too."""
    if len(td) < 5:
        return None
    td = td[::2].clone()
    td["next", "observation"] = torch.cat([td["observation"][1:], td["next", "observation"][-1:]])
    td["next", "terminated"][-1] = False
    td["next", "truncated"][-1] = True
    td["next", "done"][-1] = True
    return td


def returns_to_go(td: TensorDict) -> TensorDict:
    reward = td["next", "reward"].double()
    td["to_go"] = reward.flip(0).cumsum(0).flip(0).float()
    return td


def noisy(td: TensorDict) -> TensorDict:
    """New random leaves, from each of the generators that there are."""
    td["noise"] = torch.rand(td.batch_size)
    td["more"] = torch.from_numpy(np.random.rand(*td.batch_size, 1))
    return td


def twice(batch: TensorDict) -> TensorDict:
    """For processes of other pools, which can import this module, and no module of tests."""
    return batch.select("a").set("twice", batch["a"] * 2)
