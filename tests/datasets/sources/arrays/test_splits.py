"""Which files of a folder are data: no hidden ones, no caches; one split of several, and never all of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import rbdata
from pyarrow import ipc, parquet
from rbdata.errors import UsageError
from rbdata.storage.dataset import Dataset


def steps(reward: float, rows: int = 3) -> dict[str, np.ndarray]:
    return {
        "obs": np.arange(2 * rows, dtype=np.float32).reshape(rows, 2),
        "act": np.ones(rows, np.int64),
        "rew": np.full(rows, reward),
        "done": np.arange(rows) == rows - 1,
    }


def table(reward: float) -> pa.Table:
    return pa.table({name: list(values) for name, values in steps(reward).items()})


def arrow(path: Path, reward: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with ipc.new_stream(str(path), table(reward).schema) as stream:
        stream.write_table(table(reward))


def saved(folder: Path, reward: float, **state: Any) -> None:
    """As `Dataset.save_to_disk` of Hugging Face's datasets writes it."""
    arrow(folder / "data-00000-of-00001.arrow", reward)
    named = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": None, **state}
    (folder / "state.json").write_text(json.dumps(named))
    (folder / "dataset_info.json").write_text("{}")


def rewards(path: Path, root: Path, **options: Any) -> list[float]:
    return sorted(
        {*Dataset(rbdata.convert(path, "my/x", root=root, force=True, **options))["next/reward"].flatten().tolist()}
    )


def test_caches_beside_the_data_are_not_read(tmp_path: Path) -> None:
    own = tmp_path / "own"
    saved(own, 1)
    arrow(own / "cache-c5535ecba017ac62.arrow", 2)
    assert rewards(own, tmp_path) == [1]


@pytest.mark.parametrize(
    "hidden", [".ipynb_checkpoints/a-checkpoint.npz", "._a.npz", "__MACOSX/._a.npz", ".trash/b/a.npz"]
)
def test_hidden_files_are_not_read(hidden: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / hidden).parent.mkdir(parents=True)
    np.savez(own / "a.npz", **steps(1))
    shutil.copy(own / "a.npz", own / "copy")
    np.savez(own / hidden, **steps(2))
    assert rewards(own, tmp_path) == [1]
    assert len(Dataset(tmp_path / "my/x")) == 3


def two_saved(own: Path) -> None:
    saved(own / "expert", 1)
    saved(own / "random", 2)
    (own / "dataset_dict.json").write_text('{"splits": ["expert", "random"]}')


def folders(own: Path) -> None:
    for name, reward in (("data/expert", 1), ("data/Test", 2)):
        (own / name).mkdir(parents=True)
        np.savez(own / name / "train_0.npz" if reward == 2 else own / name / "train_1.npz", **steps(reward))


def numbered_files(own: Path) -> None:
    own.mkdir()
    for name, reward in (("train-00000-of-00002", 1), ("train-00001-of-00002", 1), ("test-00000-of-00001", 2)):
        parquet.write_table(table(reward), own / f"{name}.parquet")


def named_files(own: Path) -> None:
    own.mkdir()
    for name, reward in (("hopper-train", 1), ("hopper_valid", 2)):
        arrow(own / f"{name}.arrow", reward)


def of_none(own: Path) -> None:
    (own / "eval").mkdir(parents=True)
    np.savez(own / "episode_0.npz", **steps(1))
    np.savez(own / "eval" / "episode_0.npz", **steps(2))


def arrays_in_folders(own: Path) -> None:
    for name, reward in (("train", 1), ("val", 2)):
        (own / name).mkdir(parents=True)
        for key, values in steps(reward).items():
            np.save(own / name / f"{key}.npy", values)


@pytest.mark.parametrize(
    ("make", "splits"),
    [
        (two_saved, {"expert": 1, "random": 2}),
        (folders, {"train": 1, "test": 2}),
        (numbered_files, {"train": 1, "test": 2}),
        (named_files, {"train": 1, "valid": 2}),
        (of_none, {"eval": 2}),
        (arrays_in_folders, {"train": 1, "val": 2}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_splits_are_chosen_and_never_merged(
    make: Callable[[Path], None], splits: dict[str, int], tmp_path: Path
) -> None:
    make(tmp_path / "own")
    path = tmp_path / "own"
    with pytest.raises(UsageError, match=f"holds the splits {', '.join(sorted(splits))}") as caught:
        rbdata.convert(path, "my/x", root=tmp_path, source="arrays")
    assert "split" in (caught.value.hint or "")
    for split, reward in splits.items():
        assert rewards(path, tmp_path, split=split) == [reward]
    assert Dataset(tmp_path / "my/x").manifest.source["split"] == split
    with pytest.raises(UsageError, match="has no split other"):
        rewards(path, tmp_path, split="other")
    if len(splits) > 1:
        with pytest.raises(rbdata.errors.RbdataError, match="another split"):
            rbdata.convert(path, "my/x", root=tmp_path, split=next(iter(splits)))


def test_a_split_that_is_alone_needs_no_choice(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    np.savez(tmp_path / "own/train_0.npz", **steps(1))
    np.savez(tmp_path / "own/train_1.npz", **steps(1))
    assert rewards(tmp_path / "own", tmp_path) == rewards(tmp_path / "own", tmp_path, split="train") == [1]
    with pytest.raises(UsageError, match="has no split train"):
        rewards(tmp_path / "own/train_0.npz", tmp_path, split="train")
