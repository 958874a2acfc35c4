"""The signatures of the public functions: what sources and the buffer declare, types that can be resolved, misspelt names."""

from __future__ import annotations

import inspect
import pydoc
import typing
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal, get_args

import pytest
import rbdata
from rbdata.datasets import catalogue
from rbdata.datasets.sources.options import RESERVED, RawFileOptions, SourceOption, SourceOptions
from rbdata.errors import UsageError
from rbdata.storage import plugins
from rbdata.storage.derived_leaves import derive
from rbdata.storage.replay import ReplayBuffer, TensorDictReplayBuffer
from rbdata.storage.replay.samplers.choice import choose_sampler

#: Arguments of buffers that `rbdata.load` has not: a dataset is read-only, and the others have no effect here.
NOT_OF_LOAD = {"storage", "writer", "dim_extend", "compilable", "shared", "around"}


def named(function: Callable[..., Any], kinds: str = "KEYWORD_ONLY") -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    return {name: one for name, one in parameters.items() if one.kind.name in kinds and name != "self"}


def declared(command: str) -> dict[str, list[SourceOption]]:
    """The options of built-in sources by name."""
    found: dict[str, list[SourceOption]] = {}
    for source in plugins.BUILT_IN:
        for option in catalogue.load_source(source).options_of(command):
            found.setdefault(option.name, []).append(option)
    return found


@pytest.mark.parametrize("function, keywords", [(rbdata.download, SourceOptions), (rbdata.convert, RawFileOptions)])
def test_options_of_sources(function, keywords):
    """Every option that a built-in source declares is a keyword of its type or choices, is documented, and no others are."""
    arguments, hints = inspect.signature(function).parameters, typing.get_type_hints(keywords)
    options = declared(function.__name__)
    assert set(hints) == {*options, "options"}
    assert set(arguments) - set(options) == set(arguments) & RESERVED
    for name, same in options.items():
        assert (arguments[name].default, arguments[name].annotation) == (None, hints[name])
        allowed = set(get_args(hints[name]))
        for option in same:
            kind = Literal[option.choices] if option.choices else option.type
            assert kind in allowed or (kind is dict and "Mapping" in str(hints[name])), (name, hints[name])
        assert f"``{name}``" in (rbdata.download.__doc__ + rbdata.convert.__doc__)
        assert f"{name}: " in pydoc.plain(pydoc.render_doc(function))
    assert {*inspect.signature(rbdata.download).parameters, *inspect.signature(rbdata.convert).parameters} >= RESERVED
    assert typing.get_type_hints(function)["codec"] is str  # a name, or one with a level


def test_options_of_load():
    """Those of the samplers and of the buffer, with the same defaults."""
    arguments = named(rbdata.load)
    of_buffer = named(ReplayBuffer.__init__) | named(TensorDictReplayBuffer.__init__)
    wanted = {name: one for name, one in of_buffer.items() if name not in NOT_OF_LOAD} | named(choose_sampler)
    wanted |= named(rbdata.Around, "POSITIONAL_OR_KEYWORD")
    computed = named(derive, "POSITIONAL_OR_KEYWORD")
    wanted |= {name: one for name, one in computed.items() if name not in ("dataset", "only")}
    of_load = {"root", "cache_dir", "cache_limit", "download", "keys", "goals", "output", "form", "sharding"}
    assert set(arguments) == of_load | {*wanted}
    assert {name: arguments[name].default for name in wanted} == {name: one.default for name, one in wanted.items()}
    for name in wanted:
        assert f"``{name}" in rbdata.load.__doc__, name


def public() -> Iterator[tuple[str, Any]]:
    """Public functions, classes, and the functions of classes."""
    for name in rbdata.__all__:
        value = getattr(rbdata, name) if name != "preprocess" else rbdata.api.preprocess
        if inspect.isclass(value):
            yield name, value
            for attribute in dir(value):
                found = inspect.getattr_static(value, attribute)
                if isinstance(found, (staticmethod, classmethod)):
                    found = found.__func__
                elif isinstance(found, property):
                    found = found.fget
                elif isinstance(found, cached_property):
                    found = found.func
                if inspect.isfunction(found) and (found.__module__ or "").startswith("rbdata"):
                    yield f"{name}.{attribute}", found
        elif callable(value):
            yield name, value


def test_functions_have_explicit_arguments():
    for name, value in public():
        if "." not in name and inspect.isfunction(value) and name != "load_dataset":  # whose class decides
            assert not named(value, "VAR_KEYWORD VAR_POSITIONAL"), name
    assert inspect.signature(rbdata.preprocess) == inspect.signature(rbdata.api.preprocess)
    for name in rbdata.__all__:
        value = getattr(rbdata, name)
        if inspect.isclass(value) and value is not rbdata.Composite:  # keys of specs
            assert not named(value, "VAR_KEYWORD"), name


BUFFERS = ["TensorDict", "Prioritized", "TensorDictPrioritized"]
DATASETS = {
    "AtariDQN": "atari",
    "D4RL": "d4rl",
    "GenDGRL": "gen_dgrl",
    "LeRobot": "lerobot",
    "Minari": "minari",
    "OpenML": "openml",
    "OpenX": "openx",
    "Roboset": "roboset",
    "VD4RL": "vd4rl",
}


@pytest.mark.parametrize(
    "name", [f"{one}ReplayBuffer" for one in BUFFERS] + [f"{one}ExperienceReplay" for one in DATASETS]
)
def test_options_that_classes_pass_on(name):
    """All arguments of the buffer, of the same types and with the same defaults, but for those that the class changes."""
    value, of_buffer = getattr(rbdata, name), named(ReplayBuffer.__init__)
    arguments, hints = named(value, "POSITIONAL_OR_KEYWORD KEYWORD_ONLY"), typing.get_type_hints(ReplayBuffer.__init__)
    source = DATASETS.get(name.removesuffix("ExperienceReplay"))
    if source:
        of_buffer.pop("storage")
        of_buffer.pop("around")
        wanted = {one.name for one in catalogue.load_source(source).options_of("download")}
        wanted |= {
            *named(rbdata.Around, "POSITIONAL_OR_KEYWORD"),
            *({*named(choose_sampler)} - {"weights", "shares"}),
            "mirror",
            "shards",
            "codec",
            "layout",
            "unknown_next",
            "priority_key",
            "download",
        }
        assert wanted <= set(arguments)
        assert {"procs", "num_procs"} & set(arguments)
    assert set(of_buffer) <= set(arguments)
    for one in set(of_buffer) - {"end_key"}:
        assert arguments[one].default == of_buffer[one].default, one
        if not isinstance(arguments[one].annotation, str):  # of the TypedDict, not of the class itself
            assert arguments[one].annotation == hints[one], one


def test_samplers_show_their_arguments():
    slices = named(rbdata.SliceSampler)
    assert set(named(rbdata.SliceSamplerWithoutReplacement)) == {*slices}
    assert {*slices} <= set(named(rbdata.PrioritizedSliceSampler))
    assert named(rbdata.PrioritizedSliceSampler)["truncated_key"].default == ("next", "truncated")
    assert list(inspect.signature(rbdata.LazyTensorStorage).parameters)[:2] == ["max_size", "device"]
    assert list(inspect.signature(rbdata.Recorder).parameters)[:2] == ["env", "name"]


def test_unexpected_arguments():
    for name in ("load", "delete", "list_datasets", "preprocess", "TensorDictReplayBuffer"):
        with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
            getattr(rbdata, name)(*["Pong/5"] * ("Buffer" not in name), batchsize=8)
    for name in DATASETS:  # before anything is downloaded
        with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
            getattr(rbdata, f"{name}ExperienceReplay")("x", batchsize=8)


@pytest.mark.parametrize(
    "name, args, options, words, hint",
    [
        ("download", ["Pong/5"], {"shard": "0-4"}, "atari has no option shard", "did you mean shards?"),
        ("OpenMLExperienceReplay", ["iris"], {"split_trajs": True}, "nothing to split", ""),
        ("download", ["gymnasium/A-v1"], {"options": {"step": 5}}, "no option step", "did you mean steps?"),
        ("download", ["Pong/5"], {"upstream": "auto", "options": {"upstream": "auto"}}, "upstream: given", "once"),
        ("download", ["Pong/5"], {"steps": 5}, "atari has no option steps", "options of atari: upstream"),
    ],
)
def test_misspelt_arguments(name, args, options, words, hint, tmp_path, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path))
    with pytest.raises(UsageError, match=words) as refused:
        getattr(rbdata, name)(*args, **options)
    assert hint in (refused.value.hint or "")


def test_options_of_other_packages_and_of_built_in_sources_by_name(tmp_path):
    ways = ({"steps": 30, "seed": 3}, {"steps": 30, "options": {"seed": 3}})
    found = [rbdata.download("gymnasium/CartPole-v1", root=tmp_path / str(i), **way) for i, way in enumerate(ways)]
    assert len({tuple(rbdata.open_dataset(path)["action"].tolist()) for path in found}) == 1
