"""Render a matplotlib figure as SVG and PNG files, and as SVG inside the HTML page."""

import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .style import COLOURS, GRID, INK, PAPER, figure_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 220  # of a PNG
NOT_ON_PAGE = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", re.DOTALL)


@dataclass(frozen=True)
class Picture:
    """A rendered figure."""

    name: str  # of its files
    caption: str
    alt: str  # describes the figure to readers who do not see it
    svg: str
    png: bytes

    def files(self) -> dict[str, bytes]:
        """Return the contents of the figure's two files by name."""
        return {f"{self.name}.svg": self.svg.encode(), f"{self.name}.png": self.png}

    def inline(self) -> str:
        """Return the SVG for the HTML page.

        It takes the colours and the width of the page, and its ids are unique on the page.
        """
        svg = self.svg[self.svg.index("<svg") :]
        svg = NOT_ON_PAGE.sub("", svg)
        svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
        svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", svg)
        for k, colour in enumerate(COLOURS):
            svg = svg.replace(colour, f"var(--c{k})")
        svg = svg.replace(INK, "currentColor").replace(GRID, "var(--grid)").replace(PAPER, "none")
        svg = svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(self.alt)}"', 1)
        return re.sub(r"\n\s*", "\n", svg)


def render(name: str, figure: "Figure", caption: str, alt: str) -> Picture:
    """Return the figure as SVG and PNG.

    It prints through the canvases, because `savefig` would compute the layout four times.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    svg, png = io.StringIO(), io.BytesIO()
    with figure_style(name):
        print_svg: Callable[..., None] = FigureCanvasSVG(figure).print_svg
        print_svg(svg, metadata={"Date": None, "Creator": "moonfl"})
        figure.set_layout_engine("none")
        figure.set_dpi(DOTS_PER_INCH)
        print_png: Callable[..., None] = FigureCanvasAgg(figure).print_png
        print_png(png, metadata={"Software": "moonfl"})
    text = add_axis_limits(round_coordinates(svg.getvalue()), figure)
    return Picture(name=name, caption=caption, alt=alt, svg=text, png=png.getvalue())


def round_coordinates(svg: str) -> str:
    """Return the SVG with coordinates rounded to hundredths of a point, finer than any screen."""

    def round_attribute(match: re.Match[str]) -> str:
        return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", match[0])

    return re.sub(r'(?: d| x| y| points|transform)="[^"]*"', round_attribute, svg)


def add_axis_limits(svg: str, figure: "Figure") -> str:
    """Return the SVG with the limits of the axes, so that programs can read values from it."""
    axes = figure.axes[0]
    attributes = []
    for name, limits in (("xlim", axes.get_xlim()), ("ylim", axes.get_ylim())):
        low, high = map(float, limits)
        attributes.append(f'data-{name}="{low!r} {high!r}"')
    return svg.replace('<g id="axes">', f'<g id="axes" {" ".join(attributes)}>', 1)
