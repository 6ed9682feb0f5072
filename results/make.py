"""Write the results page, its pictures, and the tables of results in other pages.

    python results/make.py                       write docs/results.md and the rest
    python results/make.py store RUNS [quiet]    store the finished runs of a folder in results/

Accuracies come from results/runs. Times come from results/quiet, short runs on an idle machine.
results/notes.md is the template of the page; note_values.py computes the numbers in its text.
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import result_tables
import stored_runs
from moonfl.report.rendering import Picture
from moonfl.report.runs import Run
from moonfl.report.tables import Table, markdown
from note_values import NoteValues, fill, placeholder_functions

HERE = Path(__file__).parent
ROOT = HERE.parent
DOCS = ROOT / "docs"
VARIANTS = ("fedavgm", "loss", "mu", "head", "negatives", "iid")


def page(stored: dict[str, Run], quiet: dict[str, Run], pictures: dict[str, Picture]) -> str:
    """Return docs/results.md: the template with numbers, tables and pictures filled in."""
    template = (HERE / "notes.md").read_text(encoding="utf-8")
    functions = placeholder_functions(NoteValues(stored, quiet))
    functions["table"] = partial(table_text, table_functions(stored, quiet))
    functions["picture"] = partial(picture_text, pictures)
    functions["versions"] = lambda: result_tables.versions(stored)
    return fill(template, functions)


def table_functions(
    stored: dict[str, Run], quiet: dict[str, Run]
) -> dict[str, Callable[[], Table]]:
    """Return the functions that build the tables of the page, by name."""
    functions: dict[str, Callable[[], Table]] = {
        "table1": partial(result_tables.table1, stored),
        "late-rounds": partial(result_tables.late_rounds, stored),
        "rounds-to-paper": partial(result_tables.rounds_to_paper, stored),
        "rounds-to-fedavg": partial(result_tables.rounds_to_fedavg, stored),
        "partitions": partial(result_tables.by_partition, stored),
        "time": partial(result_tables.seconds, quiet),
        "runs": partial(result_tables.all_runs, stored),
    }
    for name in VARIANTS:
        functions[name] = partial(result_tables.variant, name, stored)
    return functions


def table_text(functions: dict[str, Callable[[], Table]], name: str) -> str:
    """Return a table of the page in Markdown."""
    return markdown(functions[name]()).strip()


def picture_text(pictures: dict[str, Picture], name: str) -> str:
    """Return the Markdown that shows a picture."""
    return f"![{pictures[name].alt}](pictures/{pictures[name].name}.svg)"


def insert_table(text: str, table: Table) -> str:
    """Return the text with the table, without its title, between the two marker comments."""
    _, body = markdown(table).strip().split("\n\n", 1)
    text, count = re.subn(
        r"(<!-- made by results/make.py -->\n\n).*?(\n\n<!-- end -->)",
        lambda match: match[1] + body + match[2],
        text,
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"a page must have one place for results, found {count}")
    return text


def files(stored: dict[str, Run], quiet: dict[str, Run]) -> dict[Path, str]:
    """Return the content of every file that is generated from the runs."""
    pictures = result_tables.pictures(stored)
    contents = {DOCS / "results.md": page(stored, quiet, pictures)}
    tables = {
        ROOT / "README.md": result_tables.table1(stored),
        DOCS / "comparison.md": result_tables.others(stored),
    }
    for path, table in tables.items():
        contents[path] = insert_table(path.read_text(encoding="utf-8"), table)
    for picture in pictures.values():
        contents[DOCS / "pictures" / f"{picture.name}.svg"] = picture.svg
    return contents


def write() -> None:
    """Write the generated files."""
    stored = stored_runs.load("runs")
    for path, text in files(stored, stored_runs.load("quiet")).items():
        path.write_text(text, encoding="utf-8")
    print(f"docs/results.md is written from {len(stored)} runs")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            write()
        case ["store", folder]:
            stored_runs.store(Path(folder), "runs")
        case ["store", folder, "quiet"]:
            stored_runs.store(Path(folder), "quiet")
        case _:
            raise SystemExit(__doc__)
