"""Draw the pictures of the documentation with the code of moonfl's figures: `make pictures`.

It takes two minutes on two cores. The runs are short and on digits; docs/concepts.md has the
command of each. The same machine and versions give the same files.
"""

import dataclasses
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from numpy.typing import NDArray

import moonfl
from moonfl.data.datasets import load
from moonfl.data.partition import PartitionRequest, dirichlet, partition_samples
from moonfl.data.shift import Shift, shift_features, shift_unit
from moonfl.data.skew import measure_skew
from moonfl.presets import PRESETS
from moonfl.report.curves import score_curves
from moonfl.report.groups import Group, group_runs
from moonfl.report.rendering import Picture, render
from moonfl.report.runs import load_runs
from moonfl.report.style import BLUE, COLOURS, GRID, INK, PAPER, add_title, draw_cells, figure_style
from moonfl.report.tsne import tsne_panels

HERE = Path(__file__).parent
GREY, ORANGE, GREEN = COLOURS[0], COLOURS[2], COLOURS[3]
WIDTH = 7.2  # inches: the width of a page of text
MAX_BYTES = 150_000  # of a picture
BETAS = (0.1, 0.5, 5.0)
PARTIES = 10
KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # title -> kind and settings
    "iid": ("iid", {}),
    "quantity, beta = 0.5": ("quantity", {"beta": 0.5}),
    "dirichlet, beta = 0.1": ("dirichlet", {"beta": 0.1}),
    "dirichlet-balanced, beta = 0.1": ("dirichlet-balanced", {"beta": 0.1}),
    "labels, 2 classes": ("labels", {"classes_per_party": 2}),
    "shards, 2 shards": ("shards", {"shards_per_party": 2}),
}
SHIFTS: dict[Literal["noise", "rotation", "scale"], float] = {  # kind -> level
    "noise": 0.5,
    "rotation": 90.0,
    "scale": 0.9,
}
Point = tuple[float, float]
RUNS: dict[str, tuple[str, dict[str, Any]]] = {  # preset and changed settings
    "fedavg-iid": ("digits-fedavg", {"partition": "iid"}),
    "fedavg-0.5": ("digits-fedavg", {"beta": 0.5}),
    "fedavg-0.1": ("digits-fedavg", {"beta": 0.1}),
    "moon-0.1": ("digits-moon", {"beta": 0.1}),
    "solo-0.1": ("digits-solo", {"beta": 0.1, "epochs": 150}),
}


def main() -> None:
    """Write every picture as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        for picture in pictures(Path(folder)):
            text = "\n".join(line.rstrip() for line in picture.svg.splitlines()) + "\n"
            size = len(text.encode())
            if size > MAX_BYTES:
                raise SystemExit(
                    f"{picture.name}.svg has {size:,} bytes, at most {MAX_BYTES:,} are allowed"
                )
            (HERE / f"{picture.name}.svg").write_text(text, encoding="utf-8")
            print(f"{picture.name}.svg  {size:,} bytes")


def pictures(folder: Path) -> Iterator[Picture]:
    """Yield every picture; the runs that some of them show are made in `folder`."""
    yield partitions()
    yield kinds()
    yield shifts()
    yield one_round()
    yield contrast()
    for name, (preset, changes) in RUNS.items():
        moonfl.run(dataclasses.replace(PRESETS[preset].experiment, **changes), folder / name)
    yield by_beta(folder)
    yield representations(folder)


def partitions() -> Picture:
    """Draw which party has which digits, for three values of beta."""
    data = load("digits", Path())
    labels = data.train.y.numpy()
    classes = len(data.classes)
    counts = {}
    for beta in BETAS:
        partition = dirichlet(PartitionRequest(labels, PARTIES, beta=beta))
        counts[beta] = partition.counts(labels, classes)
    largest = float(max(table.max() for table in counts.values()))
    with figure_style():
        figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
        add_title(
            figure, "Samples of each class at each party", "digits, 10 parties, partition seed 0"
        )
        panels = figure.subplots(1, 3, sharey=True)
        for axes, (beta, table) in zip(panels, counts.items(), strict=True):
            image = draw_cells(axes, table, largest)
            axes.set_title(f"beta = {beta:g}", fontsize=9.5)
            axes.set(xlabel="class", xticks=range(classes), yticks=range(PARTIES))
        panels[0].set_ylabel("party")
        figure.colorbar(image, ax=panels, label="samples")
    return render("partitions", figure, "", "")


def kinds() -> Picture:
    """Draw the same data under every kind of random partition, with the measures of skew."""
    data = load("digits", Path())
    labels = data.train.y.numpy()
    tables = {}
    for title, (kind, changes) in KINDS.items():
        request = dataclasses.replace(PartitionRequest(labels, PARTIES), **changes)
        tables[title] = partition_samples(kind, request).counts(labels, len(data.classes))
    largest = float(max(table.max() for table in tables.values()))
    with figure_style():
        figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
        add_title(
            figure,
            "Samples of each class at each party",
            "digits, 10 parties, partition seed 0; "
            "total variation distance / effective classes / size imbalance",
        )
        panels = figure.subplots(2, 3, sharex=True, sharey=True)
        for axes, (title, table) in zip(panels.flat, tables.items(), strict=True):
            image = draw_cells(axes, table, largest)
            axes.set_title(f"{title}\n{short_skew(table)}", fontsize=8.5)
            axes.set(xticks=range(len(data.classes)), yticks=range(PARTIES))
        for axes in panels[1]:
            axes.set_xlabel("class")
        for axes in panels[:, 0]:
            axes.set_ylabel("party")
        figure.colorbar(image, ax=panels, label="samples")
    return render("kinds", figure, "", "")


def short_skew(counts: NDArray[np.int64]) -> str:
    """Return the three measures of skew in a form that fits above a panel."""
    skew = measure_skew(counts)
    return f"{skew.distance:.2f} / {skew.effective_classes:.1f} / {skew.imbalance:.2f}"


def shifts() -> Picture:
    """Draw one digit as every party would see it, for each kind of shift."""
    data = load("digits", Path())
    copies = data.train.take(torch.zeros(PARTIES, dtype=torch.long))
    parts = {i: np.array([i]) for i in range(PARTIES)}
    unit = shift_unit(copies, data.preparation)
    with figure_style():
        figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
        add_title(figure, "One sample at each party", "digits, 10 parties, partition seed 0")
        panels = figure.subplots(len(SHIFTS), PARTIES)
        for row, (kind, level) in zip(panels, SHIFTS.items(), strict=True):
            shift = Shift(kind=kind, level=level, parties=PARTIES, seed=0, unit=unit)
            images = shift_features(shift, copies, parts, "train").x
            for axes, image in zip(row, images, strict=True):
                axes.imshow(image[0].numpy(), cmap="Greys", vmin=0, vmax=float(unit))
                axes.set(xticks=[], yticks=[])
                axes.grid(visible=False)
            row[0].set_ylabel(f"{kind}\n{level:g}", fontsize=8.5)
        for party, axes in enumerate(panels[-1]):
            axes.set_xlabel(str(party))
        figure.supxlabel("party", fontsize=9)
    return render("shifts", figure, "", "")


def one_round() -> Picture:
    """Draw the server, three parties, and what they send to each other in a round."""
    average = "4  averages:  $w^{t+1} = \\Sigma_i \\; w_i^t \\; |D^i| / |D|$"
    with figure_style():
        figure, axes = blank_page(WIDTH, 3.6)
        write(axes, (0, 47.3), "One round", weight="bold", fontsize=10.5)
        box(axes, (23, 32), (54, 13), BLUE, name="server", text="keeps the global model $w^t$")
        write(axes, (50, 33.4), average, ha="center", color=BLUE)
        for k, x in enumerate((1, 36, 71)):
            name, text = f"party {k + 1}", f"its data $D^{k + 1}$ stay here"
            box(axes, (x, 1), (28, 13), GREY, name=name, text=text)
            train = f"2  trains: $w^t \\to w_{k + 1}^t$"
            write(axes, (x + 14, 3.2), train, ha="center", fontsize=9, color=ORANGE)
            party, server = x + 14, 30 + 20 * k
            arrow(axes, (server - 2, 31.4), (party - 2, 14.8), BLUE)
            arrow(axes, (party + 2, 14.8), (server + 2, 31.4), ORANGE)
        write(axes, (17.5, 23.5), "1  sends $w^t$", ha="right", color=BLUE)
        write(axes, (82.5, 23.5), "3  return $w_i^t$", ha="left", color=ORANGE)
    return render("round", figure, "", "")


def contrast() -> Picture:
    """Draw the three models that process a sample, and the directions of their outputs z."""
    with figure_style():
        figure, axes = blank_page(WIDTH, 3.6)
        write(axes, (0, 47.3), "MOON's second term", weight="bold", fontsize=10.5)
        draw_models(axes)
        draw_directions(axes, (75.0, 22.0), 17.0)
        note = "only the angles between them count"
        write(axes, (75, 0.6), note, ha="center", fontsize=8.5)
    return render("contrast", figure, "", "")


Z_GLOBAL, Z_LOCAL, Z_PREVIOUS = "$z_\\mathrm{glob}$", "$z$", "$z_\\mathrm{prev}$"


def draw_models(axes: Axes) -> None:
    """Draw the global, the local and the previous local model with their outputs."""
    box(axes, (0.5, 18.5), (11, 9), GREY, text="sample $x$")
    rows = (
        (34, "global model $w^t$", "frozen", Z_GLOBAL, BLUE),
        (18, "local model $w_i^t$", "is trained", Z_LOCAL, ORANGE),
        (2, "previous local model", "$w_i^{t-1}$, frozen", Z_PREVIOUS, GREEN),
    )
    for y, name, text, z, colour in rows:
        box(axes, (18, y), (26, 10), colour, name=name, text=text)
        arrow(axes, (12, 23), (17.6, y + 5), GREY)
        arrow(axes, (44.4, y + 5), (49.5, y + 5), colour)
        write(axes, (50.3, y + 5), z, va="center", color=colour, fontsize=11)


def draw_directions(axes: Axes, centre: Point, radius: float) -> None:
    """Draw the three outputs as directions on a circle, and how the loss turns the local one."""
    axes.add_patch(Circle(centre, radius, fill=False, ec=GRID, lw=1.2))
    middle = {"ha": "center", "va": "center"}
    for angle, z, colour, distance in (
        (112, Z_GLOBAL, BLUE, 1.14),
        (52, Z_LOCAL, ORANGE, 1.11),
        (-8, Z_PREVIOUS, GREEN, 1.2),
    ):
        arrow(axes, centre, on_circle(centre, radius, angle), colour, width=1.8)
        label = on_circle(centre, distance * radius, angle)
        write(axes, label, z, **middle, color=colour, fontsize=11)
    inner = 0.8 * radius
    arrow(axes, on_circle(centre, inner, 58), on_circle(centre, inner, 104), BLUE, bend=0.2)
    arrow(axes, on_circle(centre, inner, 0), on_circle(centre, inner, 46), GREEN, bend=0.2)
    pulled = on_circle(centre, 0.56 * radius, 81)
    write(axes, pulled, "pulled", color=BLUE, ha="center", fontsize=8.5)
    pushed = on_circle(centre, 0.52 * radius, 18)
    write(axes, pushed, "pushed", color=GREEN, ha="center", fontsize=8.5)


def by_beta(folder: Path) -> Picture:
    """Draw the accuracy of FedAvg on three partitions of the same data, and of SOLO."""
    runs, _ = load_runs([folder / name for name in RUNS if not name.startswith("moon")])
    groups, _ = group_runs(runs)
    named = []
    for style, group in enumerate(groups):
        name = partition_label(group)
        named.append(dataclasses.replace(group, method=name, label=name, setting="", style=style))
    return score_curves("by-beta", named, "digits, 10 parties, 5 local epochs, seed 0")


def partition_label(group: Group) -> str:
    """Return the method and the partition of a group of runs."""
    if not group.federated:
        return "SOLO, beta = 0.1"
    if group.settings["partition"] == "iid":
        return "FedAvg, IID"
    return f"FedAvg, beta = {group.settings['beta']:g}"


def representations(folder: Path) -> Picture:
    """Draw a t-SNE of z of the same test samples under four models."""
    runs, _ = load_runs([folder / name for name in ("solo-0.1", "fedavg-0.1", "moon-0.1")])
    solo, fedavg, moon = (run.final["tsne"] for run in runs)
    points = {
        "SOLO: party 0 alone": solo["points"],
        "FedAvg: the global model": fedavg["points"],
        "FedAvg: party 0 after local training": fedavg["local"],
        "MOON: the global model": moon["points"],
    }
    half = slice(None, None, 2)
    labels = fedavg["labels"][half]
    maps = {name: (positions[half], labels) for name, positions in points.items()}
    titles = ("Representations z of test samples", "digits, beta = 0.1, seed 0")
    return tsne_panels("representations", titles, maps, [str(k) for k in range(10)])


def blank_page(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a drawing area that is 100 units wide, with equal units in both directions."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set(xlim=(0, 100), ylim=(0, 100 * height / width))
    axes.set_axis_off()
    axes.set_gid("axes")
    return figure, axes


def write(axes: Axes, at: Point, text: str, **style: Any) -> None:
    """Write text in which $w_i^t$ is a formula."""
    axes.text(*at, text, parse_math=True, **style)


def box(axes: Axes, corner: Point, size: Point, colour: str, *, text: str, name: str = "") -> None:
    """Draw a box with a name in bold and a text below it."""
    width, height = size
    shape = "round,pad=0,rounding_size=1.2"
    patch = FancyBboxPatch(corner, width, height, boxstyle=shape, fc=PAPER, ec=colour, lw=1.4)
    axes.add_patch(patch)
    x = corner[0] + width / 2
    top = corner[1] + height
    middle = {"ha": "center", "va": "center"}
    if name:
        write(axes, (x, top - 2.9), name, **middle, weight="bold", color=INK)
    y = top - 6.6 if name else top - height / 2
    write(axes, (x, y), text, **middle, fontsize=8.5, color=INK)


def arrow(
    axes: Axes, start: Point, end: Point, colour: str, *, bend: float = 0.0, width: float = 1.3
) -> None:
    """Draw an arrow, straight or bent."""
    patch = FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>",
        mutation_scale=9,
        color=colour,
        lw=width,
        shrinkA=0,
        shrinkB=0,
        connectionstyle=f"arc3,rad={bend}",
    )
    axes.add_patch(patch)


def on_circle(centre: Point, radius: float, degrees: float) -> Point:
    """Return the point of a circle at an angle."""
    angle = math.radians(degrees)
    return centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle)


if __name__ == "__main__":
    main()
