"""Pictures of a dataset: a plot of returns and lengths, and a sheet of frames. Needs the extra ``plot``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from ..storage.episodes import EpisodeTable

#: Frames on a sheet: rows and columns.
SHEET = (4, 8)
#: Most points in a plot; more cannot be distinguished.
POINTS = 5000


def check_target(target: Path) -> None:
    """Raise UsageError if the folder of a picture does not exist."""
    if not target.parent.is_dir():
        raise UsageError(f"no such folder: {target.parent}", hint="create it, or choose another path")


def draw_episodes(table: EpisodeTable, title: str, target: Path) -> None:
    """Plot return and length of every episode over the steps, with a running mean."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ImportError as error:
        raise _missing("matplotlib") from error
    import numpy as np

    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot looks for a display, and is slow to import
    window = max(1, len(table) // 50)
    every = max(1, len(table) // POINTS)
    steps = np.asarray(table.start) + np.asarray(table.length)
    for axes, values, name in zip(
        figure.subplots(2, 1, sharex=True), (table.returns, table.length), ("return", "length")
    ):
        values = np.asarray(values, np.float64)
        axes.plot(steps[::every], values[::every], ".", markersize=4, alpha=0.5)
        if len(values) >= 3 * window > 3:
            mean = np.convolve(values, np.full(window, 1 / window), "valid")
            axes.plot(steps[window - 1 :], mean, label=f"mean of {window} episodes")
            axes.legend(frameon=False)
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
    axes.set_xlabel("steps")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.suptitle(title)
    try:
        figure.savefig(target)
    except ValueError as error:
        hint = "choose a name that ends in .png, .pdf or .svg"
        raise UsageError(f"cannot write {target}: {error}", hint=hint) from error


def draw_frames(folder: Path, target: Path) -> None:
    """Draw evenly spaced frames of a dataset, row by row."""
    try:
        from PIL import Image
    except ImportError as error:
        raise _missing("Pillow") from error
    import numpy as np

    from ..storage.dataset import Dataset

    dataset = Dataset(folder)
    name = _frame_leaf(dataset)
    rows, columns = SHEET
    steps = np.unique(np.linspace(0, len(dataset) - 1, rows * columns).astype(np.int64))
    images = np.asarray(dataset.read(steps.tolist(), keys=[name])[tuple(name.split("/"))][:, 0])
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[-1] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    images = images.reshape(*images.shape[:3], -1)
    height, width, channels = images.shape[1:]
    sheet = np.full((rows * (height + 2) - 2, columns * (width + 2) - 2, channels), 255, np.uint8)
    for number, image in enumerate(images):
        y, x = number // columns * (height + 2), number % columns * (width + 2)
        sheet[y : y + height, x : x + width] = image
    try:
        Image.fromarray(sheet[..., 0] if channels == 1 else sheet).save(target)
    except ValueError as error:
        raise UsageError(f"cannot write {target}: {error}", hint="choose a name that ends in .png or .jpg") from error


def _frame_leaf(dataset: Any) -> str:
    """The first leaf with the dtype and shape of images: uint8, two dimensions and perhaps 1 or 3 channels."""
    for leaf in dataset.schema:
        pixels = leaf.shape[:-1] if len(leaf.shape) == 3 and leaf.shape[-1] in (1, 3) else leaf.shape
        pixels = pixels[1:] if len(pixels) == 3 and pixels[0] in (1, 3) else pixels
        if leaf.dtype == "uint8" and len(pixels) == 2 and not leaf.name.startswith("next/"):
            return leaf.name
    names = ", ".join(leaf.name for leaf in dataset.schema)
    raise UsageError(f"{dataset.id} holds no frames", hint=f"its tensors: {names}")


def _missing(package: str) -> MissingExtraError:
    return MissingExtraError(f"{package} is not installed", hint="pip install 'rbdata[plot]'")
