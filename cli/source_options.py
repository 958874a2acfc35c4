"""Options of one source each, which download and convert hand on as they are: the source knows what they mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from ..errors import UsageError

_META = "rbdata.source_options"


def _keep(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    if value is not None and value is not False and value != []:
        ctx.meta.setdefault(_META, {})[param.name] = value
    return value


def _option(help: str, metavar: str | None = None, *names: str) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, expose_value=False, callback=_keep, show_default=False)


def given(ctx: typer.Context) -> dict[str, Any]:
    """What the user gave, by option name; the source complains about what is not its own.

    Raises UsageError for an environment argument that is none.
    """
    options = dict(ctx.meta.get(_META, {}))
    arguments = options.pop("env_arg", None)
    return {**options, "env_args": environment_arguments(arguments)} if arguments else options


def environment_arguments(words: Sequence[str]) -> dict[str, Any]:
    """``["map_name=8x8", "is_slippery=false"]`` as keyword arguments.

    Values are JSON, or Python's True, False and None, or else texts. Raises UsageError.
    """
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--env-arg {word!r} is not KEY=VALUE", hint="for example: --env-arg is_slippery=false")
        if name in arguments:
            raise UsageError(f"--env-arg gives {name} twice")
        try:
            arguments[name] = _PYTHONS[value] if value in _PYTHONS else json.loads(value)
        except ValueError:
            arguments[name] = value
    return arguments


#: How users write these, being used to Python; as texts they would all be true.
_PYTHONS = {"True": True, "False": False, "None": None}


def parameters() -> list[Any]:
    """The options, to be added to a command's own."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command()
    def options(
        upstream: Annotated[
            Literal["auto", "dqn-replay", "rl-unplugged"] | None,
            _option("atari: which copy of the data; auto: the mirror, the bucket, RL Unplugged, what answers first."),
        ] = None,
        steps: Annotated[int | None, _option("gymnasium: steps to record (20000).", "N")] = None,
        policy: Annotated[
            str | None, _option("gymnasium: random, or your function, pkg.mod:fn or file.py:fn.", "P")
        ] = None,
        num_envs: Annotated[int | None, _option("gymnasium: environments side by side (1).", "N")] = None,
        seed: Annotated[int | None, _option("gymnasium: same seed, same recording (0).", "S")] = None,
        epsilon: Annotated[float | None, _option("gymnasium: share of random actions (0).", "E")] = None,
        env_arg: Annotated[
            list[str] | None,
            _option("gymnasium: an argument of the environment, such as is_slippery=false; repeatable.", "KEY=VALUE"),
        ] = None,
        episodes_by: Annotated[
            Literal["auto", "timeouts", "terminals", "both", "horizon"] | None,
            _option("d4rl: what ends an episode."),
        ] = None,
        horizon: Annotated[
            int | None, _option("d4rl: steps after which an episode ends where no time-outs are flagged.", "N")
        ] = None,
        dataset: Annotated[str | None, _option("d4rl, convert only: which D4RL dataset the file is.", "ID")] = None,
        accept_changed: Annotated[
            bool, _option("d4rl, openml: take a file that is not the one recorded before.", None, "--accept-changed")
        ] = False,
        target: Annotated[str | None, _option("openml: label columns, comma-separated.", "COLUMNS")] = None,
        exclude: Annotated[str | None, _option("openml: columns to leave out, comma-separated.", "COLUMNS")] = None,
        missing: Annotated[
            Literal["keep", "error", "drop", "code"] | None, _option("openml: what becomes of missing values (keep).")
        ] = None,
        one_hot: Annotated[
            bool, _option("openml: nominal columns as one number for each value.", None, "--one-hot")
        ] = False,
        standardize: Annotated[
            Literal["none", "numeric", "all"] | None, _option("openml: scale to mean 0 and deviation 1.")
        ] = None,
        format: Annotated[
            Literal["auto", "arff", "parquet"] | None, _option("openml: which of the provider's files to read.")
        ] = None,
        text: Annotated[
            Literal["bytes", "omit"] | None,
            _option("minari, gymnasium: what becomes of text: fixed-width bytes, or left out."),
        ] = None,
    ) -> None: ...

    return list(typer.main.get_command(app).params)
