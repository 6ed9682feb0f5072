"""The report as one HTML file that needs nothing else."""

from html import escape
from pathlib import Path

from .groups import SMALL_SCALE, Group
from .rendering import Picture
from .sections import Section
from .tables import Table

STYLE = Path(__file__).with_name("page.css")


def page(groups: list[Group], parts: list[Section], headlines: list[str], notes: list[str]) -> str:
    datasets = ", ".join(dict.fromkeys(g.dataset for g in groups))
    runs = sum(len(g.runs) for g in groups)
    small = [g for g in groups if g.small]
    mark = (
        (SMALL_SCALE if len(small) == len(groups) else f"some runs: {SMALL_SCALE}") if small else ""
    )
    title = f"Federated learning on {datasets}" + (f" ({mark})" if mark else "")
    links = "".join(f'<a href="#{part.name}">{escape(part.title)}</a>' for part in parts)
    body = [
        f"<header><h1>{escape(f'Federated learning on {datasets}')}</h1>",
        f'<p class="mark">{escape(mark[0].upper() + mark[1:])}</p>' if mark else "",
        f'<p class="lead">{counted(len(groups), "method or setting", "methods or settings")}, {counted(runs, "run")}: '
        f"{seeds_in(groups)}.</p>",
        *(f'<p class="headline">{escape(text[0].upper() + text[1:])}</p>' for text in headlines),
        f"<nav>{links}</nav></header><main>",
        *map(section, parts),
        notes_of(notes),
        "</main><footer>Made by moonfl from the facts that the runs recorded. "
        "Every figure and table is a file beside this page, too.</footer>",
    ]
    head = [
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE.read_text(encoding='utf-8')}</style>",
    ]
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        *head,
        "</head>",
        "<body>",
        *body,
        "</body>",
        "</html>",
    ]
    return "\n".join(filter(None, lines)) + "\n"


def counted(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def seeds_in(groups: list[Group]) -> str:
    low, high = (pick(len(g.runs) for g in groups) for pick in (min, max))
    return f"{counted(low, 'seed')} each" if low == high else f"{low} to {high} seeds each"


def section(part: Section) -> str:
    text = f"<p>{escape(part.text)}</p>" if part.text else ""
    figures = [figure(p) for p in part.pictures]
    grid = f'<div class="figures">{"".join(figures)}</div>' if figures else ""
    tables = "".join(map(table, part.tables))
    return f'<section id="{part.name}"><h2>{escape(part.title)}</h2>{text}{grid}{tables}</section>'


def figure(p: Picture) -> str:
    return (
        f'<figure id="figure-{p.name}">{p.inline()}<figcaption>{escape(p.says)} '
        f"{files(p.name, ('svg', 'png'))}</figcaption></figure>\n"
    )


def files(name: str, kinds: tuple[str, ...]) -> str:
    links = " ".join(f'<a href="{name}.{kind}" download>{kind.upper()}</a>' for kind in kinds)
    return f'<span class="files">{links}</span>'


def table(t: Table) -> str:
    def row(cells: list[str], i: int, tag: str) -> str:
        made = []
        for k, cell in enumerate(cells):
            style = ' class="number"' if t.columns[k].numeric else ""
            inner = f"<mark>{escape(cell)}</mark>" if (i, k) in t.marked else escape(cell)
            head = ' scope="col"' if tag == "th" else ' scope="row"' if k == 0 else ""
            made.append(f"<{'th' if head else tag}{head}{style}>{inner}</{'th' if head else tag}>")
        return f"<tr>{''.join(made)}</tr>"

    head = row([c.name for c in t.columns], -1, "th")
    rows = "\n".join(row(cells, i, "td") for i, cells in enumerate(t.cells()))
    grid = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(t.title)}">'
        f"<table><thead>{head}</thead><tbody>{rows}</tbody></table></div>"
    )
    note = f'<p class="note">{escape(t.note)} {files(t.name, ("csv", "md"))}</p>'
    if t.folded:
        return (
            f'<details class="table"><summary>{escape(t.title)}</summary>{grid}{note}</details>\n'
        )
    return f'<div class="table"><h3>{escape(t.title)}</h3>{grid}{note}</div>\n'


def notes_of(notes: list[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section id="notes"><h2>Notes</h2><ul>{items}</ul></section>'
