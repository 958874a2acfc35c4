"""Files that tensorflow-datasets wrote, against what went into them; and files of any shape, against what went into those."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from rbdata import api
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from rlds_tools import FIXTURES, compare, fixture, image, rows_of, sequence, several, steps, tensor, text, write_folder

NAMES = {"toy_robot": "step", "toy_spec": "observation"}


def convert(path: Path, root: Path, **options) -> Dataset:
    made = api.convert(path, "my/x", source="rlds", root=root, procs=0, force=True, **options)
    assert verify(made).ok
    return Dataset(made)


@pytest.mark.parametrize("name, last_row", [(name, how) for name in NAMES for how in ("auto", NAMES[name])])
def test_every_value_of_the_writers_own_files(tmp_path, name, last_row):
    dataset = convert(FIXTURES / name, tmp_path, last_row=last_row)
    meant = NAMES[name] if last_row == "auto" else last_row
    compare(dataset, fixture(name, meant))
    assert dataset.manifest.source["options"]["last_row"] == meant


def png(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values[..., 0] if values.shape[2] == 1 else values).save(file, "PNG")
    return file.getvalue()


@st.composite
def datasets(draw):
    """Features and episodes, and the leaves that they are to become."""
    seed = draw(st.integers(0, 1 << 30))
    rng = np.random.default_rng(seed)
    lengths = draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    kinds = st.sampled_from(
        ["bool", "uint8", "int8", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"]
    )
    shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
    encodings = st.sampled_from(["none", "bytes", "zlib"])
    made = {f"f{number}": (draw(kinds), draw(shapes), draw(encodings)) for number in range(draw(st.integers(1, 4)))}
    features = {name: tensor(dtype, *shape, encoding=encoding) for name, (dtype, shape, encoding) in made.items()}
    pictures = draw(st.sampled_from([None, (3, 5, 1), (4, 2, 3), (2, 3, 4)]))
    ragged = draw(st.sampled_from([None, "float32", "int64"]))
    fixed = draw(st.integers(0, 3))
    more = {"note": text()}
    if pictures:
        known = draw(st.booleans())
        features["picture"] = image(pictures[0] if known else None, pictures[1] if known else None, pictures[2])
    if ragged:
        more["ragged"] = sequence(tensor(ragged))
    if fixed:
        more["fixed"] = sequence(tensor("int32", 2), fixed)
    episodes, expected = [], []
    for count in lengths:
        values = {
            name: [_value(rng, dtype, shape, encoding) for _ in range(count)]
            for name, (dtype, shape, encoding) in made.items()
        }
        drawn = [rng.integers(0, 255, pictures, np.uint8) for _ in range(count)] if pictures else []
        notes = ["".join(rng.choice(list("abcé字 "), rng.integers(0, 5))).rstrip() for _ in range(count)]
        loose = [rng.integers(-5, 5, rng.integers(0, 4)).astype(ragged or "int64") for _ in range(count)]
        tight = [rng.integers(-5, 5, (max(1, fixed), 2)).astype("int32") for _ in range(count)]
        rows = {f"observation/{name}": one for name, one in values.items()}
        rows |= {"observation/picture": [png(one) for one in drawn]} if pictures else {}
        rows |= {"note": notes, "action": [0] * count} | ({"ragged": loose} if ragged else {})
        rows |= {"fixed": tight} if fixed else {}
        rewards = rng.normal(size=count).astype(np.float32)
        rewards[-1] = 0
        once = {"seed": int(rng.integers(-9, 9)), "about": "é"}
        episodes.append((once, rows_of(count, terminal=bool(rng.random() < 0.5), reward=rewards.tolist(), **rows)))
        expected.append((values, drawn, notes, loose, tight, rewards, once, episodes[-1][1]["is_terminal"][-1]))
    all_steps = steps(observation=several(**features), action=tensor("int64"), **more)
    return {"steps": all_steps, "seed": tensor("int32"), "about": text()}, episodes, expected, made, ragged, fixed


def _value(rng, dtype, shape, encoding):
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind == "f":
        real = rng.normal(size=shape).astype(kind)
        return real if encoding != "none" else real.astype(np.float32).astype(kind)
    info = np.iinfo(kind)
    high = min(int(info.max), (1 << 63) - 1)  # larger ones have no leaf
    return rng.integers(max(int(info.min), -(1 << 63)), high, shape, kind, endpoint=True)


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=datasets(), shards=st.integers(1, 3))
def test_whatever_is_written_is_read(tmp_path, made, shards):
    features, episodes, expected, kinds, ragged, fixed = made
    shards = min(shards, len(episodes))
    folder = write_folder(tmp_path / "raw" / "1.0.0", features, episodes, shards=shards)
    try:
        dataset = convert(folder, tmp_path, max_length=40, leave_out="" if ragged else None)
    finally:
        for file in folder.iterdir():
            file.unlink()
    assert dataset.episodes.lengths.tolist() == [len(one[5]) - 1 for one in expected]
    for number, (values, drawn, notes, loose, tight, rewards, once, terminal) in enumerate(expected):
        episode = dataset.episode(number)
        for name, rows in values.items():
            key = ("observation", name)
            found = episode[key].numpy(), episode["next", "observation", name].numpy()
            whole = np.stack([np.asarray(row, kinds[name][0]) for row in rows])
            whole = whole.reshape(len(whole), *(kinds[name][1] or (1,)))
            assert np.array_equal(found[0].astype(whole.dtype), whole[:-1])
            assert np.array_equal(found[1].astype(whole.dtype), whole[1:])
        if drawn:
            assert np.array_equal(episode["observation", "picture"], np.stack(drawn[:-1]))
            assert np.array_equal(episode["next", "observation", "picture"], np.stack(drawn[1:]))
        assert [bytes(row).rstrip(b"\0").decode() for row in episode["info", "note"].numpy()] == notes[:-1]
        if ragged:
            sizes = episode["info", "ragged_length"].tolist()
            assert sizes == [len(one) for one in loose[:-1]]
            for row, one in zip(episode["info", "ragged"].numpy(), loose):
                assert np.array_equal(row[: len(one)], one) and not row[len(one) :].any()
        if fixed:
            assert np.array_equal(episode["info", "fixed"], np.stack(tight[:-1]))
        assert np.array_equal(episode["next", "reward"][:, 0], rewards[:-1])
        assert set(episode["info", "seed"].tolist()) == {once["seed"]}
        assert bool(episode["next", "terminated"][-1]) == terminal
        assert bool(episode["next", "truncated"][-1]) != terminal
