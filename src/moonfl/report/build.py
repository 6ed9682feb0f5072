"""Build a report (HTML page, figures, tables) or a comparison in the terminal from run directories.

Nothing here trains, and nothing imports torch.
"""

import math
import textwrap
from pathlib import Path

from ..errors import InputError
from ..measures import Measure

TEXT_WIDTH = 110  # of paragraphs in a terminal


def write(
    paths: list[Path], out: Path, target: float | None = None, baseline: str | None = None
) -> Path:
    """Write a report of all runs in or below `paths` to the folder `out`.

    Return the path of report.html; every figure and table is a file next to it. `target` is the
    accuracy, mAP or RMSE to which rounds and bytes are counted. `baseline` is the method that the
    others are compared with, by default FedAvg.
    """
    from .groups import group_runs
    from .headlines import headlines
    from .html_page import html_page
    from .report_files import replace_report
    from .runs import load_runs
    from .sections import report_sections
    from .tables import csv_text, markdown

    runs, notes = load_runs(paths)
    groups, group_notes = group_runs(runs, baseline)
    check_target(target, groups[0].measure)
    sections = report_sections(groups, target)
    files: dict[str, bytes] = {}
    for section in sections:
        for picture in section.pictures:
            files |= picture.files()
        for table in section.tables:
            files[f"{table.name}.md"] = encode(markdown(table))
            files[f"{table.name}.csv"] = encode(csv_text(table))
    page = html_page(groups, sections, headlines(groups), notes + group_notes)
    return replace_report(out, files, encode(page))


def compare(paths: list[Path], target: float | None = None, baseline: str | None = None) -> str:
    """Return a comparison of all runs in or below `paths`: one line per group, then verdicts.

    `baseline` is the method that the others are compared with, by default FedAvg.
    """
    from .groups import group_runs
    from .headlines import verdict_lines
    from .result_tables import describe_method, overview_table
    from .runs import load_runs
    from .tables import plain_text

    runs, notes = load_runs(paths)
    groups, group_notes = group_runs(runs, baseline)
    check_target(target, groups[0].measure)
    lines = [plain_text(overview_table(groups, target)), *notes, *group_notes]
    verdicts = verdict_lines(groups)
    if verdicts:
        lines += ["", *verdicts, textwrap.fill(" ".join(describe_method(groups)), TEXT_WIDTH)]
    return "\n".join(lines)


def encode(text: str) -> bytes:
    """Return text in UTF-8; folder names that are not valid text are replaced by `?`."""
    return text.encode(errors="replace")


def check_target(target: float | None, measure: Measure) -> None:
    """Check that the target is a possible value of the measure of the runs."""
    if target is None:
        return
    if measure.is_share and not 0 < target <= 1:
        raise InputError(
            f"the target {measure.name} must be above 0 and at most 1, such as 0.65, got {target:g}"
        )
    if not 0 < target < math.inf:
        raise InputError(f"the target {measure.name} must be above 0 and finite, got {target:g}")
