"""RLDS for tests: what tensorflow-datasets' own files hold, and folders written by hand, sharing no line with the reader.

    truth = fixture("toy_robot")                       # what went into the file, by the last row's two meanings
    write_folder(folder, {"steps": steps(observation=tensor("float32", 3), action=tensor("int32"))}, [episode, ...])

An episode is ``(once, rows)``: values of the episode, and one list of T values for each feature of the steps, by their paths.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from paths import DATA
from rlu_writer import blobs, example, floats, framed, ints

FIXTURES = DATA / "rlds"
Spec = dict[str, Any]


# -- the files of tensorflow-datasets ------------------------------------------------------------------------------------


def fixture(name: str, last_row: str) -> dict[str, np.ndarray]:
    """The transitions of a fixture, from what went in: leaves by key, and ``length``, ``terminated`` of each episode.

    ``last_row`` "step": T rows are T steps, the last successor zeros; "observation": T - 1 steps.
    """
    truth = dict(np.load(FIXTURES / f"truth_{name}.npz"))
    truth["steps/observation/wrist_image"] = truth["wrist_pillow"]
    joints = "steps/observation/joints"
    truth[joints] = truth[joints].astype(np.float32).astype(np.float64)  # float64 in a list of float32
    ends = np.cumsum(truth["lengths"])
    out: dict[str, list[np.ndarray]] = {}
    lengths, terminated = [], []
    for number, (end, rows) in enumerate(zip(ends, truth["lengths"])):
        low = end - rows
        kept = rows if last_row == "step" else rows - 1
        if not kept:
            continue
        lengths.append(kept)
        terminated.append(bool(truth["steps/is_terminal"][end - 1]))
        for key, values in truth.items():
            if key.startswith("steps/observation/"):
                here = values[low:end]
                if last_row == "step":
                    here = np.concatenate([here, np.zeros_like(here[:1])])
                out.setdefault(key.removeprefix("steps/"), []).append(here[:kept])
                out.setdefault("next/" + key.removeprefix("steps/"), []).append(here[1 : kept + 1])
            elif key.startswith("steps/action"):
                out.setdefault(key.removeprefix("steps/"), []).append(values[low : low + kept])
            elif key in ("steps/discount", "steps/language_instruction"):
                out.setdefault("info/" + key.removeprefix("steps/"), []).append(values[low : low + kept])
            elif key.startswith("episode/"):
                many = np.repeat(values[number : number + 1], kept)
                out.setdefault("info/episode_metadata/" + key.removeprefix("episode/"), []).append(many)
        out.setdefault("next/reward", []).append(truth["steps/reward"][low : low + kept, None])
        flag = np.arange(kept) == kept - 1
        out.setdefault("next/terminated", []).append((flag & terminated[-1])[:, None])
        out.setdefault("next/truncated", []).append((flag & (not terminated[-1]))[:, None])
        tokens = np.split(truth["tokens"], np.cumsum(truth["token_lengths"])[:-1])[low : low + kept]
        out.setdefault("info/tokens_length", []).append(np.array([len(one) for one in tokens]))
        padded = [np.pad(one, (0, 512 - len(one))) for one in tokens]
        out.setdefault("info/tokens", []).append(np.stack(padded))
    found = {key: np.concatenate(parts) for key, parts in out.items()}
    return {**found, "length": np.array(lengths), "terminated": np.array(terminated)}


def compare(dataset: Any, expected: Mapping[str, np.ndarray]) -> None:
    """Every leaf, equal to the last bit; texts as UTF-8, zero-padded."""
    assert dataset.episodes.lengths.tolist() == expected["length"].tolist()
    for key, values in expected.items():
        if key in ("length", "terminated"):
            continue
        found = dataset[key].numpy()
        if values.dtype.kind == "U":
            assert [bytes(row).rstrip(b"\0").decode() for row in found] == values.tolist(), key
        else:
            assert np.array_equal(found.reshape(values.shape), values), key
    skipped = {"done", "terminated", "truncated", "next/done"}
    assert set(dataset.schema.names) - skipped == set(expected) - {"length", "terminated"}


# -- written by hand -----------------------------------------------------------------------------------------------------


def tensor(dtype: str, *shape: int | None, encoding: str = "none") -> Spec:
    return {"pythonClassName": "t", "tensor": {"dtype": dtype, "encoding": encoding, "shape": _shape(shape)}}


def image(height: int | None, width: int | None, channels: int, dtype: str = "uint8", form: str = "png") -> Spec:
    about = {"dtype": dtype, "encodingFormat": form, "shape": _shape((height, width, channels))}
    return {"pythonClassName": "i", "image": about}


def text() -> Spec:
    return {"pythonClassName": "x", "text": {}}


def sequence(feature: Spec, length: int = -1) -> Spec:
    return {"pythonClassName": "s", "sequence": {"feature": feature, "length": str(length)}}


def several(**features: Spec) -> Spec:
    return {"pythonClassName": "d", "featuresDict": {"features": features}}


def steps(**features: Spec) -> Spec:
    """The feature ``steps`` with flags and rewards."""
    flags = {name: tensor("bool") for name in ("is_first", "is_last", "is_terminal")}
    return sequence(several(**{**flags, "reward": tensor("float32"), **features}))


def _shape(sizes: Sequence[int | None]) -> Spec:
    return {"dimensions": [str(-1 if size is None else size) for size in sizes]} if sizes else {}


def rows_of(count: int, terminal: bool = True, last: bool = True, **values: Any) -> dict[str, list[Any]]:
    """Flags of ``count`` rows, rewards of zero unless they are given, and ``values`` by path (``__`` for ``/``)."""
    final = [number == count - 1 for number in range(count)]
    found: dict[str, list[Any]] = {
        "is_first": [number == 0 for number in range(count)],
        "is_last": [one and last for one in final],
        "is_terminal": [one and terminal for one in final],
        "reward": [0.0] * count,
    }
    return {**found, **{key.replace("__", "/"): list(value) for key, value in values.items()}}


Episode = tuple[Mapping[str, Any], Mapping[str, Sequence[Any]]]


def write_folder(
    folder: Path,
    features: Mapping[str, Spec],
    episodes: Sequence[Episode],
    *,
    name: str = "made",
    shards: int = 1,
    split: str = "train",
    **info: Any,
) -> Path:
    """A builder's folder; episodes are dealt out in order."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = [[*part] for part in np.array_split(np.arange(len(episodes)), shards)]
    for number, group in enumerate(groups):
        file = folder / f"{name}-{split}.tfrecord-{number:05d}-of-{shards:05d}"
        file.write_bytes(b"".join(framed(record(features, *episodes[one])) for one in group))
    lengths = [str(len(group)) for group in groups]
    splits = [
        {"name": split, "shardLengths": lengths, "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"}
    ]
    about = {"name": name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits, **info}
    (folder / "dataset_info.json").write_text(json.dumps(about))
    (folder / "features.json").write_text(json.dumps(several(**features)))
    return folder


def record(features: Mapping[str, Spec], once: Mapping[str, Any], rows: Mapping[str, Sequence[Any]]) -> bytes:
    """An Example as tensorflow-datasets writes it."""
    found: dict[str, bytes] = {}
    for path, spec in _flat(several(**features)):
        inside = path.partition("/")[0] == "steps"
        inner = spec["sequence"]["feature"] if inside and "sequence" in spec else spec
        values = list(rows[path.removeprefix("steps/")]) if inside else [once[path]]
        if "sequence" in spec:
            found[f"{path}/ragged_flat_values"] = _list([one for value in values for one in value], inner)
            found[f"{path}/ragged_row_lengths_0"] = ints([len(value) for value in values])
        else:
            found[path] = _list(values, spec)
    return example(found)


def _flat(spec: Spec, path: str = "") -> list[tuple[str, Spec]]:
    if "featuresDict" in spec:
        inner = spec["featuresDict"]["features"].items()
        return [found for key, one in inner for found in _flat(one, f"{path}/{key}" if path else key)]
    if path == "steps":
        return _flat(spec["sequence"]["feature"], path)
    return [(path, spec)]


def _list(values: Sequence[Any], spec: Spec) -> bytes:
    """The list of some values of a feature: empty without any."""
    if not values:
        return b""
    about = spec.get("tensor", {})
    if "tensor" not in spec:
        return blobs([value.encode() if isinstance(value, str) else value for value in values])
    dtype = np.dtype(about["dtype"])
    arrays = [np.asarray(value, dtype) for value in values]
    if about["encoding"] != "none":
        return blobs([zlib.compress(one.tobytes()) if about["encoding"] == "zlib" else one.tobytes() for one in arrays])
    flat = np.concatenate([one.reshape(-1) for one in arrays])
    if dtype.kind == "f":
        return floats(flat.astype(np.float32).tolist())
    return ints((flat.view(np.int64) if dtype == np.uint64 else flat.astype(np.int64)).tolist())
