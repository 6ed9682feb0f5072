"""The engine whose parties are Flower sites, and what happens when a site fails.

A site that dies, hangs, is late, is not connected or sends something malformed has no update in
that round: `train` gets the reason instead (messaging.py for silence, protocol.py for refusals) and
puts it into `Update.missing`, from where it reaches rounds.jsonl. What `evaluate` gets in place of
counts reaches it by `Score.absent`.

1. If enough parties sent a valid update (`answers_needed`), the round continues without the others.
2. Otherwise the missing parties are asked again, `attempts` times in all. Before each attempt
   `Membership.wait_for` waits for enough sites to be connected.
3. If that fails, the run ends with a RunError; `moonfl flower run --resume` continues it.

A site that comes back trains from the state of its last accepted round, which the server names in
the TrainRequest; states of late or refused rounds are ignored (runs/site_states.py). In
evaluation a missing site is left out and named; a site that missed the deadline of the round is
only waited for again if no other site has such samples. If no site evaluates, all are asked again,
`attempts` times in all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message

from ..engines.embedded import Embedded
from ..errors import DivergenceError, RunError, notify
from ..experiment import Experiment
from ..metrics import Counts, Score
from ..personal import LABEL
from ..runs.states import States
from ..task import Task
from ..types import GLOBAL, Params, Server, State, Update
from .arrays import to_arrays
from .membership import Membership
from .messaging import GRACE, TIMED_OUT, Answer, content_of, exchange
from .protocol import (
    EVALUATION_SETS,
    EvaluateRequest,
    ExpectedUpdate,
    TrainRequest,
    assemble,
    read_evaluation,
    read_update,
    server_arrays,
)
from .refusals import NotFiniteError, RefusedError

Sizes = Mapping[int, Mapping[str, int]]  # party -> evaluation set -> number of samples


@dataclass
class SiteEngine:
    """Trains and evaluates at Flower sites."""

    exp: Experiment
    task: Task
    states: States  # only the last accepted round of each party: the states are at the sites
    membership: Membership
    run: str  # the id under which sites store the states of this run
    has_states: bool = False  # in a simulation, whose parties write to the run's folder
    late: set[int] = field(default_factory=set, init=False)  # who missed this round's deadline
    absent: dict[int, str] = field(default_factory=dict, init=False)  # who did not evaluate, why

    def __post_init__(self) -> None:
        # Evaluates models if the server has a test set.
        self.central = Embedded(self.exp, self.task, self.states)

    def train(self, server: Server, parties: list[int], t: int) -> list[Update]:
        """Return the updates of these parties in their order; missing ones have a reason."""
        self.states.clear_updates()
        updates = self._collect(server, parties, t)
        for i in parties:
            if not updates[i].missing:
                self.states.register(i, t, is_stored=self.has_states)
        self.late = {i for i in parties if updates[i].missing.startswith(TIMED_OUT)}
        reasons = self._reasons(updates)
        if reasons:
            notify(f"moonfl: round {t + 1} continues without {reasons}")
        return [updates[i] for i in parties]

    def _collect(self, server: Server, parties: list[int], t: int) -> dict[int, Update]:
        """Ask these parties for updates, repeatedly, until enough have answered."""
        rules = self.membership.rules
        needed = answers_needed(len(parties), self.exp.parties, rules.min_parties)
        updates: dict[int, Update] = {}
        answered = 0
        for attempt in range(1, rules.attempts + 1):
            pending = [i for i in parties if i not in updates or updates[i].missing]
            present = self._wait_for_parties(pending, needed - answered, needed, t)
            updates |= self._ask(server, pending, present, t)
            answered = sum(not update.missing for update in updates.values())
            if answered >= needed:
                return updates
            notify(f"moonfl: round {t + 1}, attempt {attempt}: {self._reasons(updates)}")
        raise RunError(
            f"round {t + 1} needs {needed} parties, {answered} answered in "
            f"{rules.attempts} attempts: {self._reasons(updates)}"
        )

    def _wait_for_parties(
        self, pending: list[int], number: int, needed: int, t: int
    ) -> dict[int, int]:
        """Wait until this number of the parties to ask are connected; return party -> node."""
        return self.membership.wait_for(
            lambda present: len(present.keys() & set(pending)) >= number,
            f"and round {t + 1} needs {needed}",
            pending,
        )

    def _ask(
        self, server: Server, pending: list[int], present: dict[int, int], t: int
    ) -> dict[int, Update]:
        """Send the model to the parties, and read and store each update as it arrives."""
        deadline = self.membership.rules.deadline
        arrays = server_arrays(server)
        requests = {}
        updates = {}
        for i in pending:
            if i in present:
                accepted = self.states.last_round(i)
                requests[i] = TrainRequest(
                    run=self.run,
                    party=i,
                    round=t,
                    accepted=accepted,
                    features=self.membership.features,
                    encoding=self.membership.encoding,
                )
            else:
                updates[i] = missing_update(i, "not connected")

        def message(request: TrainRequest) -> Message:
            content = assemble(request, arrays)
            node = present[request.party]
            return Message(content, node, "train", ttl=deadline + GRACE, group_id=str(t))

        def on_answer(i: int, answer: Answer) -> None:
            updates[i] = self._read(answer, requests[i], server)

        messages = ((i, message(request)) for i, request in requests.items())
        exchange(self.membership.grid, messages, deadline, self.membership.stop, on_answer)
        return updates

    def _read(self, answer: Answer, request: TrainRequest, server: Server) -> Update:
        """Return a party's update, or a missing update with the reason for its refusal."""
        site = self.membership.sites[request.party]
        samples = site.num_samples
        steps = 0
        extra: State = {}
        if samples > 1 or not self.task.batch_norm:  # BatchNorm cannot train on a single sample
            steps = self.exp.epochs * max(1, samples // self.exp.batch_size)
            effective_steps = self.exp.effective_steps(steps, request.round)
            extra = self.exp.algorithm.extra_like(server.params, effective_steps)
        expected = ExpectedUpdate(
            request=request, server=server, site=site, steps=steps, extra=extra
        )
        try:
            return self.states.store_update(read_update(content_of(answer), expected))
        except RefusedError as error:
            return missing_update(request.party, str(error))

    def evaluate(self, server: Server, t: int) -> dict[str, Score]:
        """Evaluate on the server's test set if it has one, otherwise at the sites.

        Validation samples are always at the sites of a deployment.
        """
        scores: dict[str, Score] = {}
        if len(self.task.test.y) > 0:
            scores = self.central.evaluate(server, t)
        sets = [] if scores else ["test"]
        if self.exp.validation is not None and self.task.validation is None:
            sets.append("validation")
        if not sets:
            return scores
        if self.exp.has_party_models:
            return self._evaluate_parties(server, sets, t)
        sizes = self._held_out_sizes(sets)
        self.absent = {}
        evaluators = self._evaluators(sizes, sets)
        for name, model in self.exp.algorithm.deployed(server).items():
            tallies = self._evaluate_model(model, sizes, evaluators, sets, t)
            parts = {key: self._score(key, tallies[key], sizes) for key in sets}
            test = parts.get("test") or scores[name]
            scores[name] = test._replace(validation=parts.get("validation"))
        return scores

    def _evaluate_parties(self, server: Server, sets: list[str], t: int) -> dict[str, Score]:
        """Let each site evaluate its own model, and the global one if it is complete."""
        prefixes = {LABEL: ""} if self.task.personal else {LABEL: "", GLOBAL: "global_"}
        counted = [f"{prefix}{name}" for prefix in prefixes.values() for name in sets]
        sizes = self._held_out_sizes(counted)
        self.absent = {}
        evaluators = self._evaluators(sizes, counted)
        model = server.model
        tallies = self._evaluate_model(model, sizes, evaluators, counted, t)
        scores = {}
        for name, prefix in prefixes.items():
            test, *validation = [
                self._score(f"{prefix}{key}", tallies[f"{prefix}{key}"], sizes) for key in sets
            ]
            scores[name] = test._replace(validation=validation[0] if validation else None)
        return scores

    def _score(self, name: str, tally: Counts, sizes: Sizes) -> Score:
        """Return the score on one evaluation set, with the parties that it lacks."""
        absent = {i: reason for i, reason in self.absent.items() if sizes[i][name] > 0}
        return self.task.objective.score(tally)._replace(absent=absent)

    def _held_out_sizes(self, sets: list[str]) -> Sizes:
        """Return how many samples of each evaluation set the parties reported."""
        return {
            i: {name: getattr(site, EVALUATION_SETS[name]) for name in sets}
            for i, site in self.membership.sites.items()
        }

    def _evaluators(self, sizes: Sizes, sets: list[str]) -> dict[int, int]:
        """Wait for sites with held-out samples, and return party -> node of those to ask.

        `sizes` are those of the parties that have not answered, `sets` those that nobody counted.
        A site that missed the round's deadline is not asked unless no other site has samples of the
        same set. Sites that do not evaluate are named.
        """
        present = self.membership.wait_for(
            lambda present: all(has_samples(sizes, present, name) for name in sets),
            "and no connected site can evaluate the model",
        )
        candidates = {i for i in sizes if any(sizes[i].values())}
        available = {i: node for i, node in present.items() if i in candidates}
        punctual = {i: node for i, node in available.items() if i not in self.late}
        evaluators = available
        if all(has_samples(sizes, punctual, name) for name in sets):
            evaluators = punctual
        for i in sorted(candidates - evaluators.keys()):
            reason = "it missed the round's deadline" if i in available else "not connected"
            self._report_absence(i, reason)
        return evaluators

    def _evaluate_model(
        self, model: Params, sizes: Sizes, evaluators: dict[int, int], sets: list[str], t: int
    ) -> dict[str, Counts]:
        """Let the sites evaluate a model; return their counts per set, summed in party order.

        If no site has counted a set, all that have not answered are asked again.
        """
        arrays = to_arrays({"model": model})
        tallies: dict[int, dict[str, Counts]] = {}
        uncounted = sets
        for attempt in range(1, self.membership.rules.attempts + 1):
            if attempt > 1:
                unanswered = {i: sizes[i] for i in sizes if i not in tallies}
                evaluators = self._evaluators(unanswered, uncounted)
            has_diverged = self._ask_evaluators(arrays, sizes, evaluators, t, tallies)
            counts = {
                name: [tallies[i][name] for i in sorted(tallies) if name in tallies[i]]
                for name in sets
            }
            uncounted = [name for name in sets if not counts[name]]
            if not uncounted:
                return {name: self.task.objective.total(counts[name]) for name in sets}
            if has_diverged:
                raise DivergenceError(
                    "the aggregated model has no finite loss at any site: training has diverged; "
                    "lower lr"
                )
            notify(f"moonfl: round {t + 1}, attempt {attempt}: no site evaluated the model")
        raise RunError(
            "no site could evaluate the model on its held-out samples in "
            f"{self.membership.rules.attempts} attempts; see the reasons above"
        )

    def _ask_evaluators(
        self,
        arrays: dict[str, ArrayRecord],
        sizes: Sizes,
        nodes: dict[int, int],
        t: int,
        tallies: dict[int, dict[str, Counts]],
    ) -> bool:
        """Send a model to sites and add what they count to `tallies`.

        Return True if the model has no finite loss at one of them.
        """
        deadline = self.membership.rules.deadline
        refusals: list[RefusedError] = []

        def message(i: int) -> Message:
            request = EvaluateRequest(
                party=i,
                round=t,
                run=self.run,
                accepted=self.states.last_round(i),
                features=self.membership.features,
                encoding=self.membership.encoding,
            )
            content = assemble(request, arrays)
            return Message(content, nodes[i], "evaluate", ttl=deadline + GRACE)

        def on_answer(i: int, answer: Answer) -> None:
            try:
                tallies[i] = read_evaluation(
                    content_of(answer),
                    self.membership.sites[i],
                    sizes[i],
                    self.exp.task,
                    len(self.task.classes),
                )
            except RefusedError as error:
                refusals.append(error)
                self._report_absence(i, str(error))
            else:
                self.absent.pop(i, None)

        messages = ((i, message(i)) for i in nodes)
        exchange(self.membership.grid, messages, deadline, self.membership.stop, on_answer)
        return any(isinstance(refusal, NotFiniteError) for refusal in refusals)

    def _report_absence(self, party: int, reason: str) -> None:
        """Remember and print which site does not evaluate the model, and why."""
        self.absent[party] = reason
        notify(f"moonfl: {self.membership.name(party)} does not evaluate the model: {reason}")

    def close(self) -> None:
        """Remove temporary files."""
        self.states.close()

    def _reasons(self, updates: dict[int, Update]) -> str:
        """Return which parties are missing, and why."""
        missing = [update for update in updates.values() if update.missing]
        return "; ".join(f"{self.membership.name(u.party)}: {u.missing}" for u in missing)


def answers_needed(sampled: int, parties: int, min_parties: int) -> int:
    """Return how many of the sampled parties must answer in a round.

    `min_parties` of all parties says how many may be missing. So many may be missing in every
    sample, because the sites that are down may all be in it. If `min_parties` is two or more, so
    are the answers, because the mean of one update is that update.
    """
    smallest = min(2, min_parties)
    return min(sampled, max(smallest, sampled - (parties - min_parties)))


def missing_update(party: int, reason: str) -> Update:
    """Return an update that stands for a party without one."""
    return Update(party=party, params={}, buffers={}, num_samples=0, num_steps=0, missing=reason)


def has_samples(sizes: Sizes, parties: Mapping[int, int], name: str) -> bool:
    """Return True if any of the parties has samples of this evaluation set."""
    return any(size[name] > 0 for i, size in sizes.items() if i in parties)
