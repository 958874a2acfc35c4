"""The folders of datasets: ``<root>/<source>/<name>``, and beside it the files of an unfinished one.

<root>/atari/Pong/5              the dataset: complete, or not there at all
<root>/atari/Pong/.5.writing/    the record of the run, parts; renamed to the above when complete
<root>/atari/Pong/.5.lock        the writer's lock
<root>/atari/Pong/.5.old/        the dataset being replaced, for the moment between two renames
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DatasetExistsError, DiskError, UsageError
from .amounts import size
from .durable import sync_folder
from .lock import WriterLock
from .manifest import FILENAME, read_manifest
from .snapshot import aside, has_manifest, holds_dataset

#: What a run records in its working folder (`work`).
RUN = "run.json"
#: Limit in bytes of a component of an id: file systems allow names of 255, and a lock's temporary name adds 40.
_LONGEST_PART = 215
#: The folder of raw objects that are needed only while the dataset is written.
RAW = ".raw"


@dataclass(frozen=True)
class DatasetPlace:
    """The paths of one dataset under a root."""

    root: Path
    id: str

    def __post_init__(self) -> None:
        check_id(self.id)

    @classmethod
    def of_folder(cls, folder: Path, dataset_id: str = "") -> DatasetPlace:
        """The place of a folder, whose root is the folder above its id, or two levels up if the path does not end in the id."""
        parts = tuple(dataset_id.split("/"))
        if folder.parts[-len(parts) :] != parts:
            parts = (folder.parent.name, folder.name)
        root = folder
        for _ in parts:
            root = root.parent
        return cls(root, "/".join(parts))

    @property
    def path(self) -> Path:
        """The dataset itself."""
        return self.root.joinpath(*self.id.split("/"))

    @property
    def working(self) -> Path:
        """The dataset while it is being written."""
        return self._beside("writing")

    @property
    def old(self) -> Path:
        """The dataset that a finished one is about to replace."""
        return aside(self.path)

    def lock(self) -> WriterLock:
        """Return the writer's lock, to be entered."""
        return WriterLock(self._beside("lock"), self.id)

    def exists(self) -> bool:
        """Return whether there is a dataset with a manifest; waits out the moment in which a writer replaces it."""
        return holds_dataset(self.path)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(f".{self.path.name}.{suffix}")

    def check_free(self) -> None:
        """Raise DatasetExistsError if the path holds something other than a dataset, or lies inside another dataset.

        Replacing a folder removes everything in it, so datasets must not be nested.
        """
        if os.path.lexists(self.path) and not self.exists() and not is_empty_folder(self.path):
            message = f"{self.path} exists and is not a dataset (it has no {FILENAME})"
            raise DatasetExistsError(message, hint="move it away, or choose another name or --root")
        for parent in self.path.parents:
            if parent == self.root:
                return
            if (parent / FILENAME).is_file():
                message = f"{self.id} would lie inside another dataset, {parent}"
                raise DatasetExistsError(message, hint="choose another name")

    def recover(self) -> None:
        """Finish a commit that was killed after it removed the record of the run. Call with the lock held."""
        if (self.working / FILENAME).is_file() and not os.path.lexists(self.working / RUN):
            self.install()
        elif not os.path.lexists(self.path) and (self.old / FILENAME).is_file():
            self.old.rename(self.path)
        if os.path.lexists(self.path):
            remove_tree(self.old)

    def install(self, files: Collection[str] | None = None) -> None:
        """Make the finished working folder the dataset. Call with the lock held.

        Other ``files`` than those of its manifest are removed, the record of the run first: after that `recover` completes the
        installation.
        """
        files = read_manifest(self.working).files if files is None else files
        (self.working / RUN).unlink(missing_ok=True)
        sync_folder(self.working)
        _keep_only(self.working, {FILENAME, *files})
        if os.path.lexists(self.path):
            remove_tree(self.old)
            self.path.rename(self.old)
        self.working.rename(self.path)
        sync_folder(self.path.parent)
        remove_tree(self.old)

    def remove(self) -> None:
        """Delete the dataset and its unfinished work. Call with the lock held."""
        self.discard_working()
        if not self.path.is_symlink() and self.path.is_dir():
            # By a rename, so that readers see all of it or nothing. Its manifest is then deleted first, so that `recover` does
            # not restore the rest as a dataset that was about to be replaced.
            remove_tree(self.old)
            self.path.rename(self.old)
        if not self.old.is_symlink():
            try:
                (self.old / FILENAME).unlink(missing_ok=True)
            except OSError:
                self.recover()  # nothing is removed yet: it stays a dataset, which can be deleted again
                raise
        for path in (self.path, self.old):
            remove_tree(path)

    def discard_working(self) -> None:
        """Delete unfinished work; if this is killed, it leaves nothing that a later run would resume or install."""
        # Without its manifest the folder is not installed, and without that record it is not continued.
        if not self.working.is_symlink() and self.working.is_dir():
            for name in (FILENAME, RUN):
                remove_tree(self.working / name)
        remove_tree(self.working)

    def prune_parents(self) -> None:
        """Remove the empty folders between root and dataset."""
        remove_empty(self.path.parent, self.root)


def remove_empty(folder: Path, root: Path) -> None:
    """Remove a folder below a root if it is empty, then its parents that became empty. The folder may be missing."""
    while root in folder.parents:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = folder.parent


def check_is_text(dataset_id: Any) -> None:
    """Raise UsageError for an id of another type, such as a Path."""
    if not isinstance(dataset_id, str):
        message = f"an id is a text, not a {type(dataset_id).__name__}: {dataset_id!r:.80}"
        raise UsageError(message, hint='an id is source/name, for example "atari/Pong/5" or "my/pong"')


def check_id(dataset_id: str) -> None:
    """Raise UsageError for malformed ids: empty components, or ones that start with a dot or lead out of the root."""
    check_is_text(dataset_id)
    parts = dataset_id.split("/")
    bad = [part for part in parts if not (part and part.isprintable()) or part[0] in ".-~" or "\\" in part]
    if len(parts) < 2 or bad or any(part.strip() != part for part in parts):
        message = f"{dataset_id!r} is not a dataset id"
        raise UsageError(message, hint="an id is source/name, for example atari/Pong/5 or my/pong")
    longest = max(parts, key=lambda part: len(part.encode()))
    if len(longest.encode()) > _LONGEST_PART:
        message = f"{longest[:40]!r}... of the id has {len(longest.encode())} bytes"
        hint = f"folders are named after the parts of an id: at most {_LONGEST_PART} bytes each"
        raise UsageError(message, hint=hint)


def make_writable(root: Path) -> None:
    """Create the root if needed. Raises DiskError with the ways to choose another one."""
    hint = "choose another one with --root or RBDATA_ROOT"
    step = "created"
    try:
        root.mkdir(parents=True, exist_ok=True)
        step = "written to"
        tempfile.TemporaryFile(dir=root).close()
    except (FileExistsError, NotADirectoryError) as error:
        raise DiskError(f"the root {root} is not a folder", hint=hint) from error
    except OSError as error:
        raise DiskError(f"the root {root} cannot be {step}: {error.strerror}", hint=hint) from error


def is_empty_folder(path: Path) -> bool:
    """Return whether a path is an empty folder, and not a link."""
    try:
        return path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    except FileNotFoundError:  # another process removed it
        return False


def files_below(folder: Path) -> Iterator[Path]:
    """Everything below a folder except folders, without following links.

    Unlike `Path.rglob` it skips folders that another process removes during the walk; a file may be gone when it is used.
    """
    return (Path(here, name) for here, _, files in os.walk(folder) for name in files)


def free_bytes(path: Path) -> int:
    """Free disk for the nearest existing folder at or above ``path``."""
    while True:
        if path.exists():
            with suppress(FileNotFoundError):  # another process removed it
                return shutil.disk_usage(path).free
        path = path.parent


def disk_use(path: Path) -> int:
    """Return bytes that a folder or file takes on disk (without holes), not following links; 0 if it is missing."""
    total = 0
    for one in (path, *files_below(path)):
        with suppress(FileNotFoundError, NotADirectoryError):  # another process may be removing it
            status = one.lstat()
            total += 0 if stat.S_ISDIR(status.st_mode) else status.st_blocks * 512
    return total


def check_space(path: Path, needed: int, what: str) -> None:
    """Raise DiskError when ``needed`` bytes and a reserve of 2 % or 64 MiB do not fit."""
    free = free_bytes(path)
    reserve = max(needed // 50, 64 << 20)
    if needed + reserve > free:
        message = (
            f"{what} needs about {size(needed)} on {path}, where {size(free)} are free "
            f"({size(reserve)} are kept in reserve)"
        )
        raise DiskError(message, hint="free some space, or choose another disk with --root or RBDATA_ROOT")


def remove_tree(path: Path) -> None:
    """Remove a folder or file, if it exists, without following links."""
    while not path.is_symlink() and path.is_dir():
        with suppress(FileNotFoundError):  # another process removes it as well
            shutil.rmtree(path)
    path.unlink(missing_ok=True)


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """An empty hidden folder beside a file or folder, for what is to take its place; removed at the end of the block. What a
    killed process left in it goes first; two processes that write one target at once are not provided for."""
    folder = target.with_name(f".{target.name}.part")
    remove_tree(folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        remove_tree(folder)


def holds_files(path: Path) -> bool:
    """Return whether there is a file anywhere in a folder."""
    return any(files_below(path))


def _keep_only(folder: Path, names: Collection[str]) -> None:
    """Remove all files except those named (relative paths), and folders that become empty."""
    for here, folders, files in os.walk(folder, topdown=False):
        for path in (Path(here, name) for name in (*folders, *files)):
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path.relative_to(folder).as_posix() not in names:
                path.unlink()


def find_datasets(root: Path) -> Iterator[tuple[str, Path, bool]]:
    """Walk a root: ``(id, folder, complete)`` for every dataset and every unfinished one, sorted by id."""
    found = []
    for folder, names, files in os.walk(root):
        here = Path(folder)
        relative = here.relative_to(root).parts
        if FILENAME in files and len(relative) >= 2:
            found.append(("/".join(relative), here, True))
            names.clear()
            continue
        for name in list(names):
            if name.startswith("."):
                names.remove(name)
                if name.endswith(".writing") and relative:
                    found.append(("/".join((*relative, name[1 : -len(".writing")])), here / name, False))
            elif relative and (here / name).is_symlink() and has_manifest(here / name):
                # A dataset that was moved to another disk; other links are not followed.
                found.append(("/".join((*relative, name)), here / name, True))
    complete = {dataset_id for dataset_id, _, done in found if done}
    yield from sorted(entry for entry in found if entry[2] or entry[0] not in complete)
