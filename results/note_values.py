"""The numbers in the text of the results pages.

results/cifar10.md is a template, and so is results/cifar100.md. A placeholder such as
`{{accuracy(moon mu=1)}}` calls the method of NoteValues with that name; the arguments are separated
by commas. A run is named by its command without `moonfl run`, the dataset and `model=simple-cnn`, a
method that was run with several seeds by its preset.
"""

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ttest_ind

from moonfl.report.conclusions import t_interval
from moonfl.report.runs import Run
from moonfl.report.tables import interval_end
from moonfl.reproduce.runner import run_name
from moonfl.reproduce.targets import TARGETS
from result_tables import LAST
from stored_runs import DATASET, SEEDS, command, experiment_of

Floats = NDArray[np.float64]
PLACEHOLDER = re.compile(r"\{\{(\w+)(?:\((.*?)\))?\}\}")
PAPER_LEVEL = 66.3  # %, the final accuracy of the paper's FedAvg
NEIGHBOURS = 10


def placeholder_functions(values: "NoteValues") -> dict[str, Callable[..., str]]:
    """Return the functions that a template may use, by name."""
    names = [name for name in vars(NoteValues) if not name.startswith("_")]
    return {name: getattr(values, name) for name in names}


def fill(template: str, functions: dict[str, Callable[..., str]]) -> str:
    """Return the template with every placeholder replaced by the result of its function."""

    def value(match: re.Match[str]) -> str:
        name, arguments = match[1], match[2]
        if name not in functions:
            raise SystemExit(f"unknown placeholder {match[0]}; known: {', '.join(functions)}")
        words = [word.strip() for word in arguments.split(",")] if arguments else []
        try:
            return functions[name](*words)
        except (KeyError, TypeError, ValueError) as error:
            raise SystemExit(f"{match[0]} cannot be filled in: {error!r}") from None

    return PLACEHOLDER.sub(value, template)


def join_phrase(values: list[str]) -> str:
    """Return the values as a phrase such as `1, 2 and 3`."""
    return f"{', '.join(values[:-1])} and {values[-1]}"


def decimal(value: float) -> str:
    """Return the value with one decimal and without a minus before zero."""
    return f"{round(float(value), 1) + 0.0:.1f}"


def span(values: Floats) -> str:
    """Return the smallest and the largest value."""
    return f"{decimal(values.min())} to {decimal(values.max())}"


def round_after_last(mask: NDArray[np.bool_]) -> int:
    """Return the round after the last one in which this is true."""
    return int(np.flatnonzero(mask).max()) + 2


class Curves:
    """The accuracies of the stored runs in %, looked up by command."""

    def __init__(self, stored: dict[str, Run]) -> None:
        self.by_command = {}
        for run in stored.values():
            exp = experiment_of(run)
            words = command(exp).removeprefix(f"moonfl run {exp.dataset}-").split()
            name = " ".join(word for word in words if word != "model=simple-cnn")
            self.by_command[name] = run

    def run_accuracies(self, run: str) -> Floats:
        """Return the accuracies of a run by round."""
        records = self.by_command[run].rounds
        return 100 * np.array([record.accuracy for record in records])

    def method_accuracies(self, method: str) -> Floats:
        """Return the accuracies of a method, [seeds, rounds]."""
        return np.array([self.run_accuracies(run) for run in runs_with_seeds(method)])

    def run_lead(self, run: str, base: str) -> Floats:
        """Return the lead of a run over another by round."""
        return self.run_accuracies(run) - self.run_accuracies(base)

    def late_leads(self, method: str, base: str, last: int = LAST) -> Floats:
        """Return by seed the lead of a method by the mean of the last rounds."""
        leads = self.method_accuracies(method) - self.method_accuracies(base)
        late_leads: Floats = leads[:, -last:].mean(axis=1)
        return late_leads

    def rounds_to(self, method: str, goals: Floats) -> NDArray[np.int64]:
        """Return by seed the first round at or above the seed's goal."""
        reached = self.method_accuracies(method) >= goals[:, None]
        if not reached.any(axis=1).all():
            raise ValueError(f"{method} does not reach {goals} in every seed")
        return reached.argmax(axis=1) + 1


def runs_with_seeds(method: str) -> list[str]:
    """Return the runs of a method, one per seed."""
    return [method if seed == 0 else f"{method} seed={seed}" for seed in SEEDS]


class NoteValues:
    """Functions for the placeholders of the templates: every public method is one.

    Accuracies are in %, leads in points.
    """

    def __init__(self, stored: dict[str, Run], quiet: dict[str, Run]) -> None:
        self._stored = stored
        self._quiet = quiet
        self._curves = Curves(stored)

    # single runs

    def accuracy(self, run: str) -> str:
        """Return the accuracy after the last round."""
        return decimal(self._curves.run_accuracies(run)[-1])

    def accuracy_with_std(self, run: str) -> str:
        """Return the accuracy after the last round ± standard deviation over parties."""
        std = 100 * self._curves.by_command[run].rounds[-1].accuracy_std
        return f"{self.accuracy(run)} ± {decimal(std)}"

    def accuracy_after(self, number: str, run: str) -> str:
        """Return the accuracy after a round."""
        return decimal(self._curves.run_accuracies(run)[int(number) - 1])

    def mean_of_rounds(self, first: str, last: str, run: str) -> str:
        """Return the mean accuracy of these rounds, both included."""
        return decimal(self._curves.run_accuracies(run)[int(first) - 1 : int(last)].mean())

    def span_of_rounds(self, first: str, last: str, run: str) -> str:
        """Return the smallest and the largest accuracy of these rounds, both included."""
        return span(self._curves.run_accuracies(run)[int(first) - 1 : int(last)])

    def last_mean(self, run: str) -> str:
        """Return the mean accuracy of the last ten rounds."""
        return decimal(self._curves.run_accuracies(run)[-LAST:].mean())

    def global_last_mean(self, run: str) -> str:
        """Return the mean accuracy of the global model next to personal ones, last ten rounds."""
        rounds = self._curves.by_command[run].rounds[-LAST:]
        return decimal(100 * np.mean([record.global_score for record in rounds]))

    def global_accuracy(self, run: str) -> str:
        """Return the accuracy of the global model next to personal ones after the last round."""
        return decimal(100 * self._curves.by_command[run].rounds[-1].global_score)

    def kernel_difference(self, run: str, fine_tuned: str) -> str:
        """Return by how much a run differs from its repetition with fine-tuning, last ten rounds.

        Fine-tuning leaves the global model as it is, so only the kernels differ.
        """
        other = [record.global_score for record in self._curves.by_command[fine_tuned].rounds]
        difference = self._curves.run_accuracies(run) - 100 * np.array(other)
        return f"{abs(difference[-LAST:].mean()):.2f}"

    def party_accuracy(self, run: str) -> str:
        """Return the mean over parties of the accuracy on their own samples, last round."""
        return decimal(100 * self._curves.by_command[run].rounds[-1].party_accuracy)

    def above_number(self, run: str, number: str) -> str:
        """Return how far the final accuracy is above a number of the paper."""
        return decimal(self._curves.run_accuracies(run)[-1] - float(number))

    def below_number(self, run: str, number: str) -> str:
        """Return how far the final accuracy is below a number of the paper."""
        return decimal(float(number) - self._curves.run_accuracies(run)[-1])

    def divergence_round(self, run: str) -> str:
        """Return the round in which a run diverged, the one after its last stored round."""
        stored = self._curves.by_command[run]
        if not stored.diverged:
            raise ValueError(f"{run} did not diverge")
        return str(len(stored.rounds) + 1)

    # two runs

    def ahead(self, run: str, base: str) -> str:
        """Return a run's lead over another by the mean of the last ten rounds."""
        return decimal(self._curves.run_lead(run, base)[-LAST:].mean())

    def ahead_at_end(self, run: str, base: str) -> str:
        """Return a run's lead over another after the last round."""
        return decimal(self._curves.run_lead(run, base)[-1])

    def images_ahead(self, run: str, base: str) -> str:
        """Return by how many of the 10,000 test images a run is ahead after the last round."""
        return str(round(100 * float(self._curves.run_lead(run, base)[-1])))

    def rounds_ahead(self, run: str, base: str) -> str:
        """Return in how many rounds a run is ahead of another."""
        return str(int((self._curves.run_lead(run, base) > 0).sum()))

    def rounds_not_ahead(self, run: str, base: str) -> str:
        """Return the rounds in which a run is not ahead of another."""
        rounds = np.flatnonzero(self._curves.run_lead(run, base) <= 0) + 1
        return join_phrase([str(number) for number in rounds])

    def ahead_from(self, run: str, base: str) -> str:
        """Return the round from which on a run stays ahead of another."""
        return str(round_after_last(self._curves.run_lead(run, base) <= 0))

    # methods with several seeds

    def lead(self, method: str, base: str, last: str = str(LAST)) -> str:
        """Return the lead by the mean of the last rounds, as a mean over seeds."""
        return decimal(self._curves.late_leads(method, base, int(last)).mean())

    def lead_interval(self, method: str, base: str, last: str = str(LAST)) -> str:
        """Return the 95 % interval of the lead by Student's t."""
        leads = self._curves.late_leads(method, base, int(last))
        interval = t_interval((leads / 100).tolist())
        ends = [interval_end(end).removeprefix("+") for end in (interval.low, interval.high)]
        return " to ".join(ends)

    def unpaired_interval(self, method: str, base: str) -> str:
        """Return the 95 % interval of the lead by Welch's t, which does not pair seeds."""
        late = [
            self._curves.method_accuracies(name)[:, -LAST:].mean(axis=1) for name in (method, base)
        ]
        interval = ttest_ind(*late, equal_var=False).confidence_interval(0.95)
        ends = [interval_end(end / 100).removeprefix("+") for end in interval]
        return " to ".join(ends)

    def lead_span(self, method: str, base: str) -> str:
        """Return the smallest and the largest lead of a seed."""
        return span(self._curves.late_leads(method, base))

    def seeds_ahead(self, method: str, base: str) -> str:
        """Return in how many seeds a method leads by the mean of the last ten rounds."""
        return str(int((self._curves.late_leads(method, base) > 0).sum()))

    def seeds_ahead_from(self, method: str, base: str) -> str:
        """Return the round from which on a method is ahead in every seed."""
        accuracies = self._curves.method_accuracies(method)
        ahead = (accuracies > self._curves.method_accuracies(base)).all(axis=0)
        return str(round_after_last(~ahead))

    def std_over_seeds(self, method: str) -> str:
        """Return the standard deviation of the final accuracy over seeds."""
        return decimal(self._curves.method_accuracies(method)[:, -1].std(ddof=1))

    def standard_error(self, method: str) -> str:
        """Return the standard error of the mean final accuracy."""
        final = self._curves.method_accuracies(method)[:, -1]
        return decimal(final.std(ddof=1) / len(final) ** 0.5)

    def change_per_round(self, method: str) -> str:
        """Return the span over seeds of the mean absolute change in the last twenty rounds."""
        return span(np.abs(np.diff(self._curves.method_accuracies(method)[:, -21:])).mean(axis=1))

    def largest_rise(self, method: str) -> str:
        """Return the largest rise of a fitted line over the last twenty rounds of a seed."""
        slopes = [
            np.polyfit(range(20), curve[-20:], 1)[0]
            for curve in self._curves.method_accuracies(method)
        ]
        return decimal(20 * max(slopes))

    # rounds and time

    def rounds_to_paper(self, method: str) -> str:
        """Return by seed the first round at the final accuracy of the paper's FedAvg."""
        goals = np.full(len(SEEDS), PAPER_LEVEL)
        return join_phrase([str(number) for number in self._curves.rounds_to(method, goals)])

    def latest_round_to_paper(self, method: str) -> str:
        """Return the last of these rounds over all seeds."""
        goals = np.full(len(SEEDS), PAPER_LEVEL)
        return str(self._curves.rounds_to(method, goals).max())

    def above_paper_from(self, method: str) -> str:
        """Return by seed the round from which on the accuracy stays at or above the paper's."""
        rounds = [
            round_after_last(curve < PAPER_LEVEL)
            for curve in self._curves.method_accuracies(method)
        ]
        return join_phrase([str(number) for number in rounds])

    def speed_up_to_paper(self, method: str) -> str:
        """Return the span over seeds of the speed-up over FedAvg to the paper's level."""
        goals = np.full(len(SEEDS), PAPER_LEVEL)
        fedavg = self._curves.rounds_to("fedavg", goals)
        return span(fedavg / self._curves.rounds_to(method, goals))

    def rounds_to_fedavg(self, method: str) -> str:
        """Return by seed the first round at FedAvg's final accuracy."""
        goals = self._curves.method_accuracies("fedavg")[:, -1]
        return join_phrase([str(number) for number in self._curves.rounds_to(method, goals)])

    def speed_up(self, method: str) -> str:
        """Return the mean speed-up to FedAvg's final accuracy; FedAvg counts as all its rounds."""
        fedavg = self._curves.method_accuracies("fedavg")
        rounds = self._curves.rounds_to(method, fedavg[:, -1])
        return decimal((fedavg.shape[1] / rounds).mean())

    def speed_up_from_first(self, method: str) -> str:
        """Return the mean speed-up if FedAvg counts until it first has its final accuracy."""
        goals = self._curves.method_accuracies("fedavg")[:, -1]
        fedavg = self._curves.rounds_to("fedavg", goals)
        return decimal((fedavg / self._curves.rounds_to(method, goals)).mean())

    def time_ratio(self, method: str) -> str:
        """Return the span over seeds of the time to FedAvg's final accuracy, FedAvg being 1."""
        return span(self._time_ratios(method, self._curves.method_accuracies("fedavg")[:, -1]))

    def time_ratio_to_best(self, method: str) -> str:
        """Return by seed the time to FedAvg's best accuracy, FedAvg being 1."""
        goals = self._curves.method_accuracies("fedavg").max(axis=1)
        return join_phrase([decimal(ratio) for ratio in self._time_ratios(method, goals)])

    def _time_ratios(self, method: str, goals: Floats) -> Floats:
        """Return by seed the time to a goal in %, FedAvg being 1."""
        means = {}
        for name in (method, "fedavg"):
            records = []
            for run in self._quiet.values():
                if run.settings["algorithm.name"] == name:
                    records += run.rounds[1:]
            means[name] = np.mean([record.seconds for record in records])
        rounds = self._curves.rounds_to(method, goals) / self._curves.rounds_to("fedavg", goals)
        ratios: Floats = means[method] / means["fedavg"] * rounds
        return ratios

    def cpu_ratio(self, method: str) -> str:
        """Return the CPU seconds of a method's long runs, those of FedAvg being 1."""
        totals = {}
        for name in (method, "fedavg"):
            runs = [self._curves.by_command[run] for run in runs_with_seeds(name)]
            records = [record for run in runs for record in run.rounds]
            totals[name] = sum(record.cpu_seconds for record in records)
        return decimal(totals[method] / totals["fedavg"])

    # partitions and representations

    def std_over_partitions(self, method: str) -> str:
        """Return the standard deviation of the final accuracy over three partitions."""
        runs = [method, f"{method} partition_seed=1", f"{method} partition_seed=2"]
        return decimal(np.std([self._curves.run_accuracies(run)[-1] for run in runs], ddof=1))

    def same_class_neighbours(self, model: str, points: str = "points") -> str:
        """Return the percentage of the nearest neighbours in a t-SNE that share the class."""
        (entry,) = (e for e in TARGETS["tsne"].entries(DATASET) if e.row == model)
        tsne = self._stored[run_name(entry.trials[""])].final["tsne"]
        positions = np.array(tsne[points])
        labels = np.array(tsne["labels"])
        distances = np.linalg.norm(positions[:, None] - positions, axis=2)
        nearest = distances.argsort(axis=1)[:, 1 : NEIGHBOURS + 1]
        return f"{100 * (labels[nearest] == labels[:, None]).mean():.0f}"

    # all runs

    def run_count(self) -> str:
        """Return the number of stored runs."""
        return str(len(self._stored))

    def total_hours(self, key: str) -> str:
        """Return the hours that all runs took, by a field of the round records in seconds."""
        records = [record for run in self._stored.values() for record in run.rounds]
        hours = sum(float(record.get(key, 0)) for record in records) / 3600
        return decimal(hours)
