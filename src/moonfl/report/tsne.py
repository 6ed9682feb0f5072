"""Figures of t-SNE embeddings: the representations of test samples under one or more models."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..runs.schema import Embedding
from .curves import describe_setting
from .groups import Group
from .rendering import Picture, render
from .statistics import Floats
from .style import COLOURS, INK, PAPER, WIDTH, add_title, colour, figure_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[Sequence[float]]  # [samples][2]
Labels = NDArray[np.int64]
MAX_NAMED_CLASSES = 20
MAX_POINTS = 1000  # per figure: more make the page large, but not clearer


def draw_points(
    axes: "Axes", points: Floats, labels: Labels, names: list[str], *, size: float
) -> None:
    """Draw one colour and marker per class; colours repeat with another marker."""
    for k in sorted(set(labels.tolist())):
        marker = "o^s"[k // len(COLOURS) % 3]
        label = names[k] if k < len(names) else str(k)
        x, y = points[labels == k].T
        axes.plot(
            x, y, ls="", marker=marker, ms=size, mew=0, alpha=0.75, color=colour(k), label=label
        )


def thin_out(points: Points, labels: Sequence[int], limit: int) -> tuple[Floats, Labels]:
    """Return at most `limit` points, evenly spaced in the list, with their labels."""
    rows = np.linspace(0, len(points) - 1, min(len(points), limit)).astype(int)
    coordinates = np.asarray(points, dtype=float).reshape(-1, 2)
    return coordinates[rows], np.asarray(labels, dtype=np.int64)[rows]


def first_embedding(group: Group) -> tuple[int, Embedding] | None:
    """Return the seed and the embedding of the first run that has one."""
    for run in group.runs:
        if run.final.tsne is not None and run.final.tsne.points:
            return run.seed, run.final.tsne
    return None


def tsne_figure(name: str, group: Group) -> Picture | None:
    """Return a scatter plot of one run's embedding; None if no run of the group has one."""
    recorded = first_embedding(group)
    if recorded is None:
        return None
    seed, embedding = recorded
    points, labels = thin_out(embedding.points, embedding.labels, MAX_POINTS)
    classes = sorted(set(labels.tolist()))
    named = len(classes) <= MAX_NAMED_CLASSES
    with figure_style():
        title = f"t-SNE of z: {group.label}"
        figure, axes = new_figure(title, describe_setting([group]), height=3.9)
        draw_points(axes, points, labels, group.classes, size=2.8)
        if named:
            draw_class_names(axes, points, labels, group.classes)
        axes.set(xticks=[], yticks=[])
        axes.spines[["left", "bottom"]].set_color(INK)
    caption = (
        f"Representations z of {len(points):,} test samples under the final model (seed {seed}), "
        "embedded with t-SNE; one colour and marker per class"
    )
    caption += ", its name at the median of its points." if named else "; they repeat."
    alt = f"Scatter plot of {len(points)} samples of {len(classes)} classes for {group.label}."
    return render(name, figure, caption, alt)


def draw_class_names(axes: "Axes", points: Floats, labels: Labels, names: list[str]) -> None:
    """Write the name of each class at the median of its points."""
    for k in sorted(set(labels.tolist())):
        median = np.median(points[labels == k], axis=0)
        axes.annotate(
            names[k] if k < len(names) else str(k),
            median.tolist(),
            ha="center",
            va="center",
            fontsize=8.5,
            weight="bold",
            gid=f"halo-{k}",
            bbox={"facecolor": PAPER, "alpha": 0.6, "lw": 0, "pad": 1},
        )


def tsne_panels(
    name: str,
    titles: tuple[str, str],
    embeddings: dict[str, tuple[Points, Sequence[int]]],
    classes: list[str],
) -> Picture:
    """Return one figure with a panel for each model (points and labels) and one legend."""
    from matplotlib.figure import Figure

    with figure_style():
        figure = Figure(figsize=(1.25 * WIDTH, 1.5 * WIDTH), layout="constrained")
        add_title(figure, *titles)
        rows = -(-len(embeddings) // 2)  # rounded up
        for k, (model, (points, labels)) in enumerate(embeddings.items(), 1):
            axes = figure.add_subplot(rows, 2, k, xticks=[], yticks=[])
            axes.set_title(model, fontsize=9.5)
            axes.spines[:].set_visible(False)
            shown = thin_out(points, labels, MAX_POINTS // len(embeddings))
            draw_points(axes, *shown, classes, size=3.6)
        handles, texts = axes.get_legend_handles_labels()
        figure.legend(
            handles, texts, loc="outside lower center", ncols=5, markerscale=1.6, handlelength=1
        )
    caption = (
        f"Representations z of the same test samples under {len(embeddings)} models, embedded "
        "with t-SNE; one colour and marker per class."
    )
    alt = f"Scatter charts of test samples by class, one for each of: {', '.join(embeddings)}."
    return render(name, figure, caption, alt)
