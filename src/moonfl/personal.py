"""Personal models: which tensors of the model stay at the party while the others are shared.

| setting              | stays at the party                        | published as |
|----------------------|-------------------------------------------|--------------|
| `personal=batchnorm` | BatchNorm layers with their statistics    | FedBN        |
| `personal=output`    | the output layer                          | FedPer       |
| `personal=head`      | the projection head                       |              |
| `personal=encoder`   | the encoder                               | LG-FedAvg    |
| `personal=REGEX`     | tensors whose whole names match           |              |

The server holds, sends and aggregates only the shared tensors. A party stores its personal ones
in its state, under a label that methods never see. docs/how-to/personal-models.md has references.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from . import seeds, tree
from .errors import InputError, RunError
from .experiment import Experiment
from .models.base import STATISTICS, Model, is_batch_norm
from .types import Params, Server, State

LABEL = "personal"  # of the personal tensors in a party's state, and of the parties' score
SHARED = "shared"  # name of the incomplete model that the server holds


def personal_names(selection: str | None, model: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters and buffers that stay at the party, in model order."""
    if selection is None:
        return ()
    params = tree.params_of(model)
    tensors = params | tree.buffers_of(model)
    names = [name for name in tensors if name not in STATISTICS]
    selected = tuple(name for name in names if _is_selected(selection, name, model))
    if not selected:
        raise InputError(
            f"personal={selection} selects nothing of this model; allowed are batchnorm, output, "
            "head, encoder, or a regular expression that matches whole names among "
            f"{', '.join(names)}"
        )
    if params.keys() <= set(selected):
        raise InputError(
            f"personal={selection} selects every trainable parameter, so that nothing would be "
            "shared; use algorithm=solo, or a regular expression that matches some of "
            f"{', '.join(names)}"
        )
    return selected


def check_personal(exp: Experiment, names: tuple[str, ...], model: nn.Module) -> None:
    """Refuse personal tensors without a parameter if the method trains those that are personal."""
    if "personal" in exp.algorithm.requires and tree.params_of(model).keys().isdisjoint(names):
        raise InputError(
            f"{exp.algorithm.label} trains the personal parameters of a party, and "
            f"personal={exp.personal} selects only buffers: {', '.join(names)}; use "
            "personal=output, or another method"
        )


def _is_selected(selection: str, name: str, model: nn.Module) -> bool:
    """Return True if the setting `personal` selects the tensor with this name."""
    owner = name.rpartition(".")[0]
    if selection == "batchnorm":
        return is_batch_norm(model.get_submodule(owner))
    if selection in ("encoder", "head", "output"):
        return isinstance(model, Model) and name.startswith(f"{selection}.")
    return re.fullmatch(selection, name) is not None


def method_state(state: State) -> State:
    """Return the part of a party's state that the method stored."""
    return {label: params for label, params in state.items() if label != LABEL}


def party_state(state: State, personal: Params) -> State:
    """Return what a party stores: the method's part and the personal tensors, if there are any."""
    if not personal:
        return state
    if LABEL in state:
        raise RunError(
            f"finish returns '{LABEL}' for the party to store, which is the label of the personal "
            "tensors (personal=...); rename it in the method"
        )
    return {**state, LABEL: personal}


def deployed(exp: Experiment, server: Server) -> dict[str, Params]:
    """Return the models that the server holds, by name; with personal tensors it is incomplete."""
    if exp.personal is None:
        return exp.algorithm.deployed(server)
    return {SHARED: server.model}


def share_test_set(test: Tensor, train: Mapping[int, Tensor], seed: int) -> Tensor:
    """Return the party of each sample of a common test set, or -1 for none.

    `test` are the labels of the test set, `train` those of each party's training samples. The test
    samples of a class are divided in proportion to the parties' training samples of that class,
    so that a party is evaluated on the classes that it has. Samples of a class that no party has
    belong to none. A single party, as at a Flower site, has all of them.
    """
    if len(train) == 1:
        return torch.full((len(test),), next(iter(train)))
    owner = torch.full((len(test),), -1)
    order = torch.randperm(len(test), generator=seeds.rng(seed, "test"))
    for label in test.unique().tolist():
        rows = order[test.cpu()[order] == label]
        counts = torch.tensor([int((labels == label).sum()) for labels in train.values()])
        stops = counts.cumsum(0) * len(rows) // max(1, int(counts.sum()))
        sizes = stops.diff(prepend=torch.zeros(1, dtype=torch.long))
        parts = rows.split([*sizes.tolist(), len(rows) - int(stops[-1])])
        for party, part in zip([*train, -1], parts, strict=True):
            owner[part] = party
    return owner
