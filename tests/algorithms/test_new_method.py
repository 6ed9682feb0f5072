"""Landing a new term: its file, one entry of the table, one docs page, and its tests.

This follows CONTRIBUTING.md in a copy of the repository. The contract tests, the comparison of the
docs page with the code, and the command line then cover the method without further changes.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.documents import ROOT, blocks

PAGE = """# ZReg

`algorithm=zreg`

| setting | default | what it is |
|---|---|---|
| `lam` | 0.1 | weight of the penalty; 0 is FedAvg |
"""
ROW = "| [ZReg](zreg.md) `zreg` | local term | – | – | – | 1 | representations must stay small |\n"
TESTS = """from helpers.problems import TINY, gaussians, train, with_algorithm
from moonfl.algorithms.zreg import ZReg


def test_no_penalty_is_fedavg() -> None:
    fedavg = train(with_algorithm(TINY, "fedavg"), gaussians())
    zreg = train(with_algorithm(TINY, ZReg(lam=0.0)), gaussians())
    assert all(zreg.params[name].equal(value) for name, value in fedavg.params.items())
"""


def copy_repository(folder: Path) -> None:
    """Copy what the tests of methods read."""
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "Makefile"):
        shutil.copy(ROOT / name, folder / name)


def call(folder: Path, *words: str) -> str:
    """Run Python in the copy and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_landing_a_term(tmp_path: Path) -> None:
    copy_repository(tmp_path)
    package = tmp_path / "src" / "moonfl"
    # 1. the file of the method
    (code,) = blocks((ROOT / "CONTRIBUTING.md").read_text(), "python")
    code = code.replace("from moonfl.algorithms.base", "from .base").replace("moonfl.", "..")
    (package / "algorithms" / "zreg.py").write_text(code)
    # 2. one entry of the table
    table = package / "algorithms" / "table.py"
    text = table.read_text().replace('    "solo": Solo,', '    "zreg": ZReg,\n    "solo": Solo,')
    table.write_text(text.replace("from .solo", "from .zreg import ZReg\nfrom .solo"))
    # 3. one docs page, and its row in the map of methods
    methods = tmp_path / "docs" / "methods"
    (methods / "zreg.md").write_text(PAGE)
    index = (methods / "index.md").read_text()
    (methods / "index.md").write_text(re.sub(r"(?m)^\| \[FedBN\]", rf"{ROW}\g<0>", index))
    # 4. its tests
    (tmp_path / "tests" / "algorithms" / "test_zreg.py").write_text(TESTS)

    call(tmp_path, "-c", "from moonfl.cli import overview; overview.write()")
    run = "moonfl run digits-moon parties=2 rounds=2 epochs=1 --workers 1 --out"
    call(tmp_path, "-m", *run.split(), "runs/zreg", "algorithm=zreg", "lam=0.5")
    call(tmp_path, "-m", *run.split(), "runs/both", "algorithm=moon+zreg", "lam=0.5", "mu=2")
    assert "MOON + ZReg" in call(tmp_path, "-m", "moonfl", "compare", "runs")
    files = ["test_contract.py", "test_zreg.py", "test_methods_table.py"]
    paths = [f"tests/algorithms/{name}" for name in files]
    few = "zreg and not fed and not scaffold"  # of the compositions only moon+zreg
    selection = ["-k", few, "-x", "-vv", "-p", "no:cacheprovider"]
    output = call(tmp_path, "-m", "pytest", *paths, "tests/test_docs.py", *selection)
    assert int(re.findall(r"(\d+) passed", output)[0]) > 20
