"""The embedded engine: every party lives in this process, one after the other."""

from ..experiment import Experiment
from ..local import Workbench, local_update
from ..metrics import Score
from ..runs.states import States
from ..seeds import one_thread
from ..task import Task
from ..types import Server, Update


class Embedded:
    def __init__(self, exp: Experiment, task: Task, states: States | None = None) -> None:
        self.exp, self.task = exp, task
        self.states = states or States()
        self.bench = Workbench(task.build)

    def train(self, server: Server, chosen: list[int], t: int) -> list[Update]:
        """The updates of the chosen parties, in the order chosen."""
        updates: list[Update] = []
        self.states.clear_updates()
        for i in chosen:
            state = self.states.load(i, before=t)
            with one_thread():
                update, kept = local_update(self.exp, self.task, self.bench, server, state, i, t)
            self.states.save(i, t, kept)
            updates.append(self.states.store_update(update))
        return updates

    def evaluate(self, server: Server) -> dict[str, Score]:
        """The score of every deployed model."""
        scores, all_chunks = {}, range(len(self.task.chunks()))
        for name, params in self.exp.algorithm.deployed(server).items():
            with one_thread():
                self.bench.clear()
                model = self.bench.module(params)
                scores[name] = self.task.score(self.task.evaluate_chunks(model, all_chunks))
        return scores

    def close(self) -> None:
        self.states.close()
