"""The lineage of a preprocessed dataset, a JSON object in its manifest:

input          {id, content, steps, episodes, source, lineage}: the dataset it was made from. ``content`` is the sha256
               of its leaves, counts and checksums. Its own lineage is included, so that it outlives the input. For a view
               there are ``parents``, the same of the datasets that it shows; ``content`` is that of the view
functions      [{function, source_sha256, file_sha256, args}] in order; see `function.Function.record`
per, batch, windows, num_frames, seed
versions       {rbdata, torch, tensordict, python}
process        default dtype, deterministic algorithms, decimal context, flushed denormals: those that are not the defaults
statistics     {function: ...}: the results of first passes
opened         {path: state}: the files that functions opened themselves, relative to the folder of the command
               (`datasets.user_code_old.opened_files`)
leaves         {added, dropped, changed}, according to the first batch; rewards also by the returns, leaves with a space
               by all batches
unchained      observations whose successor is not the observation of the following step
fingerprint    sha256 of everything that decides the bytes of the result
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from .._version import __version__
from ..datasets.user_code_old.identity import differing_values
from ..storage.manifest import Manifest, ViewManifest
from ..storage.reference_scores import OTHER_RETURNS
from ..storage.schema import FLAGS
from .function import Function
from .records import ProbeResult


def describe_input(manifest: Manifest) -> dict[str, Any]:
    """The record of the input in the lineage."""
    kept = ("name", "dataset", "options", "environment", "reference_scores", OTHER_RETURNS)
    source = {name: manifest.source[name] for name in kept if manifest.source.get(name) is not None}
    return {
        "id": manifest.id,
        "content": manifest.content,
        "steps": manifest.steps,
        "episodes": manifest.episodes,
        "source": source,
        "lineage": manifest.lineage,
        **({"parents": manifest.parents} if isinstance(manifest, ViewManifest) else {}),
    }


def versions() -> dict[str, str]:
    """The versions of packages that may affect a result, and of Python."""
    return {
        "rbdata": __version__,
        "torch": version("torch"),  # without importing it
        "tensordict": version("tensordict"),
        "python": platform.python_version(),
    }


def named_statistics(functions: Sequence[Function], statistics: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Statistics by the label of their function; ``#2`` is appended for the second function with a label."""
    named: dict[str, Any] = {}
    for fn, found in zip(functions, statistics):
        if found is not None:
            same = sum(key == fn.label or key.startswith(fn.label + "#") for key in named)
            named[fn.label if not same else f"{fn.label}#{same + 1}"] = found
    return named


def remaining_spaces(manifest: Manifest, probe: ProbeResult) -> dict[str, Any]:
    """The spaces of the input that are valid for the result: those of unchanged leaves with unchanged successors."""
    if probe.changed is None:
        return {}
    same = {path for path, form in probe.before.items() if probe.after.get(path) == form}.difference(probe.changed)
    roots = {path for path in probe.before if not path.startswith("next/")}  # a successor may be dropped
    leaves = {*roots, *probe.after}
    below = {
        name: {path for path in leaves if f"{path.removeprefix('next/')}/".startswith(f"{name}/")}
        for name in manifest.spaces
    }
    return {name: space for name, space in manifest.spaces.items() if below[name] and below[name] <= same}


def leaf_changes(probe: ProbeResult, other_returns: bool) -> dict[str, list[str]]:
    """Leaves that were added, dropped and changed. Where episodes have ``other_returns``, the rewards were changed."""
    before, after, changed = probe.before, probe.after, probe.changed
    if changed is None:
        changed = [path for path in after if path in before and after[path] != before[path]]
    if other_returns:
        changed = [*{*changed, "next/reward"}]
    return {
        "added": sorted(set(after) - set(before)),
        "dropped": sorted(set(before) - set(after) - set(FLAGS)),
        "changed": sorted(changed),
    }


def describe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The differences between two requests, in words; ``before`` may be a lineage, ``after`` is the identity of a run."""
    changed: list[str] = []
    old, new = (list(record.get("functions") or ()) for record in (before, after))
    if [fn.get("function") for fn in old] != [fn.get("function") for fn in new]:
        changed.append(f"the functions ({', '.join(str(fn.get('function')) for fn in old)} before)")
    else:
        for one, other in zip(old, new):
            changed += _changes_of_function(one, other)
    content = before.get("input")
    content = content.get("content") if isinstance(content, Mapping) else content
    if content != after.get("input"):
        changed.append("the input")
    for name in ("per", "batch", "num_frames", "seed", "codec", "layout"):
        if name in before and before[name] != after.get(name):
            changed.append(f"{name} ({before[name]} before)")
    if (before.get("windows") or {}) != (after.get("windows") or {}):
        changed.append("the windows")
    if before.get("process") != after.get("process"):
        changed.append("settings of torch or decimal in the process that asks for it")
    old_versions, new_versions = before.get("versions") or {}, after.get("versions") or {}
    changed += [f"the version of {name}" for name in new_versions if old_versions.get(name) != new_versions[name]]
    return list(dict.fromkeys(changed))


def _changes_of_function(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    name = str(after.get("function"))
    old, new = ({**(fn.get("files") or {}), _own_file(fn): fn.get("file_sha256")} for fn in (before, after))
    changed = [label for label in sorted({*old, *new}) if old.get(label) != new.get(label)]
    values = differing_values(before.get("values"), after.get("values"))
    if values:  # files without a hash are of modules in which the program has set values
        changed = [label for label in changed if None not in (old.get(label), new.get(label))]
    old, new = before.get("args") or {}, after.get("args") or {}
    args = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key) or (key in old) != (key in new)]
    if before.get("args_sha256") != after.get("args_sha256") and not args:
        args = sorted(new)
    changed += [f"the argument {key} of {name}" for key in args]
    if any(before.get(key) != after.get(key) for key in ("source_sha256", "fn_sha256")) and not changed:
        named = f": {', '.join(values)}" if values else ""
        changed.append(f"{name}: its code, its state or a value that it uses{named}")
    return changed


def _own_file(fn: Mapping[str, Any]) -> str:
    where = str(fn.get("function")).rpartition(":")[0]
    return where if where.endswith(".py") or "/" in where else f"{where.replace('.', '/')}.py"
