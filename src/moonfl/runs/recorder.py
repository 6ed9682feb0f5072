"""Recorder: stores each round in the run directory."""

from pathlib import Path

from .. import tree
from ..errors import InputError
from ..experiment import Experiment
from ..party_models import join, stored_tensors
from ..personal import SHARED, deployed
from ..task import Task
from ..types import GLOBAL, Params, Server, Update, party_model_name, party_of_model
from . import checkpoint
from .analysis import analyse
from .files import Log, write_atomically
from .index import BEST, CHECKPOINT, FINAL, PARTITION, ROUNDS, SETTINGS, hash_file
from .result import Result, Watch
from .schema import PrivacyRecord, RoundRecord, encode
from .states import States
from .stopping import selected_round
from .tensor_files import save


class Recorder:
    """Stores the records of the rounds; with a directory, also on disk with a checkpoint."""

    def __init__(
        self,
        exp: Experiment,
        task: Task,
        *,
        watch: Watch,
        before_analysis: Watch,
        directory: Path | None,
        states: States,
        records: list[RoundRecord] | None = None,
        selected_models: dict[str, Params] | None = None,
    ) -> None:
        """Start with the records and the selected models of a resumed run.

        `watch` is called with each round when it is stored, `before_analysis` with the last one
        before the final analysis, which takes seconds.
        """
        self.exp = exp
        self.task = task
        self.watch = watch
        self.before_analysis = before_analysis
        self.directory = directory
        self.states = states
        self.records = records or []
        self.selected_models = selected_models
        self.hashes: dict[str, str] = {}  # of the files that this recorder has written or found
        self.rounds_log: Log | None = None  # opened with the first round

    def log(
        self, record: RoundRecord, server: Server, updates: list[Update], *, last: bool
    ) -> None:
        """Store a round and report it; `last` is True if the run ends with it."""
        check_model_names(self.exp, server, updates)
        self.records.append(record)
        selected = selected_round(self.records)
        if selected is record:
            self.selected_models = deployed(self.exp, server)
        if self.directory is not None:
            self._write(self.directory, server, updates, selected=selected, last=last)
        self.watch(record)

    def _write(
        self,
        directory: Path,
        server: Server,
        updates: list[Update],
        *,
        selected: RoundRecord | None,
        last: bool,
    ) -> None:
        """Write the newest record with its checkpoint.

        The analysis comes before the last line, like the best model: a run that has all its lines
        is complete.
        """
        record = self.records[-1]
        if selected is record and self.selected_models is not None:
            save(directory / BEST, self.selected_models)
            self.hashes.pop(BEST, None)
        if last:
            self.before_analysis(record)
            final = analyse(self.exp, self.task, server, updates)
            final.privacy = privacy_record(self.exp, record.round)
            write_atomically(directory / FINAL, encode(final))
        if self.rounds_log is None:
            self.rounds_log = Log(directory / ROUNDS)
        self.rounds_log.append(f"{encode(record)}\n")
        self.hashes[ROUNDS] = self.rounds_log.sha256
        names = [SETTINGS, PARTITION]
        if selected is not None:
            names.append(BEST)
        if last:
            names.append(FINAL)
        for name in names:
            if name not in self.hashes:
                self.hashes[name] = hash_file(directory / name, record.round)
        checkpoint.write(
            directory / CHECKPOINT,
            self.exp,
            record.round,
            server,
            states=self.states,
            selected=None if selected is None else selected.round,
            files=self.hashes,
        )

    def result(self, server: Server) -> Result:
        """Return the result of the run."""
        return Result(
            experiment=self.exp,
            rounds=self.records,
            models=self._models(server),
            blueprint=self.task.blueprint(),
            directory=self.directory,
            chosen_models=self.selected_models,
            names=self.task.names,
        )

    def _models(self, server: Server) -> dict[str, Params]:
        """Return the trained models by name.

        Each party that trained and has its own tensors has a model, if its state is on this
        machine. A global model that is incomplete without them is left out. Tensors of the parties
        that do not fit into memory are read from the run directory when they are accessed.
        """
        models = deployed(self.exp, server)
        if not self.exp.has_party_models:
            return models
        own: dict[str, Params] = {}
        for i in self.states.parties():
            tensors = stored_tensors(self.exp, self.states.newest(i))
            if tensors:
                own[party_model_name(i)] = tensors
        in_files = [tensors for tensors in own.values() if not isinstance(tensors, dict)]
        size = sum(map(tree.num_bytes, in_files[:1])) * len(in_files)  # all have the same size
        fits = self.states.has_room(size)
        party_models: dict[str, Params] = {}
        for name, tensors in own.items():
            model = join(server.model, tensors)
            party_models[name] = dict(model) if fits or isinstance(tensors, dict) else model
        if SHARED in models:
            return party_models or models
        return {**models, **party_models}


def check_model_names(exp: Experiment, server: Server, updates: list[Update]) -> None:
    """Check the names that `deployed` returns: reports and exports depend on them."""
    names = deployed(exp, server).keys()
    if names in ({GLOBAL}, {SHARED}):
        return
    trained = {party_model_name(u.party) for u in updates if u.num_steps > 0}
    if not trained <= names or any(party_of_model(name) is None for name in names):
        raise InputError(
            f"deployed() of {exp.algorithm.label} returns {', '.join(names)}; it must "
            f"return one model, called {GLOBAL}, or one for each party that trained: party0, ..."
        )


def privacy_record(exp: Experiment, rounds: int) -> PrivacyRecord | None:
    """Return the guarantee of a run after so many rounds; None if it has none."""
    if not exp.dp.is_private:
        return None
    guarantee = exp.dp.guarantee(exp.sample_fraction, rounds)
    return PrivacyRecord(
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        rounds=rounds,
        accountant=guarantee.accountant,
    )
