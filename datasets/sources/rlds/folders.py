"""Where the folder of a dataset is, below a root of TensorFlow Datasets."""

from __future__ import annotations

import re

from ....errors import ObjectNotFoundError
from ...fetch import Location
from ...fetch.location import join_path

INFO, FEATURES = "dataset_info.json", "features.json"
VERSION = re.compile(r"\d+\.\d+\.\d+")


def builder_folder(location: Location, folder: str) -> str | None:
    """The folder itself, or its newest version; None where it is not there. Raises ObjectNotFoundError, UsageError."""
    try:
        location.stat(join_path(folder, INFO))
        return folder
    except ObjectNotFoundError:
        pass
    try:
        inside = location.folders(folder)
    except ObjectNotFoundError:
        return None
    versions = [one for one in inside if VERSION.fullmatch(one)]
    if versions:
        return join_path(folder, max(versions, key=lambda version: tuple(map(int, version.split(".")))))
    if folder and inside:
        message = f"{location.url}/{folder} has neither {INFO} nor folders of versions"
        raise ObjectNotFoundError(
            message, hint=f"it has {', '.join(inside[:8])}: name one of them, {folder}/{inside[0]}"
        )
    return None
