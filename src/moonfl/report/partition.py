"""A partition as a table and as a heat map (party x class)."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, RunError
from ..runs.files import atomic
from .style import draw_cells, figure_style, new_figure, text_colour

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_COLUMNS = 20  # classes the table and the heat map show one by one
LONGEST = 16  # characters of a party's name in a heat map


def partition_table(
    counts: NDArray[np.int64], classes: tuple[str, ...], names: tuple[str, ...] = ()
) -> str:
    """Samples of each class at each party (`names`, where they have any); many classes are rows, few are columns."""
    parties = names or [f"party {i}" for i in range(len(counts))]
    rows = [
        ["", *classes, "all"],
        *([name, *row, row.sum()] for name, row in zip(parties, counts, strict=True)),
    ]
    if len(classes) > MAX_COLUMNS:
        rows = [list(column) for column in zip(*rows, strict=True)]
    widths = [max(6, *(len(str(row[k])) for row in rows)) for k in range(len(rows[0]))]
    lines = [
        "  ".join(str(cell).rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows
    ]
    return "\n".join([*lines, sizes_of(counts)])


def sizes_of(counts: NDArray[np.int64]) -> str:
    sizes = counts.sum(axis=1)
    return f"samples a party: mean {sizes.mean():,.0f}, deviation {sizes.std():,.0f}, smallest {sizes.min():,}"


def check_image_format(path: Path) -> None:
    if path.suffix not in (".png", ".svg"):
        raise InputError(f"the heat map is a .png or .svg file, not '{path}'")


def draw(
    counts: NDArray[np.int64],
    classes: tuple[str, ...],
    title: str,
    subtitle: str = "",
    names: tuple[str, ...] = (),
) -> "Figure":
    parties, num_classes = counts.shape
    with figure_style():
        figure, axes = new_figure(title, subtitle, height=3.8)
        image = draw_cells(axes, counts, float(counts.max()))
        axes.set(xlabel="class", ylabel="party")
        if num_classes > MAX_COLUMNS or parties > MAX_COLUMNS:
            figure.colorbar(image, ax=axes, label="samples")
            return figure
        turned = max(map(len, classes)) > 3
        axes.set_xticks(
            range(num_classes),
            classes,
            rotation=40 if turned else 0,
            ha="right" if turned else "center",
        )
        axes.set_yticks(range(parties), [cut(name) for name in names] or None)
        for (i, k), n in np.ndenumerate(counts):
            axes.text(
                k,
                i,
                str(n),
                ha="center",
                va="center",
                fontsize=7,
                color=text_colour(n / counts.max()),
            )
    return figure


def cut(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def heat_map(
    counts: NDArray[np.int64],
    classes: tuple[str, ...],
    title: str,
    path: Path,
    names: tuple[str, ...] = (),
) -> None:
    """Draw to `path`, PNG or SVG by its ending."""
    check_image_format(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as temporary, figure_style():
            draw(counts, classes, title, names=names).savefig(
                temporary, format=path.suffix[1:], dpi=200
            )
    except (OSError, RunError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"the heat map {path} cannot be written: {reason}") from None
