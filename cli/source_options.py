"""Options of single sources, which download and convert pass on unchanged; the source validates them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from ..errors import UsageError

_META = "rbdata.source_options"


def _store(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    if value is not None and value is not False and value != []:
        ctx.meta.setdefault(_META, {})[param.name] = value
    return value


def _option(help: str, metavar: str | None = None, *names: str) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, expose_value=False, callback=_store, show_default=False)


def selected_options(ctx: typer.Context) -> dict[str, Any]:
    """The source options on the command line, by name. Raises UsageError for a malformed environment argument."""
    options = dict(ctx.meta.get(_META, {}))
    arguments = options.pop("env_arg", None)
    return {**options, "env_args": parse_env_args(arguments)} if arguments else options


def parse_env_args(words: Sequence[str]) -> dict[str, Any]:
    """``["map_name=8x8", "is_slippery=false"]`` as keyword arguments.

    Values are JSON, Python's True, False or None, or else strings. Raises UsageError.
    """
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--env-arg {word!r} is not KEY=VALUE", hint="for example: --env-arg is_slippery=false")
        if name in arguments:
            raise UsageError(f"--env-arg gives {name} twice")
        try:
            arguments[name] = _PYTHON_LITERALS[value] if value in _PYTHON_LITERALS else json.loads(value)
        except ValueError:
            arguments[name] = value
    return arguments


#: Python users write these; as strings they would all be true.
_PYTHON_LITERALS = {"True": True, "False": False, "None": None}


def parameters() -> list[Any]:
    """The source options as Click parameters."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command()
    def options(
        upstream: Annotated[
            Literal["auto", "dqn-replay", "rl-unplugged"] | None,
            _option("atari: which copy of the data. auto: the first available of mirror, bucket, RL Unplugged."),
        ] = None,
        steps: Annotated[int | None, _option("gymnasium: steps to record (20000).", "N")] = None,
        policy: Annotated[
            str | None, _option("gymnasium: random, or your function: pkg.mod:fn or file.py:fn.", "P")
        ] = None,
        num_envs: Annotated[int | None, _option("gymnasium: environments stepped together (1).", "N")] = None,
        seed: Annotated[int | None, _option("gymnasium: the same seed gives the same recording (0).", "S")] = None,
        epsilon: Annotated[float | None, _option("gymnasium: probability of a random action (0).", "E")] = None,
        env_arg: Annotated[
            list[str] | None,
            _option("gymnasium: an argument of the environment, such as is_slippery=false; repeatable.", "KEY=VALUE"),
        ] = None,
        episodes_by: Annotated[
            Literal["auto", "timeouts", "terminals", "both", "horizon"] | None,
            _option("d4rl: what ends an episode."),
        ] = None,
        horizon: Annotated[
            int | None, _option("d4rl: maximum episode length, for files without time-out flags.", "N")
        ] = None,
        dataset: Annotated[str | None, _option("d4rl, convert only: the D4RL id of the file.", "ID")] = None,
        accept_changed: Annotated[
            bool, _option("d4rl, openml: accept a file whose checksum has changed.", None, "--accept-changed")
        ] = False,
        target: Annotated[str | None, _option("openml: label columns, comma-separated.", "COLUMNS")] = None,
        exclude: Annotated[str | None, _option("openml: columns to leave out, comma-separated.", "COLUMNS")] = None,
        missing: Annotated[
            Literal["keep", "error", "drop", "code"] | None, _option("openml: how to handle missing values (keep).")
        ] = None,
        one_hot: Annotated[bool, _option("openml: one-hot encode nominal columns.", None, "--one-hot")] = False,
        standardize: Annotated[
            Literal["none", "numeric", "all"] | None, _option("openml: scale columns to mean 0, standard deviation 1.")
        ] = None,
        format: Annotated[
            Literal["auto", "arff", "parquet"] | None, _option("openml: which file format to download.")
        ] = None,
        text: Annotated[
            Literal["bytes", "omit"] | None,
            _option("minari, gymnasium: store text as fixed-width bytes, or omit it."),
        ] = None,
    ) -> None: ...

    return list(typer.main.get_command(app).params)
