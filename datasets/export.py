"""Write a dataset in the file formats of other libraries; notes say what a format cannot hold.

    npz       DEST.npz       flat arrays by TED key (``next/reward``), frames with a row per state
    d4rl      DEST.hdf5      observations, actions, rewards, terminals, timeouts, next_observations, infos/<name>
    minari    DEST/data/     a dataset that `minari.load_dataset` loads (https://minari.farama.org)
    parquet   DEST.parquet   a row per step; columns by TED key, with the numbers of episode and step
    torchrl   DEST/          plain TED that `tensordict.TensorDict.load_memmap` maps, as TorchRL's datasets are
    rlds      DEST/          a folder that `tfds.builder_from_directory` reads (https://github.com/google-research/rlds)
    lerobot   DEST/          a folder that lerobot's `LeRobotDataset` reads (https://huggingface.co/docs/lerobot)

A dataset is read block by block, so that memory stays flat; the target is renamed into place when it is complete. `rbdata
convert` reads all formats back: Minari, RLDS and LeRobot as the sources of these names, the others as ``arrays``.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import DatasetExistsError, DiskError, RbdataError, UsageError
from ..storage import plugins
from ..storage.dataset import Dataset, read_columns
from ..storage.durable import is_full
from ..storage.episodes import CUT, TERMINATED
from ..storage.folder import beside, remove_tree
from ..storage.leaf import Leaf
from ..storage.manifest import FILENAME
from ..storage.meta import write_meta
from ..storage.reference_scores import original_source
from ..storage.schema import at_and_below
from .formats.arrow import EXPORTED, ROW_OF_ONE, list_column, require_pyarrow
from .ingest.trajectories import compare_successors

if TYPE_CHECKING:
    from .formats.lerobot import WrittenColumn
    from .sources.known_environment import KnownEnvironment

Format = Literal["npz", "d4rl", "minari", "parquet", "torchrl", "rlds", "lerobot"]
Frames = Literal["video", "image"]

_RENAME = "use another format, or rename the leaf with a function of `rbdata preprocess`"
#: What every dataset has of a step beside observation and action.
_OUTCOME = {"next/reward", "next/done", "next/terminated", "next/truncated"}
#: Bytes of rows in memory at a time.
_BLOCK_BYTES = 32 << 20


@dataclass(frozen=True)
class Exported:
    """The result of an export; ``notes`` say what the format does not hold."""

    id: str
    path: Path
    format: str
    steps: int
    episodes: int
    bytes: int
    notes: tuple[str, ...]


@dataclass
class _Export:
    """The state of one export. ``report`` is called with the bytes of rows written so far, and with their total."""

    dataset: Dataset
    report: Callable[[int, int], None]
    frames: Frames | None = None
    fps: float | None = None
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
        ((_, found),) = read_columns(self.dataset, low, high, [key])
        return found.numpy()

    def row_bytes(self, keys: Iterable[str]) -> int:
        """The bytes of one step's rows of some TED keys."""
        return sum(self.leaf(key).row_bytes for key in keys)

    def blocks(self, key: str) -> Iterator[tuple[int, np.ndarray]]:
        """The rows of a TED key in blocks, one row per step, each block with the number of its first step."""
        for low, high in _spans(0, len(self.dataset), self.leaf(key).row_bytes):
            block = self.rows(key, low, high)
            yield low, block
            self.wrote(block.nbytes)

    def states(self, key: str) -> Iterator[tuple[int, np.ndarray]]:
        """As `blocks`, with the final state of each episode after its last step."""
        is_last = self.last_steps()
        for low, block in self.blocks(key):
            ends = np.flatnonzero(is_last[low : low + len(block)])
            after = self.rows(f"next/{key}", low, low + len(block))
            yield low, np.insert(block, ends + 1, after[ends], axis=0)

    def last_steps(self) -> np.ndarray:
        """Which steps are the last of an episode, bool ``[steps]``."""
        is_last = np.zeros(len(self.dataset), bool)
        is_last[self.dataset.episodes.starts + self.dataset.episodes.lengths - 1] = True
        return is_last

    def episodes(self) -> list[tuple[int, int]]:
        """The first step of each episode, and the one after its last."""
        table = self.dataset.episodes
        return list(zip(table.starts.tolist(), (table.starts + table.lengths).tolist()))

    def note_left_out(self, held: Collection[str]) -> None:
        """Note the keys that are not among those that the file has."""
        left = [key for key in self.ted_keys() if key not in held]
        if left:
            self.notes.append(f"Not exported: {', '.join(left)}.")

    def wrote(self, count: int) -> None:
        self.done += count
        self.report(min(self.done, self.total), self.total)

    def tree(self, base: str) -> dict[str, str]:
        """The keys below a base such as ``observation``, by the rest of the key: "" for a single leaf."""
        return {key[len(base) :]: key for key in at_and_below(self.ted_keys(), base)}


def _spans(low: int, high: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Pieces of a range of rows that fit into memory, as (first row, row after the last)."""
    size = max(1, _BLOCK_BYTES // max(1, row_bytes))
    return ((at, min(at + size, high)) for at in range(low, high, size))


def write_export(
    dataset: Dataset,
    dest: str | os.PathLike[str],
    to: Format,
    *,
    force: bool = False,
    frames: Frames | None = None,
    fps: float | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Exported:
    """Write a dataset to ``dest`` in a format of `Format`; a required suffix is added.

    For ``lerobot`` only: ``frames`` are encoded as ``"video"`` (the default; lossy) or as PNG in the rows (``"image"``), and
    ``fps`` is the number of steps per second, if the dataset does not state it.

    Raises UsageError if the format cannot hold the dataset at all, DatasetExistsError if ``dest`` exists (``force`` replaces
    a file, an empty folder or an earlier export), MissingExtraError, DiskError.
    """
    if to not in _WRITERS:
        raise UsageError(f"there is no format {to!r}", hint=f"the formats are {', '.join(_WRITERS)}")
    _check_options(to, frames, fps)
    write, suffix = _WRITERS[to]
    if Path(dest) == Path():  # also an empty text, such as a variable of a script that is not set
        raise UsageError("DEST is the current folder", hint="name a file or a folder in it")
    target = Path(dest).expanduser().absolute()
    if suffix and target.suffix.lower() not in (suffix, ".h5" if to == "d4rl" else suffix):
        target = target.with_name(target.name + suffix)
    if os.path.lexists(target) and not force:
        raise DatasetExistsError(f"{target} is there already", hint="choose another name, or replace it with --force")
    _check_replaced(target, suffix)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = _Export(dataset, report, frames, fps)
    work.total = work.row_bytes(work.ted_keys()) * len(dataset)
    try:
        with beside(target) as scratch:
            part = scratch / target.name
            write(work, part, target)
            if midway := int(dataset.episodes.midway.sum()):
                some = "1 episode" if midway == 1 else f"{midway} episodes"
                work.notes.append(f"the beginning of {some} is not in the data, which the format does not say.")
            remove_tree(target)
            part.rename(target)
    except OSError as error:
        if not is_full(error):
            raise
        message = f"the disk is full: {target} does not fit"
        raise DiskError(message, hint="make room, or choose another disk") from error
    files = [target] if target.is_file() else [path for path in target.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    return Exported(dataset.id, target, to, len(dataset), len(dataset.episodes), size, tuple(work.notes))


#: Files by which the folder of an export is known, of each format that is a folder.
_OF_EXPORTS = ("meta.json", "dataset_info.json", "meta/info.json", "data/main_data.hdf5")


def _check_replaced(target: Path, suffix: str) -> None:
    """Raise DatasetExistsError for a folder that ``force`` would delete although no export wrote it."""
    if not target.is_dir() or target.is_symlink() or not (suffix or any(target.iterdir())):
        return
    is_dataset = (target / FILENAME).exists()
    if suffix or is_dataset or not any((target / name).is_file() for name in _OF_EXPORTS):
        what = "a dataset" if is_dataset else "a folder that holds something other than an export"
        message = f"{target} is {what}: it is not replaced"
        raise DatasetExistsError(message, hint="choose another name, or remove it yourself")


def _check_options(to: str, frames: object, fps: object) -> None:
    given = [name for name, value in (("frames", frames), ("fps", fps)) if value is not None]
    if given and to != "lerobot":
        raise UsageError(f"{given[0]} is an option of the format lerobot, not of {to}")
    if frames not in (None, "video", "image"):
        raise UsageError(f"frames is {frames!r}", hint="video or image")
    if fps is not None and not (isinstance(fps, (int, float)) and 0 < fps <= 1000):
        raise UsageError(f"fps is {fps!r}", hint="a number of frames a second, up to 1000")


def _check_free(work: _Export, own: Mapping[str, str], what: str) -> None:
    """Raise UsageError for a leaf with a name that the format gives to data of its own, and what those are."""
    for name, meaning in own.items():
        if name in work.ted_keys():
            message = f"{work.dataset.id} has a leaf {name}, and {what} of that name: {meaning}"
            raise UsageError(message, hint=_RENAME)


def _check_apart(work: _Export, names: Mapping[str, str]) -> None:
    """Raise UsageError if two leaves would have one name in the format."""
    keys: dict[str, str] = {}
    for key, name in names.items():
        if (other := keys.setdefault(name, key)) != key:
            message = f"{work.dataset.id} has leaves {other} and {key}, and the format one name for both: {name}"
            raise UsageError(message, hint=_RENAME)


# -- npz -----------------------------------------------------------------------------------------------------------------


def _write_npz(work: _Export, part: Path, target: Path) -> None:
    """Every leaf under its TED key, a row per step; ``episode_lengths`` says where episodes end.

    Frames are stored once per state: observations then have one more row for each episode, and there is no
    ``next/observation``.
    """
    dataset = work.dataset
    _check_free(work, {"episode_lengths": "where episodes end"}, "the archive an array")
    observations = set(work.tree("observation").values())
    per_state = any(work.leaf(key).kind == "state" for key in observations)
    with zipfile.ZipFile(part, "w", allowZip64=True) as archive:
        for key in work.ted_keys():
            leaf = work.leaf(key)
            if per_state and key.removeprefix("next/") in observations and key not in observations:
                continue
            states = per_state and key in observations
            count = len(dataset) + (len(dataset.episodes) if states else 0)
            with _member(archive, key, leaf.np_dtype, (count, *leaf.shape)) as file:
                for _, block in work.states(key) if states else work.blocks(key):
                    file.write(np.ascontiguousarray(block).data)
        lengths = dataset.episodes.lengths.astype(np.int64)
        with _member(archive, "episode_lengths", lengths.dtype, lengths.shape) as file:
            file.write(lengths.data)
    _note_cut(work)


def _member(archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """An array of an archive, opened for writing its rows (format: numpy.lib.format)."""
    file = archive.open(f"{name}.npy", "w", force_zip64=True)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file


# -- D4RL ----------------------------------------------------------------------------------------------------------------


def _write_d4rl(work: _Export, part: Path, target: Path) -> None:
    """The arrays of D4RL (https://arxiv.org/abs/2004.07219), with ``next_observations``, so that the ends of episodes lose
    nothing."""
    import h5py

    arrays = {
        "observations": _only(work, "observation"),
        "actions": _only(work, "action"),
        "rewards": "next/reward",
        "next_observations": _only(work, "next/observation"),
    }
    others = [key for key in work.ted_keys() if key not in _OUTCOME.union(arrays.values())]
    infos = {key: "infos/" + key.removeprefix("info/") for key in others}
    _check_apart(work, infos)
    arrays |= {name: key for key, name in infos.items()}
    with h5py.File(part, "w") as file:
        for name, key in arrays.items():
            leaf = work.leaf(key)
            shape = () if name == "rewards" else leaf.shape
            array = file.create_dataset(name, (len(work.dataset), *shape), leaf.np_dtype)
            for low, block in work.blocks(key):
                array[low : low + len(block)] = block.reshape(len(block), *shape)
        terminated, truncated = _end_flags(work)
        file["terminals"], file["timeouts"] = terminated, truncated & ~terminated
        file.attrs["rbdata_id"] = work.dataset.id
    _note_cut(work)


def _only(work: _Export, base: str) -> str:
    """The key of the only leaf below a base. Raises UsageError if there are several."""
    tree = work.tree(base)
    if len(tree) == 1:
        return next(iter(tree.values()))
    message = f"{work.dataset.id} has {', '.join(tree.values()) or f'no {base}'}, and D4RL's format holds one array"
    raise UsageError(message, hint="use another format, or make one of them with `rbdata preprocess`")


def _end_flags(work: _Export) -> tuple[np.ndarray, np.ndarray]:
    """``terminated`` and ``truncated``, bool ``[steps]`` each; notes if a step has both: formats keep the first."""
    terminated, truncated = (work.dataset[f"next/{flag}"].numpy().reshape(-1) for flag in ("terminated", "truncated"))
    if (terminated & truncated).any():
        work.notes.append("Episodes that were terminated and truncated at once are terminals only.")
    return terminated, truncated


def _note_cut(work: _Export) -> None:
    cut = int((work.dataset.episodes.outcomes == CUT).sum())
    if cut:
        some = "1 episode that the data cut counts" if cut == 1 else f"{cut} episodes that the data cut count"
        work.notes.append(f"{some} as truncated, as at a time limit.")


def _check_successors(work: _Export) -> None:
    """For formats with a row per state: compare successors with the rows that follow in their episode.

    Raises UsageError for other ones, as those of n-step returns. Where they differ by rounding alone, a note says so.
    """
    goes_on = ~work.last_steps()
    for key in work.ted_keys():
        if f"next/{key}" not in work.dataset.rows:
            continue  # it has none, or is stored per state
        is_rounded = False
        for low, high in _spans(0, len(goes_on) - 1, work.leaf(key).row_bytes):
            after, stated = work.rows(key, low + 1, high + 1), work.rows(f"next/{key}", low, high)
            other, rounded = (found & goes_on[low:high] for found in compare_successors(after, stated))
            is_rounded |= bool(rounded.any())
            if other.any():
                step = low + int(other.argmax())
                message = f"next/{key} of step {step} of {work.dataset.id} is not the {key} of the step that follows"
                hint = "this format has one row per state; npz, parquet, d4rl and torchrl hold both"
                raise UsageError(message, hint=hint)
        if is_rounded:
            work.notes.append(f"next/{key} becomes the {key} of the step that follows, which differs by rounding.")


# -- Minari --------------------------------------------------------------------------------------------------------------


def _write_minari(work: _Export, part: Path, target: Path) -> None:
    """Episodes in Minari's HDF5 layout, written by Minari itself; frames as they are, not as JPEG."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    if not re.fullmatch(r"[\w-]+-v\d+", target.name):
        message = f"{target.name} is not a name that Minari takes"
        raise UsageError(message, hint=f"its names end with a version: {target.with_name(target.name + '-v0')}")
    _check_successors(work)
    dataset = work.dataset
    spaces = {base: getattr(dataset, f"{base}_space") for base in ("observation", "action")}
    if any(type(space).__name__ in ("Tuple", "Text") for space in spaces.values()):
        raise UsageError(f"{dataset.id} has spaces that are not exported to Minari: {spaces}")
    (part / "data").mkdir(parents=True)
    storage = MinariStorage.new(
        part / "data",
        observation_space=spaces["observation"],
        action_space=spaces["action"],
        data_format="hdf5",
        jpeg_encoding=False,
    )

    def episodes() -> Iterator[Any]:
        for number, (begin, end) in enumerate(work.episodes()):
            steps = {key: work.rows(key, begin, end) for key in work.ted_keys()}
            states = {
                rest: np.concatenate([steps[key], steps[f"next/{key}"][-1:]])
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
    if (specification := _minari_environment(work)) is not None:
        about["env_spec"] = specification
    storage.update_metadata({**about, "description": f"Exported by rbdata from {dataset.id}."})
    held = {key for base in ("observation", "next/observation", "action") for key in work.tree(base).values()}
    work.note_left_out(held | _OUTCOME)
    _note_cut(work)


def _environment(work: _Export) -> KnownEnvironment | None:
    """How the environment of the dataset is made, where its source knows that."""
    source, _ = original_source(work.dataset.manifest)
    try:
        return plugins.load(str(source.get("name"))).environment(source)
    except RbdataError:
        return None


def _minari_environment(work: _Export) -> str | None:
    """Gymnasium's specification as JSON, for Minari's ``recover_environment``; None where there is none to state."""
    known = _environment(work)
    if known is None:
        return None
    try:
        return known.specification()
    except RbdataError as error:
        work.notes.append(f"The environment is not stated: {error.message}.")
        return None


def _nested(leaves: dict[str, np.ndarray], space: Any) -> Any:
    """Rows as Minari accepts them: an array, or nested dictionaries of arrays, with the row shapes of the space."""
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


def _write_parquet(work: _Export, part: Path, target: Path) -> None:
    """A row per step: the numbers of its episode and of the step in it, then a column for each TED key."""
    require_pyarrow("export to parquet needs pyarrow")
    import pyarrow
    from pyarrow import parquet

    dataset, keys = work.dataset, work.ted_keys()
    with parquet.ParquetWriter(part, _parquet_schema(work, pyarrow), compression="zstd") as writer:
        for low, high in _spans(0, len(dataset), work.row_bytes(keys)):
            numbers = np.arange(low, high)
            episode = np.searchsorted(dataset.episodes.starts, numbers, "right") - 1
            columns = [pyarrow.array(episode), pyarrow.array(numbers - dataset.episodes.starts[episode])]
            blocks = [work.rows(key, low, high) for key in keys]
            columns += [list_column(block, pyarrow) for block in blocks]
            writer.write_batch(pyarrow.record_batch(columns, schema=writer.schema))
            work.wrote(sum(block.nbytes for block in blocks))
    _note_cut(work)


def _parquet_schema(work: _Export, pyarrow: Any) -> Any:
    own = {name: f"the number of the {name}" for name in ("episode", "step")}
    _check_free(work, own, "the table a column")
    fields = [pyarrow.field(name, pyarrow.int64()) for name in own]
    for key in work.ted_keys():
        leaf = work.leaf(key)
        kind = pyarrow.from_numpy_dtype(leaf.np_dtype)
        for length in reversed(() if leaf.shape == (1,) else leaf.shape):
            kind = pyarrow.list_(kind, length)
        # A row of one number is written as a plain number, which `sources.arrays` turns into a row again.
        one = {ROW_OF_ONE: b"1"} if leaf.shape == (1,) else None
        fields.append(pyarrow.field(key, kind, metadata=one))
    return pyarrow.schema(fields, metadata={EXPORTED: b"parquet"})


# -- TorchRL -------------------------------------------------------------------------------------------------------------


def _write_torchrl(work: _Export, part: Path, target: Path) -> None:
    """A memory-mapped TensorDict with every TED key; frames are stored twice."""
    keys = work.ted_keys(flags=True)
    write_meta(part, "", {key: (work.leaf(key).dtype, work.leaf(key).shape) for key in keys}, len(work.dataset))
    for key in keys:
        with (part / f"{key}.memmap").open("wb") as file:
            for _, block in work.blocks(key):
                file.write(np.ascontiguousarray(block).data)
    _note_cut(work)


# -- RLDS ----------------------------------------------------------------------------------------------------------------


def _write_rlds(work: _Export, part: Path, target: Path) -> None:
    """An episode of n steps becomes n + 1 rows; the last holds the final observation, and zeros in all other columns."""
    from .formats.tfds import EpisodeFolder, WrittenFeature

    _check_successors(work)
    dataset, flags = work.dataset, ("is_first", "is_last", "is_terminal")
    keys = [key for key in work.ted_keys() if not key.startswith("next/")]
    own = {"reward", *flags}
    taken = [top for top in (key.partition("/")[0] for key in keys) if top in own]
    if taken:
        raise UsageError(f"a leaf is named {taken[0]}, which is a feature of the format's own", hint=_RENAME)
    names = _short_names(keys, own)
    _note_names(work, names)
    features = [WrittenFeature(names[key], work.leaf(key).dtype, work.leaf(key).shape) for key in keys]
    rules = [WrittenFeature("reward", "float32", ()), *(WrittenFeature(flag, "bool", ()) for flag in flags)]
    version = target.name if re.fullmatch(r"\d+\.\d+\.\d+", target.name) else ""
    name = re.sub(r"[^a-z0-9_]", "_", (target.parent.name if version else target.name).lower())
    folder = EpisodeFolder(part, name, version or "1.0.0", [*features, *rules])
    for number, (start, end) in enumerate(work.episodes()):
        lists: dict[str, Any] = {}
        for key, feature in zip(keys, features):
            blocks = _episode_rows(work, key, start, end)
            if feature.encoding == "none":
                lists[feature.name] = np.concatenate(list(blocks))
            else:
                lists[feature.name] = [one for block in blocks for one in feature.encode(block)]
        reward = work.rows("next/reward", start, end).reshape(-1)
        lists["reward"] = np.append(reward, np.float32(0))
        at, outcome = np.arange(start, end + 1), dataset.episodes.outcomes[number]
        lists["is_first"] = at == start
        lists["is_last"] = (at == end) & (outcome != CUT)
        lists["is_terminal"] = (at == end) & (outcome == TERMINATED)
        folder.add(lists)
    work.note_left_out({*keys, *(f"next/{key}" for key in keys), *_OUTCOME})
    _end_flags(work)
    folder.finish(f"Exported by rbdata from {dataset.id}.", dataset.manifest.citation)


def _short_names(keys: Sequence[str], taken: set[str]) -> dict[str, str]:
    """The feature name of each leaf: its key, without ``info/`` unless another leaf has that name."""
    tops = {key.partition("/")[0] for key in keys} | taken
    shortened = {key: key.removeprefix("info/") for key in keys}
    return {key: key if name.partition("/")[0] in tops else name for key, name in shortened.items()}


def _note_names(work: _Export, names: Mapping[str, str]) -> None:
    """Note the leaves that have another name in the format than their key without ``info/``; dots part levels there too."""
    for key, name in names.items():
        if name.replace(".", "/") != key.removeprefix("info/"):
            work.notes.append(f"{key}: its column is {name}.")


def _episode_rows(work: _Export, key: str, low: int, high: int) -> Iterator[np.ndarray]:
    """The rows of a key in one episode, in blocks, followed by its final row: zeros if the key has none."""
    for span in _spans(low, high, work.leaf(key).row_bytes):
        block = work.rows(key, *span)
        yield block
        work.wrote(block.nbytes)
    has_states = f"next/{key}" in work.dataset.schema.names
    yield work.rows(f"next/{key}", high - 1, high) if has_states else np.zeros_like(block[:1])


# -- LeRobot -------------------------------------------------------------------------------------------------------------

#: Columns below these names are not read as leaves below ``info``.
_LEROBOT_TOPS = {"observation", "action", "next", "info", "task"}
#: Names of leaves that hold the text of a task.
_TASK_NAMES = ("task", "language_instruction", "natural_language_instruction", "instruction")
#: The steps per second that are assumed if nothing states them.
_FPS = 30
#: Rows of uint8 with sides of at least this many pixels count as pictures; smaller ones may be grids of codes.
_LEAST_SIDE = 32


def _write_lerobot(work: _Export, part: Path, target: Path) -> None:
    """An episode of n steps becomes n + 1 rows: the last holds the final observation, and otherwise repeats the row before it.

    lerobot's evaluation writes episodes in this form, with ``next.done`` in the last two rows. Its recordings have n rows, as
    have terminated episodes whose final observation is not in the data.
    """
    require_pyarrow("export to lerobot needs pyarrow")
    from .formats.lerobot import OWN, LerobotFolder, WrittenColumn
    from .formats.video import require_av

    _check_successors(work)
    source = original_source(work.dataset.manifest)[0]
    task = _task_leaf(work)
    fps = _rate(work, source)
    names, own = _lerobot_names(work, task, source, set(OWN))
    columns = {key: WrittenColumn(name, *_lerobot_form(work, key)) for key, name in names.items()}
    for key in [key for key, column in columns.items() if len(column.shape) > 5]:
        work.notes.append(f"Not exported: {key}, as rows have at most 5 dimensions there.")
        del columns[key]
    videos = [key for key, column in columns.items() if column.kind == "video"]
    if videos:
        require_av(f"{work.dataset.id}: {videos[0]} to be exported")
    flags = [WrittenColumn(f"next.{flag}", "bool", ()) for flag in ("done", "terminated", "truncated")]
    every = [*columns.values(), WrittenColumn("next.reward", "float32", ()), *flags]
    robot = source.get("robot")
    rate = int(fps) if fps == int(fps) else fps
    with LerobotFolder(part, every, rate, robot if isinstance(robot, str) else None) as folder:
        for text in [""] if task is None else _stated_tasks(source) if task == "task" else []:
            folder.task_number(text)
        after = [f"next/{key}" for key in columns if f"next/{key}" in work.dataset.schema.names]
        for number, (low, high) in enumerate(work.episodes()):
            # The final observation of a terminated episode is zeros where the data have none.
            ended = bool(work.rows("next/terminated", high - 1, high).all())
            end = high if ended and not any(work.rows(key, high - 1, high).any() for key in after) else high + 1
            blocks = _lerobot_blocks(work, columns, task, folder.task_number, number, low, high, end)
            folder.add(end - low, blocks)
        folder.finish({**{column.name: key for key, column in columns.items()}, **own})
    _note_lerobot(work, columns, task)


def _rate(work: _Export, source: Mapping[str, Any]) -> float:
    """Steps a second: as asked, else as the dataset states them, else `_FPS`, which a note says."""
    stated = work.fps or source.get("fps")
    if isinstance(stated, (int, float)) and 0 < stated <= 1000:
        return float(stated)
    work.notes.append(f"The dataset does not state its rate: {_FPS} steps a second are assumed (--fps).")
    return _FPS


def _lerobot_blocks(
    work: _Export,
    columns: Mapping[str, WrittenColumn],
    task: str | None,
    number_of: Callable[[str], int],
    episode: int,
    low: int,
    high: int,
    end: int,
) -> Iterator[dict[str, np.ndarray]]:
    """Blocks of rows ``low`` to ``end - 1`` of an episode, whose steps are ``low`` to ``high - 1``."""
    row_bytes = work.row_bytes(columns) + 8
    is_cut = work.dataset.episodes.outcomes[episode] == CUT
    for at, stop in _spans(low, end, row_bytes):

        def rows(key: str, at: int = at, stop: int = stop) -> np.ndarray:
            block = work.rows(key, at, min(stop, high))
            if stop <= high:
                return block
            # Then comes the final state of a state leaf; for other leaves, the last step's row again.
            after = f"next/{key}" if f"next/{key}" in work.dataset.schema.names else key
            return np.concatenate([block, work.rows(after, high - 1, high)])

        block = {column.name: _as_pictures(rows(key), column) for key, column in columns.items()}
        block["next.reward"] = rows("next/reward").reshape(-1)
        is_end = (np.arange(at, stop) >= high - 1) & (not is_cut)
        for flag in ("terminated", "truncated", "done"):
            block[f"next.{flag}"] = is_end & work.rows(f"next/{flag}", high - 1, high).reshape(-1)
        block["task_index"] = (
            _task_numbers(rows(task), f"{task} of step", at, number_of) if task else np.zeros(stop - at, np.int64)
        )
        yield block
        work.wrote((min(stop, high) - at) * row_bytes)


def _lerobot_names(
    work: _Export, task: str | None, source: Mapping[str, Any], own: set[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The column name of each leaf: dots between levels, without ``info`` unless another leaf has that name. And the keys of
    leaves that lerobot's own columns hold, by column."""
    every = work.ted_keys()
    held = _OUTCOME | {task or ""}
    keys = [key for key in every if key not in held and not (key.startswith("next/") and key[5:] in every)]
    names, held_by_own = {}, {}
    for key, name in _short_names(keys, _LEROBOT_TOPS | own).items():
        plain = key.removeprefix("info/")
        is_own = plain in own and (task is not None or plain != "task_index")
        if is_own and source.get("name") == "lerobot":  # it was lerobot's own column
            held_by_own[plain] = key
            continue
        if key == "observation":
            name = "observation/image" if _picture_shape(work.leaf(key)) else "observation/state"
        elif key in own or key == "task":
            name = f"info/{key}"
        names[key] = name
    _check_apart(work, names)
    dotted = {key: name.replace("/", ".") for key, name in names.items()}
    _note_names(work, dotted)
    return dotted, held_by_own


def _lerobot_form(work: _Export, key: str) -> tuple[str, tuple[int, ...], Literal["numbers", "image", "video"]]:
    leaf = work.leaf(key)
    shape = _picture_shape(leaf)
    if shape is None:
        return leaf.dtype, leaf.shape, "numbers"
    return "uint8", shape, "image" if work.frames == "image" or shape[2] == 4 else "video"


def _picture_shape(leaf: Leaf) -> tuple[int, int, int] | None:
    """Height, width and channels of rows that are pictures: uint8, with channels last, first, or none."""
    shape = leaf.shape
    if leaf.dtype != "uint8" or len(shape) not in (2, 3):
        return None
    if len(shape) == 2:
        shape = (*shape, 1)
    elif shape[2] not in (1, 3, 4):
        shape = (*shape[1:], shape[0])
    height, width, channels = shape
    return (height, width, channels) if channels in (1, 3, 4) and min(height, width) >= _LEAST_SIDE else None


def _as_pictures(rows: np.ndarray, column: WrittenColumn) -> np.ndarray:
    if column.kind == "numbers" or rows.shape[1:] == column.shape:
        return rows
    return rows[..., None] if rows.ndim == 3 else np.moveaxis(rows, 1, 3)


def _task_leaf(work: _Export) -> str | None:
    """The leaf that holds the text of the task of each step."""
    leaves = {key: work.leaf(key) for key in work.ted_keys() if not key.startswith("next/")}
    keys = [key for key, leaf in leaves.items() if leaf.dtype == "uint8" and len(leaf.shape) == 1]
    return next((key for name in _TASK_NAMES for key in keys if key.rpartition("/")[2] == name), None)


def _stated_tasks(source: Mapping[str, Any]) -> list[str]:
    """The tasks of a dataset that came from lerobot, in the order of their numbers there."""
    texts: Mapping[str, str] = source.get("tasks") or {}
    return list(texts.values()) if list(texts) == [str(number) for number in range(len(texts))] else []


def _task_numbers(texts: np.ndarray, where: str, first: int, number_of: Callable[[str], int]) -> np.ndarray:
    """The numbers of the tasks of rows of texts, int64; ``number_of`` gives the number of a text, ``first`` is that of the
    first step."""
    begins = np.append(0, np.flatnonzero((texts[1:] != texts[:-1]).any(1)) + 1)
    found = []
    for begin in begins.tolist():
        try:
            found.append(number_of(texts[begin].tobytes().rstrip(b"\0").decode()))
        except UnicodeDecodeError as error:
            message = f"{where} {first + begin} is no text in UTF-8: a LeRobotDataset needs texts of tasks"
            raise UsageError(message, hint="leave the leaf out, or rename it, with `rbdata preprocess`") from error
    return np.repeat(np.array(found, np.int64), np.diff(np.append(begins, len(texts))))


def _note_lerobot(work: _Export, columns: Mapping[str, WrittenColumn], task: str | None) -> None:
    videos = [key for key, column in columns.items() if column.kind == "video"]
    if videos:
        about = "H.264 video, which changes values, those of small sharp pictures most; --frames image keeps them."
        work.notes.append(f"{', '.join(videos)}: {about}")
    grey = [key for key in videos if columns[key].shape[2] == 1]
    if grey:
        work.notes.append(f"{', '.join(grey)}: one channel, of which the video has three equal ones.")
    for key, column in columns.items():
        before = work.leaf(key).shape
        if column.kind != "numbers" and before != column.shape:
            work.notes.append(f"{key}: rows of {list(before)} are pictures of {list(column.shape)}.")
        if not column.has_stats:
            work.notes.append(f"{key}: rows of {list(before)} are too large for statistics, and have none.")
    if task not in (None, "task"):
        work.notes.append(f"{task}: it is the task of each step.")


_WRITERS: dict[str, tuple[Callable[[_Export, Path, Path], None], str]] = {
    "npz": (_write_npz, ".npz"),
    "d4rl": (_write_d4rl, ".hdf5"),
    "minari": (_write_minari, ""),
    "parquet": (_write_parquet, ".parquet"),
    "torchrl": (_write_torchrl, ""),
    "rlds": (_write_rlds, ""),
    "lerobot": (_write_lerobot, ""),
}
