"""Imports point one way: a module may import from the layers above it in this list, never below."""

import ast
import graphlib
from pathlib import Path

import moonfl

LAYERS = [
    {
        "errors",
        "exchange",
        "measures",
        "numerics",
        "overview",
        "registry",
        "seeds",
        "settings",
        "tree",
        "types",
    }
    | {"data.locations", "runs.index", "runs.schema"},
    {"kernels"},
    {"algorithms", "data", "models", "optimizers", "privacy", "server_optimizers"},
    {
        "aggregation",
        "components",
        "experiment",
        "metrics",
        "objectives",
        "presets",
        "trained_model",
    },
    {"local", "party_models", "personal", "task"},
    {"runs"},
    {"engines", "federation"},
    {"api", "bench", "exports", "report", "trackers"},
    {"flower", "reproduce", "sweeps"},
    {"cli"},
    {"__main__"},
]
INDEPENDENT = LAYERS[2]  # of others in their layer
SRC = Path(moonfl.__file__).parent
FILES = [path for path in SRC.rglob("*.py") if path.parent.name != "templates"]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def unit(module: list[str]) -> str:
    """Return the unit of the layers that a module below moonfl belongs to."""
    return ".".join(module[:2]) if ".".join(module[:2]) in LEVEL else module[0]


def unit_of_file(path: Path) -> str:
    return unit(list(path.relative_to(SRC).with_suffix("").parts))


def imported_units(path: Path) -> set[str]:
    """Return the units that a file imports, without its own."""
    package = path.relative_to(SRC).parts[:-1]
    units = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = (node.module or "").split(".") if node.module else []
        if node.level == 0:
            assert module[0] != "moonfl", f"{path}: imports of the package are relative"
            continue
        base = [*package[: len(package) - node.level + 1], *module]
        names = [[alias.name] for alias in node.names] if not base else [base]
        if base and not module:  # from . import name: the name may be a module of that package
            names = [[*base, alias.name] for alias in node.names]
        units |= {unit(name) for name in names}
    return units - {unit_of_file(path), "__version__"}


def test_every_file_has_its_layer_and_imports_point_one_way() -> None:
    for path in FILES:
        if path == SRC / "__init__.py":
            continue
        importer = unit_of_file(path)
        for other in imported_units(path):
            is_above = LEVEL[other] < LEVEL[importer]
            is_beside = LEVEL[other] == LEVEL[importer] and importer not in INDEPENDENT
            assert is_above or is_beside, f"{path.relative_to(SRC)} imports {other}"


def test_units_of_a_layer_do_not_import_each_other_in_a_circle() -> None:
    imports: dict[str, set[str]] = {}
    for path in FILES:
        if path != SRC / "__init__.py":
            imports.setdefault(unit_of_file(path), set()).update(imported_units(path))
    assert tuple(graphlib.TopologicalSorter(imports).static_order())


def test_init_files_only_re_export() -> None:
    allowed = (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign)
    for path in FILES:
        if path.name != "__init__.py" or path == SRC / "__init__.py":
            continue
        for node in ast.parse(path.read_text()).body:
            assert isinstance(node, allowed), f"{path}: line {node.lineno} is not a re-export"
            if isinstance(node, ast.Assign):
                assert [ast.unparse(target) for target in node.targets] == ["__all__"], path


def test_there_is_one_loop_over_rounds_and_one_over_batches() -> None:
    texts = {path.relative_to(SRC).as_posix(): path.read_text() for path in FILES}
    trains = {name for name, text in texts.items() if ".backward()" in text}
    assert trains == {"local.py", "bench.py"}  # bench.py times a single step
    loops = [name for name, text in texts.items() if "exp.rounds):" in text]
    assert loops == ["federation.py"]
