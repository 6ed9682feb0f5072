"""Figures of one group each: the confusion matrix and the t-SNE map."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .curves import seeds_of, subtitle
from .groups import Group
from .rendering import Picture, render
from .statistics import Floats, confusion
from .style import (
    COLOURS,
    INK,
    PAPER,
    WIDTH,
    add_title,
    draw_cells,
    figure_style,
    new_figure,
    text_colour,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW = 20  # classes that are named one by one
POINTS = 1000  # in a figure: more make the page heavy, not the map clearer


def confusion_matrix(name: str, g: Group) -> Picture | None:
    shares = confusion(g)
    if shares is None:
        return None
    count = len(shares)
    names = g.class_names(count)
    with figure_style():
        figure, axes = new_figure(f"Confusion: {g.label}", subtitle([g]), height=3.9)
        draw_cells(axes, shares, 1)
        axes.set(xlabel="predicted class", ylabel="true class")
        if count <= FEW:
            turned = max(map(len, names)) > 3
            axes.set_xticks(
                range(count),
                names,
                rotation=40 if turned else 0,
                ha="right" if turned else "center",
            )
            axes.set_yticks(range(count), names)
            for (i, k), share in np.ndenumerate(shares):
                axes.text(
                    k,
                    i,
                    f"{100 * share:.0f}",
                    ha="center",
                    va="center",
                    fontsize=8 if count <= 12 else 6,
                    color=text_colour(share),
                )
    worst = shares - np.diag(shares.diagonal())
    i, k = np.unravel_index(int(worst.argmax()), worst.shape)
    said = f"Of the test samples of each true class (row), the percentage given each prediction, over {seeds_of(g)}. "
    said += f"Most often confused: {names[i]} taken for {names[k]}, {100 * worst[i, k]:.0f} %."
    mean = 100 * shares.diagonal().mean()
    alt = (
        f"Heat map of {count} by {count} classes for {g.label}; mean of the diagonal {mean:.1f} %."
    )
    return render(name, figure, said, alt)


def scatter(
    axes: "Axes", points: Floats, labels: NDArray[np.int64], names: list[str], byte_size: float
) -> None:
    """A colour and shape a class; colours come again with another shape."""
    for k in sorted(set(labels.tolist())):
        shape, colour = "o^s"[k // len(COLOURS) % 3], COLOURS[k % len(COLOURS)]
        label = names[k] if k < len(names) else str(k)
        own = points[labels == k].T
        axes.plot(
            *own, ls="", marker=shape, ms=byte_size, mew=0, alpha=0.75, color=colour, label=label
        )


def some(
    points: list[list[float]], labels: list[int], most: int
) -> tuple[Floats, NDArray[np.int64]]:
    """As many as may be shown, evenly chosen."""
    kept = np.linspace(0, len(points) - 1, min(len(points), most)).astype(int)
    return np.asarray(points, dtype=float).reshape(-1, 2)[kept], np.asarray(labels, dtype=np.int64)[
        kept
    ]


def tsne(name: str, g: Group) -> Picture | None:
    run = next((run for run in g.runs if (run.final.get("tsne") or {}).get("points")), None)
    if run is None:
        return None
    points, labels = some(run.final["tsne"]["points"], run.final["tsne"]["labels"], POINTS)
    present = sorted(set(labels.tolist()))
    with figure_style():
        figure, axes = new_figure(f"t-SNE of z: {g.label}", subtitle([g]), height=3.9)
        scatter(axes, points, labels, g.classes, 2.8)
        if len(present) <= FEW:
            for k in present:
                middle = np.median(points[labels == k], axis=0)
                text = g.classes[k] if k < len(g.classes) else str(k)
                axes.annotate(
                    text,
                    middle.tolist(),
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    weight="bold",
                    gid=f"halo-{k}",
                    bbox={"facecolor": PAPER, "alpha": 0.6, "lw": 0, "pad": 1},
                )
        axes.set(xticks=[], yticks=[])
        axes.spines[["left", "bottom"]].set_color(INK)
    said = f"The final model's representation z of {len(points):,} test samples, laid out by t-SNE (seed {run.seed}); "
    said += "a colour and shape a class" + (
        ", its name at its middle." if len(present) <= FEW else "; they repeat."
    )
    return render(
        name,
        figure,
        said,
        f"Scatter of {len(points)} samples of {len(present)} classes for {g.label}.",
    )


def tsne_panels(
    name: str,
    titles: tuple[str, str],
    maps: dict[str, tuple[list[list[float]], list[int]]],
    names: list[str],
) -> Picture:
    """Maps of several models side by side, points and labels by model, under one legend."""
    from matplotlib.figure import Figure

    with figure_style():
        figure = Figure(figsize=(1.25 * WIDTH, 1.5 * WIDTH), layout="constrained")
        add_title(figure, *titles)
        for k, (model, (points, labels)) in enumerate(maps.items(), 1):
            axes = figure.add_subplot(-(-len(maps) // 2), 2, k, xticks=[], yticks=[])
            axes.set_title(model, fontsize=9.5)
            axes.spines[:].set_visible(False)
            scatter(axes, *some(points, labels, POINTS // len(maps)), names, 3.6)
        handles, texts = axes.get_legend_handles_labels()
        figure.legend(
            handles, texts, loc="outside lower center", ncols=5, markerscale=1.6, handlelength=1
        )
    said = f"t-SNE of the representation z of the same test samples under {len(maps)} models; a colour and shape a class."
    return render(
        name,
        figure,
        said,
        f"Scatter charts of test samples by class, one for each of: {', '.join(maps)}.",
    )
