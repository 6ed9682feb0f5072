"""The ClientApp: what a site does with the server's messages. It trains with the same local_update as every engine."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ..data.moments import compute_moments
from ..errors import InputError, RunError, notify
from ..experiment import Experiment
from ..local import Workbench, local_update
from ..models.base import standardises
from ..runs.directory import versions
from ..runs.site_states import SiteStates
from ..seeds import one_thread
from ..task import Task, hash_examples
from .protocol import COUNTS, HELD, Facts, RefusedError, pack, pack_update, unpack, unpack_order


@dataclass(frozen=True)
class Site:
    """A party at its own place: its data, and a folder for what it keeps between rounds."""

    party: int
    name: str
    task: Task
    states: Callable[[str], SiteStates]  # by run
    features: tuple[str, ...] = ()  # the names of what is learned from, where its data are a table
    secret: str = ""  # by which the server knows that it is this party


WRONG_THERE = "its site.toml, data or installation is wrong; the log of the site says how"
SiteOf = Callable[[Context], tuple[Experiment, Site]]


def client_app(site_of: SiteOf, private: bool = True) -> ClientApp:
    """`site_of` tells what to run and where we are; Flower's context says which node this is. Where nothing is
    `private`, as in a simulation, the server is told all of what goes wrong.
    """
    app = ClientApp()
    app.query()(answering(site_of, introduce, private))
    app.train()(answering(site_of, train, private))
    app.evaluate()(answering(site_of, evaluate, private))
    return app


def answering(
    site_of: SiteOf, work: Callable[[Experiment, Site, Message], Message], private: bool
) -> Callable[[Message, Context], Message]:
    """What goes wrong at a site is told to the server in a line. A message that may quote the data (a cell of a table,
    the name of an image) stays in the log of the site.
    """

    def answer(message: Message, context: Context) -> Message:
        try:
            return work(*site_of(context), message)
        except (RunError, RefusedError) as error:
            told = str(error)
        except InputError as error:
            notify(f"moonfl: {error}")
            told = WRONG_THERE if private else str(error)
        except Exception as error:
            traceback.print_exc()
            place = traceback.extract_tb(error.__traceback__)[-1]
            whole = f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
            told = f"{type(error).__name__}; the log of the site says more" if private else whole
        return Message(pack({"error": told}), reply_to=message)

    return answer


def introduce(exp: Experiment, site: Site, message: Message) -> Message:
    """Who this is, and what its data are like: nothing of the data themselves."""
    task, own = site.task, site.task.parties[site.party]
    facts: Facts = {
        "party": site.party,
        "name": site.name,
        "secret": site.secret,
        "versions": versions(),
        "shape": list(own.x.shape[1:]),
        "dtype": str(own.x.dtype),
        "classes": list(task.classes),
        "features": list(site.features),
        "counts": task.counts(own),
        "sha256": hash_examples(own, *task.held_out.values()),
        **{
            key: len(task.held_out[name].y) if name in task.held_out else 0
            for name, key in HELD.items()
        },
    }
    if standardises(task.build()):
        number, mean, squares = compute_moments(own)
        facts["moments"] = {"number": number, "mean": mean.tolist(), "squares": squares.tolist()}
    return Message(pack(facts), reply_to=message)


def train(exp: Experiment, site: Site, message: Message) -> Message:
    order = unpack_order(message.content)
    check(site, order.party)
    if not order.run.isalnum():
        raise RefusedError(f"'{order.run}' is not the name of a run")
    task, states = site.task, site.states(order.run)
    state = states.load(site.party, order.accepted)
    with one_thread():
        update, kept = local_update(
            exp, task, Workbench(task.build), order.server, state, site.party, order.round
        )
    states.save(site.party, order.round, kept, order.accepted)
    return Message(
        pack_update(
            update, order, hash_examples(task.parties[site.party], *task.held_out.values())
        ),
        reply_to=message,
    )


def evaluate(exp: Experiment, site: Site, message: Message) -> Message:
    """What is counted on what this site holds out, and on what it keeps apart to choose a round by."""
    facts, tensors = unpack(message.content)
    check(site, facts.get("party"))
    task = site.task
    with one_thread():
        model = Workbench(task.build).module(tensors["model"])
        found = task.tallies(task.evaluate_chunks(model, range(len(task.chunks()))))
    counted = {
        name: {key: getattr(of, key) for key in ("loss", *COUNTS)} for name, of in found.items()
    }
    return Message(pack({"party": site.party, **counted}), reply_to=message)


def check(site: Site, party: int | None) -> None:
    if party != site.party:
        raise RefusedError(
            f"the server takes this site for party {party}; it is party {site.party}"
        )
