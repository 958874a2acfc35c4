"""The folder of a checkpoint: replaced as a whole, and read only when it is whole.

<path>                  the checkpoint
.<name>.writing         the next one, while it is written
.<name>.old             the last one, for the moment between two renames; taken if the machine stopped in that moment
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ....errors import DamagedDatasetError, DatasetExistsError, DiskSpaceError, NotADatasetError, UsageError, reason
from ...checksums import crc32c, sum_range
from ...durable import is_full, sync_folder, system_error, write_atomically
from ...folder import remove_tree
from ...snapshot import aside
from ...tensordict_folder import check_plain, read_json, regular_size
from ..state_files import read_state, write_state

FORMAT, FORMAT_VERSION = "rbdata-replay", 1
FILENAME = "rbdata_checkpoint.json"
FOREIGN = "buffer_metadata.json"


class CheckpointWriter:
    """A checkpoint being written, as a context: on success it takes its place, on failure nothing has changed.

    ``in_place``: part of it lies in its final place already, so the rest is written there too.
    """

    def __init__(self, path: Any, *, in_place: bool = False) -> None:
        self.target = Path(path).absolute()
        self._in_place = in_place
        self._working = self.target if in_place else self.target.with_name(f".{self.target.name}.writing")
        self.path = self._working
        self._parts: list[CheckpointWriter] = []

    def __enter__(self) -> CheckpointWriter:
        if (
            self.target.is_dir()
            and any(self.target.iterdir())
            and not self._in_place
            and not _is_checkpoint(self.target)
        ):
            message = f"{self.target} is in the way: it is not a checkpoint"
            raise DatasetExistsError(message, hint="name another folder")
        if self._in_place:
            check_plain(self.target)
        else:
            remove_tree(self._working)
        self._working.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, *_: object) -> None:
        if kind is not None:
            if not self._in_place:
                remove_tree(self._working)
            found = system_error(error)
            if found is not None and is_full(found):
                message = f"the disk is full: the checkpoint {self.target} was not written"
                raise DiskSpaceError(message, hint="make room, or name a folder on another disk") from error
            return
        _sync(self._working)
        if self._in_place:
            return
        old = aside(self.target)
        if os.path.lexists(self.target):
            remove_tree(old)
            self.target.rename(old)
        self._working.rename(self.target)
        sync_folder(self.target.parent)
        remove_tree(old)

    def part(self, name: str) -> CheckpointWriter:
        """A checkpoint inside this one."""
        inner = CheckpointWriter(self.target / name)
        inner.path = self.path / name
        inner.path.mkdir(parents=True, exist_ok=True)
        return inner

    def json(self, name: str, record: Any) -> None:
        """Write a JSON file."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record).encode())

    def tensors(self, name: str, state: dict[str, Any]) -> None:
        """Write a state."""
        write_state(self.path / name, state)

    def describe(self, kind: str, about: dict[str, Any]) -> None:
        """Write what the checkpoint is; call it when everything else is there."""
        files = {}
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            inner = any((parent / FILENAME).exists() for parent in path.parents if self.path in parent.parents)
            if path.is_file() and name != FILENAME and not inner:
                # Data that in_place on in place change after this: only what is written here is summed.
                size, is_mapped = path.stat().st_size, self._in_place and name.startswith("storage/")
                files[name] = [size, None if is_mapped else sum_range(path, 0, size)[1]]
        record = {"format": FORMAT, "format_version": FORMAT_VERSION, "kind": kind, "about": about, "files": files}
        record["checksum"] = crc32c(json.dumps(record, sort_keys=True).encode())
        write_atomically(self.path / FILENAME, json.dumps(record, indent=1).encode())


class Checkpoint:
    """A checkpoint, checked: ``path`` and what it says ``about`` itself.

    One that TorchRL wrote says nothing; its storage, writer and batch size are taken.
    """

    def __init__(self, path: Any, kind: str) -> None:
        target = Path(path).absolute()
        if not target.exists() and aside(target).exists():
            target = aside(target)
        self.path = target
        self.about: dict[str, Any] = {}
        if any(target.rglob("*.pickle")):
            raise UsageError(f"{target} holds pickled objects, which are not read")
        if not (target / FILENAME).exists():
            if (target / FOREIGN).exists() and kind != "ReplayBufferEnsemble":
                return
            raise NotADatasetError(f"{target} holds no checkpoint of a replay buffer")
        record = self._record()
        if record["kind"] != kind:
            message = f"the checkpoint is that of a {record['kind']}, not of a {kind}"
            raise UsageError(message, hint="make the buffer of the same parts as the one that was saved")
        self._check(record["files"])
        self.about = record["about"]

    def _record(self) -> dict[str, Any]:
        try:
            record = read_json(self.path / FILENAME)
            checksum = record.pop("checksum")
            if (
                record["format"] != FORMAT
                or not isinstance(record["files"], dict)
                or not isinstance(record["about"], dict)
            ):
                raise ValueError("it is something else")
            if record["format_version"] > FORMAT_VERSION:
                raise UsageError(f"{self.path} was written by a newer rbdata")
            if checksum != crc32c(json.dumps(record, sort_keys=True).encode()):
                raise ValueError("it does not match its own checksum")
            return record
        except UsageError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise DamagedDatasetError(f"{self.path / FILENAME} is damaged: {reason(error)}") from error

    def _check(self, files: dict[str, Any]) -> None:
        for name, stated in files.items():
            path = self.inside(name)
            if not (isinstance(stated, list) and len(stated) == 2):
                raise DamagedDatasetError(f"{self.path / FILENAME} is damaged at {name!r}")
            size, checksum = stated
            if regular_size(path) != size or (checksum and sum_range(path, 0, size)[1] != checksum):
                raise DamagedDatasetError(f"the checkpoint is damaged: {path} is not the file that was saved")

    def inside(self, name: str) -> Path:
        """A path in the checkpoint. Raises DamagedDatasetError for one that leads out of it, by its name or by a link."""
        parts = name.split("/")
        path = self.path.joinpath(*parts)
        folders = [self.path.joinpath(*parts[: level + 1]) for level in range(len(parts))]
        if {"", ".", ".."}.intersection(parts) or "\\" in name or any(folder.is_symlink() for folder in folders):
            raise DamagedDatasetError(f"{path} leads out of the checkpoint", hint="do not use this checkpoint")
        return path

    def part(self, name: str, kind: str) -> Checkpoint:
        """A checkpoint inside this one."""
        return Checkpoint(self.inside(name), kind)

    def json(self, name: str) -> dict[str, Any]:
        return read_json(self.inside(name))

    def tensors(self, name: str) -> dict[str, Any]:
        return read_state(self.inside(name))


def _is_checkpoint(path: Path) -> bool:
    return (path / FILENAME).exists() or (path / FOREIGN).exists()


def _sync(folder: Path) -> None:
    """Make every file durable before the old checkpoint goes."""
    found = list(folder.rglob("*"))
    # Side by side, as the files of a list of records may be thousands, and each waits for the disk.
    with ThreadPoolExecutor(16, "rbdata-sync") as pool:
        list(pool.map(_sync_file, (path for path in found if path.is_file())))
    for path in found:
        if path.is_dir():
            sync_folder(path)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
