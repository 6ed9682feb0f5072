"""The model that each party uses for itself, and its evaluation next to the global model.

A party's model is the global one with the tensors that stay at the party (`personal`), or the
party's own model (Ditto). With `finetune` it is then trained on the party's samples. It is
evaluated on the samples that this party holds out, and so is the global model if it is complete.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from . import tree
from .experiment import Experiment
from .local import Workbench, train_own
from .metrics import Counts, Score
from .personal import LABEL, method_state
from .task import Task
from .types import GLOBAL, Batch, Params, Phase, State

PartyTallies = dict[str, dict[str, Counts]]  # by model, LABEL or GLOBAL, and by held-out set


def own_tensors(exp: Experiment, task: Task, state: State | None) -> Params:
    """Return the tensors in which a party's model differs from the global one.

    `state` is None before the party's first round.
    """
    own = exp.algorithm.own_model(method_state(state or {}))
    return {**task.personal_part(state, exp.seed), **own}


def stored_tensors(exp: Experiment, state: State) -> Params:
    """Return the tensors in which a party's model differs, from a state that may be in a file."""
    return state.get(LABEL) or exp.algorithm.own_model(method_state(state))


def join(sent: Params, own: Params) -> Params:
    """Return the tensors that the server holds and those of a party as one model.

    Those in a file are read at each access.
    """
    return tree.Lazy([*sent, *own], lambda name: (own if name in own else sent)[name])


def fine_tune(
    exp: Experiment, task: Task, workbench: Workbench, params: Params, *, party: int, t: int
) -> Params:
    """Return a model after `finetune` epochs of supervised training on the party's samples.

    Its random numbers are its own, and nothing of it is stored or sent.
    """
    if exp.finetune is None or (task.batch_norm and len(task.parties[party].y) == 1):
        return params

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return task.supervised(model(batch.x).logits, batch)

    phase = Phase(loss=loss, stream="finetune", epochs=exp.finetune, start=params)
    return train_own(exp, task, workbench, phase, party=party, t=t)


def evaluate_party(
    exp: Experiment,
    task: Task,
    workbench: Workbench,
    params: Params,
    *,
    own: Params,
    party: int,
    t: int,
) -> PartyTallies:
    """Count the predictions of a party's model, and of the global one, on the party's samples.

    `params` are the tensors that the server holds after round t, and `own` those of the party.
    A party that holds out no samples has no counts.
    """
    if not task.chunks(party):
        return {LABEL: {}} if task.personal else {LABEL: {}, GLOBAL: {}}

    def count(model: Params) -> dict[str, Counts]:
        workbench.clear()
        return task.evaluate_party(workbench.module(model), party)

    workbench.clear()
    tuned = fine_tune(exp, task, workbench, {**params, **own}, party=party, t=t)
    tallies = {LABEL: count(tuned)}
    if not task.personal:
        tallies[GLOBAL] = count(params)
    return tallies


def score_party_models(task: Task, tallies: Sequence[PartyTallies]) -> dict[str, Score]:
    """Return the scores of the parties' models and of the global one, from counts by party."""
    return {name: task.score_parties(counts) for name, counts in by_model(tallies).items()}


def by_model(tallies: Sequence[PartyTallies]) -> Mapping[str, list[dict[str, Counts]]]:
    """Return the counts of each model, in the order of the parties."""
    return {name: [party[name] for party in tallies] for name in tallies[0]}
