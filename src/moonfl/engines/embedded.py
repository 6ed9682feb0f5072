"""The embedded engine: parties are trained in this process, one after the other."""

from ..experiment import Experiment
from ..local import Workbench, local_update
from ..metrics import Score
from ..party_models import evaluate_party, own_tensors, score_party_models
from ..runs.states import States
from ..seeds import one_thread, restored
from ..task import Task
from ..types import Server, Update


class Embedded:
    """An engine without other processes. It also serves as the reference for all others."""

    def __init__(self, exp: Experiment, task: Task, states: States | None = None) -> None:
        self.exp = exp
        self.task = task
        self.states = states or States()
        self.bench = Workbench(task.build)

    def train(self, server: Server, parties: list[int], t: int) -> list[Update]:
        """Train these parties in round `t` and return their updates in the same order."""
        updates: list[Update] = []
        self.states.clear_updates()
        for i in parties:
            state = self.states.load(i, before=t)
            with one_thread(), restored():
                update, new_state = local_update(
                    self.exp, self.task, self.bench, server, state=state, party=i, t=t
                )
            self.states.save(i, t, new_state)
            updates.append(self.states.store_update(update))
        return updates

    def evaluate(self, server: Server, t: int) -> dict[str, Score]:
        """Evaluate every model that the algorithm deploys and return the scores by name.

        The parties' own models are evaluated by party and have one score.
        """
        if self.exp.has_party_models:
            return self._evaluate_parties(server, t)
        scores = {}
        all_chunks = range(len(self.task.chunks()))
        for name, params in self.exp.algorithm.deployed(server).items():
            with one_thread():
                self.bench.clear()
                model = self.bench.module(params)
                tallies = self.task.evaluate_chunks(model, all_chunks)
                scores[name] = self.task.score(tallies)
        return scores

    def _evaluate_parties(self, server: Server, t: int) -> dict[str, Score]:
        """Evaluate the model of each party on the samples that it holds out."""
        shared = server.model
        tallies = []
        for i in range(len(self.task.parties)):
            state = self.states.load(i, before=self.exp.rounds)
            own = own_tensors(self.exp, self.task, state)
            with one_thread():
                counts = evaluate_party(
                    self.exp, self.task, self.bench, shared, own=own, party=i, t=t
                )
            tallies.append(counts)
        return score_party_models(self.task, tallies)

    def close(self) -> None:
        """Remove temporary files."""
        self.states.close()
