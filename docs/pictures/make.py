"""Draws the pictures of the documentation, by moonfl's own figures code: `make pictures` (two minutes on two cores).

The runs are short and on digits; docs/concepts.md gives the command of each. The same machine and versions give the
same files.
"""

import dataclasses
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

import moonfl
from moonfl.data.datasets import load
from moonfl.data.partition import PartitionRequest, dirichlet
from moonfl.presets import PRESETS
from moonfl.report.curves import accuracy_curves
from moonfl.report.groups import group_runs
from moonfl.report.rendering import Picture, render
from moonfl.report.runs import load_runs
from moonfl.report.style import BLUE, COLOURS, GRID, INK, PAPER, add_title, draw_cells, figure_style
from moonfl.report.tsne import tsne_panels

HERE = Path(__file__).parent
GREY, ORANGE, GREEN = COLOURS[0], COLOURS[2], COLOURS[3]
WIDE = 7.2  # inches: the width of a page of text
Point = tuple[float, float]
LARGEST = 150_000  # bytes of a picture
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg-iid": ("digits-fedavg", {"partition": "iid"}),
    "fedavg-0.5": ("digits-fedavg", {"beta": 0.5}),
    "fedavg-0.1": ("digits-fedavg", {"beta": 0.1}),
    "moon-0.1": ("digits-moon", {"beta": 0.1}),
    "solo-0.1": ("digits-solo", {"beta": 0.1, "epochs": 150}),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for made in pictures(Path(folder)):
            text = "\n".join(line.rstrip() for line in made.svg.splitlines()) + "\n"
            if len(text.encode()) > LARGEST:
                raise SystemExit(
                    f"{made.name}.svg has {len(text.encode()):,} bytes, more than {LARGEST:,}"
                )
            (HERE / f"{made.name}.svg").write_text(text, encoding="utf-8")
            print(f"{made.name}.svg  {len(text.encode()):,} bytes")


def pictures(folder: Path) -> Iterator[Picture]:
    yield partitions()
    yield one_round()
    yield contrast()
    for name, (preset, changes) in RUNS.items():
        moonfl.run(dataclasses.replace(PRESETS[preset].experiment, **changes), folder / name)
    yield by_beta(folder)
    yield representations(folder)


def partitions() -> Picture:
    """Who has which digits, for three values of beta."""
    data = load("digits", Path())
    labels, classes = data.train.y.numpy(), len(data.classes)
    with figure_style():
        figure = Figure(figsize=(WIDE, 2.9), layout="constrained")
        add_title(
            figure, "Samples of each class at each party", "digits, 10 parties, partition seed 0"
        )
        panels = figure.subplots(1, 3, sharey=True)
        dealt = {
            beta: dirichlet(PartitionRequest(labels, 10, beta=beta)).counts(labels, classes)
            for beta in (0.1, 0.5, 5.0)
        }
        most = float(max(counts.max() for counts in dealt.values()))
        for axes, (beta, counts) in zip(panels, dealt.items(), strict=True):
            image = draw_cells(axes, counts, most)
            axes.set_title(f"beta = {beta:g}", fontsize=9.5)
            axes.set(xlabel="class", xticks=range(classes), yticks=range(10))
        panels[0].set_ylabel("party")
        figure.colorbar(image, ax=panels, label="samples")
    return render("partitions", figure, "", "")


def one_round() -> Picture:
    """The server, three parties, and what goes between them."""
    with figure_style():
        figure, axes = sheet(WIDE, 3.6)
        write(axes, 0, 47.3, "One round", weight="bold", fontsize=10.5)
        box(axes, (23, 32), (54, 13), "server", "keeps the global model $w^t$", BLUE)
        write(
            axes,
            50,
            33.4,
            "4  averages:  $w^{t+1} = \\Sigma_i \\; w_i^t \\; |D^i| / |D|$",
            ha="center",
            color=BLUE,
        )
        for k, x in enumerate((1, 36, 71)):
            box(axes, (x, 1), (28, 13), f"party {k + 1}", f"its data $D^{k + 1}$ stay here", GREY)
            write(
                axes,
                x + 14,
                3.2,
                f"2  trains: $w^t \\to w_{k + 1}^t$",
                ha="center",
                fontsize=9,
                color=ORANGE,
            )
            middle, above = x + 14, 30 + 20 * k
            arrow(axes, (above - 2, 31.4), (middle - 2, 14.8), BLUE)
            arrow(axes, (middle + 2, 14.8), (above + 2, 31.4), ORANGE)
        write(axes, 17.5, 23.5, "1  sends $w^t$", ha="right", color=BLUE)
        write(axes, 82.5, 23.5, "3  return $w_i^t$", ha="left", color=ORANGE)
    return render("round", figure, "", "")


def contrast() -> Picture:
    """The three models that see a sample, and where their representations point."""
    glob, local, prev = "$z_\\mathrm{glob}$", "$z$", "$z_\\mathrm{prev}$"
    with figure_style():
        figure, axes = sheet(WIDE, 3.6)
        write(axes, 0, 47.3, "MOON's second term", weight="bold", fontsize=10.5)
        box(axes, (0.5, 18.5), (11, 9), "", "sample $x$", GREY)
        rows = (
            (34, "global model $w^t$", "frozen", glob, BLUE),
            (18, "local model $w_i^t$", "is trained", local, ORANGE),
            (2, "previous local model", "$w_i^{t-1}$, frozen", prev, GREEN),
        )
        for y, name, what, z, colour in rows:
            box(axes, (18, y), (26, 10), name, what, colour)
            arrow(axes, (12, 23), (17.6, y + 5), GREY)
            arrow(axes, (44.4, y + 5), (49.5, y + 5), colour)
            write(axes, 50.3, y + 5, z, va="center", color=colour, fontsize=11)
        middle, radius = (75.0, 22.0), 17.0
        axes.add_patch(Circle(middle, radius, fill=False, ec=GRID, lw=1.2))
        for angle, z, colour, way in (
            (112, glob, BLUE, 1.14),
            (52, local, ORANGE, 1.11),
            (-8, prev, GREEN, 1.2),
        ):
            arrow(axes, middle, along(middle, radius, angle), colour, width=1.8)
            write(
                axes,
                *along(middle, way * radius, angle),
                z,
                ha="center",
                va="center",
                color=colour,
                fontsize=11,
            )
        arrow(
            axes, along(middle, 0.8 * radius, 58), along(middle, 0.8 * radius, 104), BLUE, bend=0.2
        )
        arrow(
            axes, along(middle, 0.8 * radius, 0), along(middle, 0.8 * radius, 46), GREEN, bend=0.2
        )
        write(
            axes, *along(middle, 0.56 * radius, 81), "pulled", color=BLUE, ha="center", fontsize=8.5
        )
        write(
            axes,
            *along(middle, 0.52 * radius, 18),
            "pushed",
            color=GREEN,
            ha="center",
            fontsize=8.5,
        )
        write(axes, 75, 0.6, "only the angles between them count", ha="center", fontsize=8.5)
    return render("contrast", figure, "", "")


def by_beta(folder: Path) -> Picture:
    """FedAvg on the same data dealt in three ways, and each party alone."""
    runs, _ = load_runs([folder / name for name in RUNS if not name.startswith("moon")])
    groups, _ = group_runs(runs)
    names = {"iid": "FedAvg, IID", "dirichlet": "FedAvg, beta = {beta:g}"}
    named = [
        dataclasses.replace(
            g,
            method="SOLO, beta = 0.1"
            if not g.federated
            else names[g.settings["partition"]].format(beta=g.settings["beta"]),
            setting="",
        )
        for g in groups
    ]
    named = [dataclasses.replace(g, label=g.method, style=k) for k, g in enumerate(named)]
    return accuracy_curves("by-beta", named, "digits, 10 parties, 5 local epochs, seed 0")


def representations(folder: Path) -> Picture:
    """t-SNE of z of the same test samples under four models."""
    runs, _ = load_runs([folder / name for name in ("solo-0.1", "fedavg-0.1", "moon-0.1")])
    solo, fedavg, moon = (run.final["tsne"] for run in runs)
    labels, some = fedavg["labels"], slice(None, None, 2)
    maps = {
        "SOLO: party 0 alone": solo["points"],
        "FedAvg: the global model": fedavg["points"],
        "FedAvg: party 0 after local training": fedavg["local"],
        "MOON: the global model": moon["points"],
    }
    titles = "Representations z of test samples", "digits, beta = 0.1, seed 0"
    names = [str(k) for k in range(10)]
    return tsne_panels(
        "representations", titles, {k: (v[some], labels[some]) for k, v in maps.items()}, names
    )


def sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """A drawing surface 100 wide; one unit is as long up as across."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set(xlim=(0, 100), ylim=(0, 100 * height / width))
    axes.set_axis_off()
    axes.set_gid("axes")
    return figure, axes


def write(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    """Text in which $w_i^t$ is a formula."""
    axes.text(x, y, text, parse_math=True, **how)


def box(axes: Axes, at: Point, size: Point, name: str, what: str, colour: str) -> None:
    axes.add_patch(
        FancyBboxPatch(
            at, *size, boxstyle="round,pad=0,rounding_size=1.2", fc=PAPER, ec=colour, lw=1.4
        )
    )
    x, top = at[0] + size[0] / 2, at[1] + size[1]
    if name:
        write(axes, x, top - 2.9, name, ha="center", va="center", weight="bold", color=INK)
    write(
        axes,
        x,
        top - (6.6 if name else size[1] / 2),
        what,
        ha="center",
        va="center",
        fontsize=8.5,
        color=INK,
    )


def arrow(
    axes: Axes, a: Point, b: Point, colour: str, bend: float = 0.0, width: float = 1.3
) -> None:
    axes.add_patch(
        FancyArrowPatch(
            a,
            b,
            arrowstyle="-|>",
            mutation_scale=9,
            color=colour,
            lw=width,
            shrinkA=0,
            shrinkB=0,
            connectionstyle=f"arc3,rad={bend}",
        )
    )


def along(middle: Point, radius: float, angle: float) -> Point:
    """The point of a circle at so many degrees."""
    turn = math.radians(angle)
    return middle[0] + radius * math.cos(turn), middle[1] + radius * math.sin(turn)


if __name__ == "__main__":
    main()
