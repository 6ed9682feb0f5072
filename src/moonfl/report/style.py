"""The style of all figures: colours, line styles, markers, titles, legends and heat map cells.

The colours are those of Okabe and Ito, which colour-blind people can tell apart. Line styles and
markers differ too, so that figures are readable in black and white.
"""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The page replaces these three colours by its own, light or dark.
INK = "#1c1e21"
GRID = "#d9dde1"
PAPER = "#fffffe"
BLUE = "#0072b2"
COLOURS = (
    "#6b7178",  # grey, for FedAvg
    BLUE,
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
)
# Four line styles and seven colours have no common factor: 28 combinations.
DASHES: tuple[Any, ...] = ((0, (5, 1.6)), "-", (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = "soD^vPX*"
WIDTH = 4.4  # inches: text of 9 points is legible on a phone and matches the page on a desktop

STYLE: Any = {  # untyped: newer stubs of matplotlib name every key, older ones none
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
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": "none",
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "path.simplify": False,  # keep every recorded point
    "svg.fonttype": "none",
    "text.parse_math": False,
    "figure.constrained_layout.h_pad": 0.05,
}


@contextmanager
def figure_style(name: str = "figure") -> Iterator[None]:
    """Apply the style inside this block and restore matplotlib's settings afterwards.

    `name` makes the ids inside an SVG file reproducible.
    """
    from matplotlib import rc_context, rcdefaults, rcParams

    with rc_context():
        rcdefaults()  # a matplotlibrc in the current folder could start LaTeX, among other things
        rcParams.update(STYLE | {"svg.hashsalt": name})
        yield


def new_figure(title: str, subtitle: str, height: float) -> tuple["Figure", "Axes"]:
    """Return an empty figure of the page's width with a title, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_gid("axes")
    axes.patch.set_gid("frame")
    add_title(figure, title, subtitle)
    return figure, axes


def add_title(figure: "Figure", title: str, subtitle: str) -> None:
    """Write the title, and below it the subtitle on as many lines as it needs."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(subtitle, int(15.5 * width))
    empty_lines = "\n " * len(lines)  # reserve the space of the subtitle
    figure.suptitle(title + empty_lines, x=0.015, ha="left")
    figure.text(0.015, 1 - 0.26 / height, "\n".join(lines), va="top", fontsize=8.5)


def colour(style: int) -> str:
    """Return the colour with this number; colours repeat."""
    return COLOURS[style % len(COLOURS)]


def line_style(style: int) -> dict[str, Any]:
    """Return the colour and dashes with this number, as keywords of `plot`."""
    return {"color": colour(style), "linestyle": DASHES[style % len(DASHES)]}


def marker_style(style: int) -> dict[str, Any]:
    """Return the colour and marker with this number, as keywords of `plot`."""
    return {"color": colour(style), "marker": MARKERS[style % len(MARKERS)]}


def legend(figure: "Figure", axes: "Axes") -> None:
    """Add a legend below the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = 2 if max(map(len, labels)) <= 22 else 1
        figure.legend(handles, labels, loc="outside lower left", ncols=columns)


def draw_cells(axes: "Axes", values: Any, high: float) -> Any:
    """Draw a matrix as cells from transparent (0) to blue (`high`).

    The light or dark background of the page shows through.
    """
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    ends = [to_rgba(BLUE, 0.03), to_rgba(BLUE, 1)]
    colours = LinearSegmentedColormap.from_list("clear to blue", ends)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return axes.imshow(values, cmap=colours, vmin=0, vmax=high, interpolation="none", aspect="auto")


def text_colour(share: float) -> str:
    """Return the colour of text on a cell whose value is this share of the highest."""
    return "white" if share > 0.8 else INK


def label_classes(axes: "Axes", names: Sequence[str]) -> None:
    """Write class names below the axes; long names are rotated."""
    rotated = max(map(len, names)) > 3
    axes.set_xticks(
        range(len(names)),
        names,
        rotation=40 if rotated else 0,
        ha="right" if rotated else "center",
    )


def integer_ticks(axes: "Axes") -> None:
    """Use integers as ticks of the horizontal axis, which counts rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def label_rows(axes: "Axes", names: list[str]) -> None:
    """Write names on the left side, the first at the top."""
    axes.set_yticks(range(len(names)), [textwrap.fill(name, 40) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
