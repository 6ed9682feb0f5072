"""The commands and code of the README, of CONTRIBUTING and of every page of the documentation do what they say."""

import dataclasses
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.documents import FENCE, LANGUAGES, ROOT, blocks, commands
from helpers.problems import TINY, gaussians, shorten, train, write_cifar10, write_own
from moonfl import settings
from moonfl.algorithms import ALGORITHMS
from moonfl.cli import main
from moonfl.experiment import Experiment
from moonfl.server_optimizers import SERVERS

EXAMPLES = [f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
DOCS = ROOT / "docs"
PAGES = sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md"))
FOLLOWED = "flower.md"  # by test_flower_deployment.py, as it starts processes that run until they are stopped


def of_moonfl(block: str) -> list[list[str]]:
    return [words[1:] for words in commands(f"```console\n{block}```") if words[0] == "moonfl"]


BLOCKS = [block for block in blocks(README, "console") if of_moonfl(block)]


def test_readme_has_commands() -> None:
    assert sum(len(of_moonfl(block)) for block in BLOCKS) >= 8


@pytest.mark.parametrize(
    "block", BLOCKS, ids=lambda block: block.splitlines()[-1].removeprefix("$ ")
)
def test_readme_commands(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every moonfl command, with a few images in CIFAR-10's layout and small files where a user's own would be."""
    monkeypatch.chdir(tmp_path)
    for words in of_moonfl(block):
        if words == ["run"]:  # thirty rounds, which `make demo` is
            assert "\ndemo: $(VENV)/installed\n\t$(BIN)/moonfl run\n" in MAKEFILE
            continue
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        write_cifar10(tmp_path / "data", per_file=200 if "parties=100" in words else 24)
        write_own(tmp_path)
        assert main(words) == 0, capsys.readouterr().err


def test_readme_make_targets() -> None:
    for words in commands(README) + commands((ROOT / "CONTRIBUTING.md").read_text()):
        if words[0] == "make":
            assert f"\n{words[1]}:" in MAKEFILE
        else:
            assert words[0] == "moonfl" or words == ["pip", "install", "."]


def test_readme_python(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks(README, "python")
    assert len([line for line in code.splitlines() if line]) == 10
    exec(compile(code, "README.md", "exec"), {})
    accuracy = float(capsys.readouterr().out.split()[1])
    assert 0.95 < accuracy <= 1


def test_the_example_method_works() -> None:
    (code,) = blocks((ROOT / "CONTRIBUTING.md").read_text(), "python")
    names: dict = {"__name__": "zreg"}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    task = gaussians()
    penalised, free = (
        train(replace(TINY, rounds=8, algorithm=names["ZReg"](lam=lam)), task)
        .params["head.2.weight"]
        .norm()
        for lam in (5.0, 0.0)
    )
    assert penalised < free


def fences(page: str) -> list[tuple[str, str, str]]:
    """(language, title, content) of every block of a page; one that is written otherwise is no block, and an error."""
    text = (DOCS / page).read_text()
    found = FENCE.findall(text)
    assert 2 * len(found) == len(re.findall(r"^\s*(?:```|~~~)", text, flags=re.MULTILINE)), (
        f"{page}: an odd fence"
    )
    assert {language for language, _, _ in found} <= LANGUAGES, page
    return found


def do(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of a console: moonfl is run, make must have that target, pip a form that works."""
    assert line.startswith("$ "), f"{line}: what a command prints belongs in a text block"
    words = shlex.split(line.removeprefix("$ "))
    if words[0] == "moonfl":
        assert main(words[1:]) == 0, f"{line}: {capsys.readouterr().err}"
    elif words[0] == "make":
        assert f"\n{words[1]}:" in MAKEFILE, line
    elif words[0] == "python":
        assert words[1] in EXAMPLES, f"{line}: run by test_examples.py"
    else:
        assert re.fullmatch(r"\$ pip install '?(\.|moonfl)(\[[a-z]+\])?'?", line), line


@pytest.mark.parametrize("page", [page for page in PAGES if page != FOLLOWED])
def test_pages(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block in its order, in an empty folder; a block with a title is the file of that name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    if page == "how-to/reproduce.md":
        shorten(monkeypatch, solo=3)
    found = fences(page)
    if any("cifar10" in block for language, _, block in found if language == "console"):
        write_cifar10(tmp_path / "data", per_file=24)  # a few images in the place of the real ones
    names: dict = {"__name__": "__main__"}
    try:
        for language, title, block in found:
            if title:
                (tmp_path / title).write_text(block)
            elif language == "python":
                exec(compile(block, page, "exec"), names)
            elif language == "console":
                for line in block.splitlines():
                    do(line, capsys)
    finally:
        for _, title, _ in found:
            sys.modules.pop(title.removesuffix(".py"), None)


def shown(cls: type, prefix: str = "", only: tuple[str, ...] = ()) -> dict[str, str]:
    """The settings of a class with their defaults, as a page shows them."""
    return {
        prefix + f.name: settings.format_default(f)
        for f in dataclasses.fields(cls)
        if not only or f.name in only
    }


def settings_in(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `([\w.]+)` \| ([^|]*?) \|", text, flags=re.MULTILINE))


def references_in(text: str) -> set[str]:
    return set(re.findall(r"https://arxiv\.org/abs/[\d.]+\d", text))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_page_of_a_method(name: str) -> None:
    """Its settings are those of the code, with their defaults; so is its reference."""
    cls, text = ALGORITHMS[name], (DOCS / "methods" / f"{name}.md").read_text()
    assert settings_in(text) == shown(cls)
    assert f"`algorithm={name}`" in text
    assert references_in(sys.modules[cls.__module__].__doc__ or "") == references_in(text)


def test_the_page_of_server_steps() -> None:
    text = (DOCS / "methods" / "server-optimizers.md").read_text()
    sections = dict(
        re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    )
    assert {name: settings_in(part) for name, part in sections.items()} == {
        name: shown(cls, "server.") for name, cls in SERVERS.items()
    }
    for cls in SERVERS.values():
        assert references_in(sys.modules[cls.__module__].__doc__ or "") <= references_in(text)


def test_the_page_of_robust_rules() -> None:
    text = (DOCS / "methods" / "robust.md").read_text()
    assert settings_in(text) == shown(Experiment, only=("combination", "trim", "clip"))


def test_pictures_are_small_and_shown() -> None:
    pages = "".join((DOCS / page).read_text() for page in PAGES) + (ROOT / "mkdocs.yml").read_text()
    for path in (DOCS / "pictures").glob("*.svg"):
        assert path.stat().st_size < 150_000, path
        assert f"pictures/{path.name}" in pages, path
