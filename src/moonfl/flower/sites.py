"""The engine whose parties are sites on Flower."""

from dataclasses import dataclass

from flwr.app import Message

from ..engines.embedded import Embedded
from ..errors import RunError, say
from ..experiment import Experiment
from ..states import SiteStates, States
from ..task import Score, Task
from ..types import Frozen, Params, Party, Server, State, Update
from .records import Order, RefusedError, check_party, counts, pack, pack_order, unpack_update
from .roll import Answer, Roll, exchange, facts_of


def no_model(params: Params) -> Frozen:
    raise AssertionError("what a party sends is made without running a model")


@dataclass
class Sites:
    exp: Experiment
    task: Task
    states: States  # only which round of each party was accepted last: the states themselves are at the sites
    roll: Roll
    run: str  # by which sites tell the states of one run from those of another
    here: SiteStates | None = None  # where the sites are simulated: the folder their states are in

    def train(self, server: Server, chosen: list[int], t: int) -> list[Update]:
        """The updates of the chosen parties in their order; of those that did not answer, why."""
        updates: dict[int, Update] = {}
        needed = min(self.roll.rules.min_parties, len(chosen))
        for attempt in range(self.roll.rules.attempts):
            present = self.roll.present()
            if len(present.keys() & set(chosen)) < needed:
                what = f"and round {t + 1} needs {needed}"
                present = self.roll.wait_for(lambda there: len(there.keys() & set(chosen)) >= needed, what)
            asked = [i for i in chosen if i not in updates or updates[i].missing]
            updates |= self._ask(server, asked, present, t)
            if sum(not u.missing for u in updates.values()) >= needed:
                break
            say(f"moonfl: round {t + 1}, attempt {attempt + 1}: {self._reasons(updates)}")
        else:
            answered = sum(not u.missing for u in updates.values())
            raise RunError(
                f"round {t + 1} needs {needed} parties, {answered} answered in {attempt + 1} attempts: "
                f"{self._reasons(updates)}"
            )
        for i in chosen:
            if not updates[i].missing:
                self.states.note(i, t, None if self.here is None else self.here.path(i, t))
        if any(u.missing for u in updates.values()):
            say(f"moonfl: round {t + 1} goes on without {self._reasons(updates)}")
        return [updates[i] for i in chosen]

    def _ask(self, server: Server, asked: list[int], present: dict[int, int], t: int) -> dict[int, Update]:
        accepted = {i: t for i, (t, _) in self.states.newest().items()}
        orders = {i: Order(self.run, i, t, accepted.get(i), server) for i in asked if i in present}
        deadline = self.roll.rules.deadline
        messages = {
            i: Message(pack_order(order), present[i], "train", ttl=deadline, group_id=str(t))
            for i, order in orders.items()
        }
        answers: dict[int, Answer] = dict.fromkeys(asked, "not connected")
        answers |= exchange(self.roll.grid, messages, deadline)
        like = self._extra_like(server)
        return {i: self._update(i, answer, orders.get(i), like) for i, answer in answers.items()}

    def _update(self, i: int, answer: Answer, order: Order | None, extra_like: State) -> Update:
        try:
            if isinstance(answer, str) or order is None:
                raise RefusedError(str(answer))
            if answer.metadata.src_node_id != self.roll.nodes[i]:
                raise RefusedError("the answer came from another node")
            facts_of(answer)
            samples = sum(self.roll.known[i]["counts"])
            most_steps = self.exp.epochs * -(-samples // self.exp.batch_size)
            return unpack_update(answer.content, order, extra_like, samples, most_steps)
        except RefusedError as error:
            return Update(i, {}, {}, 0, 0, missing=str(error))

    def _extra_like(self, server: Server) -> State:
        """What the algorithm sends beside a model, by its names, shapes and types."""
        state = self.exp.algorithm.init_party(server.params)
        party = Party(
            0, state, server.params, server.buffers, server.shared, self.exp.lr, self.exp.momentum,
            self.task.supervised, no_model,
        )  # fmt: skip
        return self.exp.algorithm.finish(party, party.global_model, 1)[1]

    def evaluate(self, server: Server) -> dict[str, Score]:
        """On the server's test set where it has one, else by the sites on what they hold out."""
        if len(self.task.test.y) > 0:
            return Embedded(self.exp, self.task).evaluate(server)
        return {name: self._judged(name, model) for name, model in self.exp.algorithm.deployed(server).items()}

    def _judged(self, name: str, model: Params) -> Score:
        messages = {
            i: Message(pack({"party": i}, {"model": model}), node, "evaluate", ttl=self.roll.rules.deadline)
            for i, node in self.roll.present().items()
            if self.roll.known[i]["held_out"] > 0
        }
        found: dict[int, list[tuple[int, float]]] = {}
        for i, answer in exchange(self.roll.grid, messages, self.roll.rules.deadline).items():
            try:
                facts = facts_of(answer)
                check_party(facts, i)
                found[i] = counts(facts, "chunks")
                if sum(right for right, _ in found[i]) > self.roll.known[i]["held_out"]:
                    raise RefusedError("it counts more right answers than it holds out")
            except RefusedError as error:
                found.pop(i, None)
                say(f"moonfl: {self.roll.name(i)} does not judge the model: {error}")
        if not found:
            raise RunError(
                "no site could judge the model on data it holds out; hold some out, or give the server a test set"
            )
        held = {i: int(self.roll.known[i]["held_out"]) for i in sorted(found)}
        right = {i: sum(n for n, _ in found[i]) for i in held}
        loss = sum(part for i in held for _, part in found[i])
        total = sum(held.values())
        return Score(sum(right.values()) / total, loss / total, {i: (right[i], held[i]) for i in held})

    def close(self) -> None:
        self.states.close()

    def _reasons(self, updates: dict[int, Update]) -> str:
        return "; ".join(f"{self.roll.name(u.party)}: {u.missing}" for u in updates.values() if u.missing)
