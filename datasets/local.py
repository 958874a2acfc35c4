"""The datasets on this machine: list, find, open and delete them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .. import settings
from ..errors import DatasetNotFoundError, RbdataError, UsageError
from ..storage.amounts import listed
from ..storage.folder import (
    DatasetPlace,
    check_is_text,
    disk_use,
    find_datasets,
    remove_empty,
)
from ..storage.manifest import check_sizes, why_missing
from ..storage.snapshot import holds_dataset, read_snapshot
from ..storage.work import command_of, read_run, units_done
from . import catalogue
from .fetch.location import is_remote, without_login

if TYPE_CHECKING:
    from ..storage.dataset import Dataset
    from .sources.source import Source

State = Literal["complete", "partial", "damaged"]


@dataclass(frozen=True)
class LocalDataset:
    """One dataset found under the root. Counts are None while it is partial; ``done`` is the share of parts finished."""

    id: str
    path: Path
    state: State
    steps: int | None
    episodes: int | None
    bytes: int
    done: float
    problem: str | None = None


def list_local(root: str | os.PathLike[str] | None = None) -> list[LocalDataset]:
    """Return all datasets under the root, sorted by id; an empty list if there is no root yet. Reads only manifests."""
    return [found for entry in find_datasets(settings.root(root)) if (found := _describe(*entry)) is not None]


def known_here(root: str | os.PathLike[str] | None = None) -> list[str]:
    """Return ids of all datasets under the root, complete or not."""
    return [dataset_id for dataset_id, _, _ in find_datasets(settings.root(root))]


def find(id_or_path: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of a dataset, by id (full or bare) or by path.

    Raises DatasetNotFoundError for an unknown name, if the id is known but not on this machine, and for a path that holds no
    dataset.
    """
    folder = _folder_of(id_or_path, root)
    if folder is not None:
        if holds_dataset(folder):
            return folder
        raise _no_dataset(folder, id_or_path, root)
    if is_remote(id_or_path):
        message = f"{without_login(os.fspath(id_or_path))} is a URL: this is for datasets on this machine"
        raise UsageError(message, hint="copy it here with `rbdata download ID --mirror PLACE`")
    place, source = _resolve(os.fspath(id_or_path), root)
    if place.exists():
        return place.path
    if place.path.is_symlink():
        raise _no_dataset(place.path, place.id, root)
    if place.working.is_dir():
        line = command_of(place.working)
        how = f"continue it with `{line}`" if line else "continue it with the call that started it"
        raise DatasetNotFoundError(f"{place.id} is not complete under {place.root}", hint=how)
    get_it = f"get it with `{settings.command('download', place.id, root=root)}`"
    if source and source.makes:
        get_it = f"record it with `{settings.command('download', place.id, root=root)}`"
        if "@" in place.id:  # what was recorded under a name, only its owner knows
            get_it = f"copy it from a mirror that has it: `{settings.command('download', place.id, '--mirror')} PLACE`"
    elsewhere = "choose another folder with --root or RBDATA_ROOT"
    missing = ""
    if not place.root.is_dir():
        missing = ", which is not a folder" if os.path.lexists(place.root) else ", which does not exist"
        get_it = f"{get_it}, or {elsewhere}"
    message = f"{place.id} is not under {place.root}{missing}"
    raise DatasetNotFoundError(message, hint=get_it if source else elsewhere)


def _folder_of(id_or_path: str | os.PathLike[str], root: str | os.PathLike[str] | None) -> Path | None:
    """The absolute folder that a path names; None for an id (a text that does not lead to a dataset as a relative path).

    Raises UsageError for a text that is both the id of a dataset under the root and the relative path of another one.
    """
    text = os.fspath(id_or_path)
    folder = settings.expanded(text).absolute()
    if catalogue.is_path(text):
        return folder
    if not text or not holds_dataset(folder):
        return None
    of_root = settings.root(root) / text
    if isinstance(id_or_path, str) and holds_dataset(of_root) and not of_root.samefile(folder):
        message = f"{text} is the dataset {of_root}, and also the folder {folder}"
        raise UsageError(message, hint=f"./{text} is the folder; for the dataset, leave the current folder")
    return folder


def _resolve(text: str, root: str | os.PathLike[str] | None) -> tuple[DatasetPlace, Source | None]:
    """The place and the source of a dataset by its id, full or bare.

    Raises DatasetNotFoundError for an unknown name.
    """
    top = settings.root(root)
    with contextlib.suppress(UsageError):  # not a full id
        if (direct := DatasetPlace(top, text)).exists() or direct.path.is_symlink():
            return direct, None
    try:
        dataset_id, source = catalogue.resolve(text, known_here(root))
    except DatasetNotFoundError as error:
        if _is_meant_as_folder(text, str(error.hint)):
            raise _no_dataset(Path(text), text, root) from error
        if text.startswith(f"{catalogue.MINE}/") and "did you mean" not in str(error.hint):
            error.hint = see_local(root)
        raise
    return DatasetPlace(top, dataset_id), source


def full_id(text: str, root: str | os.PathLike[str] | None = None) -> str:
    """Return the full id for an id, on this machine or not; paths, URLs and unknown names are returned unchanged."""
    with contextlib.suppress(RbdataError):
        if not is_remote(text) and _folder_of(text, root) is None:
            return _resolve(text, root)[0].id
    return text


def _is_meant_as_folder(text: str, suggestion: str) -> bool:
    """Whether an unknown text is probably a path: it exists, ends with a slash, starts with a folder, or resembles no id."""
    head, slash, _ = text.partition("/")
    no_id = head not in (*catalogue.source_names(), catalogue.MINE) and "did you mean" not in suggestion
    return os.path.lexists(text) or (bool(slash) and (text.endswith("/") or Path(head).is_dir() or no_id))


def _no_dataset(
    folder: Path, text: str | os.PathLike[str], root: str | os.PathLike[str] | None
) -> DatasetNotFoundError:
    hint = see_local(root)
    with contextlib.suppress(OSError):  # not a valid name of a file
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            name = "my/" + (folder.stem or "data").replace(" ", "_")
            command = settings.command("convert", os.fspath(text), "--name", name, root=root)
            hint = f"raw data are converted first: `{command}`"
    return DatasetNotFoundError(why_missing(folder, os.fspath(text)), hint=hint)


def see_local(root: str | os.PathLike[str] | None) -> str:
    """Return the hint that names the command to list local datasets."""
    return f"`{settings.command('list', '--local', root=root)}` shows the datasets that are there"


def open_dataset(id_or_path: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Dataset:
    """Open a dataset read-only, by id or path; raises as `find`. Reads the manifest and maps the files, but reads no rows."""
    from ..storage.dataset import open_folder

    return open_folder(find(id_or_path, root))


def expand(ids: Iterable[str], root: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the ids, with patterns (``my/*``) replaced by matching ids of datasets, complete or not.

    Raises DatasetNotFoundError for a pattern without a match.
    """
    found: list[str] = []
    there = known_here(root)
    for text in ids:
        is_pattern = ("*" in text or "?" in text) and not is_remote(text) and not catalogue.is_path(text)
        if not is_pattern or text in there or os.path.lexists(text):
            found.append(text)
            continue
        matches = [one for one in there if fnmatchcase(one, text) or fnmatchcase(one.partition("/")[2], text)]
        if not matches:
            raise DatasetNotFoundError(f"no dataset under {settings.root(root)} matches {text!r}", hint=see_local(root))
        found += matches
    return list(dict.fromkeys(found))


def deletable(text: str, root: str | os.PathLike[str] | None = None) -> DatasetPlace:
    """Return the place of a dataset, complete or not, to be deleted. Raises DatasetNotFoundError if there is nothing."""
    check_is_text(text)
    where = settings.root(root)
    if catalogue.is_path(text):
        raise DatasetNotFoundError(f"{text} is a path: datasets are deleted by their id", hint=see_local(root))
    place = _resolve(text, where)[0]
    dataset_id = place.id
    if not any(map(os.path.lexists, (place.path, place.working))):
        message = f"{dataset_id} is not under {where}: nothing to delete"
        raise DatasetNotFoundError(message, hint=see_local(root))
    if where.resolve() not in (place.path.parent.resolve(), *place.path.parent.resolve().parents):
        message = f"{place.path.parent} is a link that leads out of the root {where}: its target is not deleted"
        raise UsageError(message, hint=f"remove the link itself, or delete with --root {place.path.parent.resolve()}")
    return place


def delete(place: DatasetPlace) -> None:
    """Remove a dataset, its remains and the raw files kept of it; raises DatasetBusyError while another process writes it."""
    from .cleanup import kept_raw

    with place.lock():
        # The dataset last: where this is interrupted, it shows that there is something to delete.
        for path in kept_raw(place):
            path.unlink(missing_ok=True)
            remove_empty(path.parent, place.root)
        place.remove()
    place.prune_parents()


def _describe(dataset_id: str, path: Path, complete: bool) -> LocalDataset | None:
    """The dataset in a folder; None if the folder was removed since it was found."""
    try:
        return _read(dataset_id, path, complete)
    except Exception as error:  # a faulty folder must not hide the others
        if not os.path.lexists(path):
            return None
        problem = f"cannot be read: {error!r}"
        if isinstance(error, RbdataError):
            problem = error.message
        elif isinstance(error, OSError) and error.strerror:
            problem = f"cannot be read: {error.strerror}"
    return LocalDataset(dataset_id, path, "damaged", None, None, disk_use(path), 0.0, problem)


def _read(dataset_id: str, path: Path, complete: bool) -> LocalDataset:
    if not complete:
        total = read_run(path).get("units")
        share = units_done(path) / total if isinstance(total, int) and total > 0 else 0.0
        return LocalDataset(dataset_id, path, "partial", None, None, disk_use(path), share)
    manifest, problems = read_snapshot(path, lambda manifest: (manifest, check_sizes(path, manifest)))
    problem = listed((f"{one.path} {one.what}" for one in problems), 3, "; ")
    state: State = "damaged" if problems else "complete"
    counts = manifest.steps, manifest.episodes, manifest.bytes
    return LocalDataset(dataset_id, path, state, *counts, 0.0 if problems else 1.0, problem or None)
