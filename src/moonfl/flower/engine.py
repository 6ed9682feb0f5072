"""The engine whose parties are sites on Flower."""

from dataclasses import dataclass

from flwr.app import Message

from ..engines.embedded import Embedded
from ..errors import DivergenceError, InputError, RunError, notify
from ..experiment import Experiment
from ..metrics import Score, Tally, score, total
from ..runs.site_states import SiteStates
from ..runs.states import States
from ..task import Task
from ..types import Frozen, Params, Party, Server, State, Update
from .membership import Roll
from .messaging import GRACE, LATE, Answer, content_of, exchange
from .protocol import (
    HELD,
    NotFiniteError,
    Order,
    RefusedError,
    arrays_of,
    assemble,
    check_party,
    pack_order,
    read_tally,
    read_update,
    server_arrays,
)


@dataclass
class Sites:
    exp: Experiment
    task: Task
    states: States  # only which round of each party was accepted last: the states themselves are at the sites
    roll: Roll
    run: str  # by which sites tell the states of one run from those of another
    here: SiteStates | None = None  # where the sites are simulated: the folder their states are in

    def __post_init__(self) -> None:
        self.central = Embedded(
            self.exp, self.task, self.states
        )  # judges models where the server has a test set
        self.late: set[int] = set()  # parties that let this round's deadline pass

    def train(self, server: Server, chosen: list[int], t: int) -> list[Update]:
        """The updates of the chosen parties in their order; of those that did not answer, why."""
        self.states.clear_updates()
        updates: dict[int, Update] = {}
        needed = min(self.roll.rules.min_parties, len(chosen))
        for attempt in range(self.roll.rules.attempts):
            asked = [i for i in chosen if i not in updates or updates[i].missing]
            updates |= self._ask(server, asked, self._enough(asked, needed, len(chosen), t), t)
            answered = sum(not update.missing for update in updates.values())
            if answered >= needed:
                break
            notify(f"moonfl: round {t + 1}, attempt {attempt + 1}: {self._reasons(updates)}")
        else:
            tried = f"{answered} answered in {self.roll.rules.attempts} attempts"
            raise RunError(
                f"round {t + 1} needs {needed} parties, {tried}: {self._reasons(updates)}"
            )
        for i in chosen:
            if not updates[i].missing:
                self.states.register(i, t, None if self.here is None else self.here.path(i, t))
        self.late = {i for i in chosen if updates[i].missing.startswith(LATE)}
        if answered < len(chosen):
            notify(f"moonfl: round {t + 1} goes on without {self._reasons(updates)}")
        return [updates[i] for i in chosen]

    def _enough(self, asked: list[int], needed: int, chosen: int, t: int) -> dict[int, int]:
        """Who is there, when enough of those to be asked are: the others of the chosen have answered."""
        still = needed - (chosen - len(asked))
        return self.roll.wait_for(
            lambda present: len(present.keys() & set(asked)) >= still,
            f"and round {t + 1} needs {needed}",
        )

    def _ask(
        self, server: Server, asked: list[int], present: dict[int, int], t: int
    ) -> dict[int, Update]:
        """Each answer is read, checked and put away as it comes."""
        accepted = {i: last for i, (last, _) in self.states.newest().items()}
        orders = {i: Order(self.run, i, t, accepted.get(i), server) for i in asked if i in present}
        arrays, deadline = server_arrays(server), self.roll.rules.deadline
        messages = (
            (
                i,
                Message(
                    pack_order(order, arrays),
                    present[i],
                    "train",
                    ttl=deadline + GRACE,
                    group_id=str(t),
                ),
            )
            for i, order in orders.items()
        )
        updates = {i: absent(i, "not connected") for i in asked if i not in present}

        def done(i: int, answer: Answer) -> None:
            updates[i] = self._read(i, answer, orders[i])

        exchange(self.roll.grid, messages, deadline, self.roll.stop, done)
        return updates

    def _read(self, i: int, answer: Answer, order: Order) -> Update:
        site = self.roll.known[i]
        samples = sum(site["counts"])
        alone = self.task.batch_norm and samples == 1
        steps = 0 if alone else self.exp.epochs * max(1, samples // self.exp.batch_size)
        try:
            facts, tensors = content_of(answer)
            like = {} if alone else self._extra_like(order.server, steps)
            return self.states.store_update(read_update(facts, tensors, order, site, steps, like))
        except RefusedError as error:
            return absent(i, str(error))

    def _extra_like(self, server: Server, steps: int) -> State:
        """What the algorithm would send beside the model it was given."""
        state = self.exp.algorithm.init_party(server.params)
        party = Party(
            0,
            state,
            server.params,
            server.buffers,
            server.shared,
            self.exp.lr,
            self.exp.momentum,
            self.task.supervised,
            no_model,
        )
        return self.exp.algorithm.finish(party, party.global_model, steps)[1]

    def evaluate(self, server: Server) -> dict[str, Score]:
        """On the server's own test set where it has one, and by the sites on what they hold out where it has not."""
        here = self.central.evaluate(server) if len(self.task.test.y) > 0 else {}
        wanted = [] if here else ["test"]
        wanted += (
            ["validation"]
            if self.exp.validation is not None and self.task.validation is None
            else []
        )
        if not wanted:
            return here
        scores, held = (
            {},
            {
                i: {name: int(facts[HELD[name]]) for name in wanted}
                for i, facts in self.roll.known.items()
            },
        )
        present = self.roll.wait_for(
            lambda present: all(any(held[i][name] > 0 for i in present) for name in wanted),
            "and nobody judges the model",
        )
        judges = self._judges(held, present)
        for name, model in self.exp.algorithm.deployed(server).items():
            found = self._judged(model, wanted, held, judges)
            scores[name] = (
                here[name]._replace(validation=score(found["validation"]))
                if here
                else score(**found)
            )
        return scores

    def _judges(self, held: dict[int, dict[str, int]], present: dict[int, int]) -> dict[int, int]:
        """Party -> node, of those that are connected and hold samples out. One that let the round's deadline pass is
        not waited for again, unless nobody else has such samples.
        """
        there = {i: node for i, node in present.items() if any(held[i].values())}
        prompt = {i: node for i, node in there.items() if i not in self.late}
        kinds = {name for i in there for name, size in held[i].items() if size > 0}
        judges = prompt if all(any(held[i][name] > 0 for i in prompt) for name in kinds) else there
        for i in (i for i, sizes in held.items() if any(sizes.values()) and i not in judges):
            why = "it let the round's deadline pass" if i in there else "not connected"
            notify(f"moonfl: {self.roll.name(i)} does not judge the model: {why}")
        return judges

    def _judged(
        self,
        model: Params,
        wanted: list[str],
        held: dict[int, dict[str, int]],
        judges: dict[int, int],
    ) -> dict[str, Tally]:
        """What the sites counted, summed in party order, on the sets that are wanted."""
        arrays, deadline = arrays_of({"model": model}), self.roll.rules.deadline
        messages = (
            (i, Message(assemble({"party": i}, arrays), node, "evaluate", ttl=deadline + GRACE))
            for i, node in judges.items()
        )
        found: dict[int, dict[str, Tally]] = {}
        lost: dict[int, RefusedError] = {}

        def done(i: int, answer: Answer) -> None:
            try:
                facts, _ = content_of(answer)
                check_party(facts, i)
                found[i] = {
                    name: read_tally(facts.get(name), number, len(self.task.classes), i)
                    for name, number in held[i].items()
                    if number > 0
                }
            except RefusedError as error:
                lost[i] = error
                notify(f"moonfl: {self.roll.name(i)} does not judge the model: {error}")

        exchange(self.roll.grid, messages, deadline, self.roll.stop, done)
        parts = {
            name: [found[i][name] for i in sorted(found) if name in found[i]] for name in wanted
        }
        if not all(parts.values()):
            raise no_judge(list(lost.values()))
        return {name: total(of) for name, of in parts.items()}

    def close(self) -> None:
        self.states.close()

    def _reasons(self, updates: dict[int, Update]) -> str:
        return "; ".join(
            f"{self.roll.name(u.party)}: {u.missing}" for u in updates.values() if u.missing
        )


def absent(party: int, why: str) -> Update:
    return Update(party, {}, {}, 0, 0, missing=why)


def no_model(params: Params) -> Frozen:
    raise InputError(
        "finish() of this method runs a model; over Flower the server calls it too, and has no samples"
    )


def no_judge(reasons: list[RefusedError]) -> RunError:
    if any(isinstance(reason, NotFiniteError) for reason in reasons):
        return DivergenceError(
            "the combined model has a finite loss at no site: training has diverged; lower lr"
        )
    return RunError("no site could judge the model on data it holds out")
