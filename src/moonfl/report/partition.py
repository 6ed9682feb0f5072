"""A partition (samples per party and class, label or target) as a table and as a heat map."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..data.skew import measure_skew
from ..errors import InputError, RunError
from ..measures import round_digits
from ..runs.files import atomic
from .style import draw_cells, figure_style, label_classes, new_figure, text_colour
from .tables import align

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Counts = NDArray[np.int64]  # [parties, classes]
MAX_COLUMNS = 20  # classes or parties that are shown one by one
MAX_NAME_LENGTH = 16  # characters of a party's name in a heat map


def partition_table(counts: Counts, classes: tuple[str, ...], names: tuple[str, ...]) -> str:
    """Return the number of samples of each class at each party as text.

    `names` are the names of the parties, if they have any. Classes are the columns if there are at
    most MAX_COLUMNS of them, otherwise the rows.
    """
    sizes = counts.sum(axis=1)
    cells = [[*row, size] for row, size in zip(counts, sizes, strict=True)]
    table = sized_table([*classes, "all"], cells, sizes, names)
    return f"{table}\nnon-IID: {measure_skew(counts)}"


def label_table(
    counts: Counts, sizes: NDArray[np.int64], labels: tuple[str, ...], names: tuple[str, ...]
) -> str:
    """Return the number of samples that have each label at each party as text.

    A sample may have several labels or none, so that `sizes`, the samples of each party, are not
    the sums of the counts.
    """
    cells = [[*row, size] for row, size in zip(counts, sizes, strict=True)]
    return sized_table([*labels, "samples"], cells, sizes, names)


def target_table(
    parties: list[NDArray[np.float64]], targets: tuple[str, ...], names: tuple[str, ...] = ()
) -> str:
    """Return the samples of each party and the mean and std of its targets, [N, targets]."""
    header = ["samples"]
    for target in targets:
        header += [f"{target}, mean", "std"]
    cells: list[list[object]] = []
    for y in parties:
        row: list[object] = [len(y)]
        for column in y.T:
            row += [round_digits(column.mean(), 4), round_digits(column.std(), 2)]
        cells.append(row)
    return sized_table(header, cells, np.array([len(y) for y in parties]), names)


def sized_table(
    header: list[str],
    cells: Sequence[Sequence[object]],
    sizes: NDArray[np.int64],
    names: tuple[str, ...],
) -> str:
    """Return a table with one row per party, or one column if it would be too wide, as text."""
    parties = names or tuple(f"party {i}" for i in range(len(cells)))
    rows: list[list[object]] = [["", *header]]
    rows += [[name, *row] for name, row in zip(parties, cells, strict=True)]
    if len(header) > MAX_COLUMNS + 1:
        rows = [list(column) for column in zip(*rows, strict=True)]
    table = align(rows, right=range(len(rows[0])), min_width=6)
    return f"{table}\n{describe_sizes(sizes[:, None])}"


def describe_sizes(counts: Counts) -> str:
    """Return the mean, standard deviation and minimum of the number of samples per party."""
    sizes = counts.sum(axis=1)
    return (
        f"samples per party: mean {sizes.mean():,.0f}, standard deviation {sizes.std():,.0f}, "
        f"minimum {sizes.min():,}"
    )


def check_image_format(path: Path) -> None:
    """Check that a heat map can be written to this kind of file."""
    if path.suffix not in (".png", ".svg"):
        raise InputError(f"the heat map must be a .png or .svg file, got '{path}'")


def draw_heat_map(
    counts: Counts,
    classes: tuple[str, ...],
    title: str,
    *,
    subtitle: str = "",
    names: tuple[str, ...] = (),
    column: str = "class",
) -> "Figure":
    """Return a heat map with one row per party and one column per class, label or target."""
    parties, num_classes = counts.shape
    largest = max(1.0, float(counts.max()))
    with figure_style():
        figure, axes = new_figure(title, subtitle, height=3.8)
        image = draw_cells(axes, counts, largest)
        axes.set(xlabel=column, ylabel="party")
        if num_classes > MAX_COLUMNS or parties > MAX_COLUMNS:
            figure.colorbar(image, ax=axes, label="samples")
            return figure
        label_classes(axes, classes)
        axes.set_yticks(range(parties), [shorten(name) for name in names] or None)
        for (i, k), count in np.ndenumerate(counts):
            colour = text_colour(count / largest)
            axes.text(k, i, str(count), ha="center", va="center", fontsize=7, color=colour)
    return figure


def shorten(name: str) -> str:
    """Return a party's name, cut to the length that fits next to a heat map."""
    return name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "…"


def heat_map(
    counts: Counts,
    classes: tuple[str, ...],
    title: str,
    path: Path,
    names: tuple[str, ...] = (),
    *,
    column: str = "class",
) -> None:
    """Write a heat map to a PNG or SVG file, depending on the suffix of `path`."""
    check_image_format(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as temporary, figure_style():
            figure = draw_heat_map(counts, classes, title, names=names, column=column)
            figure.savefig(temporary, format=path.suffix[1:], dpi=200)
    except (OSError, RunError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"the heat map {path} cannot be written: {reason}") from None
