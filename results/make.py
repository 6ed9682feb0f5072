"""Write the results pages, their pictures, and the tables of results in other pages.

    python results/make.py                       write docs/results.md and the rest
    python results/make.py store RUNS [quiet]    store the finished runs of a folder in results/

Accuracies come from results/cifar10 and results/cifar100. Times come from results/quiet, short runs
on an idle machine. results/cifar10.md, cifar100.md and skews.md are the templates of the pages;
note_values.py computes the numbers in their text.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cifar100_tables
import composition_tables
import result_tables
import skew_tables
import stored_runs
from moonfl.report.rendering import Picture
from moonfl.report.runs import Run
from moonfl.report.tables import Table, markdown
from note_values import NoteValues, fill, placeholder_functions

HERE = Path(__file__).parent
ROOT = HERE.parent
DOCS = ROOT / "docs"
VARIANTS = ("fedavgm", "loss", "mu", "head", "negatives", "iid")


@dataclass(frozen=True)
class Stored:
    """The runs in results/, by name."""

    cifar10: dict[str, Run]
    skews: dict[str, Run]  # in results/cifar10 too
    cifar100: dict[str, Run]
    quiet: dict[str, Run]


def load() -> Stored:
    """Return all stored runs."""
    cifar10 = stored_runs.load("cifar10")
    skews = {name: cifar10.pop(name) for name in sorted(skew_tables.names() & cifar10.keys())}
    return Stored(
        cifar10=cifar10,
        skews=skews,
        cifar100=stored_runs.load("cifar100"),
        quiet=stored_runs.load("quiet"),
    )


def page(
    template: str,
    values: NoteValues,
    tables: dict[str, Callable[[], Table]],
    pictures: dict[str, Picture],
    runs: dict[str, Run],
) -> str:
    """Return a page: its template with numbers, tables and pictures filled in."""
    text = (HERE / template).read_text(encoding="utf-8")
    functions = placeholder_functions(values)
    functions["table"] = partial(table_text, tables)
    functions["picture"] = partial(picture_text, pictures)
    functions["versions"] = lambda: result_tables.versions(runs)
    return fill(text, functions)


def cifar10_tables(stored: Stored) -> dict[str, Callable[[], Table]]:
    """Return the functions that build the tables of the CIFAR-10 page, by name."""
    runs = stored.cifar10
    functions: dict[str, Callable[[], Table]] = {
        "table1": partial(result_tables.table1, runs),
        "late-rounds": partial(result_tables.late_rounds, *stored_runs.target_runs("rounds", runs)),
        "rounds-to-paper": partial(result_tables.rounds_to_paper, runs),
        "rounds-to-fedavg": partial(result_tables.rounds_to_fedavg, runs),
        "partitions": partial(result_tables.by_partition, runs),
        "compositions": partial(composition_tables.compositions, runs),
        "personal": partial(composition_tables.personal, runs),
        "time": partial(result_tables.seconds, stored.quiet),
        "runs": partial(result_tables.all_runs, runs),
    }
    for name in VARIANTS:
        functions[name] = partial(result_tables.variant, name, runs)
    return functions


def cifar100_page_tables(runs: dict[str, Run]) -> dict[str, Callable[[], Table]]:
    """Return the functions that build the tables of the CIFAR-100 page, by name."""
    functions: dict[str, Callable[[], Table]] = {
        name: partial(cifar100_tables.table, name, runs) for name in cifar100_tables.COMPARISONS
    }
    functions["late-rounds"] = partial(cifar100_tables.late_rounds, runs)
    functions["runs"] = partial(result_tables.all_runs, runs)
    return functions


def skew_page_tables(runs: dict[str, Run]) -> dict[str, Callable[[], Table]]:
    """Return the functions that build the tables of the page about kinds of skew, by name."""
    functions: dict[str, Callable[[], Table]] = {
        name: partial(skew_tables.table, name, runs) for name in skew_tables.COMPARISONS
    }
    functions["runs"] = partial(result_tables.all_runs, runs)
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


def files(stored: Stored) -> dict[Path, str]:
    """Return the content of every file that is generated from the runs."""
    pictures10 = result_tables.pictures(stored.cifar10)
    pictures100 = cifar100_tables.pictures(stored.cifar100)
    skew_pictures = {"skews": skew_tables.picture(stored.skews)}
    contents = {
        DOCS / "results.md": page(
            "cifar10.md",
            NoteValues(stored.cifar10, stored.quiet),
            cifar10_tables(stored),
            pictures10,
            stored.cifar10,
        ),
        DOCS / "results-cifar100.md": page(
            "cifar100.md",
            NoteValues(stored.cifar100, {}),
            cifar100_page_tables(stored.cifar100),
            pictures100,
            stored.cifar100,
        ),
        DOCS / "results-skews.md": page(
            "skews.md",
            NoteValues(stored.skews, {}),
            skew_page_tables(stored.skews),
            skew_pictures,
            stored.skews,
        ),
    }
    tables = {
        ROOT / "README.md": result_tables.table1(stored.cifar10),
        DOCS / "comparison.md": result_tables.others(stored.cifar10),
    }
    for path, table in tables.items():
        contents[path] = insert_table(path.read_text(encoding="utf-8"), table)
    for picture in [*pictures10.values(), *pictures100.values(), *skew_pictures.values()]:
        contents[DOCS / "pictures" / f"{picture.name}.svg"] = picture.svg
    return contents


def write() -> None:
    """Write the generated files."""
    stored = load()
    for path, text in files(stored).items():
        path.write_text(text, encoding="utf-8")
    number = len(stored.cifar10) + len(stored.skews) + len(stored.cifar100)
    print(f"the results pages are written from {number} runs")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            write()
        case ["store", folder]:
            stored_runs.store(Path(folder))
        case ["store", folder, "quiet"]:
            stored_runs.store(Path(folder), "quiet")
        case _:
            raise SystemExit(__doc__)
