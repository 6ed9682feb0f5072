"""How figures look: Okabe and Ito's colours, which colour-blind people can tell apart, with dashes and markers."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID, PAPER = (
    "#1c1e21",
    "#d9dde1",
    "#fffffe",
)  # the page replaces these by its own, light or dark
BLUE = "#0072b2"
COLOURS = (
    "#6b7178",
    BLUE,
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
)  # grey is FedAvg's
DASHES: tuple[Any, ...] = (
    (0, (5, 1.6)),
    "-",
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
)  # 4 and 7 share no factor
MARKERS = "soD^vPX*"
WIDTH = 4.4  # inches: text of 9 points is then legible on a phone, and like the text beside it on a desktop

LOOK: Any = {  # untyped: newer stubs of matplotlib name every key, older none
    "font.size": 9,
    "figure.titlesize": 10.5,
    "figure.titleweight": "bold",
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.4,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": "none",
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "path.simplify": False,  # every recorded point is in the picture
    "svg.fonttype": "none",
    "text.parse_math": False,
    "figure.constrained_layout.h_pad": 0.05,
}


@contextmanager
def figure_style(name: str = "figure") -> Iterator[None]:
    """Drawing and saving happen within; nothing of it is left for others."""
    from matplotlib import rc_context

    with rc_context(LOOK | {"svg.hashsalt": name}):
        yield


def new_figure(title: str, subtitle: str, height: float = 3.4) -> tuple["Figure", "Axes"]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_gid("axes")
    axes.patch.set_gid("frame")
    add_title(figure, title, subtitle)
    return figure, axes


def add_title(figure: "Figure", title: str, subtitle: str) -> None:
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(subtitle, int(15.5 * width))
    figure.suptitle(
        title + "\n " * len(lines), x=0.015, ha="left"
    )  # empty lines keep room for the subtitle
    figure.text(0.015, 1 - 0.26 / height, "\n".join(lines), va="top", fontsize=8.5)


def line_style(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)]}


def marker_style(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def legend(figure: "Figure", axes: "Axes") -> None:
    """Below the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside lower left", ncols=2 if max(map(len, labels)) <= 22 else 1
        )


def draw_cells(axes: "Axes", values: Any, high: float) -> Any:
    """A table as cells from clear to blue: what lies under them, light or dark, shows through."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    colours = LinearSegmentedColormap.from_list(
        "clear to blue", [to_rgba(BLUE, 0.03), to_rgba(BLUE, 1)]
    )
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return axes.imshow(values, cmap=colours, vmin=0, vmax=high, interpolation="none", aspect="auto")


def text_colour(share: float) -> str:
    """The colour of text on a cell."""
    return "white" if share > 0.8 else INK


def whole_rounds(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def flip_over(axes: "Axes", names: list[str]) -> None:
    """Names down the left side, the first on top."""
    axes.set_yticks(range(len(names)), [textwrap.fill(name, 40) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
