"""The implementation choices of a run, as text for its experiment.toml and reports."""

from .. import aggregation
from ..experiment import Experiment
from ..task import Task


def describe_optimizer(exp: Experiment) -> str:
    """Describe the choices of the local optimizer."""
    words = [f"{exp.optimizer.label}; its state is reset in every round"]
    if exp.grad_clip is not None:
        words.append(
            "gradients, including the method's own terms and without weight decay, are clipped "
            "by their norm over all parameters"
        )
    if exp.warmup > 0:
        words.append("in round t of the warm-up the learning rate is lr t / (warmup + 1)")
    return "; ".join(words)


def implementation_choices(exp: Experiment, task: Task) -> dict[str, str]:
    """Describe what this run does where implementations differ (docs/implementation-choices.md)."""
    choices = {
        "aggregation": aggregation.describe(
            exp.aggregation, exp.trim, exp.clip, exp.algorithm.weighting
        ),
        "optimizer": describe_optimizer(exp),
        "batches": (
            "the last incomplete batch is dropped; "
            "a party smaller than a batch trains on all it has"
        ),
        **task.objective.choices(),
    }
    if exp.precision != "float32":
        choices["precision"] = (
            f"the network is computed with autocast to {exp.precision}, also in evaluation; "
            "weights, losses and aggregation are float32"
        )
    if exp.algorithm.choice:
        choices["algorithm"] = exp.algorithm.choice
    if exp.dp.is_private:
        choices["aggregation"] = exp.dp.choice
    if exp.validation is not None:
        choices["validation"] = (
            f"of several rounds with the same validation {task.objective.measure.name} the first "
            "is selected"
        )
    if task.personal:
        choices["personal"] = (
            f"{', '.join(task.personal)} stay at each party, and start from the same initial "
            "weights; a party's model is evaluated on the samples that this party holds out"
        )
    if exp.finetune is not None:
        choices["finetune"] = (
            f"a party's model is evaluated after {exp.finetune} epochs of supervised training with "
            "the run's local optimizer on the party's training samples; it is not stored or sent"
        )
        if exp.has_schedule:
            choices["finetune"] += (
                "; its learning rate is the scheduled one of the round, so a schedule that ends "
                "near 0 leaves the last model nearly unchanged"
            )
    if task.batch_norm:
        statistics = (
            "stay at the party" if exp.personal == "batchnorm" else "are averaged like weights"
        )
        choices["batch_norm"] = (
            f"statistics {statistics}; a party with a single sample does not train"
        )
    if task.partition_note:
        choices["partition"] = task.partition_note
    return choices
