"""A drawn figure as files, SVG and PNG, and as SVG within the page."""

import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .style import COLOURS, GRID, INK, PAPER, figure_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS = 220  # a PNG's dots per inch


@dataclass(frozen=True)
class Picture:
    name: str  # of its files
    says: str  # the sentence under it
    alt: str  # for those who do not see it
    svg: str
    png: bytes

    def inline(self) -> str:
        """Takes the page's colours and width; its ids are its own among all figures of the page."""
        svg = self.svg[self.svg.index("<svg") :]
        svg = re.sub(
            r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL
        )
        svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
        svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", svg)
        for k, colour in enumerate(COLOURS):
            svg = svg.replace(colour, f"var(--c{k})")
        svg = svg.replace(INK, "currentColor").replace(GRID, "var(--grid)").replace(PAPER, "none")
        svg = svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(self.alt)}"', 1)
        return re.sub(r"\n\s*", "\n", svg)


def render(name: str, figure: "Figure", says: str, alt: str) -> Picture:
    """Through the canvases themselves: savefig would draw and lay out four times, where two drawings do."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with figure_style(name):
        svg, png = io.StringIO(), io.BytesIO()
        draw_svg: Callable[..., None] = FigureCanvasSVG(figure).print_svg
        draw_svg(svg, metadata={"Date": None, "Creator": "moonfl"})
        figure.set_layout_engine("none")
        figure.set_dpi(DOTS)
        draw_png: Callable[..., None] = FigureCanvasAgg(figure).print_png
        draw_png(png, metadata={"Software": "moonfl"})
    return Picture(name, says, alt, with_limits(shorter(svg.getvalue()), figure), png.getvalue())


def shorter(svg: str) -> str:
    """Hundredths of a point are finer than any screen."""

    def rounded(match: re.Match[str]) -> str:
        return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", match[0])

    return re.sub(r'(?: d| x| y| points|transform)="[^"]*"', rounded, svg)


def with_limits(svg: str, figure: "Figure") -> str:
    """What the axes' frame spans, so that a program can read values back from the drawing."""
    axes = figure.axes[0]
    spans = (
        f'data-{k}="{low!r} {high!r}"'
        for k, (low, high) in (
            ("xlim", map(float, axes.get_xlim())),
            ("ylim", map(float, axes.get_ylim())),
        )
    )
    return svg.replace('<g id="axes">', f'<g id="axes" {" ".join(spans)}>', 1)
