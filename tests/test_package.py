"""The package: declared dependencies, and the content and tag of the wheel."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "moonfl"
DISTRIBUTIONS = {  # of imports whose distribution has another name
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "google": "protobuf",
    "tomli_w": "tomli-w",
    "huggingface_hub": "huggingface-hub",
    "mlflow": "mlflow-skinny",
}
EXTRAS = {  # package or module of moonfl -> extra that it needs
    "flower": "flower",
    "data/hub.py": "hub",
    "sweeps/trials.py": "tune",
    "trackers/mlflow.py": "mlflow",
    "trackers/wandb.py": "wandb",
}


def declared(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}


def third_party_imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names - sys.stdlib_module_names - {"moonfl"}


def test_every_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    always = declared(project["dependencies"])
    for path in SRC.rglob("*.py"):
        module = path.relative_to(SRC)
        extra = EXTRAS.get(module.as_posix()) or EXTRAS.get(module.parts[0])
        allowed = always
        if extra is not None:
            allowed = always | declared(project["optional-dependencies"][extra])
        for name in third_party_imports(path):
            assert DISTRIBUTIONS.get(name, name) in allowed, f"{path} imports {name}"


def test_every_dependency_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    imports = set()
    for path in SRC.rglob("*.py"):
        imports |= {DISTRIBUTIONS.get(name, name) for name in third_party_imports(path)}
    assert declared(project["dependencies"]) <= imports


def test_the_citation_and_the_changelog_have_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    release = version.partition(".dev")[0]
    newest = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == (release if release == version else f"{release} (unreleased)")


def test_one_wheel_serves_every_version_of_python(tmp_path: Path) -> None:
    """Built without a compiler, which takes a minute less and must work too."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(SRC, tree / "src" / "moonfl", ignore=shutil.ignore_patterns("*.so"))
    code = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    environment = os.environ | {"CC": "false", "CXX": "false"}
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        env=environment,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = (tree / "dist").iterdir()
    assert re.fullmatch(r"moonfl-.*-py3-none-linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    data = ["py.typed", "overview.json", "report/page.css", "flower/templates/app.toml"]
    assert {f"moonfl/{name}" for name in data} <= set(names)
    assert not [name for name in names if name.endswith((".c", ".h", ".so"))]
