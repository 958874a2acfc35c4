"""Folders that are damaged, incomplete, of another format, or hostile: a clear error, and nothing half-written."""

from __future__ import annotations

import io
import json
import zlib

import pytest
import rbdata
from PIL import Image
from rbdata import api
from rbdata.datasets.formats.tfds import parse_features
from rbdata.errors import CorruptSourceError, ObjectNotFoundError, RbdataError, UsageError
from rlds_tools import FIXTURES, image, rows_of, sequence, several, steps, tensor, text, write_folder
from rlu_writer import blobs, block, example, framed, ints, varint

FEATURES = {
    "steps": steps(
        observation=several(
            picture=image(4, 5, 3), state=tensor("float32", 2), scan=tensor("float64", 3, encoding="zlib")
        ),
        action=tensor("uint8"),
        note=text(),
        tokens=sequence(tensor("int32")),
    ),
    "file": text(),
}


def picture(height=4, width=5, mode="RGB", form="PNG"):
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, form)
    return file.getvalue()


def write(folder, count=3, **changed):
    values = {
        "observation/picture": [picture()] * count,
        "observation/state": [[1.0, 2.0]] * count,
        "observation/scan": [[1.0, 2.0, 3.0]] * count,
        "action": [1] * (count - 1) + [0],
        "note": ["x"] * count,
        "tokens": [[1, 2], [], [3]],
        **{key.replace("__", "/"): value for key, value in changed.items()},
    }
    return write_folder(folder, FEATURES, [({"file": "f"}, rows_of(count, **values))])


def fails(folder, tmp_path, kind, *words, **options):
    with pytest.raises(kind) as caught:
        api.convert(folder, "my/x", source="rlds", root=tmp_path / "root", procs=0, **options)
    assert all(word in f"{caught.value} {caught.value.hint}" for word in words), str(caught.value)
    assert not (tmp_path / "root" / "my" / "x").exists()
    return caught.value


def file_of(folder):
    return next(folder.glob("*.tfrecord*"))


def edit(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


# -- the folder --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["array_record", "riegeli", "parquet"])
def test_other_formats_are_refused_by_name(tmp_path, form):
    folder = write(tmp_path / "raw")
    edit(folder / "dataset_info.json", lambda info: info.update(fileFormat=form))
    fails(folder, tmp_path, UsageError, form, "tfrecord")


def test_a_file_that_is_missing_is_named(tmp_path):
    folder = write(tmp_path / "raw")
    edit(folder / "dataset_info.json", lambda info: info["splits"][0].update(shardLengths=["1", "4", "4"]))
    file_of(folder).rename(folder / "made-train.tfrecord-00000-of-00003")
    error = fails(folder, tmp_path, ObjectNotFoundError, "made-train.tfrecord-00001-of-00003", "shards")
    assert error.partly_there
    api.convert(folder, "my/x", source="rlds", root=tmp_path / "root", procs=0, shards="0")
    fails(folder, tmp_path / "2", ObjectNotFoundError, "file 7", shards="7")


@pytest.mark.parametrize("stated", ["2", "0"])
def test_episodes_that_are_missing_or_too_many(tmp_path, stated):
    folder = write(tmp_path / "raw")
    edit(folder / "dataset_info.json", lambda info: info["splits"][0].update(shardLengths=[stated]))
    fails(folder, tmp_path, CorruptSourceError, "holds 1 episode,", stated, "made-train")


def test_a_split_is_chosen(tmp_path):
    folder = write(tmp_path / "raw")
    fails(folder, tmp_path, UsageError, "val", "train", split="val")
    edit(folder / "dataset_info.json", lambda info: info["splits"].append({**info["splits"][0], "name": "val"}))
    fails(folder, tmp_path, ObjectNotFoundError, "made-val", split="val")
    file_of(folder).rename(folder / "made-val.tfrecord-00000-of-00001")
    assert len(api.open_dataset(api.convert(folder, "my/x", source="rlds", root=tmp_path / "root", split="val"))) == 2
    edit(folder / "dataset_info.json", lambda info: info["splits"][0].update(name="other"))
    fails(folder, tmp_path / "2", UsageError, "several splits")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"name": 1}', b'{"name": "x", "splits": [{}]}'])
@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_descriptions_that_are_damaged(tmp_path, name, content):
    folder = write(tmp_path / "raw")
    (folder / name).write_bytes(content)
    fails(folder, tmp_path, CorruptSourceError, name if b"name" not in content else "")


def test_names_that_lead_out_of_the_folder(tmp_path):
    folder = write(tmp_path / "raw")
    edit(folder / "dataset_info.json", lambda info: info.update(name="../made"))
    fails(folder, tmp_path, ObjectNotFoundError, "../made-train")


@pytest.mark.parametrize(
    "feature, word",
    [
        ({"pythonClassName": "my.Cloud", "cloud": {}}, "my.Cloud"),
        (tensor("float32", 2, encoding="gzip"), "gzip"),
        (tensor("float32", 1 << 20, 1 << 20), "bytes"),
        (image(1 << 16, 1 << 16, 3), "bytes"),
        ({"sequence": {}}, "feature"),
        ({"tensor": {"dtype": "float32", "minimum": "low"}}, "low"),
        ({"tensor": {"dtype": "float32", "maximum": 10**400}}, "(?i)overflow|digits|large"),
        ({"classLabel": {"numClasses": [4]}}, "list"),
    ],
)
def test_features_that_are_not_known_or_too_large(feature, word):
    with pytest.raises(CorruptSourceError, match=word):
        parse_features(json.dumps(several(steps=steps(observation=feature))).encode(), "features.json")


def test_no_steps(tmp_path):
    folder = write_folder(tmp_path / "raw", {"image": image(4, 5, 3)}, [({"image": picture()}, {})])
    fails(folder, tmp_path, CorruptSourceError, "describes no episodes", "features.json")


def test_options_that_name_nothing(tmp_path):
    folder = write(tmp_path / "raw")
    fails(folder, tmp_path, UsageError, "nothing", "observation/state", leave_out="nothing")
    fails(folder, tmp_path, UsageError, "no observation", leave_out="observation")


@pytest.mark.parametrize(
    "name, feature, values",
    [
        ("reward", tensor("float32", 2), [[1.0, 2.0]] * 3),
        ("reward", sequence(tensor("float32")), [[1.0], [2.0, 3.0], []]),
        ("reward", text(), ["a", "b", "c"]),
        ("is_terminal", sequence(tensor("bool")), [[True], [], []]),
        ("is_last", text(), ["a", "b", "c"]),
    ],
)
def test_rewards_and_flags_that_are_not_numbers(tmp_path, name, feature, values):
    features = {"steps": steps(observation=tensor("float32", 2), action=tensor("int64"), **{name: feature})}
    rows = rows_of(3, observation=[[1.0, 2.0]] * 3, action=[1, 2, 0], **{name: values})
    folder = write_folder(tmp_path / "raw", features, [({}, rows)])
    fails(folder, tmp_path, UsageError, f"steps/{name} is not one number a step", f"name {name} in --leave-out")
    made = api.convert(folder, "my/x", source="rlds", root=tmp_path / "root", procs=0, leave_out=name)
    assert rbdata.open_dataset(made)["next/reward"].count_nonzero() == 0


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [4, 10, 60, -3, -100])
def test_a_flipped_byte(tmp_path, at):
    file = file_of(write(tmp_path / "raw"))
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)
    fails(tmp_path / "raw", tmp_path, CorruptSourceError, "record 0", "checksum", file.name)


@pytest.mark.parametrize("size", [0, 5, 12, 100, -1])
def test_a_file_that_is_cut(tmp_path, size):
    file = file_of(write(tmp_path / "raw"))
    file.write_bytes(file.read_bytes()[:size])
    fails(tmp_path / "raw", tmp_path, CorruptSourceError, file.name)


def test_a_record_that_claims_to_be_longer_than_the_file(tmp_path):
    file = file_of(write(tmp_path / "raw"))
    length = (1 << 40).to_bytes(8, "little")
    file.write_bytes(length + framed(length)[20:24] + b"x" * 100)
    fails(tmp_path / "raw", tmp_path, CorruptSourceError, "claims to be 1099511627776 bytes", file.name)


def test_a_record_that_is_no_example(tmp_path):
    file = file_of(write(tmp_path / "raw"))
    file.write_bytes(framed(b"\xff" * 20))
    fails(tmp_path / "raw", tmp_path, CorruptSourceError, "tf.train.Example", "record 0")


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"action": [1, 300, 0]}, ["action", "300", "uint8"]),
        ({"observation__state": [[1.0, 2.0], [1.0, 2.0]]}, ["3 rows of", "and 2 of steps/observation/state"]),
        ({"note": ["x", "y" * 513, "z"]}, ["note", "513", "--max-length", "--leave-out"]),
        ({"note": ["x", "y\0", "z"]}, ["note", "NUL"]),
        ({"tokens": [[1] * 600, [], []]}, ["tokens", "600", "--max-length", "--leave-out"]),
        (
            {"observation__picture": [picture(), picture(4, 6), picture()]},
            ["picture 1", "6x4", "resize", "--leave-out"],
        ),
        ({"observation__picture": [picture(), b"GIF89a", picture()]}, ["picture 1", "PNG"]),
        *(
            (
                {"observation__picture": [picture(), picture(form=form), picture()]},
                ["picture 1", form, "write", "--leave-out"],
            )
            for form in ("BMP", "GIF", "WebP", "TIFF")
        ),
        (
            {"observation__picture": [picture(), picture(mode="CMYK", form="JPEG"), picture()]},
            ["picture 1", "CMYK", "convert", "--leave-out"],
        ),
        ({"observation__picture": [picture(), picture()[:48], picture()]}, ["picture 1"]),
        ({"observation__picture": [picture(), b"", picture()]}, ["picture 1"]),
    ],
)
def test_values_that_do_not_fit(tmp_path, changed, words):
    folder = write(tmp_path / "raw")
    wide = {
        "steps": steps(observation=FEATURES["steps"]["sequence"]["feature"]["featuresDict"]["features"]["observation"])
    }
    inner = dict(FEATURES["steps"]["sequence"]["feature"]["featuresDict"]["features"])
    inner["action"] = tensor("int32")
    assert wide
    write_it = {"steps": sequence(several(**inner)), "file": text()}
    rows = {
        "observation/picture": [picture()] * 3,
        "observation/state": [[1.0, 2.0]] * 3,
        "observation/scan": [[1.0, 2.0, 3.0]] * 3,
        "action": [1, 1, 0],
        "note": ["x"] * 3,
        "tokens": [[1, 2], [], [3]],
        **{key.replace("__", "/"): value for key, value in changed.items()},
    }
    write_folder(folder, write_it, [({"file": "f"}, rows_of(3, **rows))])
    (folder / "features.json").write_text(json.dumps(several(**FEATURES)))
    fails(folder, tmp_path, CorruptSourceError, "record 0", *words)


def with_lists(folder, **lists):
    """The one record of a folder with other lists."""
    write(folder)
    rows = rows_of(3)
    found = {
        "steps/is_first": ints([1, 0, 0]),
        "steps/is_last": ints([0, 0, 1]),
        "steps/is_terminal": ints([0, 0, 1]),
        "steps/reward": b"",
        "steps/observation/picture": blobs([picture()] * 3),
        "steps/observation/state": b"",
        "steps/observation/scan": blobs([zlib.compress(bytes(24))] * 3),
        "steps/action": ints([1, 1, 0]),
        "steps/note": blobs([b"x"] * 3),
        "steps/tokens/ragged_flat_values": ints([1, 2, 3]),
        "steps/tokens/ragged_row_lengths_0": ints([2, 0, 1]),
        "file": blobs([b"f"]),
    }
    from rlu_writer import floats

    found["steps/reward"], found["steps/observation/state"] = floats(rows["reward"]), floats([1.0] * 6)
    found.update({name.replace("__", "/"): value for name, value in lists.items()})
    file_of(folder).write_bytes(framed(example({name: value for name, value in found.items() if value is not None})))
    return folder


@pytest.mark.parametrize(
    "lists, words",
    [
        ({"steps__action": None}, ["steps/action", "missing"]),
        ({"steps__action": blobs([b"x"] * 3)}, ["steps/action", "byte strings"]),
        ({"steps__note": ints([1, 2, 3])}, ["steps/note", "numbers"]),
        ({"steps__reward": ints([1, 2, 3])}, ["steps/reward", "float32"]),
        ({"steps__observation__state": ints([1] * 6)}, ["state", "int64"]),
        ({"steps__tokens__ragged_row_lengths_0": ints([2, 0, 9])}, ["tokens", "states 11"]),
        ({"steps__tokens__ragged_row_lengths_0": ints([4, -2, 1])}, ["tokens", "lengths"]),
        ({"steps__tokens__ragged_row_lengths_0": ints([1 << 62, 1 << 62, 3])}, ["tokens", "lengths"]),
        ({"steps__observation__scan": blobs([zlib.compress(bytes(1 << 24))] * 3)}, ["scan", "value 0", "24"]),
        ({"steps__observation__scan": blobs([zlib.compress(bytes(24))[:-2]] * 3)}, ["scan", "value 0"]),
        ({"steps__observation__scan": blobs([b"no zlib"] * 3)}, ["scan", "value 0"]),
        ({"file": blobs([b"a", b"b"])}, ["2 values of file"]),
        ({"file": blobs([])}, ["0 values of file"]),
        ({"steps__observation__state": block(2, block(1, b"12345"))}, ["not a tf.train.Example"]),
        ({"steps__action": block(3, block(1, b"\x80"))}, ["not a tf.train.Example"]),
        ({"steps__note": block(1, (varint(10) + b"\0") * (1 << 20))}, ["note", "1048576"]),
    ],
)
def test_lists_that_are_not_what_the_features_say(tmp_path, lists, words):
    fails(with_lists(tmp_path / "raw", **lists), tmp_path, CorruptSourceError, "record 0", *words)


def test_the_record_by_hand_is_sound(tmp_path):
    """What the tests above change one list of."""
    folder = with_lists(tmp_path / "raw", steps__publish_timestamp=ints([1]), session_pb=blobs([b"kept by Google"]))
    assert len(api.open_dataset(api.convert(folder, "my/x", source="rlds", root=tmp_path / "root"))) == 2


def test_a_rerun_continues(tmp_path):
    """The first file stays decoded while the second one is mended."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for file in (FIXTURES / "toy_robot" / "0.1.0").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    last = sorted(folder.glob("*.tfrecord*"))[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-40])
    fails(folder, tmp_path, RbdataError, last.name)
    last.write_bytes(whole)
    made = api.convert(folder, "my/x", source="rlds", root=tmp_path / "root", procs=0)
    assert len(api.open_dataset(made)) == 50
