"""Write a dataset as files of other libraries; what their format cannot hold is said.

    npz       DEST.npz       flat arrays by TED key (``next/reward``), frames with a row per state
    d4rl      DEST.hdf5      observations, actions, rewards, terminals, timeouts, next_observations, infos/<name>
    minari    DEST/data/     a dataset that `minari.load_dataset` loads (https://minari.farama.org)
    parquet   DEST.parquet   a row per step; columns by TED key, with the numbers of episode and step
    torchrl   DEST/          plain TED that `tensordict.TensorDict.load_memmap` maps, as TorchRL's datasets are
    rlds      DEST/          a folder that `tfds.builder_from_directory` reads (https://github.com/google-research/rlds)

A dataset is read block by block, so that memory stays flat; the target gets its name when it is complete. `rbdata convert`
reads all of them back: Minari's as the source ``minari``, RLDS as ``rlds``, the others as ``arrays``.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import DatasetExistsError, DiskSpaceError, MissingExtraError, UsageError
from ..storage.dataset import Dataset
from ..storage.durable import is_full
from ..storage.episodes import CUT, TERMINATED
from ..storage.leaf import Leaf
from ..storage.tensordict_folder import write_meta
from .formats.arrow import EXPORTED, ROW_OF_ONE

Format = Literal["npz", "d4rl", "minari", "parquet", "torchrl", "rlds"]

#: Bytes of rows in memory at a time.
_BLOCK_BYTES = 32 << 20


@dataclass(frozen=True)
class Exported:
    """What was written where; ``notes`` say what the format does not hold."""

    id: str
    path: Path
    format: str
    steps: int
    episodes: int
    bytes: int
    notes: tuple[str, ...]


@dataclass
class _Export:
    """One export: what is read, and what is found out on the way. ``report`` gets bytes of rows: written, and in all."""

    dataset: Dataset
    report: Callable[[int, int], None]
    total: int = 0
    done: int = 0
    notes: list[str] = field(default_factory=list)

    def leaf(self, key: str) -> Leaf:
        """The leaf that a TED key is read from: ``next/observation`` of a state leaf is in ``observation``."""
        return self.dataset.rows[key if key in self.dataset.rows else key.removeprefix("next/")].leaf

    def ted_keys(self, *, flags: bool = False) -> list[str]:
        """The TED keys of the dataset; without the root flags, which are false in every row, unless ``flags``."""
        return [key for key in self.dataset.schema.names if flags or self.leaf(key).constant is None]

    def rows(self, key: str, low: int, high: int) -> np.ndarray:
        """Rows of a TED key, of steps ``low`` to ``high - 1``."""
        name = key if key in self.dataset.rows else key.removeprefix("next/")
        rows = self.dataset.rows[name]
        if rows.leaf.kind == "step" or low == high:
            return rows.block(low, high).numpy()
        states = self.dataset.state_numbers(low, high) + (name != key)
        first = int(states[0])
        return rows.block(first, int(states[-1]) + 1).numpy()[states.numpy() - first]

    def blocks(self, key: str) -> Iterator[tuple[int, np.ndarray]]:
        """The rows of a TED key, one per step, with the number of the first."""
        size = max(1, _BLOCK_BYTES // max(1, self.leaf(key).row_bytes))
        for low in range(0, len(self.dataset), size):
            block = self.rows(key, low, min(low + size, len(self.dataset)))
            yield low, block
            self.wrote(block.nbytes)

    def states(self, key: str) -> Iterator[tuple[int, np.ndarray]]:
        """As `blocks`, with the final state of each episode behind its last step."""
        is_last = np.zeros(len(self.dataset), bool)
        is_last[self.dataset.episodes.start + self.dataset.episodes.length - 1] = True
        for low, block in self.blocks(key):
            after = self.rows(f"next/{key}", low, low + len(block))
            numbers = np.arange(len(block))
            pairs = np.stack([numbers, numbers + len(block)], 1)
            used = np.stack([np.ones(len(block), bool), is_last[low : low + len(block)]], 1)
            yield low, np.concatenate([block, after])[pairs[used]]

    def wrote(self, count: int) -> None:
        self.done += count
        self.report(min(self.done, self.total), self.total)

    def tree(self, base: str) -> dict[str, str]:
        """The keys of a base, such as ``observation``, by what follows it: "" for a single leaf."""
        return {key[len(base) :]: key for key in self.ted_keys() if key == base or key.startswith(base + "/")}


def write_export(
    dataset: Dataset,
    dest: str | os.PathLike[str],
    to: Format,
    *,
    force: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Exported:
    """Write a dataset to ``dest`` in a format of `Format`; a suffix that it needs is added.

    Raises UsageError for what the format cannot hold at all, DatasetExistsError where ``dest`` is there (``force`` replaces
    it), MissingExtraError, DiskSpaceError.
    """
    if to not in _WRITERS:
        raise UsageError(f"there is no format {to!r}", hint=f"the formats are {', '.join(_WRITERS)}")
    write, suffix = _WRITERS[to]
    target = Path(dest).expanduser().absolute()
    if suffix and target.suffix.lower() not in (suffix, ".h5" if to == "d4rl" else suffix):
        target = target.with_name(target.name + suffix)
    if os.path.lexists(target) and not force:
        raise DatasetExistsError(f"{target} is there already", hint="choose another name, or replace it with --force")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = _Export(dataset, report)
    work.total = sum(work.leaf(key).row_bytes * len(dataset) for key in work.ted_keys())
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        write(work, partial, target)
        if os.path.lexists(target):
            _remove(target)
        partial.rename(target)
    except OSError as error:
        if not is_full(error):
            raise
        raise DiskSpaceError(
            f"the disk is full: {target} does not fit", hint="make room, or choose another disk"
        ) from error
    finally:
        _remove(partial)
    files = [target] if target.is_file() else [path for path in target.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    return Exported(dataset.id, target, to, len(dataset), len(dataset.episodes), size, tuple(work.notes))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- npz -----------------------------------------------------------------------------------------------------------------


def _write_npz(work: _Export, partial: Path, target: Path) -> None:
    """Every leaf under its TED key, a row per step; ``episode_lengths`` says where episodes end.

    Of a dataset with frames, which it holds once per state, observations have a row more for each episode, and no
    ``next/observation``.
    """
    dataset = work.dataset
    observations = set(work.tree("observation").values())
    per_state = any(work.leaf(key).kind == "state" for key in observations)
    with zipfile.ZipFile(partial, "w", allowZip64=True) as archive:
        for key in work.ted_keys():
            leaf = work.leaf(key)
            if per_state and key.removeprefix("next/") in observations and key not in observations:
                continue
            states = per_state and key in observations
            count = len(dataset) + (len(dataset.episodes) if states else 0)
            with _member(archive, key, leaf.np_dtype, (count, *leaf.shape)) as file:
                for _, block in work.states(key) if states else work.blocks(key):
                    file.write(np.ascontiguousarray(block).data)
        lengths = dataset.episodes.length.astype(np.int64)
        with _member(archive, "episode_lengths", lengths.dtype, lengths.shape) as file:
            file.write(lengths.data)


def _member(archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """An array of an archive, open for its rows (format: numpy.lib.format)."""
    file = archive.open(f"{name}.npy", "w", force_zip64=True)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file


# -- D4RL ----------------------------------------------------------------------------------------------------------------


def _write_d4rl(work: _Export, partial: Path, target: Path) -> None:
    """The arrays of D4RL (https://arxiv.org/abs/2004.07219), with ``next_observations``: ends of episodes lose nothing."""
    import h5py

    arrays = {
        "observations": _only(work, "observation"),
        "actions": _only(work, "action"),
        "rewards": "next/reward",
        "next_observations": _only(work, "next/observation"),
    }
    taken = {*arrays.values(), "next/done", "next/terminated", "next/truncated"}
    for key in work.ted_keys():
        if key not in taken:
            arrays["infos/" + key.removeprefix("info/")] = key
    with h5py.File(partial, "w") as file:
        for name, key in arrays.items():
            leaf = work.leaf(key)
            shape = () if name == "rewards" else leaf.shape
            array = file.create_dataset(name, (len(work.dataset), *shape), leaf.np_dtype)
            for low, block in work.blocks(key):
                array[low : low + len(block)] = block.reshape(len(block), *shape)
        terminated, truncated = (
            work.dataset[f"next/{flag}"].numpy().reshape(-1) for flag in ("terminated", "truncated")
        )
        file["terminals"], file["timeouts"] = terminated, truncated & ~terminated
        file.attrs["rbdata_id"] = work.dataset.id
    if (terminated & truncated).any():
        work.notes.append("Episodes that were terminated and truncated at once are terminals only.")
    _note_cut(work)


def _only(work: _Export, base: str) -> str:
    """The key of the only leaf of a base. Raises UsageError where there are several."""
    tree = work.tree(base)
    if len(tree) == 1:
        return next(iter(tree.values()))
    message = f"{work.dataset.id} has {', '.join(tree.values()) or f'no {base}'}, and D4RL's format holds one array"
    raise UsageError(message, hint="use another format, or make one of them with `rbdata preprocess`")


def _note_cut(work: _Export) -> None:
    cut = int((work.dataset.episodes.outcome == CUT).sum())
    if cut:
        some = "1 episode that the data cut counts" if cut == 1 else f"{cut} episodes that the data cut count"
        work.notes.append(f"{some} as truncated, as at a time limit.")


# -- Minari --------------------------------------------------------------------------------------------------------------


def _write_minari(work: _Export, partial: Path, target: Path) -> None:
    """Episodes in Minari's HDF5 layout, written by Minari itself; frames as they are, not as JPEG."""
    try:
        import minari
        from minari.data_collector.episode_buffer import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise MissingExtraError("export to minari needs minari", hint="pip install 'minari[hdf5]'") from error
    if not re.fullmatch(r"[\w-]+-v\d+", target.name):
        message = f"{target.name} is not a name that Minari takes"
        raise UsageError(message, hint=f"its names end with a version: {target.with_name(target.name + '-v0')}")
    dataset = work.dataset
    spaces = {base: getattr(dataset, f"{base}_space") for base in ("observation", "action")}
    if any(type(space).__name__ in ("Tuple", "Text") for space in spaces.values()):
        raise UsageError(f"{dataset.id} has spaces that are not exported to Minari: {spaces}")
    (partial / "data").mkdir(parents=True)
    storage = MinariStorage.new(
        partial / "data",
        observation_space=spaces["observation"],
        action_space=spaces["action"],
        data_format="hdf5",
        jpeg_encoding=False,
    )

    def episodes() -> Iterator[Any]:
        for number, (begin, length) in enumerate(
            zip(dataset.episodes.start.tolist(), dataset.episodes.length.tolist())
        ):
            end = begin + length
            steps = {key: work.rows(key, begin, end) for key in work.ted_keys()}
            last = {f"next/{key}": steps[f"next/{key}"][-1:] for key in work.tree("observation").values()}
            states = {
                rest: np.concatenate([steps[key], last[f"next/{key}"]])
                for rest, key in work.tree("observation").items()
            }
            yield EpisodeBuffer(
                id=number,
                observations=_nested(states, spaces["observation"]),
                actions=_nested({rest: steps[key] for rest, key in work.tree("action").items()}, spaces["action"]),
                rewards=steps["next/reward"].reshape(-1),
                terminations=steps["next/terminated"].reshape(-1),
                truncations=steps["next/truncated"].reshape(-1),
            )
            work.wrote(sum(rows.nbytes for rows in steps.values()))

    storage.update_episodes(episodes())
    about = {"dataset_id": target.name, "minari_version": minari.__version__}
    storage.update_metadata({**about, "description": f"Exported by rbdata from {dataset.id}."})
    held = {key for base in ("observation", "next/observation", "action") for key in work.tree(base).values()}
    held |= {f"next/{name}" for name in ("reward", "done", "terminated", "truncated")}
    left = [key for key in work.ted_keys() if key not in held]
    if left:
        work.notes.append(f"Not exported: {', '.join(left)}.")
    _note_cut(work)


def _nested(leaves: dict[str, np.ndarray], space: Any) -> Any:
    """Rows as Minari takes them: an array, or dictionaries of arrays; of the shape that a row has in its space."""
    if type(space).__name__ != "Dict":
        (rows,) = leaves.values()
        return rows.reshape(len(rows), *(space.shape or ()))
    nested = {}
    for name, inner in space.spaces.items():
        mine = {key.removeprefix(f"/{name}"): rows for key, rows in leaves.items() if f"{key}/".startswith(f"/{name}/")}
        if mine:
            nested[name] = _nested(mine, inner)
    return nested


# -- Parquet -------------------------------------------------------------------------------------------------------------


def _write_parquet(work: _Export, partial: Path, target: Path) -> None:
    """A row per step: the numbers of its episode and of the step in it, then a column for each TED key."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("export to parquet needs pyarrow", hint="pip install 'rbdata[parquet]'") from error
    dataset, keys = work.dataset, work.ted_keys()
    size = max(1, _BLOCK_BYTES // max(1, sum(work.leaf(key).row_bytes for key in keys)))
    with parquet.ParquetWriter(partial, _parquet_schema(work, pyarrow), compression="zstd") as writer:
        for low in range(0, len(dataset), size):
            high = min(low + size, len(dataset))
            numbers = np.arange(low, high)
            episode = np.searchsorted(dataset.episodes.start, numbers, "right") - 1
            columns = [pyarrow.array(episode), pyarrow.array(numbers - dataset.episodes.start[episode])]
            blocks = [work.rows(key, low, high) for key in keys]
            columns += [_arrow(block, pyarrow) for block in blocks]
            writer.write_batch(pyarrow.record_batch(columns, schema=writer.schema))
            work.wrote(sum(block.nbytes for block in blocks))
    _note_cut(work)


def _parquet_schema(work: _Export, pyarrow: Any) -> Any:
    fields = [pyarrow.field(name, pyarrow.int64()) for name in ("episode", "step")]
    taken = [field.name for field in fields if field.name in work.ted_keys()]
    if taken:
        message = f"{work.dataset.id} has a leaf {taken[0]}, and the table a column of that name: the number of the {taken[0]}"
        raise UsageError(message, hint="use another format, or rename the leaf with a function of `rbdata preprocess`")
    for key in work.ted_keys():
        leaf = work.leaf(key)
        kind = pyarrow.from_numpy_dtype(leaf.np_dtype)
        for length in reversed(() if leaf.shape == (1,) else leaf.shape):
            kind = pyarrow.list_(kind, length)
        # A row of one number is that number: `sources.arrays` makes a row of it again.
        one = {ROW_OF_ONE: b"1"} if leaf.shape == (1,) else None
        fields.append(pyarrow.field(key, kind, metadata=one))
    return pyarrow.schema(fields, metadata={EXPORTED: b"parquet"})


def _arrow(rows: np.ndarray, pyarrow: Any) -> Any:
    """Rows as a column: numbers, or lists of one length; a row of one number is that number."""
    shape = () if rows.shape[1:] == (1,) else rows.shape[1:]
    column = pyarrow.array(np.ascontiguousarray(rows).reshape(-1))
    for length in reversed(shape):
        column = pyarrow.FixedSizeListArray.from_arrays(column, length)
    return column


# -- TorchRL -------------------------------------------------------------------------------------------------------------


def _write_torchrl(work: _Export, partial: Path, target: Path) -> None:
    """A memory-mapped TensorDict with every TED key, frames twice."""
    keys = work.ted_keys(flags=True)
    write_meta(partial, "", {key: (work.leaf(key).dtype, work.leaf(key).shape) for key in keys}, len(work.dataset))
    for key in keys:
        path = partial / f"{key}.memmap"
        with path.open("wb") as file:
            for _, block in work.blocks(key):
                file.write(np.ascontiguousarray(block).data)
    _note_cut(work)


# -- RLDS ----------------------------------------------------------------------------------------------------------------


def _write_rlds(work: _Export, partial: Path, target: Path) -> None:
    """An episode of n steps is n + 1 rows, whose last has the final observation, and zeros beside it."""
    from .formats.tfds_writer import EpisodeFolder, WrittenFeature, numbers, strings

    dataset, flags = work.dataset, ("is_first", "is_last", "is_terminal")
    keys = [key for key in work.ted_keys() if not key.startswith("next/")]
    names = _rlds_names(keys, {"reward", *flags})
    features = [WrittenFeature(names[key], work.leaf(key).dtype, work.leaf(key).shape) for key in keys]
    own = [WrittenFeature("reward", "float32", ()), *(WrittenFeature(flag, "bool", ()) for flag in flags)]
    version = target.name if re.fullmatch(r"\d+\.\d+\.\d+", target.name) else ""
    name = re.sub(r"[^a-z0-9_]", "_", (target.parent.name if version else target.name).lower())
    folder = EpisodeFolder(partial, name, version or "1.0.0", [*features, *own])
    for number, (start, length) in enumerate(zip(dataset.episodes.start.tolist(), dataset.episodes.length.tolist())):
        lists = {}
        for key, feature in zip(keys, features):
            blocks = _episode_rows(work, key, start, start + length)
            if feature.encoding == "none":
                lists[feature.name] = numbers(np.concatenate(list(blocks)))
            else:
                lists[feature.name] = strings([one for block in blocks for one in feature.encode(block)])
        reward = work.rows("next/reward", start, start + length).reshape(-1)
        lists["reward"] = numbers(np.append(reward, np.float32(0)))
        at, outcome = np.arange(length + 1), dataset.episodes.outcome[number]
        lists["is_first"] = numbers(at == 0)
        lists["is_last"] = numbers((at == length) & (outcome != CUT))
        lists["is_terminal"] = numbers((at == length) & (outcome == TERMINATED))
        folder.add(lists)
    held = {f"next/{name}" for name in ("reward", "done", "terminated", "truncated", *keys)}
    left = [key for key in work.ted_keys() if key.startswith("next/") and key not in held]
    if left:
        work.notes.append(f"Not exported: {', '.join(left)}.")
    folder.finish(f"Exported by rbdata from {dataset.id}.", dataset.manifest.citation)


def _rlds_names(keys: Sequence[str], taken: set[str]) -> dict[str, str]:
    """The feature of each leaf: its key, or what is behind ``info/`` where nothing else has that name.

    Raises UsageError for a leaf that has the name of a feature of the format's own.
    """
    tops = {key.partition("/")[0] for key in keys}
    if not taken.isdisjoint(tops):
        message = f"a leaf is named {sorted(taken & tops)[0]}, which is a feature of the format's own"
        raise UsageError(message, hint="use another format, or rename the leaf with a function of `rbdata preprocess`")
    tops |= taken
    shortened = {key: key.removeprefix("info/") for key in keys}
    return {key: key if name.partition("/")[0] in tops else name for key, name in shortened.items()}


def _episode_rows(work: _Export, key: str, low: int, high: int) -> Iterator[np.ndarray]:
    """The rows of a key of one episode in blocks, with the final one behind them, which is zeros where there is none."""
    size = max(1, _BLOCK_BYTES // max(1, work.leaf(key).row_bytes))
    for at in range(low, high, size):
        block = work.rows(key, at, min(at + size, high))
        yield block
        work.wrote(block.nbytes)
    has_states = f"next/{key}" in work.dataset.schema.names
    yield work.rows(f"next/{key}", high - 1, high) if has_states else np.zeros_like(block[:1])


_WRITERS: dict[str, tuple[Callable[[_Export, Path, Path], None], str]] = {
    "npz": (_write_npz, ".npz"),
    "d4rl": (_write_d4rl, ".hdf5"),
    "minari": (_write_minari, ""),
    "parquet": (_write_parquet, ".parquet"),
    "torchrl": (_write_torchrl, ""),
    "rlds": (_write_rlds, ""),
}
