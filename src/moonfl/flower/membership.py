"""Who is there: sites are met, asked what they have, and compared."""

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from ..errors import RunError, notify
from ..runs.directory import versions
from ..settings import setting
from .messaging import GRACE, LATE, Answer, content_of, exchange
from .protocol import HELD, Facts, RefusedError, check_site, clean, pack

ASK_AGAIN = 30.0  # seconds after which a site that was refused may have been mended


@dataclass(frozen=True)
class Rules:
    """How long a round over real sites may take, and how many parties it needs."""

    deadline: float = setting(3600.0, "seconds that a party has to answer", above=0, high=1e8)
    min_parties: int = setting(2, "with fewer answers than this a round is repeated", low=1)
    wait: float = setting(
        600.0, "seconds to wait for sites that are not connected", low=0, high=1e8
    )
    attempts: int = setting(3, "how often a round is tried", low=1)
    query: float = setting(
        60.0, "seconds that a site has to read its data and say what it has", above=0, high=1e8
    )
    max_share: float = setting(
        0.9, "the largest share of all samples that one site may say it has", above=0, high=1
    )


@dataclass
class Roll:
    """Which node is which party, and what it said of itself."""

    grid: Grid
    parties: int
    rules: Rules
    known: dict[int, Facts] = field(
        default_factory=dict
    )  # by party; from before if the run is resumed
    secrets: tuple[str, ...] = ()  # of each party's secret the sha256; empty: they have none
    tell: Callable[[str], None] = notify
    stop: threading.Event = field(default_factory=threading.Event)
    begun: bool = False
    nodes: dict[int, int] = field(default_factory=dict)  # party -> node id
    refused: dict[int, tuple[float, str]] = field(default_factory=dict)  # node id -> when, and why

    def name(self, party: int) -> str:
        return str(self.known.get(party, {}).get("name", f"party {party}"))

    def present(self) -> dict[int, int]:
        """Party -> node, of those that are connected now; while one is missing, newcomers are asked who they are."""
        online = set(self.grid.get_node_ids())
        self.refused = {node: why for node, why in self.refused.items() if node in online}
        old = [
            node for node, (when, _) in self.refused.items() if time.monotonic() - when >= ASK_AGAIN
        ]
        if old and not self.begun:  # who was met first may have been the one that does not fit
            self.nodes, self.known = {}, {}
        strangers = sorted(online - set(self.nodes.values()) - (self.refused.keys() - set(old)))
        if strangers and sum(node in online for node in self.nodes.values()) < self.parties:
            queries = (
                (node, Message(pack({}), node, "query", ttl=self.rules.query + GRACE))
                for node in strangers
            )
            exchange(
                self.grid,
                queries,
                self.rules.query,
                self.stop,
                lambda node, answer: self._meet(node, answer, online),
            )
        return {party: node for party, node in sorted(self.nodes.items()) if node in online}

    def wait_for(self, enough: Callable[[dict[int, int]], bool], what: str) -> dict[int, int]:
        """A bounded wait, told to whoever watches."""
        end, told = time.monotonic() + self.rules.wait, -1
        while not enough(present := self.present()):
            if time.monotonic() > end:
                why = "".join(f"; {reason}" for _, reason in self.refused.values())
                if LATE in why:
                    why += f"; a site has {self.rules.query:g} s to read its data and say what it has (--query), and one "
                    why += "that was training when the server stopped answers when it is through with that"
                raise RunError(f"{self.missing(present)} after {self.rules.wait:g} s, {what}{why}")
            if told != len(present):
                self.tell(
                    f"moonfl: waiting for sites, {self.rules.wait:g} s at most: {self.missing(present)}"
                )
                told = len(present)
            if self.stop.wait(1.0):
                raise RunError("stopped")
        return present

    def missing(self, present: dict[int, int]) -> str:
        absent = [self.name(i) for i in range(self.parties) if i not in present]
        return f"{len(present)} of {self.parties} sites are connected, missing: {', '.join(absent) or 'none'}"

    def _meet(self, node: int, answer: Answer, online: set[int]) -> None:
        """A newcomer becomes its party, or is refused with a reason."""
        who = f"node {node}"
        try:
            facts, _ = content_of(answer)
            party = check_site(facts, self.parties)
            who = f"{facts['name']} (node {node})"
            self._admit(party, facts.pop("secret", ""))
            if self.nodes.get(party) in online:
                raise RefusedError(
                    f"party {party} is {self.name(party)} already, at node {self.nodes[party]}"
                )
            compare(facts, self.known, party)
        except Exception as error:  # a stranger may say anything, and must not end the run
            said = (
                str(error)
                if isinstance(error, RefusedError)
                else f"what it says of itself ({type(error).__name__})"
            )
            why = f"{who} was refused: {said}"
            if self.refused.get(node, (0.0, ""))[1] != why:
                self.tell(f"moonfl: {why}")
            self.refused[node] = (time.monotonic(), why)
            return
        self.known[party], self.nodes[party] = facts, node
        self.refused.pop(node, None)
        self.tell(f"moonfl: {facts['name']} is party {party}, with {sum(facts['counts'])} samples")

    def _admit(self, party: int, secret: object) -> None:
        """A site is the party it says only if it has that party's secret."""
        hashed = hashlib.sha256(str(secret).encode(errors="replace")).hexdigest()
        if self.secrets and hashed != self.secrets[party]:
            raise RefusedError(f"it says it is party {party} and has not that party's secret")

    def begin(self) -> None:
        """Before the first round: no site may weigh more than the rules allow."""
        for key, what in (
            ("counts", "of all samples"),
            ("held_out", "of all samples that are held out"),
            ("validation", "of all samples that choose a round"),
        ):
            sizes = {i: sum(f[key]) if key == "counts" else f[key] for i, f in self.known.items()}
            for i, size in sizes.items():
                if len(sizes) > 1 and size > self.rules.max_share * sum(sizes.values()):
                    raise RunError(
                        f"{self.name(i)} says it has {size} {what}, {sum(sizes.values())}: more than max_share="
                        f"{self.rules.max_share:g} allows; if it is true, raise max_share in app/pyproject.toml"
                    )
        self.begun = True


def compare(facts: Facts, known: dict[int, Facts], party: int) -> None:
    """Sites train one model with one code: these must fit. A site that comes back has the data it had."""
    ours, theirs = versions()["moonfl"], facts["versions"].get("moonfl")
    if ours != theirs:
        raise RefusedError(
            f"it has moonfl {clean(str(theirs))}, the server {ours}; install the same"
        )
    for other in known.values():
        for key, what in (
            ("shape", "samples of shape"),
            ("dtype", "samples of type"),
            ("classes", "the classes"),
        ):
            if facts[key] != other[key]:
                have, want = (clean(str(of[key])) for of in (facts, other))
                raise RefusedError(f"it has {what} {have}, {other['name']} has {want}")
        for k, (have, want) in enumerate(
            zip(facts["features"], other["features"], strict=False), 1
        ):
            if have != want:
                have, want = clean(str(have)), clean(str(want))
                raise RefusedError(
                    f"feature {k} of its table is '{have}', that of {other['name']} is '{want}'; all sites need the "
                    "same columns in the same order"
                )
    before = known.get(party)
    if before is not None and any(
        before[key] != facts[key] for key in ("sha256", "counts", *HELD.values())
    ):
        raise RefusedError("its data are not those it had when the run began")
