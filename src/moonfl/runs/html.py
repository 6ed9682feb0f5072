"""A result as HTML for notebooks: a small table and the curve over rounds."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..components import component_name
from ..experiment import Experiment
from .schema import RoundRecord
from .stopping import best_round, evaluated, evaluation_of, selected_round

WIDTH, HEIGHT, MARGIN = 360, 110, 8  # pixels of the curve


def result_html(exp: Experiment, rounds: Sequence[RoundRecord], directory: Path | None) -> str:
    """Return a table with method, data and scores, and the curve of the test score."""
    measure = evaluation_of(rounds[-1]).measure
    best = best_round(rounds)
    selected = selected_round(rounds)
    rows = {
        "method": component_name(exp.algorithm),
        "data": f"{exp.dataset}, {exp.parties} parties",
        f"{measure.name}, round {rounds[-1].round}": measure.text(measure.value(rounds[-1])),
        f"best, round {best.round}": measure.text(measure.value(best)),
    }
    if selected is not None:
        value = measure.text(measure.value(selected))
        rows[f"selected on validation data, round {selected.round}"] = value
    if directory is not None:
        rows["run directory"] = str(directory)
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(key)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for key, value in rows.items()
    )
    return f"<div><table>{cells}</table>{curve(rounds, measure.with_unit)}</div>"


def curve(rounds: Sequence[RoundRecord], name: str) -> str:
    """Return an SVG of the test score by round; empty for a single round."""
    shown = evaluated(rounds)
    if len(shown) < 2:
        return ""
    values = [evaluation_of(record).value for record in shown]
    numbers = [record.round for record in shown]
    low, high = min(values), max(values)
    step = (WIDTH - 2 * MARGIN) / (numbers[-1] - numbers[0])
    scale = (HEIGHT - 2 * MARGIN) / (high - low if high > low else 1)
    points = [
        f"{MARGIN + (k - numbers[0]) * step:.1f},{HEIGHT - MARGIN - scale * (value - low):.1f}"
        for k, value in zip(numbers, values, strict=True)
    ]
    label = escape(f"{name} by round, from {low:.3g} to {high:.3g}")
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{label}">'
        f"<title>{label}</title>"
        f'<polyline points="{" ".join(points)}" fill="none" stroke="#0072b2" stroke-width="2"/>'
        "</svg>"
    )
