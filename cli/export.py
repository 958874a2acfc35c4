"""``rbdata export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from ..storage import amounts
from .console import out
from .options import Force, LocalId, Root

EXAMPLES = """
  rbdata export Pong/5 ~/pong.npz --to npz
  rbdata export hopper-medium-v2 hopper.hdf5 --to d4rl
  rbdata export my/x ~/.minari/datasets/mine/x-v0 --to minari
  rbdata export my/x steps.parquet --to parquet
  rbdata export my/x ~/tensorflow_datasets/x/1.0.0 --to rlds
  rbdata export my/x ~/lerobot/x --to lerobot --fps 20 --frames image
"""


def run(
    dataset: LocalId,
    dest: Annotated[Path, Argument(metavar="DEST", help="The file or folder to write.", show_default=False)],
    to: Annotated[
        Literal["npz", "d4rl", "minari", "parquet", "torchrl", "rlds", "lerobot"],
        Option(help="The format.", show_default=False),
    ],
    frames: Annotated[Literal["video", "image"] | None, Option(help="lerobot: H.264 (default; lossy), or PNG.")] = None,
    fps: Annotated[float | None, Option(metavar="N", help="lerobot: steps a second, if not stated.")] = None,
    force: Force = False,
    root: Root = None,
) -> int:
    """Write a dataset as files of another library.

    npz: flat arrays. d4rl: HDF5. minari: a folder that minari.load_dataset loads. parquet: a row per step. torchrl: a folder
    that TensorDict.load_memmap maps. rlds: a folder that tfds.builder_from_directory reads. lerobot: a folder that
    LeRobotDataset reads. Notes list what the format cannot hold. The dataset is not changed.
    """
    from ..datasets.export import write_export
    from ..datasets.opening import open_dataset
    from ..settings import expanded
    from .progress import byte_progress

    with byte_progress(f"exporting {dataset}", then="finishing") as report:
        given = open_dataset(dataset, root=root)
        done = write_export(given, expanded(dest), to, force=force, frames=frames, fps=fps, report=report)
    if not out.programs(lambda: {**vars(done), "path": str(done.path)}, [str(done.path)]):
        counts = f"{amounts.plural(done.steps, 'step')}, {amounts.plural(done.episodes, 'episode')}"
        written = f"{counts}, {amounts.size(done.bytes)}"
        facts = [("id", done.id), ("format", done.format), ("written", written), ("path", str(done.path))]
        out.facts([*facts, *(("note", note) for note in done.notes)])
    return 0
