"""Membership: which Flower node is which party, and whether the sites fit together.

Before the first round every site is asked to describe itself. The description is checked
(protocol.read_site), the site's secret and version are verified, and its data are compared with
those of the other sites. A site that does not fit most others is refused with a reason and asked
again later. Sites whose tables differ only in the order of columns use that of the first. A site
that returns during a run, possibly as another node, becomes its party again if its data are
unchanged.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
from flwr.app import Message
from flwr.serverapp import Grid

from ..errors import RunError, notify
from ..runs.schema import EncodingRecord, SiteRecord
from ..settings import setting
from .columns import describe_columns
from .messaging import GRACE, TIMED_OUT, Answer, content_of, exchange
from .protocol import DescribeRequest, pack, read_site
from .refusals import RefusedError, sanitize
from .site_checks import CHANGED_DATA, check_version

RETRY_REFUSED = 30.0  # seconds after which a refused site is asked again: it may have been repaired


@dataclass(frozen=True)
class RoundRules:
    """How long a round over real sites may take, and how many parties it needs."""

    deadline: float = setting(
        3600.0, "deadline for a party's answer, in seconds", above=0, high=1e8
    )
    min_parties: int = setting(
        2,
        "minimum number of answers in a round of all parties; a sample may lack as many",
        low=1,
    )
    wait: float = setting(
        600.0, "seconds to wait for sites that are not connected", low=0, high=1e8
    )
    attempts: int = setting(3, "maximum number of attempts per round", low=1)
    query: float = setting(
        60.0, "deadline for a site's description of its data, in seconds", above=0, high=1e8
    )
    max_share: float = setting(
        0.9, "the largest share of all samples that one site may report", above=0, high=1
    )


@dataclass(frozen=True)
class Refusal:
    """Why and when a node was refused."""

    time: float
    reason: str


@dataclass
class Membership:
    """The parties of a run: their nodes and their descriptions."""

    grid: Grid
    parties: int
    rules: RoundRules
    sites: dict[int, SiteRecord] = field(default_factory=dict)  # by party; stored ones on resume
    secrets: tuple[str, ...] = ()  # sha256 of each party's secret; empty: parties have none
    log: Callable[[str], None] = notify
    stop: threading.Event = field(default_factory=threading.Event)
    started: bool = False  # whether the first round has begun
    features: list[str] = field(default_factory=list)  # order of columns, once it is agreed on
    encoding: EncodingRecord | None = None  # of the sites' tables, once it is learned
    candidates: dict[int, SiteRecord] = field(default_factory=dict)  # by node, before the start
    nodes: dict[int, int] = field(default_factory=dict)  # party -> node id
    refused: dict[int, Refusal] = field(default_factory=dict)  # by node id

    def name(self, party: int) -> str:
        """Return the name of a party's site."""
        if party in self.sites:
            return self.sites[party].name
        return f"party {party}"

    def connect_sites(self) -> dict[int, int]:
        """Query new nodes if a party is missing, and return party -> node of the connected sites.

        Nodes that were refused some time ago count as new.
        """
        online = set(self.grid.get_node_ids())
        self.refused = {node: refusal for node, refusal in self.refused.items() if node in online}
        recently_refused = self._recently_refused()
        if len(recently_refused) < len(self.refused) and not self.started:
            self._restart_admission()
        new_nodes = online - set(self.nodes.values()) - recently_refused
        connected = [node for node in self.nodes.values() if node in online]
        if new_nodes and len(connected) < self.parties:
            self._query(sorted(new_nodes), online)
        return {party: node for party, node in sorted(self.nodes.items()) if node in online}

    def _recently_refused(self) -> set[int]:
        """Return the nodes that were refused less than RETRY_REFUSED seconds ago."""
        now = time.monotonic()
        return {
            node for node, refusal in self.refused.items() if now - refusal.time < RETRY_REFUSED
        }

    def _restart_admission(self) -> None:
        """Forget all parties before the first round.

        Sites that agree with each other may have been repaired, too.
        """
        self.nodes = {}
        self.sites = {}
        self.candidates = {}

    def _query(self, nodes: list[int], online: set[int]) -> None:
        """Ask nodes to describe themselves, and admit or refuse each."""
        timeout = self.rules.query
        request = DescribeRequest(features=self.features)
        queries = (
            (node, Message(pack(request), node, "query", ttl=timeout + GRACE)) for node in nodes
        )

        def on_answer(node: int, answer: Answer) -> None:
            self._admit_or_refuse(node, answer, online)

        exchange(self.grid, queries, timeout, self.stop, on_answer)
        if not self.started:
            self._compare_candidates(online)

    def _compare_candidates(self, online: set[int]) -> None:
        """Admit the sites that fit most others, and refuse the rest.

        Who is refused does not depend on the order in which sites connect. Of equally many, the
        sites of the party with the lowest number are admitted.
        """
        present = {node: site for node, site in self.candidates.items() if node in online}
        self.candidates = dict(sorted(present.items(), key=lambda item: item[1].party))
        kinds = [kind_of(site) for site in self.candidates.values()]
        common = max(kinds, key=kinds.count, default=None)  # the first of equally common ones
        reference = next((s for s in self.candidates.values() if kind_of(s) == common), None)
        known = dict(self.nodes)
        self.nodes = {}
        self.sites = {}
        for node, site in self.candidates.items():
            try:
                if reference is not None:
                    check_compatible(site, reference)
            except RefusedError as error:
                self._refuse(node, f"{site.name} (node {node}) was refused: {error}")
            else:
                self._admit(node, site, is_new=known.get(site.party) != node)

    def _admit(self, node: int, site: SiteRecord, *, is_new: bool) -> None:
        """Make a node its party."""
        self.sites[site.party] = site
        self.nodes[site.party] = node
        self.refused.pop(node, None)
        if is_new:
            self.log(f"moonfl: {site.name} is party {site.party}, with {site.num_samples} samples")

    def wait_for(
        self,
        enough: Callable[[dict[int, int]], bool],
        purpose: str,
        awaited: Sequence[int] | None = None,
    ) -> dict[int, int]:
        """Wait until enough sites are connected and return party -> node.

        The wait is logged, and ends after `rules.wait` seconds with a RunError. Both name the
        parties that are missing among `awaited`, by default all parties.
        """
        awaited = range(self.parties) if awaited is None else awaited
        end = time.monotonic() + self.rules.wait
        logged = -1  # number of sites when the wait was last logged
        present = self.connect_sites()
        while not enough(present):
            if time.monotonic() > end:
                raise RunError(
                    f"{self._status(present, awaited)} after {self.rules.wait:g} s, "
                    f"{purpose}{self._refusals()}"
                )
            if logged != len(present):
                self.log(
                    f"moonfl: waiting for sites, {self.rules.wait:g} s at most: "
                    f"{self._status(present, awaited)}"
                )
                logged = len(present)
            if self.stop.wait(1.0):
                raise RunError("stopped")
            present = self.connect_sites()
        return present

    def _status(self, present: dict[int, int], awaited: Sequence[int]) -> str:
        """Return how many of the awaited parties are connected and which are missing."""
        absent = [self.name(i) for i in awaited if i not in present]
        missing = ", ".join(absent) or "none"
        connected = len(awaited) - len(absent)
        return f"{connected} of {len(awaited)} sites are connected, missing: {missing}"

    def _refusals(self) -> str:
        """Return the reasons of all refusals, with a hint for sites that need more time."""
        reasons = "".join(f"; {refusal.reason}" for refusal in self.refused.values())
        if TIMED_OUT in reasons:
            reasons += (
                f"; a site has {self.rules.query:g} s to read its data and describe them "
                "(--query), and a site that was training when the server stopped answers only when "
                "it has finished"
            )
        return reasons

    def _admit_or_refuse(self, node: int, answer: Answer, online: set[int]) -> None:
        """Make a node its party, or refuse it with a reason."""
        label = f"node {node}"
        try:
            site = read_site(content_of(answer), self.parties)
            label = f"{site.name} (node {node})"
            self._check_admission(site, online - {node})
        except RefusedError as error:
            self._refuse(node, f"{label} was refused: {error}")
        except Exception as error:  # a stranger may send anything, and must not end the run
            self._refuse(node, f"{label} was refused: its description ({type(error).__name__})")
        else:
            site = msgspec.structs.replace(site, secret=None)
            if self.started:
                self._admit(node, self._as_before(site), is_new=True)
            else:
                self.candidates[node] = site

    def _as_before(self, site: SiteRecord) -> SiteRecord:
        """Return a site that returns with what a run keeps of its first description.

        The standardisation and encoding of a run follow from its sums and must not change on
        resume. They are not compared, because another version of numpy may round them differently.
        The records of the run have the first name.
        """
        before = self.sites[site.party]
        if site.name != before.name:
            self.log(
                f"moonfl: party {site.party} is now named {site.name}; this run keeps the name "
                f"{before.name}"
            )
        return msgspec.structs.replace(
            site,
            name=before.name,
            moments=before.moments,
            targets=before.targets,
            columns=before.columns,
        )

    def _check_admission(self, site: SiteRecord, others: set[int]) -> None:
        """Check that a site has its party's secret, is no other node, and fits a started run."""
        party = site.party
        secret = (site.secret or "").encode(errors="replace")
        if self.secrets and hashlib.sha256(secret).hexdigest() != self.secrets[party]:
            raise RefusedError(f"it claims to be party {party} but does not have its secret")
        owners = dict(self.nodes)
        owners |= {other.party: node for node, other in self.candidates.items()}
        if owners.get(party) in others:
            raise RefusedError(f"party {party} is already {self._owner(owners[party], party)}")
        check_version(site.versions.get("moonfl"))
        if self.started:
            for other in self.sites.values():
                check_compatible(site, other)
            check_unchanged(site, self.sites[party])

    def _owner(self, node: int, party: int) -> str:
        """Return the name and node of the site that is already a party."""
        site = self.candidates.get(node) or self.sites.get(party)
        return f"{site.name if site else self.name(party)}, at node {node}"

    def _refuse(self, node: int, reason: str) -> None:
        """Remember a refusal, and log it if it is new."""
        before = self.refused.get(node)
        if before is None or before.reason != reason:
            self.log(f"moonfl: {reason}")
        self.refused[node] = Refusal(time.monotonic(), reason)

    def start(self) -> None:
        """Wait until all sites of a new run are connected, and mark the run as started.

        Before that, align the columns of the sites, and check that none has more weight than the
        rules allow.
        """
        self.wait_for(
            lambda present: len(present) == self.parties,
            "and a run starts when all have been compared",
        )
        self._align_columns()
        sites = self.sites.items()
        self._check_shares("samples", {i: site.num_samples for i, site in sites})
        self._check_shares("held-out samples", {i: site.held_out for i, site in sites})
        self._check_shares("validation samples", {i: site.validation for i, site in sites})
        self.started = True

    def restore(self, sites: list[SiteRecord], *, wait: bool = True) -> None:
        """Take the sites of a stored run, and wait until enough are connected to continue it."""
        self.sites = dict(enumerate(sites))
        self.features = column_order(self.sites)
        self.started = True
        if wait:
            needed = self.rules.min_parties
            self.wait_for(lambda present: len(present) >= needed, f"and min_parties={needed}")

    def site_records(self) -> tuple[SiteRecord, ...]:
        """Return the descriptions of all sites, in the order of the parties."""
        return tuple(self.sites[i] for i in range(self.parties))

    def _align_columns(self) -> None:
        """Let sites describe their data again if their columns have another order."""
        self.features = column_order(self.sites)
        others = [i for i, site in self.sites.items() if site.features != self.features]
        nodes = [self.nodes[i] for i in others]
        for i, node in zip(others, nodes, strict=True):
            self.log(f"moonfl: {self.name(i)} has its columns in another order and rearranges them")
            del self.candidates[node]
        if nodes:
            self._query(nodes, set(self.grid.get_node_ids()))
        for i in others:
            if i not in self.sites or self.sites[i].features != self.features:
                raise RunError(f"{self.name(i)} cannot rearrange its columns{self._refusals()}")
        self.candidates = {}

    def _check_shares(self, kind: str, sizes: dict[int, int]) -> None:
        """Check that no site has more than `max_share` of all samples of a kind."""
        total = sum(sizes.values())
        for i, size in sizes.items():
            if len(sizes) > 1 and size > self.rules.max_share * total:
                raise RunError(
                    f"{self.name(i)} reports {size} of all {total} {kind}: more than "
                    f"max_share={self.rules.max_share:g} allows; if this is correct, raise "
                    "max_share in app/pyproject.toml"
                )


def column_order(sites: dict[int, SiteRecord]) -> list[str]:
    """Return the columns of the first party, whose order all sites use; [] without tables."""
    return sites[min(sites)].features if sites else []


def kind_of(site: SiteRecord) -> tuple[object, ...]:
    """Return what the data of all sites must have in common."""
    return (sorted(site.features), site.shape, site.dtype, site.classes, *task_of(site))


def task_of(site: SiteRecord) -> tuple[bool, bool]:
    """Return which fields a site's description has, which differ between tasks."""
    return (site.samples is not None, site.targets is not None)


def check_compatible(site: SiteRecord, other: SiteRecord) -> None:
    """Check that one model can be trained on the data of two sites."""
    if site.features and other.features and set(site.features) != set(other.features):
        difference = describe_columns(site.features, other.features, other.name)
        raise RefusedError(f"its table has other columns: {difference}")
    if task_of(site) != task_of(other):
        raise RefusedError(f"it has another task than {other.name}")
    names = "classes" if site.samples is None else "targets or labels"
    pairs = (
        ("samples of shape", site.shape, other.shape),
        ("samples of type", site.dtype, other.dtype),
        (f"the {names}", site.classes, other.classes),
    )
    for what, value, expected in pairs:
        if value != expected:
            raise RefusedError(
                f"it has {what} {sanitize(str(value))}, {other.name} has {sanitize(str(expected))}"
            )
    if bool(site.features) != bool(other.features):
        has, lacks = ("has", "has none") if site.features else ("has no", "has them")
        raise RefusedError(
            f"it {has} column names, {other.name} {lacks}; columns are identified by name: use "
            "tables at all sites, or .npz files at all sites"
        )


def check_unchanged(site: SiteRecord, before: SiteRecord) -> None:
    """Check that a site that returns has the data it had before."""
    keys = ("sha256", "counts", "samples", "held_out", "validation")
    if any(getattr(site, key) != getattr(before, key) for key in keys):
        raise RefusedError(CHANGED_DATA)
