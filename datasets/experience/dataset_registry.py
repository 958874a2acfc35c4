"""Dataset classes by prefix: ``load_dataset("minari:D4RL/door/human-v2", batch_size=32)``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...errors import UnknownDatasetError, UsageError

#: A class or function called as ``factory(dataset_id, **options)``, or where to import it from: ``"module:name"``.
Factory = Callable[..., Any] | str

_OWN = "rbdata.datasets.experience.source_replays"
_REGISTRY: dict[str, Factory] = {
    "atari": f"{_OWN}:AtariDQNExperienceReplay",
    "atari_dqn": f"{_OWN}:AtariDQNExperienceReplay",
    "d4rl": f"{_OWN}:D4RLExperienceReplay",
    "minari": f"{_OWN}:MinariExperienceReplay",
    "openml": f"{_OWN}:OpenMLExperienceReplay",
}


def register_dataset(prefix: str, dataset: Factory, *, replace: bool = False) -> None:
    """Have ``load_dataset("<prefix>:<id>", **options)`` return ``dataset("<id>", **options)``.

    ``dataset`` is a class, a function, or ``"module:name"``, which is imported on first use. Upper and lower case of a prefix
    are one. Raises UsageError for a prefix that is empty, has a colon, or is taken (unless ``replace``), and for
    anything else as ``dataset``.
    """
    prefix = _checked(prefix)
    if isinstance(dataset, str):
        if not all(dataset.partition(":")):
            raise UsageError(f"{dataset!r} does not name a dataset class", hint="write it as 'module:name'")
    elif not callable(dataset):
        raise UsageError(f"a dataset is a class, a function or 'module:name', not a {type(dataset).__name__}")
    if prefix in _REGISTRY and not replace:
        raise UsageError(f"the prefix {prefix!r} is taken by {_REGISTRY[prefix]}", hint="replace it with replace=True")
    _REGISTRY[prefix] = dataset


def load_dataset(dataset_id: str, **options: Any) -> Any:
    """The buffer over a dataset that is named with a prefix, ``"d4rl:hopper-medium-v2"``.

    Built in are ``atari`` (and ``atari_dqn``), ``d4rl``, ``minari`` and ``openml``; `register_dataset` adds others. ``options``
    are those of the class. Raises UnknownDatasetError for an unknown prefix or none.
    """
    prefix, colon, name = dataset_id.partition(":")
    prefixes = f"prefixes: {', '.join(sorted(_REGISTRY))}"
    if not colon:
        raise UnknownDatasetError(f"{dataset_id!r} has no prefix, such as minari:{dataset_id}", hint=prefixes)
    factory = _REGISTRY.get(_checked(prefix))
    if factory is None:
        raise UnknownDatasetError(f"no datasets are registered for the prefix {prefix!r}", hint=prefixes)
    if isinstance(factory, str):
        module, _, attribute = factory.partition(":")
        factory = getattr(import_module(module), attribute)
    assert callable(factory)
    return factory(name, **options)


def _checked(prefix: str) -> str:
    prefix = prefix.lower().strip()
    if not prefix or ":" in prefix:
        raise UsageError(f"a prefix is a name without a colon, not {prefix!r}")
    return prefix
