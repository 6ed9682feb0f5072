"""The table of docs/methods/index.md: every method, and what it sends and stores."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.problems import TINY, gaussians, with_algorithm
from moonfl import tree
from moonfl.aggregation import AGGREGATIONS
from moonfl.algorithms import ALGORITHMS, Algorithm, replaces_aggregation
from moonfl.experiment import Experiment
from moonfl.federation import aggregate, init_server
from moonfl.local import Workbench, local_update
from moonfl.personal import personal_names
from moonfl.presets import PRESETS, has_local_term
from moonfl.server_optimizers import SERVERS
from moonfl.task import Task
from moonfl.types import Params, Server, State

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "index.md"
NOTHING = "–"


def rows() -> dict[str, list[str]]:
    """Return the cells of each row after the first, by every key in code marks of the first."""
    table: dict[str, list[str]] = {}
    text = PAGE.read_text().partition("## All methods")[2].partition("\n## ")[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for key in re.findall(r"`([^`]+)`", cells[0]) if len(cells) == 7 else []:
            assert key not in table
            table[key] = cells[1:]
    return table


ROWS = rows()


def size(params: Params) -> int:
    return sum(value.numel() for value in params.values())


def state_size(state: State) -> int:
    return sum(map(size, state.values()))


def amount(count: int, model: int) -> str:
    """Return a number of floats as the table writes it."""
    if count == 0:
        return NOTHING
    unit = "number"
    if count >= model:
        assert count % model == 0
        count //= model
        unit = "model"
    return f"{count} {unit}{'s' if count > 1 else ''}"


def one_round(exp: Experiment, task: Task) -> tuple[Server, State, list[str]]:
    """Return the server and a party's state after a round, and what was sent beside the model."""
    server = init_server(exp, task)
    model = size(server.params)
    updates = []
    workbench = Workbench(task.build)
    for party in range(exp.parties):
        update, state = local_update(exp, task, workbench, server, state=None, party=party, t=0)
        updates.append(update)
    up, down = state_size(updates[0].extra), state_size(server.shared)
    sent = [f"{way} {amount(n, model)}" for way, n in (("up", up), ("down", down)) if n]
    return aggregate(exp, server, updates, t=0), state, sent


def check_row(cells: list[str], exp: Experiment) -> None:
    """Compare what a method sends and stores with its row."""
    server, state, sent = one_round(exp, gaussians())
    model = size(server.params)
    _, in_addition, party_stores, server_stores, *_ = cells
    assert in_addition == (", ".join(sent) or NOTHING)
    assert party_stores == amount(state_size(state), model)
    states = (server.shared, server.memory, server.optimizer_state)
    stored = sum(map(state_size, states))
    assert server_stores == amount(stored, model)


def component_of(name: str) -> str:
    """Return the components of a method as its hooks show them."""
    method = ALGORITHMS[name]()
    names = ["local term"] if has_local_term(method) else []
    has_phases = type(method).phases is not Algorithm.phases
    names += ["personal part"] if has_phases or method.requires else []
    names += ["aggregation"] if replaces_aggregation(method) else []
    return ", ".join(names) if names and method.federated else "baseline"


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "solo"])
def test_rows_of_algorithms(name: str) -> None:
    cells = ROWS[name]
    assert cells[0].removesuffix(", replaces the loss") == component_of(name)
    check_row(cells, with_algorithm(TINY, name))


def test_solo_sends_nothing() -> None:
    assert component_of("solo") == ROWS["solo"][0] == "baseline"
    assert ROWS["solo"][1:4] == [NOTHING] * 3
    assert not ALGORITHMS["solo"].federated


@pytest.mark.parametrize("name", [name for name in SERVERS if name != "average"])
def test_rows_of_server_optimizers(name: str) -> None:
    cells = ROWS[f"server={name}"]
    assert cells[0] == "server optimizer"
    check_row(cells, replace(with_algorithm(TINY, "fedavg"), server=SERVERS[name]()))


@pytest.mark.parametrize("name", [name for name in AGGREGATIONS if name != "mean"])
def test_rows_of_aggregation_rules(name: str) -> None:
    cells = ROWS[f"aggregation={name}"]
    assert cells[0] == "aggregation"
    if name != "fednova":  # its row describes algorithm=fednova as well, which sends a number
        trim = 0.25 if name == "trimmed-mean" else None
        exp = replace(with_algorithm(TINY, "fedavg"), aggregation=name, trim=trim)
        check_row(cells, exp)


def test_the_row_of_clipping() -> None:
    check_row(ROWS["clip=NORM"], replace(with_algorithm(TINY, "fedavg"), clip=1.0))


@pytest.mark.parametrize("name", ["batchnorm", "output", "encoder"])
def test_rows_of_personal_tensors(name: str) -> None:
    component, in_addition, party_stores, server_stores, *_ = ROWS[f"personal={name}"]
    assert component == "personal part"
    task = gaussians(batch_norm=True)
    complete = size(init_server(with_algorithm(TINY, "fedavg"), task).params)
    names = personal_names(name, task.build())
    task = replace(task, personal=names)
    exp = replace(with_algorithm(TINY, "fedavg"), personal=name)
    server, state, sent = one_round(exp, task)
    kept = state["personal"]
    assert set(kept) == set(names)
    assert sent == []
    trained = set(names) & set(tree.params_of(task.build()))
    assert size(server.params) == complete - sum(kept[key].numel() for key in trained)
    assert in_addition.startswith("less: no ")
    assert party_stores.lower().startswith(in_addition.removeprefix("less: no ").lower())
    assert server_stores == NOTHING


def test_every_preset_has_a_row() -> None:
    for name, preset in PRESETS.items():
        exp = preset.experiment
        keys = [f"personal={exp.personal}"] if exp.personal is not None else []
        keys += [key for key, cls in ALGORITHMS.items() if type(exp.algorithm) is cls]
        keys += [f"server={k}" for k, cls in SERVERS.items() if type(exp.server) is cls]
        for key in keys:
            assert key in ROWS or key == "server=average", f"{name}: {key} has no row in {PAGE}"
