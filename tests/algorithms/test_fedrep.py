"""FedRep: first the personal head, then the shared body."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.equality import same
from helpers.problems import TINY, gaussians
from moonfl.algorithms import MOON, FedAvg, FedRep
from moonfl.errors import InputError
from moonfl.experiment import Experiment, override
from moonfl.federation import init_server
from moonfl.local import Workbench, local_update
from moonfl.personal import LABEL, personal_names
from moonfl.task import Task, build_task, read, split
from moonfl.types import Params, State, Update

LR = 0.1
FULL = replace(
    TINY, batch_size=64, epochs=3, lr=LR, momentum=0.0, weight_decay=0.0, personal="output"
)  # batches have all samples of a party


def personal_task() -> Task:
    task = gaussians()
    return replace(task, personal=personal_names("output", task.build()))


def one_round(exp: Experiment, task: Task) -> tuple[Update, State]:
    server = init_server(exp, task)
    return local_update(exp, task, Workbench(task.build), server, state=None, party=0, t=0)


def descend(model: nn.Module, task: Task, names: set[str], steps: int) -> None:
    """Take full gradient steps on the parameters with these names."""
    data = task.parties[0]
    for _ in range(steps):
        model.zero_grad()
        F.cross_entropy(model(data.x).logits, data.y).backward()
        with torch.no_grad():
            for name, param in model.named_parameters():
                if name in names:
                    param -= LR * param.grad


def as_dict(params: Params) -> dict[str, torch.Tensor]:
    return {name: params[name] for name in sorted(params)}


def test_the_head_is_fitted_before_the_body() -> None:
    task = personal_task()
    exp = replace(FULL, algorithm=FedRep(head_epochs=4))
    update, state = one_round(exp, task)
    model = task.build()
    params, _ = task.init_model(exp.seed)
    model.load_state_dict(dict(params))
    head = set(task.personal)
    body = {name for name, _ in model.named_parameters()} - head
    descend(model, task, head, 4)
    descend(model, task, body, 3)
    trained = {**update.params, **state[LABEL]}
    for name, param in model.named_parameters():
        assert torch.allclose(trained[name], param, atol=1e-6), name
    assert update.num_steps == 3  # those of the body: SCAFFOLD and FedNova divide by them


def test_it_is_not_fedper() -> None:
    task = personal_task()
    fedper, _ = one_round(replace(FULL, algorithm=FedAvg()), task)
    fedrep, _ = one_round(replace(FULL, algorithm=FedRep(head_epochs=3)), task)
    assert not same(as_dict(fedper.params), as_dict(fedrep.params))


def test_a_frozen_head_leaves_the_body_of_fedavg() -> None:
    """If the head cannot move, the body trains as in FedPer with a fixed head."""
    task = personal_task()
    update, _ = one_round(replace(FULL, algorithm=FedRep(head_epochs=1), lr=1e-30), task)
    start, _ = task.init_shared(FULL.seed)
    assert same(as_dict(update.params), as_dict(start))


def test_it_composes() -> None:
    exp = override(replace(FULL, algorithm=MOON()), ["algorithm=moon+fedrep+scaffold"])
    update, state = one_round(exp, personal_task())
    assert set(state) == {"moon/prev0", "scaffold/c_i", LABEL}
    assert list(update.extra) == ["scaffold/delta_c"]


def test_it_needs_a_personal_part() -> None:
    with pytest.raises(InputError, match="fedrep needs personal; set it, as in personal=output"):
        override(Experiment(), ["algorithm=fedrep"])


def test_a_personal_part_without_parameters_is_refused() -> None:
    """The phase of the head would train nothing."""
    exp = override(Experiment(), ["algorithm=moon+fedrep", "personal=.*running_(mean|var)"])
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    data = split(exp, read(exp))
    with pytest.raises(InputError, match=r"selects only buffers: encoder.2.running_mean"):
        build_task(exp, data, model=network)
    build_task(replace(exp, algorithm=MOON()), data, model=network)
