"""Small files that unpack to a great deal, or declare it. Each is below 10 MB; reading one must stay below the bound."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import input_archives
import numpy as np

_GIB = 1 << 30


def _deflated(size: int) -> bytes:
    """A zlib stream of so many zeros, without its checksum: one packed block again and again."""
    packer, block = zlib.compressobj(9), bytes(1 << 24)
    first, again = (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + again * (size // len(block) - 1)


def _d4rl(path: Path, **replaced: Callable[[Any], None]) -> str:
    """A D4RL file of which some arrays are made by functions of the open file."""
    import h5py
    from d4rl_truth import make, write

    arrays = make([5, 4], ["terminal", "timeout"])
    write(path / "x.hdf5", {key: value for key, value in arrays.items() if key not in replaced})
    with h5py.File(path / "x.hdf5", "a") as file:
        for change in replaced.values():
            change(file)
    return "d4rl"


def _chunk(
    name: str, shape: tuple[int, ...], chunks: tuple[int, ...], size: int, dtype: str = "f4"
) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        made = file.create_dataset(name, shape, dtype, chunks=chunks, compression="gzip", maxshape=(None,) * len(shape))
        made.id.write_direct_chunk((0,) * len(shape), _deflated(size))

    return change


def d4rl_chunk_of_more(path: Path) -> str:
    """A chunk that should hold 36 bytes and unpacks to 4 GiB."""
    return _d4rl(path, rewards=_chunk("rewards", (9,), (9,), 4 * _GIB))


def d4rl_one_large_chunk(path: Path) -> str:
    """All rewards in one chunk of 1 GiB."""
    return _d4rl(path, rewards=_chunk("rewards", (9,), (1 << 28,), _GIB))


def d4rl_many_rows(path: Path) -> str:
    """A hundred million rows of zeros, in chunks as they should be."""
    import h5py

    rows = 100_000_000
    packed: dict[int, bytes] = {}
    with h5py.File(path / "x.hdf5", "w") as file:
        shapes: dict[str, tuple[int, ...]] = {
            "observations": (rows, 2),
            "actions": (rows, 1),
            "rewards": (rows,),
            "terminals": (rows,),
            "timeouts": (rows,),
        }
        for key, shape in shapes.items():
            chunk = (1 << 20, *shape[1:])
            dtype = "bool" if key == "terminals" else "f4"
            made = file.create_dataset(key, shape, dtype, chunks=chunk, compression="gzip")
            size = int(np.prod(chunk)) * made.dtype.itemsize
            data = packed.setdefault(size, zlib.compress(bytes(size)))
            for low in range(0, rows, 1 << 20):
                made.id.write_direct_chunk((low, *(0,) * (len(shape) - 1)), data)
    return "d4rl"


def d4rl_wide_rows(path: Path) -> str:
    """Rows of 31 MiB, of zeros."""
    import h5py

    with h5py.File(path / "x.hdf5", "w") as file:
        for key in ("observations", "next_observations"):
            file.create_dataset(key, (60, 31 << 18), "f4", chunks=(1, 1 << 20), compression="gzip")[:1] = 1
            made, data = file[key], zlib.compress(bytes(4 << 20))
            for row in range(60):
                for at in range(0, 31 << 18, 1 << 20):
                    made.id.write_direct_chunk((row, at), data)
        file["actions"], file["rewards"] = np.zeros((60, 1), "f4"), np.zeros(60, "f4")
        file["terminals"], file["timeouts"] = np.zeros(60, bool), np.arange(60) % 20 == 19
    return "d4rl"


def d4rl_long_attributes(path: Path) -> str:
    """A text of 5 MB listed a thousand times, as an attribute and as metadata."""

    def change(file: Any) -> None:
        import h5py

        file.create_dataset("metadata/many", (60,), h5py.string_dtype())[:] = ["a" * 100_000] * 60
        file.attrs["long"] = "a" * 60_000

    return _d4rl(path, attributes=change)


def _minari(path: Path, change: Callable[[Any], None]) -> str:
    import h5py

    box = {"type": "Box", "dtype": "float32", "shape": [2], "low": [0, 0], "high": [1, 1]}
    about = {"observation_space": json.dumps(box), "action_space": json.dumps(box), "data_format": "hdf5"}
    (path / "metadata.json").write_text(json.dumps(about))
    with h5py.File(path / "main_data.hdf5", "w") as file:
        change(file)
    return "minari"


def _episode(group: Any, steps: int = 3) -> None:
    group["observations"], group["actions"] = np.zeros((steps + 1, 2), "f4"), np.zeros((steps, 2), "f4")
    group["rewards"] = np.zeros(steps)
    group["terminations"], group["truncations"] = np.zeros(steps, bool), np.arange(steps) == steps - 1


def minari_many_links(path: Path) -> str:
    """A hundred thousand episodes that are one, with a thousand infos that are one."""

    def change(file: Any) -> None:
        _episode(file.create_group("episode_0"))
        infos = file["episode_0"].create_group("infos")
        infos["0"] = np.zeros(3)
        for number in range(1, 1000):
            infos[str(number)] = infos["0"]
        for number in range(1, 20_000):
            file[f"episode_{number}"] = file["episode_0"]

    return _minari(path, change)


def minari_chunk_of_more(path: Path) -> str:
    """A chunk of rewards that unpacks to 4 GiB."""

    def change(file: Any) -> None:
        group = file.create_group("episode_0")
        _episode(group)
        del group["rewards"]
        made = group.create_dataset("rewards", (3,), "f8", chunks=(3,), compression="gzip")
        made.id.write_direct_chunk((0,), _deflated(4 * _GIB))

    return _minari(path, change)


def minari_long_episode(path: Path) -> str:
    """Four million steps that each end an episode, of zeros."""

    def change(file: Any) -> None:
        group, rows = file.create_group("episode_0"), 4_000_000
        options: dict[str, Any] = {"chunks": True, "compression": "gzip", "compression_opts": 1}
        group.create_dataset("observations", data=np.zeros((rows + 1, 2), "f4"), **options)
        group.create_dataset("actions", data=np.zeros((rows, 2), "f4"), **options)
        group.create_dataset("rewards", data=np.zeros(rows), **options)
        group.create_dataset("terminations", data=np.ones(rows, bool), **options)
        group.create_dataset("truncations", data=np.zeros(rows, bool), **options)

    return _minari(path, change)


def minari_long_pictures(path: Path) -> str:
    """The same 5 MB in every row, which begin like a picture."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(file, "JPEG")
    picture = np.frombuffer(file.getvalue() + bytes(100_000), np.uint8)

    def change(file: Any) -> None:
        import h5py

        group = file.create_group("episode_0")
        _episode(group, 80)
        del group["observations"]
        rows = group.create_dataset("observations", (81,), h5py.vlen_dtype(np.uint8))
        for row in range(81):
            rows[row] = picture

    name = _minari(path, change)
    about = json.loads((path / "metadata.json").read_text())
    box = {"type": "Box", "dtype": "uint8", "shape": [40, 40, 3], "low": 0, "high": 255}
    (path / "metadata.json").write_text(json.dumps({**about, "observation_space": json.dumps(box)}))
    return name


def _arrow(path: Path, columns: dict[str, Any], data_format: str, write: Callable[[Any, Path], None]) -> str:
    import pyarrow as pa

    box = {"type": "Box", "dtype": "float32", "shape": [2], "low": [0, 0], "high": [1, 1]}
    about = {"observation_space": json.dumps(box), "action_space": json.dumps(box), "data_format": data_format}
    (path / "metadata.json").write_text(json.dumps(about))
    (path / "0").mkdir()
    write(pa.table(columns), path / "0" / f"part-0.{data_format}")
    return "minari"


def _columns(rows: int) -> dict[str, Any]:
    import pyarrow as pa

    pairs = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2 * rows, "f4")), 2)
    flags = pa.array(np.zeros(rows, bool))
    return {
        "observations": pairs,
        "actions": pairs,
        "rewards": pa.array(np.zeros(rows)),
        "terminations": flags,
        "truncations": flags,
    }


def arrow_packed(path: Path) -> str:
    """Record batches of zeros, packed a thousandfold: 2 GiB."""
    import pyarrow as pa

    def write(table: Any, file: Path) -> None:
        with pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as target:
            target.write_table(table)

    return _arrow(path, _columns(40_000_000), "arrow", write)


def arrow_nothing(path: Path) -> str:
    """A batch of columns without values, and of 2**31 rows."""
    import pyarrow as pa

    def write(table: Any, file: Path) -> None:
        empty = pa.record_batch(
            {name: pa.Array.from_buffers(pa.null(), (1 << 31) - 1, [None]) for name in table.column_names}
        )
        with pa.ipc.new_file(file, empty.schema) as target:
            target.write_batch(empty)

    return _arrow(path, _columns(3), "arrow", write)


def _parquet(path: Path, rows: int, **options: Any) -> str:
    import pyarrow.parquet as pq

    return _arrow(path, _columns(rows), "parquet", lambda table, file: pq.write_table(table, file, **options))


def parquet_repeats(path: Path) -> str:
    """40 million rows of one value."""
    return _parquet(path, 40_000_000)


def parquet_fewer_repeats(path: Path) -> str:
    """As many rows as a file of this size may have."""
    return _parquet(path, 4_000_000)


def parquet_pages(path: Path) -> str:
    """Pages of 160 MB, packed."""
    options = {
        "use_dictionary": False,
        "data_page_size": _GIB,
        "max_rows_per_page": 1 << 30,
        "write_batch_size": 1 << 26,
    }
    return _parquet(path, 20_000_000, compression="zstd", **options)


def _table(path: Path, lines: Iterator[str]) -> str:
    with (path / "x.arff").open("w") as file:
        for line in lines:
            file.write(line + "\n")
    return "openml"


def arff_wide_and_sparse(path: Path) -> str:
    """Two hundred thousand columns, and rows that say nothing."""

    def lines() -> Iterator[str]:
        yield "@relation x"
        yield from (f"@attribute a{number} real" for number in range(200_000))
        yield "@attribute class {a, b}\n@data"
        yield from ("{}" for _ in range(30))

    return _table(path, lines())


def arff_many_values(path: Path) -> str:
    """A column of a million values."""

    def lines() -> Iterator[str]:
        yield "@relation x\n@attribute class {a, b}"
        yield "@attribute n {" + ",".join(map(str, range(1_000_000))) + "}\n@data"
        yield from (f"a,{number}" for number in range(1000))

    return _table(path, lines())


def arff_spaces(path: Path) -> str:
    """Nine million spaces inside a value."""
    return _table(
        path, iter(["@relation x\n@attribute class {a}\n@attribute n real\n@data\na, '1'" + " " * 9_000_000 + "x"])
    )


def arff_short_rows(path: Path) -> str:
    """Two and a half million rows of one column and a label."""

    def lines() -> Iterator[str]:
        yield "@relation x\n@attribute n real\n@attribute class {a}\n@data"
        yield from ("1,a" for _ in range(2_400_000))

    return _table(path, lines())


def tfrecord_of_padding(path: Path) -> str:
    """Episodes of one frame in records of 120 MB, of which all else is a feature that nobody knows."""
    from rlu_writer import blobs, framed, make_episodes

    made = make_episodes([[1] * 8])
    with gzip.open(path / "run_1-00000-of-00001", "wb", 1) as file:
        for episode in made:
            file.write(framed(episode.record(other=blobs([bytes(120 << 20)]))))
    return "rlu"


def tfrecord_of_nothing(path: Path) -> str:
    """A record of sixty million empty pictures."""
    from rlu_writer import block, framed, make_episodes

    empty = block(1, block(1, b"") * 60_000_000)
    (episode,) = make_episodes([[1]])
    with gzip.open(path / "run_1-00000-of-00001", "wb", 1) as file:
        file.write(framed(episode.record(observations=empty)))
    return "rlu"


def tfrecord_of_many(path: Path) -> str:
    """Two million episodes of one frame."""
    from rlu_writer import framed, make_episodes

    (episode,) = make_episodes([[1]])
    data = framed(episode.record()) * 1000
    with gzip.open(path / "run_1-00000-of-00001", "wb", 1) as file:
        for _ in range(2000):
            file.write(data)
    return "rlu"


def ring_of_zeros(path: Path) -> str:
    """Small arrays of sixty million rows beside few frames."""
    from numpy.lib import format as npy

    for name, dtype in (("action", "i4"), ("reward", "f4"), ("terminal", "u1"), ("observation", "u1")):
        rows = 100 if name == "observation" else 60_000_000
        shape = (rows, 84, 84) if name == "observation" else (rows,)
        with gzip.open(path / f"$store$_{name}_ckpt.0.gz", "wb", 1) as file:
            npy.write_array_header_1_0(file, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})
            left, block = int(np.prod(shape)) * np.dtype(dtype).itemsize, bytes(1 << 24)
            while left:
                file.write(block[:left])
                left -= min(left, len(block))
    with gzip.open(path / "add_count_ckpt.0.gz", "wb") as file:
        np.save(file, np.array(60_000_000))
    return "ring"


def json_of_lists(path: Path) -> str:
    """Three million empty lists, nearly as many with something between them, and as deep ones."""
    (path / "wide.json").write_bytes(b'{"env_spec": [' + b"[]," * 3_000_000 + b"[]]}")
    (path / "less.json").write_bytes(b'{"observation_space": [' + b"[],1," * 1_800_000 + b"[]]}")
    (path / "deep.json").write_bytes(b'{"env_spec": ' + b"[" * 4_000_000 + b"]" * 4_000_000 + b"}")
    return "metadata"


def picture_of_a_wall(path: Path) -> str:
    """A progressive picture of 65,000 x 65,000 pixels."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(file, "JPEG", progressive=True)
    data = bytearray(file.getvalue())
    at = data.index(b"\xff\xc2") + 5
    data[at : at + 4] = (5000).to_bytes(2, "big") * 2
    (path / "small.jpg").write_bytes(data)
    data[at : at + 4] = (65_000).to_bytes(2, "big") * 2
    (path / "large.jpg").write_bytes(data)
    return "jpeg"


def rows_of_zstd(path: Path) -> str:
    """Rows of 30 MiB, each packed into a few kilobytes."""
    import zstandard

    frame = zstandard.ZstdCompressor().compress(bytes(30 << 20))
    (path / "observation").mkdir()
    (path / "observation/blob").write_bytes(frame * 200)
    (path / "observation/dictionary").write_bytes(b"")
    (path / "observation/offsets").write_bytes((np.arange(201, dtype="<i8") * len(frame)).tobytes())
    return "zstd"


def minari_many_infos(path: Path) -> str:
    """An episode of 3 steps with 8,000 infos."""

    def change(file: Any) -> None:
        group = file.create_group("episode_0")
        _episode(group)
        infos = group.create_group("infos")
        for number in range(8_000):
            infos[f"{number:x}"] = np.zeros(3)

    return _minari(path, change)


def minari_packed_pictures(path: Path) -> str:
    """Two thousand times the same picture of 1,000 x 1,000 pixels, packed once more: 70 KB."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.zeros((1000, 1000, 3), np.uint8)).save(file, "JPEG", quality=1, optimize=True)
    picture, steps = np.frombuffer(file.getvalue(), np.uint8), 2000

    def change(file: Any) -> None:
        group = file.create_group("episode_0")
        _episode(group, steps)
        del group["observations"]
        rows = np.broadcast_to(picture, (steps + 1, len(picture)))
        group.create_dataset("observations", data=rows, chunks=(64, len(picture)), compression="gzip")

    name = _minari(path, change)
    about = json.loads((path / "metadata.json").read_text())
    box = {"type": "Box", "dtype": "uint8", "shape": [1000, 1000, 3], "low": 0, "high": 255}
    (path / "metadata.json").write_text(json.dumps({**about, "observation_space": json.dumps(box)}))
    return name


def gzip_of_members(path: Path) -> str:
    """Half a million members without a byte."""
    (path / "x.gz").write_bytes(gzip.compress(b"") * 490_000)
    return "gzip"


def picture_of_scans(path: Path) -> str:
    """A picture of 3,000 x 3,000 pixels, refined 20,000 times by 23 bytes; and two million segments."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.zeros((3000, 3000), np.uint8)).save(file, "JPEG", progressive=True, quality=50)
    data = file.getvalue()
    scan = data[data.rindex(b"\xff\xda") : -2]
    (path / "small.jpg").write_bytes(data[:-2] + scan * 20_000 + data[-2:])
    (path / "large.jpg").write_bytes(data[:2] + b"\xff\xe1\x00\x02" * 2_000_000 + b"\xff" * 1_000_000 + data[2:])
    return "jpeg"


def index_of_links(path: Path) -> str:
    """A page of half a million links, of which half are not plain."""
    links = (b"<a href=%x><a href=./%x>" % (number, number + 1) for number in range(250_000))
    (path / "x.html").write_bytes(b"<title>Index of</title>" + b"".join(links))
    return "index"


def _manifest(path: Path, change: Callable[[Any], None]) -> str:
    import shutil

    from paths import DATA
    from rbdata.storage import manifest

    shutil.copytree(DATA / "frozen/folders/low", path / "low")
    record = json.loads((path / "low/rbdata.json").read_text())
    change(record)
    record["checksum"] = manifest._checksum(record)
    (path / "low/rbdata.json").write_text(json.dumps(record, separators=(",", ":")))
    return "folder"


def manifest_of_leaves(path: Path) -> str:
    """A hundred thousand leaves that are not there."""

    def change(record: Any) -> None:
        leaf = record["leaves"][0]
        record["leaves"] += [{**leaf, "name": f"x{number:x}"} for number in range(100_000)]

    return _manifest(path, change)


#: Every function above that makes one, by its name.
BOMBS: dict[str, Callable[[Path], str]] = {
    made.__name__: made
    for made in (
        *input_archives.BOMBS,
        *(d4rl_chunk_of_more, d4rl_one_large_chunk, d4rl_many_rows, d4rl_wide_rows, d4rl_long_attributes),
        *(minari_many_links, minari_chunk_of_more, minari_long_episode, minari_long_pictures),
        *(arrow_packed, arrow_nothing, parquet_repeats, parquet_fewer_repeats, parquet_pages),
        *(arff_wide_and_sparse, arff_many_values, arff_spaces, arff_short_rows),
        *(tfrecord_of_padding, tfrecord_of_nothing, tfrecord_of_many, ring_of_zeros),
        *(json_of_lists, picture_of_a_wall, rows_of_zstd, minari_many_infos, minari_packed_pictures),
        *(gzip_of_members, picture_of_scans, index_of_links, manifest_of_leaves),
    )
}


def set_off(data: bytes, folder: Path) -> None:
    """Make the bomb of this name in its own process, and read it in this one."""
    from input_readers import apart
    from report import reset_peak

    path = folder / data.decode()
    path.mkdir()
    kind = apart(BOMBS[data.decode()], path)
    for file in path.rglob("*"):
        if file.stat().st_size >= 10_000_000:
            raise RuntimeError(f"{file} has {file.stat().st_size} bytes, which is no small input")
    reset_peak()
    read_bomb(kind, path)


def read_bomb(kind: str, path: Path) -> None:
    """Read what a bomb's function wrote, as a conversion or a buffer does."""
    from input_readers import convert

    if kind in ("d4rl", "minari"):
        convert(kind, path)
    elif kind in ("ogbench", "gen_dgrl"):
        input_archives.read_bomb(kind, path)
    elif kind == "openml":
        convert(kind, path, target="class")
    elif kind == "ring":
        convert("atari", path)
    elif kind == "rlu":
        from rbdata.datasets.fetch import open_location
        from rbdata.datasets.sources.atari.raw_files import group_episode_files
        from rbdata.datasets.sources.atari.rl_unplugged_decode import DecodeTask, take_sample

        location = open_location(str(path))
        files = group_episode_files(location.list(), None, "x")
        take_sample(location, files)
        (path / "dictionary").write_bytes(b"")
        task = DecodeTask(
            0, files[0].obj, location, path / "decoded", path / "dictionary", "zstd", "truncate", 27_000, 1
        )
        task(lambda *_: None)
    elif kind == "metadata":
        from rbdata.datasets.sources.minari.reader import parse_metadata
        from rbdata.errors import CorruptSourceError

        for name in ("wide", "less", "deep"):
            with suppress(CorruptSourceError):
                json.dumps(parse_metadata((path / f"{name}.json").read_bytes(), "x").environment)
    elif kind == "gzip":
        from rbdata.datasets.formats.packed import gunzip

        assert not any(gunzip([(path / "x.gz").read_bytes()], "x"))
    elif kind == "index":
        from rbdata.datasets.fetch.http import parse_index

        assert parse_index((path / "x.html").read_text(), "http://host/folder/").files
    elif kind == "folder":
        from rbdata.errors import DamagedDatasetError
        from rbdata.storage.dataset import Dataset
        from rbdata.storage.integrity import verify

        assert not verify(path / "low").ok
        with suppress(DamagedDatasetError):
            Dataset(path / "low")
    elif kind == "jpeg":
        from rbdata.datasets.formats.pictures import decode_jpegs, frame_shape
        from rbdata.errors import CorruptSourceError

        for name in ("small", "large"):
            data = (path / f"{name}.jpg").read_bytes()
            with suppress(CorruptSourceError):
                decode_jpegs([data], frame_shape(data, "x"), "x")
    else:
        from rbdata.storage.codecs.zstd import RowDecoder

        offsets = np.fromfile(path / "observation/offsets", "<i8")
        decode = RowDecoder(b"", 30 << 20, 2).decode
        blob = np.fromfile(path / "observation/blob", np.uint8)
        assert decode(blob, offsets[:4], np.diff(offsets)[:4]).shape == (4, 30 << 20)
