"""Imports point one way: what stands lower in this list knows what stands higher, never the other way round."""

import ast
from pathlib import Path

import moonfl

LAYERS = [
    {"errors", "registry", "seeds", "settings", "tree", "types"},
    {"kernels"},
    {"algorithms", "data", "models", "server_optimizers"},
    {"aggregation", "experiment", "metrics", "presets", "trained_model"},
    {"local", "task"},
    {"runs"},
    {"engines", "federation"},
    {"api", "bench", "exports", "report"},
    {"flower", "reproduce"},
    {"cli"},
    {"__main__"},
]
SRC = Path(moonfl.__file__).parent
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def part(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The parts of the package a file imports, its own left out."""
    found = set()
    depth = len(path.relative_to(SRC).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            found |= (
                {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
            )
        elif (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and (node.module or "").startswith("moonfl")
        ):
            raise AssertionError(f"{path}: imports of the package are relative")
    return found - {part(path)}


def test_every_file_has_its_layer_and_imports_point_one_way() -> None:
    for path in (path for path in SRC.rglob("*.py") if path.parent.name != "templates"):
        if path == SRC / "__init__.py":
            continue
        for other in imported(path) - {"__version__"}:
            same_layer = LEVEL[other] == LEVEL[part(path)] and part(path) not in (
                "algorithms",
                "server_optimizers",
                "models",
                "data",
            )
            assert LEVEL[other] < LEVEL[part(path)] or same_layer, f"{path.name} imports {other}"


def test_one_loop_over_rounds_and_one_optimiser() -> None:
    files = {
        path.relative_to(SRC).as_posix(): path.read_text()
        for path in (path for path in SRC.rglob("*.py") if path.parent.name != "templates")
    }
    trains = {name for name, text in files.items() if ".backward()" in text}
    assert trains == {"local.py", "bench.py"}  # bench.py times a single step
    assert [name for name, text in files.items() if "exp.rounds):" in text] == ["federation.py"]
