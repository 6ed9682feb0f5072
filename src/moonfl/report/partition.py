"""A partition as a table and as a heat map (party x class)."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

MAX_COLUMNS = 20  # classes the table and the heat map show one by one


def table(counts: NDArray[np.int64], classes: tuple[str, ...]) -> str:
    """Samples of each class at each party; many classes are rows, few are columns."""
    sizes = counts.sum(axis=1)
    parties = [f"party {i}" for i in range(len(counts))]
    rows = [["", *classes, "all"], *([name, *row, row.sum()] for name, row in zip(parties, counts, strict=True))]
    if len(classes) > MAX_COLUMNS:
        rows = [list(column) for column in zip(*rows, strict=True)]
    widths = [max(6, *(len(str(row[k])) for row in rows)) for k in range(len(rows[0]))]
    lines = ["  ".join(str(cell).rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    lines.append(f"samples a party: mean {sizes.mean():,.0f}, deviation {sizes.std():,.0f}, smallest {sizes.min():,}")
    return "\n".join(lines)


def check_format(path: Path) -> None:
    if path.suffix not in (".png", ".svg"):
        raise InputError(f"the heat map is a .png or .svg file, not '{path}'")


def heat_map(counts: NDArray[np.int64], classes: tuple[str, ...], title: str, path: Path) -> None:
    """Draw to `path`, PNG or SVG by its ending."""
    from matplotlib.figure import Figure

    check_format(path)
    parties, num_classes = counts.shape
    few = num_classes <= MAX_COLUMNS and parties <= MAX_COLUMNS
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(counts, aspect="auto", cmap="YlGnBu", vmin=0, interpolation="nearest")
    figure.colorbar(image, ax=axes, label="samples")
    axes.set(xlabel="class", ylabel="party", title=title)
    if few:
        turned = max(map(len, classes)) > 3
        axes.set_xticks(range(num_classes), classes, rotation=35 if turned else 0, ha="right" if turned else "center")
        axes.set_yticks(range(parties))
        for (i, k), n in np.ndenumerate(counts):
            dark = n > counts.max() * 0.55
            axes.text(k, i, f"{n:,}", ha="center", va="center", fontsize=7.5, color="white" if dark else "#222222")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)
    except OSError as error:
        raise InputError(f"the heat map {path} cannot be written: {error.strerror}") from None
