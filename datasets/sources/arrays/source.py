"""Arrays of a user's own as a source: ``rbdata convert own.npz --name my/x --map observation=obs``."""

from __future__ import annotations

from pathlib import Path

from ....errors import UsageError
from ...fetch import Location
from ...ingest.job import ConvertOptions, Job
from ..options import SourceOption
from ..source import Source


class ArraysSource(Source):
    """It has no names: what it converts is on this machine."""

    name = "arrays"
    home = "/"  # no place is searched
    options = (
        SourceOption(
            "map",
            "which of the arrays is what, such as observation=obs, action=act, reward=rew, done=done; repeatable",
            dict,
            {},
            metavar="OURS=THEIRS",
            commands=("convert",),
        ),
        SourceOption(
            "environment",
            "the Gymnasium id of the environment that the data come from",
            metavar="ID",
            commands=("convert",),
        ),
        SourceOption(
            "episodes",
            "only these episodes of a group or a file each, such as 0-9,12, or those that an array names: mask/train",
            metavar="LIST",
            commands=("convert",),
        ),
        SourceOption(
            "leave_out",
            "arrays not to read, separated by commas: names, groups, patterns with *",
            metavar="NAMES",
            commands=("convert",),
        ),
        SourceOption(
            "split",
            "the split to read, where folders, files or groups are named after several (train, test)",
            metavar="SPLIT",
            commands=("convert",),
        ),
    )
    reads_any = True

    def recognises(self, path: Path) -> bool:
        from .files import visible
        from .roles import PICKLES, SUFFIXES, ZARR, suffix_of

        if path.is_file():
            return suffix_of(path) in (*SUFFIXES, *PICKLES)  # which of them are refused, the job says
        if any((path / name).is_file() for name in ("meta.json", "storage/meta.json", "state.json", *ZARR)):
            return True
        return path.is_dir() and any(suffix_of(one) in SUFFIXES for one in visible(path))

    def find(self, name: str, location: Location, options: ConvertOptions) -> Job:
        raise UsageError("arrays come from this machine", hint="`rbdata convert PATH --source arrays` reads them")

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Job:
        from .job import job_of_path

        return job_of_path(location, options)
