"""Which columns of a table are label, which features, and which are left out. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ....errors import UsageError
from ...formats.arff import Attribute
from .client import Description
from .table_options import TableOptions

_MOST_SHOWN = 20


@dataclass
class Roles:
    """Indices of the columns, and why others are left out."""

    targets: list[int]
    features: list[int]
    left_out: dict[str, str] = field(default_factory=dict)


def roles(attributes: Sequence[Attribute], about: Description, options: TableOptions, name: str) -> Roles:
    """Decide what every column is.

    Labels are those asked for, else the dataset's own. Row identifiers, columns that the dataset says to ignore, text, and
    what is excluded are left out. Raises UsageError where there is no label, no feature, or no such column.
    """
    index = {attribute.name: at for at, attribute in enumerate(attributes)}
    flagged = {feature.name: feature for feature in about.features}
    wanted = options.target or about.targets or tuple(f.name for f in about.features if f.is_target)
    shown = ", ".join(list(index)[:_MOST_SHOWN]) + (" ..." if len(index) > _MOST_SHOWN else "")
    if not wanted:
        raise UsageError(f"{name} has no label of its own", hint=f"choose one with --target; its columns: {shown}")
    unknown = [column for column in (*wanted, *options.exclude) if column not in index]
    if unknown:
        raise UsageError(f"{name} has no column {', '.join(unknown)}", hint=f"its columns: {shown}")
    result = Roles([index[column] for column in wanted], [])
    for at, attribute in enumerate(attributes):
        why = _why_not(attribute, about, flagged, options)
        if at in result.targets:
            continue
        if why is None:
            result.features.append(at)
        else:
            result.left_out[attribute.name] = why
    kinds = {attributes[at].kind for at in result.targets}
    if "string" in kinds:
        raise UsageError(f"the label of {name} is text", hint=f"choose another with --target; its columns: {shown}")
    if len(kinds) > 1:
        raise UsageError(f"the labels of {name} are numbers and classes mixed", hint="choose some with --target")
    if not result.features:
        raise UsageError(f"{name} has no column that can be an observation", hint="all are text, ignored or excluded")
    return result


def _why_not(attribute: Attribute, about: Description, flagged: dict, options: TableOptions) -> str | None:
    feature = flagged.get(attribute.name)
    if attribute.name in options.exclude:
        return "excluded"
    if attribute.name in about.row_id or (feature is not None and feature.is_row_id):
        return "it identifies the row"
    if attribute.name in about.ignored or (feature is not None and feature.is_ignored):
        return "OpenML says to ignore it"
    if attribute.kind == "string":
        return "it is text"
    return None
