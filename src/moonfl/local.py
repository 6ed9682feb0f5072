"""Local training: the only loop over batches in the package."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from . import seeds, tree
from .aggregation import clip_difference
from .data.base import Examples
from .data.loader import batches
from .errors import DivergenceError, RunError
from .exchange import STORED_AND_SENT, check_pair, check_state
from .experiment import Experiment
from .models.base import Model
from .optimizers import take_step
from .personal import method_state, party_state
from .task import Task
from .types import Batch, Frozen, Output, Params, Party, Phase, Server, State, Update


class Replica:
    """A module that is loaded again and again, and its tensors."""

    def __init__(self, module: nn.Module) -> None:
        tree.flatten_parameters(module)
        self.module = module
        self.hidden_state = tree.hidden_state_of(module)  # when it was built
        # Native layers run no code that could add, replace or remove tensors and attributes, and
        # compute the same in training and in evaluation.
        self.is_fixed = isinstance(module, Model) and module.native_chain is not None
        self._params = tree.params_of(module)
        self._buffers = tree.buffers_of(module)

    def params(self) -> Params:
        """Return the trainable parameters themselves."""
        return self._params if self.is_fixed else tree.params_of(self.module)

    def buffers(self) -> Params:
        """Return the buffers themselves."""
        return self._buffers if self.is_fixed else tree.buffers_of(self.module)

    @torch.no_grad()
    def load(self, params: Params) -> None:
        """Copy `params` into the module, and undo all other changes since it was built."""
        if self.is_fixed and tree.load_all({**self._params, **self._buffers}, params):
            return
        tree.restore_hidden_state(self.module, self.hidden_state)
        tree.load(self.module, params)

    def set_training(self, training: bool) -> None:
        """Switch to training or evaluation, which visits all layers; skip it if possible."""
        if not self.is_fixed or self.module.training is not training:
            self.module.train(training)


class Workbench:
    """Modules that are built once and reloaded for every party: loading is faster."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self.build = build
        self.replicas: list[Replica] = []
        self.used = 0

    def replica(self, params: Params) -> Replica:
        """Return a module with these parameters; it belongs to the current party until `clear`."""
        if self.used == len(self.replicas):
            self.replicas.append(Replica(tree.build_module(self.build)))
        replica = self.replicas[self.used]
        self.used += 1
        replica.load(params)
        return replica

    def module(self, params: Params) -> nn.Module:
        """Return the module of a new replica."""
        return self.replica(params).module

    def frozen(self, params: Params) -> Frozen:
        """Return a model in eval mode and without gradients."""
        replica = self.replica(params)
        replica.set_training(False)
        model = replica.module

        @torch.no_grad()
        def forward(x: Tensor | Batch, rows: Tensor | None = None) -> Output:
            output: Output = model(x.x if isinstance(x, Batch) else x)
            return output

        return forward

    def cached(self, params: Params, inputs: Callable[[], Iterator[Tensor]]) -> Frozen:
        """Return a frozen model whose outputs for the party's samples are computed once.

        `inputs` iterates over the party's prepared samples in the order of their indices. A call
        with `rows` looks the outputs up; a call without runs the model.
        """
        forward = self.frozen(params)
        parts = [forward(x) for x in inputs()]
        z = torch.cat([part.z for part in parts])
        logits = torch.cat([part.logits for part in parts])

        def look_up(x: Tensor | Batch, rows: Tensor | None = None) -> Output:
            return forward(x) if rows is None else Output(z[rows], logits[rows])

        return look_up

    def clear(self) -> None:
        """Release the modules for the next party."""
        self.used = 0


class Training(NamedTuple):
    """What the phases of a party's round give."""

    steps: int  # of the phases that train shared parameters
    loss: float  # of the last one of them
    own_models: dict[str, Params]  # models that stay at the party, by name


def local_update(
    exp: Experiment,
    task: Task,
    workbench: Workbench,
    server: Server,
    *,
    state: State | None,
    party: int,
    t: int,
) -> tuple[Update, State]:
    """Run PartyLocalTraining(i, w^t) of Algorithm 1: return what party i sends and what it stores.

    `state` is what the party stored when it last took part, None before its first round. The global
    generators are seeded and not restored: where others use them, call it inside `seeds.restored`.
    """
    workbench.clear()
    clock = time.perf_counter()
    cpu_clock = time.process_time()
    # for models and methods that use random numbers, such as dropout
    seeds.seed_generators(exp.seed, "model", t, party)
    view = party_view(exp, task, workbench, server, state=state, party=party, t=t)
    num_samples = len(task.parties[party].y)
    if task.batch_norm and num_samples == 1:
        return untrained_update(exp, server, party), party_state(view.state, view.personal)
    global_model = view.global_model
    replica = workbench.replica(global_model)
    initial_buffers = {name: global_model[name] for name in replica.buffers()}
    training = run_phases(exp, task, workbench, replica, view, t=t)
    params = tree.copy(replica.params())
    buffers = tree.copy(replica.buffers())
    check_buffers(initial_buffers, buffers)
    check_finite(exp, params, party, t)
    trained = {**params, **buffers}
    view = replace(view, state={**view.state, **training.own_models})
    result = exp.algorithm.finish(view, trained, training.steps)
    memory, extra = check_pair(f"finish of {exp.algorithm.label}", STORED_AND_SENT, result)
    check_state("finish returns", memory, "the party to store")
    check_state("finish returns", extra, "the party to send")
    metrics = {
        "loss": training.loss,
        "drift": tree.distance(server.params, params),
        "seconds": time.perf_counter() - clock,
        "cpu_seconds": time.process_time() - cpu_clock,
        **traffic(exp, server, extra),
    }
    update = Update(
        party=party,
        params={name: params[name] for name in server.params},
        buffers={name: buffers[name] for name in server.buffers},
        num_samples=num_samples,
        num_steps=training.steps,
        extra=extra,
        metrics=metrics,
    )
    personal = tree.copy({name: trained[name] for name in view.personal})
    return update, party_state(memory, personal)


def party_view(
    exp: Experiment,
    task: Task,
    workbench: Workbench,
    server: Server,
    *,
    state: State | None,
    party: int,
    t: int,
) -> Party:
    """Return what a method sees of a party in round t."""
    data = task.parties[party]
    options = exp.step_options(t)
    personal = task.personal_part(state, exp.seed)
    if state is None:
        memory = exp.algorithm.init_party(server.params)
    else:
        memory = method_state(state) if task.personal else state
    return Party(
        id=party,
        state=memory,
        global_params=server.params,
        global_buffers=server.buffers,
        shared=server.shared,
        lr=options.lr,
        momentum=options.momentum,
        supervised=task.supervised,
        frozen=frozen_factory(exp, task, workbench, data),
        class_counts=task.objective.counts(data.y, len(task.classes)),
        outputs=functools.partial(outputs_of, exp, task, workbench, data),
        effective_steps=functools.partial(exp.effective_steps, t=t),
        personal=personal,
        clip_difference=functools.partial(clip_difference, clip=exp.clip),
    )


def run_phases(
    exp: Experiment, task: Task, workbench: Workbench, replica: Replica, view: Party, *, t: int
) -> Training:
    """Run the phases of a party's round; they train the replica and the party's own models."""
    steps = 0
    loss = 0.0
    own_models = {}
    for phase in phases_of(exp, on_device(view, torch.device(exp.device))):
        if phase.model:
            own_models[phase.model] = train_own(exp, task, workbench, phase, party=view.id, t=t)
            continue
        phase_steps, phase_loss = _train(exp, task, replica, phase, party=view.id, t=t)
        if trains_shared(phase, view):
            steps += phase_steps
            loss = phase_loss
    return Training(steps, loss, own_models)


def phases_of(exp: Experiment, party: Party) -> Sequence[Phase]:
    """Return the phases of a party's local training after checking them."""
    main = Phase(loss=exp.algorithm.local_loss(party))
    phases = exp.algorithm.phases(party, main)
    epochs = 0
    for phase in phases:
        if phase.model and phase.start is None:
            raise RunError(
                f"phase '{phase.model}' of {exp.algorithm.label} trains a model of the party's own "
                "and does not say where it starts; set start"
            )
        if not phase.model and trains_shared(phase, party):
            epochs += exp.epochs if phase.epochs is None else phase.epochs
    if epochs != exp.epochs:
        raise RunError(
            f"the phases of {exp.algorithm.label} train shared parameters for {epochs} epochs in "
            f"all, which must be {exp.epochs}, as epochs says: a server expects so many steps"
        )
    return phases


def trains_shared(phase: Phase, party: Party) -> bool:
    """Return True if a phase trains a parameter that is sent."""
    return any(map(phase.covers, party.global_params))


def train_own(
    exp: Experiment, task: Task, workbench: Workbench, phase: Phase, *, party: int, t: int
) -> Params:
    """Train a model of the party's own and return its parameters and buffers.

    Its random numbers do not affect the model that is sent.
    """
    replica = workbench.replica(phase.start or {})
    with seeds.seeded(seeds.branch(exp.seed, phase.stream), "model", t, party):
        _train(exp, task, replica, phase, party=party, t=t)
    params = tree.copy(replica.params())
    check_finite(exp, params, party, t)
    return {**params, **tree.copy(replica.buffers())}


def untrained_update(exp: Experiment, server: Server, party: int) -> Update:
    """Return the update of a party with a single sample, which BatchNorm cannot be trained on."""
    return Update(
        party=party,
        params=server.params,
        buffers=server.buffers,
        num_samples=1,
        num_steps=0,
        metrics=traffic(exp, server, {}),
    )


def frozen_factory(
    exp: Experiment, task: Task, workbench: Workbench, data: Examples
) -> Callable[[Params], Frozen]:
    """Return the function that loads frozen models.

    Their outputs are cached if samples are the same in every epoch.
    """
    if exp.epochs == 1 or (exp.augment and task.preparation.augments):
        return workbench.frozen
    chunks = torch.arange(len(data.y), device=data.y.device).split(exp.batch_size)

    def inputs() -> Iterator[Tensor]:
        for rows in chunks:
            yield task.preparation.batch(data.x, rows)

    return functools.partial(workbench.cached, inputs=inputs)


def outputs_of(
    exp: Experiment, task: Task, workbench: Workbench, data: Examples, params: Params
) -> Iterator[tuple[Output, Batch]]:
    """Yield a frozen model's outputs for all samples of a party, batch by batch, not augmented."""
    model = workbench.frozen(params)
    for rows in torch.arange(len(data.y), device=data.y.device).split(exp.batch_size):
        batch = Batch(task.preparation.batch(data.x, rows), data.y[rows], rows)
        yield model(batch), batch


def check_buffers(before: Params, after: Params) -> None:
    """Check that the buffers have their names, shapes and dtypes, as averaging requires."""
    name = tree.changed_tensor(before, after)
    if name is not None:
        raise RunError(
            f"the model creates, drops or reshapes its buffer '{name}' during training; create it "
            "with its final shape when the model is built"
        )


def check_finite(exp: Experiment, params: Params, party: int, t: int) -> None:
    """Check that no weight became infinite or undefined."""
    if not tree.is_finite(params):
        raise divergence(exp, t, f"the weights of party {party} are not finite after round {t + 1}")


def on_device(party: Party, device: torch.device) -> Party:
    """Move a party's tensors to the device of the model; stored and sent tensors are on the CPU."""
    return replace(
        party,
        state={label: tree.to(params, device) for label, params in party.state.items()},
        shared={label: tree.to(params, device) for label, params in party.shared.items()},
        global_params=tree.to(party.global_params, device),
        global_buffers=tree.to(party.global_buffers, device),
        personal=tree.to(party.personal, device),
    )


def traffic(exp: Experiment, server: Server, extra: State) -> dict[str, float]:
    """Return the bytes of the tensors sent to a party in a round and of those it sends back."""
    if not exp.algorithm.federated:
        return {"bytes_down": 0, "bytes_up": 0}
    model = tree.num_bytes(server.params) + tree.num_bytes(server.buffers)
    return {
        "bytes_down": model + sum(tree.num_bytes(params) for params in server.shared.values()),
        "bytes_up": model + sum(tree.num_bytes(params) for params in extra.values()),
    }


def _train(
    exp: Experiment,
    task: Task,
    replica: Replica,
    phase: Phase,
    *,
    party: int,
    t: int,
) -> tuple[int, float]:
    """Run a phase of E epochs; return the number of steps and the mean loss."""
    replica.set_training(True)
    data = task.parties[party]
    seed = seeds.branch(exp.seed, phase.stream)
    epochs = exp.epochs if phase.epochs is None else phase.epochs
    params = [param for name, param in replica.params().items() if phase.covers(name)]
    slots = [exp.optimizer.init(p) for p in params]
    options = exp.step_options(t)
    order = seeds.rng(seed, "batches", t, party)
    augmentation = seeds.rng(seed, "augmentation", t, party) if exp.augment else None
    steps = 0
    total = 0.0
    for epoch in range(epochs):
        losses: list[Tensor] = []
        for batch in batches(data, task.preparation, exp.batch_size, order, augmentation):
            for param in params:
                param.grad = None
            loss = phase.loss(replica.module, batch)
            if steps == 0 and not losses:
                check_loss(exp, loss)
            loss.backward()
            take_step(exp.optimizer, params, slots, options)
            losses.append(loss.detach())
        steps += len(losses)
        total += float(torch.stack(losses).cpu().double().sum())
        if not math.isfinite(total):
            event = f"the loss of party {party} became {total} in round {t + 1}, epoch {epoch + 1}"
            raise divergence(exp, t, event)
    return steps, total / steps


def check_loss(exp: Experiment, loss: object) -> None:
    """Check that the loss of a method is a scalar tensor that can be differentiated."""
    method = exp.algorithm.label
    if not isinstance(loss, Tensor):
        raise RunError(
            f"the loss of {method} must be a scalar tensor, got {type(loss).__name__}; "
            "return a tensor from the function that term or local_loss returns"
        )
    if loss.numel() != 1:
        raise RunError(
            f"the loss of {method} must be a scalar tensor, got shape {list(loss.shape)}; "
            "reduce it, for example with .mean()"
        )
    if not loss.requires_grad:
        raise RunError(
            f"the loss of {method} has no gradient: it does not depend on the model's parameters; "
            "do not detach it or compute it under torch.no_grad()"
        )


def divergence(exp: Experiment, t: int, event: str) -> DivergenceError:
    """Return the error of a run that diverged in round t, with the usual remedy."""
    rate = exp.learning_rate(t)
    scheduled = "" if rate == exp.lr else f", {rate:.3g} in this round"
    cause = f"most often the learning rate is too large (lr={exp.lr:g}{scheduled})"
    remedy = "lower lr, or the weight of the method's own term"
    if exp.dp.is_private:
        remedy += ", or the noise of dp: lower clip, or let more parties take part in a round"
    return DivergenceError(f"{event}: {cause}; {remedy}")
