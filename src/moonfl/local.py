"""Local training: the only optimiser loop of the package."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from . import seeds, tree
from .data.base import Examples
from .data.loader import batches
from .errors import DivergenceError, RunError
from .experiment import Experiment
from .task import Task
from .types import Batch, Frozen, Output, Params, Party, Server, State, Update


class Workbench:
    """Modules that are built once and reloaded for every party: building one costs more than filling it."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self.build = build
        self.modules: list[nn.Module] = []
        self.unsaved: list[tree.HiddenState] = []  # of each, as made
        self.used = 0

    def module(self, params: Params) -> nn.Module:
        """A module holding `params`, this party's until `clear`."""
        if self.used == len(self.modules):
            self.modules.append(tree.build_module(self.build))
            self.unsaved.append(tree.hidden_state_of(self.modules[-1]))
        self.used += 1
        model = self.modules[self.used - 1]
        tree.restore_hidden_state(model, self.unsaved[self.used - 1])
        return tree.load(model, params)

    def frozen(self, params: Params) -> Frozen:
        """A model that is only read: eval mode, no gradients."""
        model = self.module(params).eval()

        @torch.no_grad()
        def read(batch: Batch) -> Output:
            output: Output = model(batch.x)
            return output

        return read

    def tabulated(self, params: Params, inputs: Callable[[], Iterator[Tensor]]) -> Frozen:
        """The same for samples that look alike in every epoch: all of them once, then looked up by row."""
        model = self.module(params).eval()
        with torch.no_grad():
            parts = [model(x) for x in inputs()]
        table = Output(*(torch.cat(part) for part in zip(*parts, strict=True)))
        return lambda batch: Output(table.z[batch.rows], table.logits[batch.rows])

    def clear(self) -> None:
        self.used = 0


def local_update(
    exp: Experiment,
    task: Task,
    bench: Workbench,
    server: Server,
    state: State | None,
    i: int,
    t: int,
) -> tuple[Update, State]:
    """PartyLocalTraining(i, w^t) of Algorithm 1: what party i sends in round t, and what it keeps.

    `state` is what it kept when it last took part, None before its first round.
    """
    bench.clear()
    start, cpu_start, data = time.perf_counter(), time.process_time(), task.parties[i]
    with seeds.seeded(exp.seed, "model", t, i):  # by model and method, such as dropout
        kept = exp.algorithm.init_party(server.params) if state is None else state
        if task.batch_norm and len(data.y) == 1:
            return Update(
                i, server.params, server.buffers, 1, 0, {}, traffic(exp, server, {})
            ), kept
        frozen = frozen_of(exp, task, bench, data)
        party = Party(
            i,
            kept,
            server.params,
            server.buffers,
            server.shared,
            exp.lr,
            exp.momentum,
            task.supervised,
            frozen,
        )
        model = bench.module(party.global_model)
        loss_of = exp.algorithm.local_loss(placed(party, torch.device(exp.device)))
        steps, loss = _train(exp, task, model, loss_of, data, i, t)
        params, buffers = tree.copy(tree.params_of(model)), tree.copy(tree.buffers_of(model))
        check_buffers(server.buffers, buffers)
        if not all(bool(torch.isfinite(value).all()) for value in params.values()):
            raise diverged(exp, f"the weights of party {i} are not finite after round {t + 1}")
        kept, extra = exp.algorithm.finish(party, {**params, **buffers}, steps)
        check_state("keep", kept)
        check_state("send", extra)
    seconds = {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
    }
    drift = tree.norm(tree.sub(server.params, params))
    metrics = {"loss": loss, "drift": drift, **seconds, **traffic(exp, server, extra)}
    return Update(i, params, buffers, len(data.y), steps, extra, metrics), kept


def frozen_of(
    exp: Experiment, task: Task, bench: Workbench, data: Examples
) -> Callable[[Params], Frozen]:
    """How models that are only read are run: looked up where samples look alike in every epoch."""
    if exp.epochs == 1 or (exp.augment and task.preparation.augments):
        return bench.frozen
    rows = torch.arange(len(data.y), device=data.y.device).split(exp.batch_size)
    return functools.partial(
        bench.tabulated, inputs=lambda: (task.preparation.batch(data.x, part) for part in rows)
    )


def check_buffers(before: Params, after: Params) -> None:
    """Those of the model are averaged over parties, so all have the same, from the first on."""
    was, now = ({name: (v.shape, v.dtype) for name, v in of.items()} for of in (before, after))
    odd = next((name for name in {**was, **now} if was.get(name) != now.get(name)), None)
    if odd is not None:
        raise RunError(
            f"the model makes, drops or reshapes its buffer '{odd}' in training; make it whole when it is built"
        )


def check_state(does: str, state: State) -> None:
    """What `finish` gives is carried by memory, files, processes and messages, which know tensors by name."""
    for label, params in state.items():
        if not isinstance(params, Mapping) or not all(
            isinstance(value, Tensor) for value in params.values()
        ):
            raise RunError(
                f"finish gives '{label}' for the party to {does}, which is not a dict of tensors by name; a number "
                "goes in as torch.tensor(number)"
            )


def placed(party: Party, device: torch.device) -> Party:
    """With its tensors where the model is trained; those that travel and are kept are on the CPU."""
    state, shared = (
        {label: tree.to(params, device) for label, params in of.items()}
        for of in (party.state, party.shared)
    )
    return replace(
        party,
        state=state,
        shared=shared,
        global_params=tree.to(party.global_params, device),
        global_buffers=tree.to(party.global_buffers, device),
    )


def traffic(exp: Experiment, server: Server, extra: State) -> dict[str, float]:
    """Bytes of the tensors that go to a party in a round, and of those that come back."""
    if not exp.algorithm.federated:
        return {"bytes_down": 0, "bytes_up": 0}
    model = tree.num_bytes(server.params) + tree.num_bytes(server.buffers)
    down, up = (model + sum(map(tree.num_bytes, more.values())) for more in (server.shared, extra))
    return {"bytes_down": down, "bytes_up": up}


def _train(
    exp: Experiment,
    task: Task,
    model: nn.Module,
    loss_of: Callable[..., Tensor],
    data: Examples,
    i: int,
    t: int,
) -> tuple[int, float]:
    """E epochs of SGD; the number of steps and the mean loss."""
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    velocity = [torch.zeros_like(p) for p in params]
    order = seeds.rng(exp.seed, "batches", t, i)
    augmentation = seeds.rng(exp.seed, "augmentation", t, i) if exp.augment else None
    steps, total = 0, 0.0
    for epoch in range(exp.epochs):
        losses = []
        for batch in batches(data, task.preparation, exp.batch_size, order, augmentation):
            for param in params:
                param.grad = None
            loss = loss_of(model, batch)
            loss.backward()
            sgd_step(exp, params, velocity)
            losses.append(loss.detach())
        steps, total = steps + len(losses), total + float(torch.stack(losses).cpu().double().sum())
        if not math.isfinite(total):
            raise diverged(
                exp, f"the loss of party {i} became {total} in round {t + 1}, epoch {epoch + 1}"
            )
    return steps, total / steps


@torch.no_grad()
def sgd_step(exp: Experiment, params: list[nn.Parameter], velocity: list[Tensor]) -> None:
    """A step of torch.optim.SGD by its function: to make the class loads torch's compiler, over a second a process."""
    moved = [(p, p.grad, v) for p, v in zip(params, velocity, strict=True) if p.grad is not None]
    if not moved:
        return
    weights, gradients, velocities = map(list, zip(*moved, strict=True))
    sgd(
        weights,
        gradients,
        velocities,
        fused=True,
        weight_decay=exp.weight_decay,
        momentum=exp.momentum,
        lr=exp.lr,
        dampening=0,
        nesterov=False,
        maximize=False,
    )


def diverged(exp: Experiment, what: str) -> DivergenceError:
    cause = f"most often the step size is too large (lr={exp.lr:g})"
    return DivergenceError(f"{what}: {cause}; lower lr, or the weight of the method's own term")
