"""The readers that the campaign `inputs` attacks: valid files of each, how to read one, and what must come out."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import multiprocessing
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from hdf5_mutations import change_structures, write_of_every_kind
from input_archives import (
    change_npz,
    change_tar,
    dgrl_corpus,
    ogbench_corpus,
    pickle_corpus,
    read_dgrl,
    read_ogbench,
    read_pickled,
)
from input_bombs import BOMBS, set_off
from paths import DATA

Corpus = list[bytes]


class Wrong(AssertionError):
    """What was read is not what the bytes hold."""


@dataclass(frozen=True)
class Reader:
    """``corpus`` gives valid inputs, ``read`` reads one that may not be, ``change`` makes it so in its own way."""

    weight: int
    corpus: Callable[[Path], Corpus]
    read: Callable[[bytes, Path], Any]
    change: Callable[[Corpus, random.Random, int], bytes] | None = None
    #: How often, where it does not depend on the rounds.
    rounds: int | None = None
    #: Whether each input is read in its own process: what an earlier one left with the allocator does not count.
    apart: bool = False


# -- bytes -------------------------------------------------------------------------------------------------------------


def _npy_corpus(_: Path) -> Corpus:
    made = []
    arrays = [np.arange(40, dtype="i4"), np.ones(30, "f4"), np.zeros(9, "u1"), np.array(7), np.zeros((2, 84, 84), "u1")]
    for array in [*arrays, *(array.astype(array.dtype.newbyteorder(">")) for array in arrays)]:
        file = io.BytesIO()
        np.save(file, array)
        made.append(file.getvalue())
    return made


def _read_npy(data: bytes, _: Path) -> None:
    from rbdata.datasets.formats.npy import Expected, NpyStream
    from rbdata.datasets.sources.atari.dqn_replay import SMALL
    from rbdata.errors import CorruptSourceError

    found: Any = None
    refused: Exception | None = None
    for expected in (Expected("uint8", (-1, 84, 84)), *SMALL.values()):
        try:
            found = NpyStream([data[:100], data[100:]], expected, "x").array()
        except CorruptSourceError as error:
            refused = error
            if "; expected " not in str(error):
                break  # what is wrong has nothing to do with the array that is expected
    if found is None:
        assert refused is not None
        raise refused
    truth = np.load(io.BytesIO(data), allow_pickle=False)
    if found.shape != truth.shape or not np.array_equal(found, truth, equal_nan=found.dtype.kind == "f"):
        raise Wrong("NumPy reads other values")


def _gzip_corpus(_: Path) -> Corpus:
    text = bytes(range(256)) * 8
    return [gzip.compress(text), gzip.compress(text, 0), gzip.compress(b"a") + gzip.compress(text), gzip.compress(b"")]


def _read_gzip(data: bytes, _: Path) -> None:
    from rbdata.datasets.formats.packed import gunzip

    found = b"".join(gunzip([data[:50], data[50:]], "x"))
    with contextlib.suppress(OSError, EOFError, zlib.error):  # zlib checks less of the head than ISA-L
        if found != gzip.decompress(data):
            raise Wrong("zlib unpacks other bytes")


def _record_corpus(_: Path) -> Corpus:
    from rlu_writer import framed, make_episodes

    made = make_episodes([[3, 5], [1, 2]], cut=[(0, 1)])
    records = [b"".join(framed(episode.record()) for episode in made), framed(made[0].record())]
    real = sorted((DATA / "rl_unplugged/atari_episodes_ordered/Breakout").iterdir())[0]
    return [*records, gzip.decompress(real.read_bytes())[:200_000]]


def _change_records(corpus: Corpus, rng: random.Random, _: int) -> bytes:
    """Half of the changes are inside of a record, with the right checksums."""
    from inputs import mutate
    from rlu_writer import framed

    data = rng.choice(corpus[:2])
    if rng.random() < 0.3:
        return mutate(rng, rng.choice(corpus), corpus)
    (length,) = struct.unpack_from("<Q", data)
    return framed(mutate(rng, data[12 : 12 + length], corpus))


def _read_records(data: bytes, _: Path) -> None:
    from rbdata.datasets.formats.png import PngError, decode_frames
    from rbdata.datasets.formats.tfrecord import WireError, parse_example, read_records
    from rbdata.datasets.sources.atari.rl_unplugged_decode import to_episode
    from rbdata.errors import CorruptSourceError

    for record in read_records([data[:1000], data[1000:]], "x"):
        try:
            episode = to_episode(parse_example(record.payload), "x")
            decode_frames(episode.frames, np.empty((len(episode), 84, 84), np.uint8))
        except (WireError, PngError) as error:  # `EpisodeStream` and its blocks say where
            raise CorruptSourceError(str(error)) from error


def _png_corpus(_: Path) -> Corpus:
    from PIL import Image
    from rlu_writer import frame, png

    file = io.BytesIO()
    Image.fromarray(frame(3)).save(file, "PNG")
    return [png(frame(1), (0, 1, 2, 3, 4), pieces=3), png(frame(2)), file.getvalue()]


def _change_png(corpus: Corpus, rng: random.Random, _: int) -> bytes:
    """Some changes are inside of a chunk, with the right checksum."""
    from inputs import mutate
    from rlu_writer import chunk

    data = rng.choice(corpus)
    if rng.random() < 0.5:
        return mutate(rng, data, corpus)
    out, at, chosen = bytearray(data[:8]), 8, rng.randrange(4)
    for number in range(100):
        if at + 12 > len(data):
            break
        length = int.from_bytes(data[at : at + 4], "big")
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        if number == chosen:
            inside = kind == b"IDAT" and rng.random() < 0.7
            with contextlib.suppress(zlib.error):
                content = zlib.compress(mutate(rng, zlib.decompress(content), corpus)) if inside else content
            content = content if inside else mutate(rng, content, corpus)
        out += chunk(kind, content)
        at += 12 + length
    return bytes(out)


def _read_png(data: bytes, _: Path) -> None:
    from PIL import Image
    from rbdata.datasets.formats.png import PngError, decode_frames
    from rbdata.errors import CorruptSourceError

    out = np.empty((1, 84, 84), np.uint8)
    try:
        decode_frames([data], out)
    except PngError as error:
        raise CorruptSourceError(str(error)) from error
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        if not np.array_equal(np.asarray(Image.open(io.BytesIO(data))), out[0]):
            raise Wrong("Pillow decodes another picture")


def _jpeg_corpus(_: Path) -> Corpus:
    from PIL import Image

    made = []
    kinds: list[tuple[tuple[int, ...], dict[str, Any]]] = [((40, 33), {}), ((32, 40, 3), {"progressive": True})]
    for shape, options in [*kinds, ((64, 64, 3), {"quality": 30})]:
        file = io.BytesIO()
        Image.fromarray(np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)).save(file, "JPEG", **options)
        made.append(file.getvalue())
    return made


def _read_jpeg(data: bytes, _: Path) -> None:
    from rbdata.datasets.formats.pictures import decode_jpegs, frame_shape

    shape = frame_shape(data, "x")
    if decode_jpegs([data], shape, "x").shape != (1, *shape):
        raise Wrong("its shape is another")


def _arff_corpus(_: Path) -> Corpus:
    files = sorted((DATA / "openml").rglob("*.arff.gz"))
    whole = [gzip.decompress(file.read_bytes()) for file in files]
    return [data[:20_000] for data in whole] + [
        b"@relation 'a b'\n@attribute 'x y' numeric\n@attribute b {red, 'dark blue', \"it\\'s\"}\n@attribute c string\n"
        b"@data\n5.1, red, 'it\\'s'\n?, ?, 'text'\n{0 5.1, 2 'a b'}\n% nothing\n 7 , \"it\\'s\" , x\n"
    ]


def _read_arff(data: bytes, _: Path) -> None:
    from rbdata.datasets.formats.arff import ArffTable

    reader = ArffTable(io.StringIO(data.decode("latin-1")), "x")
    for block in reader.blocks():
        _check_codes(reader.attributes, block)


def _check_codes(attributes: Any, block: Any) -> None:
    for attribute, column in zip(attributes, block):
        if attribute.kind == "nominal" and (
            column.min(initial=0) < -1 or column.max(initial=-1) >= len(attribute.values)
        ):
            raise Wrong("a code that no value has")


def _metadata_corpus(_: Path) -> Corpus:
    space = {
        "type": "Dict",
        "subspaces": {
            "a": {"type": "Box", "dtype": "float32", "shape": [2], "low": [0.0, -1e30], "high": [1.0, 1e30]},
            "b": {"type": "Tuple", "subspaces": [{"type": "Discrete", "dtype": "int64", "start": 0, "n": 4}]},
            "c": {"type": "Text", "max_length": 8, "min_length": 1, "charset": "abc"},
            "d": {"type": "MultiDiscrete", "dtype": "int64", "shape": [2], "nvec": [2, 3], "start": [0, 0]},
            "e": {"type": "MultiBinary", "dtype": "int8", "shape": [4], "n": [4]},
        },
    }
    about = {"observation_space": json.dumps(space), "action_space": space, "env_spec": json.dumps({"id": "A-v0"})}
    own = {
        **about,
        "data_format": "hdf5",
        "total_steps": 5,
        "total_episodes": 1,
        "ref_min_score": 1.5,
        "ref_max_score": 2,
    }
    return [
        json.dumps(own).encode(),
        *(file.read_bytes() for file in sorted((DATA / "minari").rglob("data/metadata.json"))),
    ]


def _read_metadata(data: bytes, _: Path) -> None:
    from rbdata.datasets.ingest.spaces import space_leaves
    from rbdata.datasets.sources.minari.reader import parse_metadata

    metadata = parse_metadata(data, "x")
    for base, space in metadata.spaces.items():
        space_leaves(space, base)
    json.dumps([metadata.about, metadata.environment, metadata.spaces])
    _ = metadata.reference_scores


def _api_corpus(_: Path) -> Corpus:
    return [gzip.decompress(file.read_bytes()) for file in sorted((DATA / "openml").rglob("api-*.json.gz"))]


def _read_api(data: bytes, folder: Path) -> None:
    from rbdata.datasets.fetch import open_location
    from rbdata.datasets.sources.openml.client import ROOT, Api

    for path in (f"{ROOT}/61", f"{ROOT}/features/61", f"{ROOT}/list/data_name/iris/limit/2/status/active"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    api = Api(open_location(str(folder)))
    refused: list[Exception] = []
    for ask in (lambda: api.describe(61), lambda: api.find("iris", None)):
        try:
            ask()
        except Exception as error:
            refused.append(error)
    refused.sort(key=lambda error: hasattr(error, "hint"))  # untyped ones first
    if refused and (len(refused) == 2 or not hasattr(refused[0], "hint")):
        raise refused[0]


# -- whole conversions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Counted:
    """Columns that are counted, and written nowhere."""

    schema: Any

    def __call__(self) -> Any:
        from rbdata.storage.writer import ColumnWriter

        class Columns(ColumnWriter):
            def close(self) -> Any:
                return {"rows": [self.rows]}

        return Columns(None, self.schema)


@dataclass(frozen=True)
class _Unwritten:
    """Reads the rows of a part."""

    part: Any
    leaves: Any

    def __call__(self, on_block: Any) -> Any:
        for _ in self.part.blocks(self.leaves, 1):
            pass


def convert(source: str, path: Path, **extra: Any) -> Any:
    """Plan a conversion and read all of its rows, as a download does, into nothing."""
    from rbdata.datasets.catalogue import load_source
    from rbdata.datasets.fetch import open_raw
    from rbdata.datasets.ingest.job import ConvertOptions
    from rbdata.datasets.ingest.raw_files import RawReading

    job = load_source(source).open_folder(open_raw(path), ConvertOptions(extra=extra))
    files = {item.url: Path(item.url) for item in job.files()}
    with RawReading(job, files) as reading:
        reading.inspect()
        counted = _Counted(job.schema)
        plan, rows = reading.plan(counted, lambda done, total: None)
        plan.episodes.check()
        if [plan.episodes.steps] != rows["rows"]:
            raise Wrong(f"{rows} rows, and episodes of {plan.episodes.steps} steps")
        if job.bulk:
            reading.sample_rows()
            leaves = [leaf for leaf in job.schema if leaf.name in job.bulk]
            for part in job.row_sources():
                reading.fill(_Unwritten(part, leaves), lambda *_: None)
    json.dumps([job.describe(), plan.spaces, plan.notes, plan.counts])
    return plan


def _file(source: str, name: str, **extra: Any) -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        path = folder / "one" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        convert(source, path, **extra)

    return read


def _converted(source: str, name: str) -> Callable[[bytes, Path], None]:
    """Converts one file whole: for sources whose jobs are staged."""

    def read(data: bytes, folder: Path) -> None:
        import rbdata
        from rbdata.storage.integrity import verify

        path, root = folder / "one" / name, folder / "root"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        try:
            made = rbdata.convert(path, "my/x", root=root, source=source, procs=1, progress=False)
            if not verify(made).ok:
                raise Wrong("the dataset is not what its manifest states")
        finally:
            shutil.rmtree(root, ignore_errors=True)

    return read


def apart(make: Callable[..., Any], *given: Any) -> Any:
    """What a function returns, called in its own process: what it imports is not part of what a reader takes."""
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)

    def answer() -> None:
        from rbdata.datasets.workers.worker_process import end_with_parent

        end_with_parent()  # a worker that hangs is killed
        send.send(make(*given))

    maker = multiprocessing.get_context("fork").Process(target=answer)
    maker.start()
    send.close()
    try:
        return receive.recv()
    except EOFError as error:
        raise RuntimeError(f"{make.__name__} failed") from error
    finally:
        maker.join()


#: Trees and heaps of names as HDF5 has always had them, those of its later format, and of both.
_HDF5_KINDS: tuple[dict[str, Any], ...] = ({}, {"libver": "latest", "track_order": True}, {"track_order": True})


def _d4rl_corpus(folder: Path) -> Corpus:
    return apart(_made_d4rl, folder)


def _made_d4rl(folder: Path) -> Corpus:
    from d4rl_truth import make, write

    made = [make([5, 4], ["terminal", "timeout"]), make([6, 3], ["terminal", "none"], successors=True)]
    paths = [write(folder / "0.hdf5", made[0]), write(folder / "1.hdf5", made[1], compression="gzip", shuffle=True)]
    frames = {**made[0], "observations": np.zeros((9, 1200), np.uint8), "infos/qpos": np.zeros((9, 3))}
    paths.append(write(folder / "2.hdf5", frames, compression="gzip", chunks=True))
    plain = {name: value for name, value in made[1].items() if not isinstance(value, str)}
    for number, how in enumerate(_HDF5_KINDS, 3):
        paths.append(write_of_every_kind(folder / f"{number}.hdf5", plain, "infos", **how))
    paths += sorted(file for file in (DATA / "d4rl").rglob("*.hdf5") if file.stat().st_size < 100_000)
    return [path.read_bytes() for path in paths]


def _minari_spaces() -> Any:
    from gymnasium import spaces

    inside = {"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Discrete(4), "c": spaces.Text(5)}
    return spaces.Dict(inside), spaces.Box(0, 255, (40, 40, 3), np.uint8), spaces.Discrete(3)


@contextlib.contextmanager
def _minari_root(folder: Path) -> Iterator[None]:
    import os

    before = os.environ.get("MINARI_DATASETS_PATH")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("MINARI_DATASETS_PATH")
        if before is not None:
            os.environ["MINARI_DATASETS_PATH"] = before


def _made_with_minari(folder: Path, data_format: str) -> list[Path]:
    """The data folders of datasets that Minari wrote: of a nested space, and of pictures."""
    from minari_tools import write

    nested, picture, action = _minari_spaces()
    with _minari_root(folder):
        for name, space in (("nested", nested), ("frames", picture)):
            infos: dict[str, Any] = {"infos": lambda number, n: {"x": np.arange(n + 1.0)}} if name == "nested" else {}
            write(f"tests/{name}-v0", space, action, [3, 1], data_format=data_format, **infos)
    return [folder / f"tests/{name}-v0/data" for name in ("nested", "frames")]


def _rewritten(home: Path, to: Path, how: dict[str, Any]) -> Path:
    """A Minari dataset with its arrays stored in every way that HDF5 has."""
    import h5py

    shutil.copytree(home, to)
    arrays: dict[str, Any] = {}
    with h5py.File(home / "main_data.hdf5") as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
    write_of_every_kind(to / "main_data.hdf5", arrays, "episode_0/infos", **how)
    return to


def _change_hdf5(first: int) -> Callable[[Corpus, random.Random, int], bytes]:
    """Bytes anywhere, or fields of the structures; the ``first`` byte, where it names the file, stays."""

    def change(corpus: Corpus, rng: random.Random, _: int) -> bytes:
        from inputs import mutate

        data = rng.choice(corpus)
        head, data = data[:first], data[first:]
        return head + (mutate(rng, data, corpus) if rng.random() < 0.4 else change_structures(rng, data))

    return change


def _change_a_file(corpus: Corpus, rng: random.Random, _: int) -> bytes:
    """The first byte, which names the file, stays."""
    from inputs import mutate

    data = rng.choice(corpus)
    return data[:1] + mutate(rng, data[1:], corpus)


class MinariFile:
    """One file of a Minari dataset at a time, in the folder that its first byte names."""

    def __init__(self, data_format: str) -> None:
        self._format = data_format
        self._homes: list[tuple[Path, str]] = []

    def corpus(self, folder: Path) -> Corpus:
        homes = apart(_made_with_minari, folder, self._format)
        fixtures = {"hdf5": "random-v0", "arrow": "arrow-v0"}.get(self._format)
        if fixtures:
            homes.append(folder / "fixture")
            shutil.copytree(DATA / "minari/cartpole" / fixtures / "data", homes[-1])
        if self._format == "hdf5":
            homes += [apart(_rewritten, homes[0], folder / f"kind-{at}", how) for at, how in enumerate(_HDF5_KINDS)]
        name = "main_data.hdf5" if self._format == "hdf5" else f"0/part-0.{self._format}"
        self._homes = [(home, name) for home in homes]
        return [bytes([number]) + (home / name).read_bytes() for number, home in enumerate(homes)]

    def read(self, data: bytes, _: Path) -> None:
        home, name = self._homes[data[0] % len(self._homes)]
        (home / name).write_bytes(data[1:])
        convert("minari", home)


class LerobotFile:
    """One file of a LeRobotDataset at a time (metadata, rows, a video), in the folder that the first byte of an input names."""

    def __init__(self) -> None:
        self._files: list[tuple[Path, Path]] = []

    def corpus(self, folder: Path) -> Corpus:
        homes = [folder / name for name in ("v3_plain", "v3_done", "v21_plain")]
        for home in homes:
            shutil.copytree(DATA / "lerobot" / home.name, home)
        every = [(home, file) for home in homes for file in sorted(home.rglob("*")) if file.is_file()]
        unread = ("stats.json", "episodes_stats.jsonl")
        self._files = [(home, file) for home, file in every if file.name not in unread]
        return [bytes([number]) + file.read_bytes() for number, (_, file) in enumerate(self._files)]

    def read(self, data: bytes, _: Path) -> None:
        home, file = self._files[data[0] % len(self._files)]
        whole = file.read_bytes()
        try:
            file.write_bytes(data[1:])
            self._convert(home)
        finally:
            file.write_bytes(whole)

    def _convert(self, home: Path) -> None:
        from rbdata.datasets.catalogue import load_source
        from rbdata.datasets.fetch import open_raw
        from rbdata.datasets.ingest.job import ConvertOptions
        from rbdata.datasets.workers.sandbox import RawFiles, Sandbox

        job: Any = load_source("lerobot").open_folder(open_raw(home), ConvertOptions())
        json.dumps([job.describe(), vars(job.expect())])
        for unit in job.units:
            with Sandbox(unit, RawFiles(unit.name, unit.size), ["av", "pyarrow.parquet"]) as sandbox:
                sandbox.call(_read_unit)


def _read_unit(unit: Any, _: Any) -> None:
    from rbdata.datasets.ingest.episode_files import LazyRows, RawInput

    raws = [RawInput(raw.path, Path(raw.item.url), None) for raw in unit.objects]
    for _, episode in unit.reader.unit_episodes(raws):
        for key, rows, is_state in episode.rows():
            found = sum(map(len, rows.blocks)) if isinstance(rows, LazyRows) else len(rows)
            if len(episode.rewards) and found != episode.count(is_state):
                raise Wrong(f"{key} has {found} rows in an episode of {len(episode.rewards)} steps")


def _parquet_corpus(folder: Path) -> Corpus:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    columns = {
        "number": rng.standard_normal(50),
        "whole": pa.array([None if row % 7 == 3 else row for row in range(50)]),
        "class": [f"a{row % 3}" for row in range(50)],
        "flag": rng.random(50) < 0.5,
    }
    made = []
    ways: list[dict[str, Any]] = [{}, {"compression": "zstd", "data_page_version": "2.0"}, {"row_group_size": 20}]
    for number, how in enumerate(ways):
        pq.write_table(pa.table(columns), folder.with_name(f"table-{number}"), **how)
        made.append(folder.with_name(f"table-{number}").read_bytes())
    return made


def _read_parquet(data: bytes, folder: Path) -> None:
    from rbdata.datasets.workers.sandbox import RawFiles, Sandbox

    (folder / "x.parquet").write_bytes(data)
    with Sandbox(folder / "x.parquet", RawFiles("x.parquet", len(data)), ["pyarrow.parquet"]) as sandbox:
        sandbox.call(_read_table)


def _read_table(path: Path, _: Any) -> None:
    from rbdata.datasets.formats.arrow import ParquetTable

    reader = ParquetTable(path, "x", {"class": ("a0", "a1", "a2")})
    for block in reader.blocks():
        _check_codes(reader.attributes, block)


def _npz_corpus(_: Path) -> Corpus:
    made = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, a=np.arange(40, dtype="f4").reshape(20, 2), b=np.ones(9, bool), c=np.zeros((2, 30, 30), ">i2"))
        made.append(file.getvalue())
    return made


def _read_npz(data: bytes, _: Path) -> None:
    from rbdata.datasets.formats.npy import NpzArchive

    with NpzArchive(data, "x") as archive:
        found = {key: archive.array(key) for key in archive.keys}
        for key, values in found.items():
            rows = np.concatenate(list(archive.blocks(key))) if values.ndim else values
            if not np.array_equal(rows, values, equal_nan=values.dtype.kind == "f"):
                raise Wrong("blocks of other values")
    with contextlib.suppress(Exception):  # NumPy checks other things
        truth = dict(np.load(io.BytesIO(data), allow_pickle=False))
        same = (
            np.array_equal(truth[key], one, equal_nan=one.dtype.kind == "f")
            for key, one in found.items()
            if key in truth
        )
        if not all(same):
            raise Wrong("NumPy reads other values")


def _change_zip(corpus: Corpus, rng: random.Random, _: int) -> bytes:
    """Bytes anywhere, or inside a member, of an archive in it too; then with the right checksums."""
    from inputs import mutate

    data = rng.choice(corpus)
    return mutate(rng, data, corpus) if rng.random() < 0.3 else _change_member(rng, data, corpus)


def _change_member(rng: random.Random, data: bytes, corpus: Corpus) -> bytes:
    from inputs import mutate

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    chosen = rng.randrange(len(members))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for number, (name, content) in enumerate(members):
            if number == chosen:
                inside = content.startswith(b"PK") and rng.random() < 0.8
                content = _change_member(rng, content, corpus) if inside else mutate(rng, content, corpus)
            archive.writestr(name, content)
    return file.getvalue()


def _files_of(*names: str) -> Callable[[Path], Corpus]:
    """Files of tests/data below 100 kB that a pattern names."""

    def corpus(_: Path) -> Corpus:
        files = sorted(file for name in names for file in DATA.glob(name))
        return [file.read_bytes() for file in files if file.stat().st_size < 100_000]

    return corpus


# -- datasets and buffers ----------------------------------------------------------------------------------------------


class FolderFile:
    """One file of a folder at a time, named by the first byte; the others are as they were."""

    def __init__(self, make: Callable[[Path], Path], use: Callable[[Path], Any], names: tuple[str, ...] = ()) -> None:
        self._make, self._use, self._names = make, use, names
        self._files: list[Path] = []
        self._folder = Path()

    def corpus(self, folder: Path) -> Corpus:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = self._make(folder)
        files = sorted(file for file in self._folder.rglob("*") if file.is_file())
        self._files = [file for file in files if not self._names or file.name in self._names]
        return [bytes([number]) + file.read_bytes() for number, file in enumerate(self._files)]

    def read(self, data: bytes, _: Path) -> None:
        file = self._files[data[0] % len(self._files)]
        before = file.read_bytes()
        file.write_bytes(data[1:])
        try:
            self._use(self._folder)
        finally:
            file.write_bytes(before)


def _make_rlds(folder: Path) -> Path:
    return Path(shutil.copytree(DATA / "rlds/toy_robot/0.1.0", folder / "0.1.0"))


def _change_rlds(corpus: Corpus, rng: random.Random, number: int) -> bytes:
    """Most changes are inside of a record, with the right checksums."""
    from inputs import mutate
    from rlu_writer import framed

    chosen = rng.choice(corpus)
    if chosen[1:2] == b"{" or rng.random() < 0.2:
        return chosen[:1] + mutate(rng, chosen[1:], [one[1:] for one in corpus])
    (length,) = struct.unpack_from("<Q", chosen, 1)
    record = mutate(rng, chosen[13 : 13 + length], [one[1:] for one in corpus])
    return chosen[:1] + framed(record) + chosen[17 + length :]


def _use_rlds(folder: Path) -> None:
    """All that is decoded of its episodes; every column has as many rows as there are steps, or one more."""
    from rbdata.datasets.formats.tfds import parse_features, parse_info
    from rbdata.datasets.ingest.episode_files import LazyRows, RawInput
    from rbdata.datasets.sources.rlds.reader import RldsReader, leaf_keys

    info = parse_info((folder / "dataset_info.json").read_bytes(), "x")
    features = parse_features((folder / "features.json").read_bytes(), "x").features
    for split in info.splits.values():
        files = zip(split.files, split.lengths)
        reader = RldsReader(features, leaf_keys(features), dict(files), 512)
        for file in split.files:
            if not (folder / file).is_file():
                continue  # the job says so
            for episode in reader.episodes(RawInput(file, folder / file, None)):
                for key, rows, is_state in episode.rows():
                    found = sum(map(len, rows.blocks)) if isinstance(rows, LazyRows) else len(rows)
                    if found != episode.count(is_state):
                        raise Wrong(f"{key} has {found} rows of {len(episode.rewards)} steps")


def _copy_of(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        return Path(shutil.copytree(DATA / "frozen/folders" / name, folder / name))

    return make


@lru_cache(maxsize=2)
def _manifest_of(folder: Path) -> Any:
    """The manifest of a folder of which other files are changed."""
    from rbdata.storage.manifest import read_manifest

    return read_manifest(folder)


def _use_rows(folder: Path) -> None:
    import torch
    from rbdata.storage.codecs import codec_of

    manifest = _manifest_of(folder)
    leaf = manifest.schema["observation"]
    rows = codec_of(leaf).open_rows(folder, manifest.steps + manifest.episodes)
    found = rows.take(torch.arange(0, rows.count, 7))
    if found.shape[1:] != leaf.shape or rows.block(0, 3).shape != (3, *leaf.shape):
        raise Wrong("rows of another shape")


def _use_episodes(folder: Path) -> None:
    from rbdata.storage.episodes import open_episodes

    manifest = _manifest_of(folder)
    table = open_episodes(folder, manifest.episodes, manifest.steps)
    if table.steps != manifest.steps:
        raise Wrong("other steps")
    repr(table)


def _read_manifest(data: bytes, folder: Path) -> None:
    """With the checksum that the contents have, where they are JSON at all."""
    from rbdata.storage import manifest as module

    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(data)
        if isinstance(record, dict):
            record["checksum"] = module._checksum(record)
            data = json.dumps(record).encode()
    (folder / "rbdata.json").write_bytes(data)
    found = module.read_manifest(folder)
    json.dumps(found.to_json())


def _buffer() -> Any:
    from rbdata.storage.replay import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer

    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=SamplerWithoutReplacement(), batch_size=4, seed=1
    )


def _make_checkpoint(folder: Path) -> Path:
    from replay_tools import rollout

    buffer = _buffer()
    buffer.extend(rollout([5, 6, 3]))
    buffer.sample()
    buffer.dumps(folder / "checkpoint")
    (folder / "checkpoint" / "rbdata_checkpoint.json").unlink()  # no checksum protects the rest
    return folder / "checkpoint"


def _use_checkpoint(folder: Path) -> None:
    from rbdata.errors import RbdataError
    from replay_tools import equal, rollout

    buffer = _buffer()
    buffer.extend(rollout([6]))
    before = buffer[:].clone()
    try:
        buffer.loads(folder)
    except RbdataError:
        if not equal(buffer[:], before) or buffer.sample(4).batch_size != (4,):
            raise Wrong("the buffer that refused it has changed") from None
        raise
    buffer.sample()


_LEROBOT = LerobotFile()
_MINARI = {data_format: MinariFile(data_format) for data_format in ("hdf5", "arrow", "parquet")}
_ROWS = FolderFile(_copy_of("frames"), _use_rows, ("blob", "offsets", "dictionary"))
_EPISODES = FolderFile(
    _copy_of("low"),
    _use_episodes,
    ("start.memmap", "length.memmap", "return.memmap", "outcome.memmap", "midway.memmap"),
)
_RLDS = FolderFile(_make_rlds, _use_rlds)
_CHECKPOINT = FolderFile(_make_checkpoint, _use_checkpoint)


def _manifest_corpus(_: Path) -> Corpus:
    return [file.read_bytes() for file in sorted((DATA / "frozen/folders").rglob("rbdata.json"))]


READERS: dict[str, Reader] = {
    "bombs": Reader(
        0, lambda folder: [], set_off, lambda corpus, rng, number: list(BOMBS)[number].encode(), len(BOMBS), apart=True
    ),
    "npy": Reader(20, _npy_corpus, _read_npy),
    "gzip": Reader(20, _gzip_corpus, _read_gzip),
    "tfrecord": Reader(10, _record_corpus, _read_records, _change_records),
    "png": Reader(10, _png_corpus, _read_png, _change_png),
    "jpeg": Reader(5, _jpeg_corpus, _read_jpeg),
    "arff": Reader(10, _arff_corpus, _read_arff),
    "table": Reader(2, _arff_corpus, _file("openml", "x.arff", target="class")),
    "parquet": Reader(5, _parquet_corpus, _read_parquet),
    "metadata": Reader(10, _metadata_corpus, _read_metadata),
    "api": Reader(5, _api_corpus, _read_api),
    "d4rl": Reader(2, _d4rl_corpus, _file("d4rl", "x.hdf5"), _change_hdf5(0)),
    "minari-hdf5": Reader(2, _MINARI["hdf5"].corpus, _MINARI["hdf5"].read, _change_hdf5(1)),
    "minari-arrow": Reader(2, _MINARI["arrow"].corpus, _MINARI["arrow"].read, _change_a_file),
    "minari-parquet": Reader(2, _MINARI["parquet"].corpus, _MINARI["parquet"].read, _change_a_file),
    "rlds": Reader(5, _RLDS.corpus, _RLDS.read, _change_rlds),
    "pickle": Reader(10, pickle_corpus, read_pickled),
    "ogbench": Reader(5, ogbench_corpus, read_ogbench, change_npz),
    "gen_dgrl": Reader(5, dgrl_corpus, read_dgrl, change_tar),
    "lerobot": Reader(1, _LEROBOT.corpus, _LEROBOT.read, _change_a_file),
    "npz": Reader(10, _npz_corpus, _read_npz, _change_zip),
    "vd4rl-64px": Reader(1, _files_of("vd4rl/**/medium_replay/64px/*.npz"), _converted("vd4rl", "x.npz"), _change_zip),
    "vd4rl-84px": Reader(1, _files_of("vd4rl/**/*.hdf5"), _converted("vd4rl", "x.hdf5"), _change_hdf5(0)),
    "exorl": Reader(1, _files_of("exorl/jaco/*.zip"), _converted("exorl", "x.zip"), _change_zip),
    "roboset": Reader(1, _files_of("roboset/**/*.h5"), _converted("roboset", "x.h5"), _change_hdf5(0)),
    "manifest": Reader(10, _manifest_corpus, _read_manifest),
    "episodes": Reader(10, _EPISODES.corpus, _EPISODES.read, _change_a_file),
    "rows": Reader(5, _ROWS.corpus, _ROWS.read, _change_a_file),
    "checkpoint": Reader(2, _CHECKPOINT.corpus, _CHECKPOINT.read, _change_a_file),
}
