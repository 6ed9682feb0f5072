"""The commands and code of the README and of CONTRIBUTING do what they say."""

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from problems import TINY, gaussians, train, write_cifar10, write_own

from moonfl import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line.removeprefix("$ ")) for block in blocks(text, "console") for line in block.splitlines()]


def of_moonfl(block: str) -> list[list[str]]:
    return [words[1:] for words in commands(f"```console\n{block}```") if words[0] == "moonfl"]


BLOCKS = [block for block in blocks(README, "console") if of_moonfl(block)]


def test_readme_has_commands() -> None:
    assert sum(len(of_moonfl(block)) for block in BLOCKS) >= 8


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[-1].removeprefix("$ "))
def test_readme_commands(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every moonfl command, with a few images in CIFAR-10's layout and small files where a user's own would be."""
    monkeypatch.chdir(tmp_path)
    for words in of_moonfl(block):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        write_cifar10(tmp_path / "data", per_file=200 if "parties=100" in words else 24)
        write_own(tmp_path)
        assert cli.main(words) == 0, capsys.readouterr().err


def test_readme_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for words in commands(README) + commands((ROOT / "CONTRIBUTING.md").read_text()):
        if words[0] == "make":
            assert f"\n{words[1]}:" in makefile
        else:
            assert words[0] == "moonfl" or words == ["pip", "install", "."]


def test_readme_python(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks(README, "python")
    assert len([line for line in code.splitlines() if line]) <= 10
    exec(compile(code, "README.md", "exec"), {})
    accuracy = float(capsys.readouterr().out.split()[1])
    assert 0.95 < accuracy <= 1


def test_readme_tree_names_every_file() -> None:
    tree = README.split("src/moonfl/\n", 1)[1].split("```", 1)[0]
    for path in (ROOT / "src" / "moonfl").rglob("*.[pch]*"):
        if path.suffix in (".py", ".c", ".h") and not path.name.startswith("__"):
            assert re.search(rf"[ /]{re.escape(path.name)}\b", tree), path


def test_the_example_method_works() -> None:
    (code,) = blocks((ROOT / "CONTRIBUTING.md").read_text(), "python")
    names: dict = {"__name__": "zreg"}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    task = gaussians()
    penalised, free = (
        train(replace(TINY, rounds=8, algorithm=names["ZReg"](lam=lam)), task).params["head.2.weight"].norm()
        for lam in (5.0, 0.0)
    )
    assert penalised < free
