"""Who is there: sites are met, asked what they have, compared, and sent messages with a deadline."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from ..errors import RunError, say
from ..settings import setting
from .records import Facts, RefusedError, pack, unpack

POLLS = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between looks for answers; the last for ever
ASK_AGAIN = 30.0  # seconds after which a site that was refused may have been mended

Answer = Message | str  # or why there is none


@dataclass(frozen=True)
class Rules:
    """How long a round over real sites may take, and how many parties it needs."""

    deadline: float = setting(3600.0, "seconds that a party has to answer", above=0)
    min_parties: int = setting(2, "with fewer answers than this a round is repeated", low=1)
    wait: float = setting(600.0, "seconds to wait for sites that are not connected", low=0)
    attempts: int = setting(3, "how often a round is tried", low=1)


@dataclass
class Roll:
    """Who is there: which node is which party, and what it said of itself."""

    grid: Grid
    parties: int
    rules: Rules
    tell: Callable[[str], None] = say
    known: dict[int, Facts] = field(default_factory=dict)  # by party, from before if the run is resumed
    nodes: dict[int, int] = field(default_factory=dict)  # party -> node id
    refused: dict[int, tuple[float, str]] = field(default_factory=dict)  # node id -> when, and why

    def name(self, party: int) -> str:
        return str(self.known.get(party, {}).get("name", f"party {party}"))

    def present(self) -> dict[int, int]:
        """Party -> node, of those that are connected now; newcomers are asked who they are."""
        online = set(self.grid.get_node_ids())
        lately = {node for node, (when, _) in self.refused.items() if time.monotonic() - when < ASK_AGAIN}
        strangers = sorted(online - set(self.nodes.values()) - lately)
        if strangers:
            orders = {node: Message(pack({}), node, "query", ttl=self.rules.deadline) for node in strangers}
            for node, answer in exchange(self.grid, orders, self.rules.deadline).items():
                self._meet(node, answer)
        return {party: node for party, node in sorted(self.nodes.items()) if node in online}

    def wait_for(self, enough: Callable[[dict[int, int]], bool], what: str) -> dict[int, int]:
        """A bounded wait, told to whoever watches."""
        end, told = time.monotonic() + self.rules.wait, -1
        while not enough(present := self.present()):
            if time.monotonic() > end:
                why = "".join(f"; {reason}" for _, reason in self.refused.values())
                raise RunError(f"{self.missing(present)} after {self.rules.wait:g} s, {what}{why}")
            if told != len(present):
                self.tell(f"moonfl: waiting for sites, {self.rules.wait:g} s at most: {self.missing(present)}")
                told = len(present)
            time.sleep(1.0)
        return present

    def missing(self, present: dict[int, int]) -> str:
        absent = [self.name(i) for i in range(self.parties) if i not in present]
        return f"{len(present)} of {self.parties} sites are connected, missing: {', '.join(absent) or 'none'}"

    def _meet(self, node: int, answer: Answer) -> None:
        """A newcomer becomes its party, or is refused with a reason."""
        try:
            facts = facts_of(answer)
            party = check_site(facts, self.parties)
        except RefusedError as error:
            if not isinstance(answer, str):  # no answer: it is asked again
                self._refuse(node, f"a site was refused: {error}")
            return
        name = facts["name"]
        if party in self.nodes:
            self._refuse(node, f"{name} was refused: party {party} is {self.name(party)} already, at another node")
            return
        try:
            compare(facts, self.known, party)
        except RefusedError as error:
            self._refuse(node, f"{name} was refused: {error}")
            return
        self.known[party], self.nodes[party] = facts, node
        self.refused.pop(node, None)
        self.tell(f"moonfl: {name} is party {party}, with {sum(facts['counts'])} samples")

    def _refuse(self, node: int, why: str) -> None:
        if self.refused.get(node, (0.0, ""))[1] != why:
            self.tell(f"moonfl: {why}")
        self.refused[node] = (time.monotonic(), why)


def exchange(grid: Grid, messages: dict[int, Message], deadline: float) -> dict[int, Answer]:
    """Every message sent, and for each its answer or why there is none by the deadline. Keys are the caller's."""
    sent, answers = {}, dict[int, Answer]()
    for key, message in messages.items():
        number = next(iter(grid.push_messages([message])), None)
        if number:
            sent[number] = key
        else:
            answers[key] = "the message to it could not be sent"
    end, looks = time.monotonic() + deadline, 0
    while sent:
        for reply in grid.pull_messages(list(sent)):
            key = sent.pop(reply.metadata.reply_to_message_id)
            answers[key] = error_of(reply) if reply.has_error() else reply
        if time.monotonic() > end:
            break
        if sent:
            time.sleep(POLLS[min(looks, len(POLLS) - 1)])
            looks += 1
    return answers | dict.fromkeys(sent.values(), f"no answer within {deadline:g} s")


def error_of(reply: Message) -> str:
    lines = (reply.error.reason or "").strip().splitlines()
    return f"failed ({lines[-1].strip() if lines else f'code {reply.error.code}'})"


def facts_of(answer: Answer) -> Facts:
    if isinstance(answer, str):
        raise RefusedError(answer)
    return told(unpack(answer.content)[0])


def told(facts: Facts) -> Facts:
    if "error" in facts:
        raise RefusedError(str(facts["error"]))
    return facts


def check_site(facts: Facts, parties: int) -> int:
    """What a site says of itself has its form; which party it is."""
    party, count, held = (facts.get(key) for key in ("party", "counts", "held_out"))
    if not isinstance(party, int) or not 0 <= party < parties:
        raise RefusedError(f"it says it is party {party}; parties are 0 to {parties - 1}")
    whole = isinstance(count, list) and all(isinstance(n, int) and 0 <= n < 2**40 for n in count)
    if not whole or sum(count) == 0:  # type: ignore[arg-type]
        raise RefusedError(f"party {party} does not say how many samples it has of each class")
    if not isinstance(held, int) or not 0 <= held < 2**40:
        raise RefusedError(f"party {party} says it holds out {held} samples")
    for key, kind in (("name", str), ("shape", list), ("dtype", str), ("classes", list), ("sha256", str)):
        if not isinstance(facts.get(key), kind):
            raise RefusedError(f"party {party} does not say its {key}")
    return party


def compare(facts: Facts, known: dict[int, Facts], party: int) -> None:
    """Sites train one model: their inputs and classes must fit. A site that comes back has the data it had."""
    for other in known.values():
        for key, what in (("shape", "samples of shape"), ("dtype", "samples of type"), ("classes", "the classes")):
            if facts[key] != other[key]:
                raise RefusedError(f"it has {what} {facts[key]}, {other['name']} has {other[key]}")
    before = known.get(party)
    if before is not None and before["sha256"] != facts["sha256"]:
        raise RefusedError("its data are not those it had when the run began")
