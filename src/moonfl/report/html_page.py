"""The report as a single HTML file without external resources."""

from html import escape
from pathlib import Path

from ..errors import plural
from .groups import Group, small_scale_mark
from .rendering import Picture
from .sections import Section
from .tables import Table

STYLE = Path(__file__).with_name("page.css")
FOOTER = (
    "Created by moonfl from the metrics that the runs recorded. "
    "Every figure and table is also a file next to this page."
)


def html_page(
    groups: list[Group], sections: list[Section], headlines: list[str], notes: list[str]
) -> str:
    """Return the page."""
    datasets = ", ".join(dict.fromkeys(group.dataset for group in groups))
    heading = f"Federated learning on {datasets}"
    mark = small_scale_mark(groups)
    title = f"{heading} ({mark})" if mark else heading
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE.read_text(encoding='utf-8')}</style>",
        "</head>",
        "<body>",
        f"<header><h1>{escape(heading)}</h1>",
    ]
    if mark:
        lines.append(f'<p class="mark">{escape(capitalise(mark))}</p>')
    lines.append(f'<p class="lead">{describe_runs(groups)}</p>')
    for text in headlines:
        lines.append(f'<p class="headline">{escape(text)}</p>')
    links = [f'<a href="#{part.name}">{escape(part.title)}</a>' for part in sections]
    lines.append(f"<nav>{''.join(links)}</nav></header><main>")
    lines += [section_html(part) for part in sections]
    if notes:
        lines.append(notes_html(notes))
    lines += [f"</main><footer>{FOOTER}</footer>", "</body>", "</html>"]
    return "\n".join(lines) + "\n"


def capitalise(text: str) -> str:
    """Return a sentence with its first letter in upper case."""
    return text[0].upper() + text[1:]


def describe_runs(groups: list[Group]) -> str:
    """Return the numbers of groups, runs and seeds as a sentence."""
    counts = [len(group.runs) for group in groups]
    low, high = min(counts), max(counts)
    seeds = f"{plural(low, 'seed')} each" if low == high else f"{low} to {high} seeds each"
    configurations = plural(len(groups), "configuration")
    return f"{configurations} of method and settings, {plural(sum(counts), 'run')}, {seeds}."


def section_html(section: Section) -> str:
    """Return a section with its figures and tables."""
    parts = [f'<section id="{section.name}"><h2>{escape(section.title)}</h2>']
    if section.text:
        parts.append(f"<p>{escape(section.text)}</p>")
    if section.pictures:
        figures = "".join(figure_html(picture) for picture in section.pictures)
        parts.append(f'<div class="figures">{figures}</div>')
    parts += [table_html(table) for table in section.tables]
    return "".join(parts) + "</section>"


def figure_html(picture: Picture) -> str:
    """Return a figure with its caption and links to its files."""
    links = download_links(picture.name, ("svg", "png"))
    return (
        f'<figure id="figure-{picture.name}">{picture.inline()}'
        f"<figcaption>{escape(picture.caption)} {links}</figcaption></figure>\n"
    )


def download_links(name: str, formats: tuple[str, ...]) -> str:
    """Return links to the files of a figure or table."""
    links = [f'<a href="{name}.{suffix}" download>{suffix.upper()}</a>' for suffix in formats]
    return f'<span class="files">{" ".join(links)}</span>'


def table_html(table: Table) -> str:
    """Return a table with its note; long tables are collapsed."""
    head = row_html(table, table.header(), -1)
    rows = "\n".join(row_html(table, cells, i) for i, cells in enumerate(table.cells()))
    title = escape(table.title)
    content = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"<table><thead>{head}</thead><tbody>{rows}</tbody></table></div>"
        f'<p class="note">{escape(table.note)} {download_links(table.name, ("csv", "md"))}</p>'
    )
    if table.collapsed:
        return f'<details class="table"><summary>{title}</summary>{content}</details>\n'
    return f'<div class="table"><h3>{title}</h3>{content}</div>\n'


def row_html(table: Table, cells: list[str], row: int) -> str:
    """Return a row of a table; -1 is the header."""
    html = []
    for k, cell in enumerate(cells):
        number = ' class="number"' if table.columns[k].numeric else ""
        text = f"<mark>{escape(cell)}</mark>" if (row, k) in table.highlighted else escape(cell)
        if row == -1:
            html.append(f'<th scope="col"{number}>{text}</th>')
        elif k == 0:
            html.append(f'<th scope="row"{number}>{text}</th>')
        else:
            html.append(f"<td{number}>{text}</td>")
    return f"<tr>{''.join(html)}</tr>"


def notes_html(notes: list[str]) -> str:
    """Return the section of notes on runs that are left out or unfinished."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section id="notes"><h2>Notes</h2><ul>{items}</ul></section>'
