"""Matched averaging, after FedMA: permute the units of every party's model before averaging.

    python benchmarks/matched.py [--preset digits-fedavg] [--seeds 5] [--shot-epochs 50] [KEY=VALUE]

Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni, Federated Learning with Matched Averaging,
ICLR 2020. https://arxiv.org/abs/2002.06440

The units of a hidden layer can be permuted without changing the function of a network, so equal
units of two parties may be at different places. FedMA matches them layer by layer before it
averages. This trial keeps the widths fixed and aligns each party to the global model that it
started from, with `scipy.optimize.linear_sum_assignment`. docs/methods/fedma.md has the findings.

The script prints two tables, as means over the seeds with standard deviations:

- rounds: the final accuracy of plain and matched averaging, and the share of units that were moved;
- one shot: models that each party trained alone, from common or from independent initial weights,
  averaged once, plainly and matched to the mean of the parties before.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import moonfl
from moonfl import tree
from moonfl.engines.embedded import Embedded
from moonfl.experiment import Experiment, override
from moonfl.federation import init_server, run
from moonfl.presets import PRESETS
from moonfl.report.tables import align as align_columns
from moonfl.runs.schema import RoundRecord
from moonfl.settings import setting
from moonfl.task import Task, make_task
from moonfl.types import Mean, Params, Server, State, Update

MOVED = "moved"  # label of the counts of units in the memory of the server


def layers_of(params: Params) -> list[str]:
    """Return the layers of a chain of linear and convolutional layers, in order."""
    names = [name.removesuffix(".weight") for name in params if name.endswith(".weight")]
    if any(params[f"{name}.weight"].dim() < 2 for name in names):
        raise moonfl.InputError("matched averaging needs a model without normalisation layers")
    return names


def by_input(weight: Tensor, units: int) -> Tensor:
    """Return a weight as [outputs, units of the layer before, others].

    A convolution has one entry per pixel of its kernel, a linear layer after the flattening of a
    feature map one per pixel of that map.
    """
    return weight.reshape(len(weight), units, -1)


def permute(params: Params, layer: str, following: str, order: Tensor) -> Params:
    """Return the model with the units of a hidden layer in another order; the same function."""
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    outgoing = params[f"{following}.weight"]
    permuted = by_input(outgoing, len(order))[:, order].reshape(outgoing.shape)
    changes = {weight: params[weight][order], bias: params[bias][order]}
    return {**params, **changes, f"{following}.weight": permuted}


def features(params: Params, layer: str, following: str, outgoing: bool) -> Tensor:
    """Return a row for each unit of a layer: incoming weights, bias and maybe outgoing weights."""
    weight, bias = params[f"{layer}.weight"], params[f"{layer}.bias"]
    rows = [weight.reshape(len(weight), -1), bias[:, None]]
    if outgoing:
        columns = by_input(params[f"{following}.weight"], len(weight))
        rows.append(columns.transpose(0, 1).reshape(len(weight), -1))
    return torch.cat(rows, dim=1)


def align(reference: Params, params: Params, sweeps: int) -> tuple[Params, int]:
    """Return the model with its units in the order of the reference, and how many were moved.

    The assignment minimises the squared distance of the weights, one layer at a time. With
    `sweeps=0` only incoming weights count, from the first layer to the last, as in FedMA.
    Otherwise outgoing weights count as well, and the pass over the layers is repeated.
    """
    layers = layers_of(params)
    orders = {layer: torch.arange(len(params[f"{layer}.weight"])) for layer in layers}
    for _ in range(max(1, sweeps)):
        changed = False
        for layer, following in itertools.pairwise(layers):
            target = features(reference, layer, following, sweeps > 0)
            source = features(params, layer, following, sweeps > 0)
            _, columns = linear_sum_assignment(torch.cdist(target, source).square().numpy())
            order = torch.from_numpy(columns)
            changed = changed or not torch.equal(order, torch.arange(len(order)))
            params = permute(params, layer, following, order)
            orders[layer] = orders[layer][order]
        if not changed:
            break
    moved = sum(int((order != torch.arange(len(order))).sum()) for order in orders.values())
    return params, moved


@dataclass(frozen=True)
class Matched(moonfl.Algorithm):
    """w^{t+1} = sum |D^i|/|D| P_i w_i^t, where P_i aligns the units of party i to w^t."""

    sweeps: int = setting(5, "passes over the layers; 0: incoming weights only, as in FedMA", low=0)

    def init_server(self, params: Params, buffers: Params) -> Server:
        memory = {MOVED: {"moved": torch.zeros(1), "units": torch.zeros(1)}}
        return Server(params=params, buffers=buffers, memory=memory)

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Server:
        models: list[tuple[Params, int]] = []
        moved = server.memory[MOVED]["moved"]
        for update in updates:
            params, count = align(server.params, update.params, self.sweeps)
            models.append((params, update.num_samples))
            moved = moved + count
        hidden = sum(len(server.params[f"{name}.weight"]) for name in layers_of(server.params)[:-1])
        units = server.memory[MOVED]["units"] + hidden * len(updates)
        memory: State = {MOVED: {"moved": moved, "units": units}}
        return replace(server, params=mean(iter(models)), memory=memory)


@dataclass
class Records:
    """The recorder of a run that is not stored."""

    records: list[RoundRecord] = field(default_factory=list)

    def log(
        self, record: RoundRecord, server: Server, updates: list[Update], *, last: bool
    ) -> None:
        """Append the record of a round."""
        self.records.append(record)


def train(exp: Experiment, task: Task) -> tuple[float, float]:
    """Return the final accuracy of a run in per cent, and the share of units that were moved."""
    recorder = Records()
    server = run(exp, task, Embedded(exp, task), recorder)
    share = float("nan")
    if MOVED in server.memory:
        share = float(server.memory[MOVED]["moved"] / server.memory[MOVED]["units"])
    return 100 * recorder.records[-1].accuracy, 100 * share


def one_shot(exp: Experiment, task: Task, independent: bool) -> list[float]:
    """Return the accuracies, in per cent, of the plain and the matched mean of trained models."""
    engine = Embedded(exp, task)
    updates = []
    for party in range(exp.parties):
        seed = 1000 * (party + 1) + exp.seed if independent else exp.seed
        server = init_server(replace(exp, seed=seed), task)
        updates += engine.train(server, [party], 0)
    plain = tree.mean((update.params, update.num_samples) for update in updates)
    matched: Params = updates[0].params
    weight = updates[0].num_samples
    for update in updates[1:]:
        params, _ = align(matched, update.params, sweeps=5)
        matched = tree.mean(iter([(matched, weight), (params, update.num_samples)]))
        weight += update.num_samples
    servers = [replace(server, params={**params}) for params in (plain, matched)]
    return [100 * engine.evaluate(server)["global"].accuracy for server in servers]


def summary(values: Sequence[float]) -> str:
    """Return the mean and, of several values, the standard deviation."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def main(arguments: list[str]) -> None:
    """Run the experiments and print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="digits-fedavg")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--shot-epochs", type=int, default=50, help="epochs of the one-shot table")
    parser.add_argument("changes", nargs="*", metavar="key=value")
    args = parser.parse_args(arguments)
    base = override(PRESETS[args.preset].experiment, args.changes)
    partitions = {"IID": "partition=iid", "Dirichlet 0.5": "beta=0.5", "Dirichlet 0.1": "beta=0.1"}
    rounds: list[tuple[str, ...]] = [
        ("partition", "plain", "matched", "incoming only", "units moved, %")
    ]
    shots: list[tuple[str, ...]] = [("partition", "initial weights", "plain", "matched")]
    for name, change in partitions.items():
        results: dict[str, list[float]] = {key: [] for key in ("plain", "both", "in", "moved")}
        merged: dict[tuple[bool, int], list[float]] = {}
        for seed in range(args.seeds):
            exp = override(base, [change, f"seed={seed}"])
            task = make_task(exp)
            results["plain"].append(train(exp, task)[0])
            accuracy, moved = train(replace(exp, algorithm=Matched()), task)
            results["both"].append(accuracy)
            results["moved"].append(moved)
            results["in"].append(train(replace(exp, algorithm=Matched(sweeps=0)), task)[0])
            alone = replace(exp, epochs=args.shot_epochs)
            for independent in (False, True):
                for k, value in enumerate(one_shot(alone, task, independent)):
                    merged.setdefault((independent, k), []).append(value)
        rounds.append((name, *(summary(results[key]) for key in ("plain", "both", "in", "moved"))))
        for independent in (False, True):
            kind = "independent" if independent else "common"
            cells = [summary(merged[independent, k]) for k in (0, 1)]
            shots.append((name, kind, *cells))
    print(align_columns(rounds), "", align_columns(shots), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
