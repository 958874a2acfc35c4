"""The reference of the Python face, as Markdown: the public names of ``rbdata``, in groups by where each is defined."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import rbdata

#: Title of a group and the modules whose names it holds, by the beginning of their path; the first that fits counts.
GROUPS = {
    "Datasets: find, get, open, check": (
        "rbdata.api",
        "rbdata.loading",
        "rbdata.datasets.opening",
        "rbdata.preprocess",
        "rbdata.storage.dataset",
        "rbdata.storage.spec",
        "rbdata.datasets.sources",
    ),
    "Specs": ("rbdata.storage.tensor_specs",),
    "Dataset classes": ("rbdata.datasets.torchrl_classes",),
    "Samplers": ("rbdata.storage.replay.samplers",),
    "Storages": ("rbdata.storage.replay.storages",),
    "Writers": ("rbdata.storage.replay.writers",),
    "Transforms and checkpoints": ("rbdata.storage.replay.transforms", "rbdata.storage.replay.ted_hooks"),
    "Replay buffers": ("rbdata.storage.replay",),
    "More": ("rbdata",),
}


def lines() -> Iterator[str]:
    """The Markdown of all groups: headings, and autodoc's directives."""
    for title, names in groups().items():
        yield from (f"## {title}", "")
        for name in names:
            yield from ("```{eval-rst}", *directive(name, getattr(rbdata, name)), "```", "")


def groups() -> dict[str, list[str]]:
    """The public names by the title of their group, functions first; without groups that have none."""
    members: dict[str, list[str]] = {title: [] for title in GROUPS}
    for name in rbdata.__all__:
        if not name.startswith("__"):
            members[group_of(getattr(rbdata, name))].append(name)
    return {
        title: sorted(names, key=lambda name: inspect.isclass(getattr(rbdata, name)))
        for title, names in members.items()
        if names
    }


def documented(name: str) -> Any:
    """What has the docstring of a public name: ``rbdata.preprocess`` is a package, its function is that of `rbdata.api`."""
    value = getattr(rbdata, name)
    return getattr(rbdata.api, name) if inspect.ismodule(value) else value


def group_of(value: Any) -> str:
    """The group of a public object."""
    where = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "")
    return next(title for title, tops in GROUPS.items() if where.startswith(tops)) if where else "More"


def directive(name: str, value: Any) -> Iterator[str]:
    """Autodoc's directive for one name; classes with their public members."""
    if inspect.ismodule(value):  # rbdata.preprocess is a package that can be called: its docstring is the function's
        yield f".. autofunction:: rbdata.api.{name}"
    elif inspect.isclass(value):
        yield f".. autoclass:: rbdata.{name}"
        own = [member for member, value in vars(value).items() if is_documented(member, value)]
        if own:
            yield f"   :members: {', '.join(own)}"
    else:
        yield f".. {'autofunction' if callable(value) else 'autodata'}:: rbdata.{name}"


def is_documented(name: str, member: Any) -> bool:
    """Whether a member of a class is public, has a docstring, and is not made by a decorator of another package."""
    if isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    function = member.fget if isinstance(member, property) else member
    where = getattr(function, "__module__", None) or ""
    return not name.startswith("_") and bool(getattr(member, "__doc__", None)) and where.startswith("rbdata")
