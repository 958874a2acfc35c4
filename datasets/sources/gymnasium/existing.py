"""Whether a recording that is there is of the policy and the environment that are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from .environments import Made, specification
from .job import policy_content
from .participants import PYTHON, changes_of_environment, changes_of_policy, describe_environment, has_local_code


def changes_of_recording(source: Mapping[str, Any], policy: Any, made: Made | None) -> list[str]:
    """In what a recording differs, in words; ``source`` is what its manifest says of it.

    ``policy``: None where none is asked for. ``made``: None for the environment of the id, which is only made where its
    classes are the user's.
    """
    changed: list[str] = []
    recorded = {**(source.get("policy_content") or {}), "file": source.get("policy_sha256")}
    if policy is not None and any(recorded.values()):
        changed += changes_of_policy(recorded, policy_content(policy))
    layers = source.get("environment_layers") or []
    if made is None and has_local_code(layers):
        made = Made(str(source.get("dataset")), (source.get("options") or {}).get("env_args") or {})
    if made is None:
        return changed
    env = made.own if made.own is not None else made.open()
    try:
        return changed + _changes_of_environment(source, layers, env)
    finally:
        if made.own is None:
            env.close()


def _changes_of_environment(source: Mapping[str, Any], layers: Any, env: Any) -> list[str]:
    same = (source.get("python"), source.get("gymnasium_version")) == (PYTHON, gymnasium.__version__)
    if layers:
        now = describe_environment(env)
        if source.get("environment_layers_after") == now:
            return []
        return changes_of_environment(layers, now, same_versions=same)
    spec = specification(env)  # recorded by its id
    if source.get("gymnasium_version") == gymnasium.__version__ and source.get("environment") != spec:
        return [f"environment ({source.get('environment')} there, {spec} here)"]
    return []
