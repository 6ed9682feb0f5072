"""Execute the commands and code of README and docs, and compare the pages with the code."""

import dataclasses
import inspect
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import moonfl
from helpers.documents import FENCE, LANGUAGES, ROOT, blocks, commands
from helpers.problems import TINY, gaussians, shorten, train, write_cifar10, write_user_data
from moonfl import settings
from moonfl.algorithms import ALGORITHMS, Algorithm
from moonfl.cli import main
from moonfl.data.datasets import DATASETS
from moonfl.experiment import Experiment
from moonfl.optimizers import OPTIMIZERS, SCHEDULES
from moonfl.server_optimizers import SERVERS

EXAMPLES = [f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
DOCS = ROOT / "docs"
SRC = Path(moonfl.__file__).parent
PAGES = sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md"))
DEPLOYMENT_PAGE = "flower.md"  # executed by tests/flower/test_deployment.py: it starts servers
PIP_INSTALL = re.compile(r"\$ pip install '?\.(\[[a-z]+\])?'?")


def moonfl_commands(block: str) -> list[list[str]]:
    """Return the arguments of every moonfl command in a console block."""
    return [words[1:] for words in commands(f"```console\n{block}```") if words[0] == "moonfl"]


README_BLOCKS = [block for block in blocks(README, "console") if moonfl_commands(block)]


def test_readme_has_commands() -> None:
    assert sum(len(moonfl_commands(block)) for block in README_BLOCKS) >= 8


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 155


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_count_the_methods(page: str) -> None:
    """MOON is the core method, and SOLO is not federated."""
    federated = [name for name, method in ALGORITHMS.items() if method.federated]
    words = {14: "Fourteen", 15: "Fifteen", 16: "Sixteen", 17: "Seventeen", 18: "Eighteen"}
    assert f"[{words[len(federated) - 1]} other " in (ROOT / page).read_text()


def test_the_reference_has_every_function() -> None:
    page = (DOCS / "reference.md").read_text()
    members = re.search(r"^ +members: \[(federate.*)\]$", page, flags=re.MULTILINE)
    assert members
    functions = [name for name in moonfl.__all__ if name.islower()]
    assert sorted(members[1].split(", ")) == functions


def test_readme_states_the_results_of_its_table() -> None:
    """The sentence on the first screen has the accuracies of the table of results."""
    ours = re.search(r"MOON reaches ([\d.]+) % and FedAvg ([\d.]+) %", README)
    paper = re.search(r"the paper reports ([\d.]+) and ([\d.]+) %", README)
    scaffold = re.search(r"SCAFFOLD leads with ([\d.]+) %", README)
    assert ours
    assert paper
    assert scaffold
    assert f"\n| MOON | {paper[1]} ± 0.4 | {ours[1]} ± " in README
    assert f"\n| FedAvg | {paper[2]} ± 0.5 | {ours[2]} ± " in README
    assert f" | {scaffold[1]} ± 0.3 | " in README


@pytest.mark.parametrize(
    "block", README_BLOCKS, ids=lambda block: block.splitlines()[-1].removeprefix("$ ")
)
def test_readme_commands(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run every command of a block, with small files in place of CIFAR-10 and of a user's data."""
    monkeypatch.chdir(tmp_path)
    for words in moonfl_commands(block):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        write_cifar10(tmp_path / "data", per_file=200 if "parties=100" in words else 24)
        write_user_data(tmp_path)
        assert main(words) == 0, capsys.readouterr().err


def test_readme_make_targets() -> None:
    for words in commands(README) + commands(CONTRIBUTING):
        if words[0] == "make":
            assert f"\n{words[1]}:" in MAKEFILE, words
        else:
            assert words[0] == "moonfl" or words == ["pip", "install", "."], words


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_the_files_at_the_root(name: str) -> None:
    """Relative links lead to files and, with an anchor, to headings. mkdocs checks docs/."""
    text = (ROOT / name).read_text()
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        page = (ROOT / path) if path else (ROOT / name)
        assert page.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], target


def test_readme_python(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks(README, "python")
    assert len([line for line in code.splitlines() if line]) == 10
    exec(compile(code, "README.md", "exec"), {})
    accuracy = float(capsys.readouterr().out.split()[1])
    assert 0.95 < accuracy <= 1


def test_the_example_method_of_contributing_works() -> None:
    (code,) = blocks(CONTRIBUTING, "python")
    names: dict = {"__name__": "zreg"}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    task = gaussians()
    norms = []
    for lam in (5.0, 0.0):
        server = train(replace(TINY, rounds=8, algorithm=names["ZReg"](lam=lam)), task)
        norms.append(server.params["head.2.weight"].norm())
    assert norms[0] < norms[1]


def fences(page: str) -> list[tuple[str, str, str]]:
    """Return (language, title, content) of every code block of a page.

    Every fence must open or close a block of a known language, so that no block is skipped.
    """
    text = (DOCS / page).read_text()
    found = FENCE.findall(text)
    marks = re.findall(r"^\s*(?:```|~~~)", text, flags=re.MULTILINE)
    assert 2 * len(found) == len(marks), f"{page}: a fence without its partner"
    assert {language for language, _, _ in found} <= LANGUAGES, page
    return found


def execute_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Execute a moonfl command; check the form of make, python and pip commands."""
    assert line.startswith("$ "), f"{line}: output belongs in a text block"
    words = shlex.split(line.removeprefix("$ "))
    if words[0] == "moonfl":
        assert main(words[1:]) == 0, f"{line}: {capsys.readouterr().err}"
    elif words[0] == "make":
        assert f"\n{words[1]}:" in MAKEFILE, line
    elif words[0] == "python":
        assert words[1] in EXAMPLES, f"{line}: test_examples.py executes the examples"
    else:
        assert PIP_INSTALL.fullmatch(line), line


@pytest.mark.parametrize("page", [page for page in PAGES if page != DEPLOYMENT_PAGE])
def test_pages(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Execute the blocks of a page in order, in an empty folder; a title names a file to write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    if page == "how-to/reproduce.md":
        shorten(monkeypatch, solo=3)
    found = fences(page)
    if any("cifar10" in block for language, _, block in found if language == "console"):
        write_cifar10(tmp_path / "data", per_file=24)
    names: dict = {"__name__": "__main__"}
    try:
        for language, title, block in found:
            if title:
                (tmp_path / title).write_text(block)
            elif language == "python":
                exec(compile(block, page, "exec"), names)
            elif language == "console":
                for line in block.splitlines():
                    execute_line(line, capsys)
    finally:
        for _, title, _ in found:
            sys.modules.pop(title.removesuffix(".py"), None)


def default_settings(cls: type, prefix: str = "", only: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the settings of a class and their defaults, in the form that pages show."""
    fields = [f for f in dataclasses.fields(cls) if not only or f.name in only]
    return {prefix + f.name: settings.format_default(f) for f in fields}


def settings_in(text: str) -> dict[str, str]:
    """Return the first two columns of the settings tables in a text."""
    return dict(re.findall(r"^\| `([\w.]+)` \| ([^|]*?) \|", text, flags=re.MULTILINE))


def references_in(text: str) -> set[str]:
    """Return the arXiv addresses in a text."""
    return set(re.findall(r"https://arxiv\.org/abs/[\d.]+\d", text))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_page_of_a_method(name: str) -> None:
    """Compare the settings, defaults and reference of a method's page with the code."""
    cls, text = ALGORITHMS[name], (DOCS / "methods" / f"{name}.md").read_text()
    assert settings_in(text) == default_settings(cls)
    assert f"`algorithm={name}`" in text
    assert references_in(sys.modules[cls.__module__].__doc__ or "") == references_in(text)


def test_the_page_of_custom_methods_names_every_hook_and_class_variable() -> None:
    text = (DOCS / "how-to" / "own-method.md").read_text()
    hooks = [name for name, value in vars(Algorithm).items() if inspect.isfunction(value)]
    assert set(re.findall(r"^\| `(\w+)\(", text, flags=re.MULTILINE)) == {
        name for name in hooks if not name.startswith("_")
    }
    types = inspect.get_annotations(Algorithm)
    rows = re.findall(r"^\| `(\w+)` \| .* \| .* \|$", text, flags=re.MULTILINE)
    assert set(rows) == set(types)
    assert len(types) == 9
    assert "Nine class variables" in text


def test_the_page_of_server_optimizers() -> None:
    text = (DOCS / "methods" / "server-optimizers.md").read_text()
    sections = dict(
        re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    )
    assert {name: settings_in(part) for name, part in sections.items()} == {
        name: default_settings(cls, "server.") for name, cls in SERVERS.items()
    }
    for cls in SERVERS.values():
        assert references_in(sys.modules[cls.__module__].__doc__ or "") <= references_in(text)


def test_the_page_of_training_options() -> None:
    text = (DOCS / "how-to" / "training.md").read_text()
    settings = {key: value for key, value in settings_in(text).items() if "." in key}
    for name in ("adam", "adamw"):
        assert settings == default_settings(OPTIMIZERS[name], "optimizer.")
    for name, cls in SCHEDULES.items():
        defaults = default_settings(cls, "schedule.")
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert dict(re.findall(r"`(schedule\.\w+)=([\d.]+)`", row)) == defaults
    for module in ("adam", "schedules"):
        source = (SRC / "optimizers" / f"{module}.py").read_text()
        assert references_in(source) <= references_in(text)


def test_the_page_of_robust_rules() -> None:
    text = (DOCS / "methods" / "robust.md").read_text()
    expected = default_settings(Experiment, only=("aggregation", "trim", "clip"))
    assert settings_in(text) == expected


def test_the_page_of_datasets_names_every_reader() -> None:
    page = (DOCS / "how-to" / "any-dataset.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+)` \| ", page, flags=re.MULTILINE)) == set(DATASETS)


def top_level_names() -> list[str]:
    """Return the modules and packages of moonfl as the architecture page writes them."""
    modules = [path.name for path in SRC.glob("*.py") if path.name != "__init__.py"]
    packages = [f"{path.parent.name}/" for path in SRC.glob("*/__init__.py")]
    return sorted(modules + packages)


def test_the_architecture_page_names_every_module_and_package() -> None:
    page = (DOCS / "architecture.md").read_text()
    described = re.findall(r"^\| `([\w./]+)` \| [A-Z`]", page, flags=re.MULTILINE)
    assert sorted(described) == top_level_names()
    picture = (DOCS / "pictures" / "layers.svg").read_text()
    assert sorted(re.findall(r"bold\"[^>]*>([\w./]+[y/])</text>", picture)) == top_level_names()


def test_the_files_that_the_architecture_page_names_exist() -> None:
    page = (DOCS / "architecture.md").read_text()
    for path in set(re.findall(r"`((?:\w+/)*\w+\.(?:py|md|svg))`", page)):
        if "NAME" not in path and path not in ("setup.py", "CONTRIBUTING.md"):
            assert (SRC / path).exists() or (ROOT / path).exists(), path


def test_the_functions_that_the_architecture_page_names_exist() -> None:
    page = (DOCS / "architecture.md").read_text()
    named = re.findall(r"`(\w+(?:\.\w+)*)` in\s`([\w/]+\.py)`", page)
    named += [(name, path) for path, name in re.findall(r"`([\w/]+\.py)`, `(\w+)`", page)]
    assert len(named) >= 12
    for name, path in named:
        for part in name.split("."):
            definition = rf"^\s*(?:def|class) {part}\b|^    {part}: "
            assert re.search(definition, (SRC / path).read_text(), flags=re.MULTILINE), (name, path)


def test_pictures_are_small_and_shown() -> None:
    pages = "".join((DOCS / page).read_text() for page in PAGES) + (ROOT / "mkdocs.yml").read_text()
    for path in (DOCS / "pictures").glob("*.svg"):
        assert path.stat().st_size < 150_000, path
        assert f"pictures/{path.name}" in pages, path
