"""The ClientApp: how a site answers the server's messages.

A site describes itself (query), trains its party with the same `local_update` as every other engine
(train), and evaluates models on its held-out samples (evaluate). protocol.py defines the messages.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ..data.base import Examples
from ..data.images import Images
from ..data.moments import compute_moments
from ..errors import DataError, InputError, RunError, notify
from ..experiment import Experiment
from ..local import Workbench, local_update
from ..models.base import standardises
from ..numerics import standard_settings
from ..runs import schema
from ..runs.directory import versions
from ..runs.site_states import SiteStates
from ..seeds import one_thread
from ..task import Task, hash_examples
from ..types import Server
from .columns import describe_columns
from .protocol import (
    ColumnOrder,
    ErrorReply,
    EvaluationCounts,
    EvaluationHeader,
    pack,
    pack_update,
    read_evaluate_request,
    read_header,
    read_train_request,
)
from .refusals import RefusedError

MISCONFIGURED = "its site.toml, data or installation is wrong; see the log of the site"


@dataclass(frozen=True)
class Site:
    """A party at its own place: its data, and a folder for its state between rounds."""

    party: int
    name: str
    task: Task
    states: Callable[[str], SiteStates]  # by run
    features: tuple[str, ...] = ()  # column names, if its data are a table
    secret: str = ""  # proves to the server that it is this party

    def sha256(self) -> str:
        """Return the hash of the site's training and held-out data."""
        return hash_examples(self.task.parties[self.party], *self.task.held_out.values())


SiteFactory = Callable[[Context], tuple[Experiment, Site]]
Handler = Callable[[Experiment, Site, RecordDict], RecordDict]


def client_app(make_site: SiteFactory, private: bool = True) -> ClientApp:
    """Return the ClientApp of a site.

    `make_site` returns the experiment and the site for Flower's context of a node. With `private`
    False, as in a simulation, error messages are sent to the server in full.
    """
    app = ClientApp()
    app.query()(with_errors(make_site, describe, private))
    app.train()(with_errors(make_site, train, private))
    app.evaluate()(with_errors(make_site, evaluate, private))
    return app


def with_errors(
    make_site: SiteFactory, handle: Handler, private: bool
) -> Callable[[Message, Context], Message]:
    """Return a message handler that reports errors to the server in one line.

    An error message may quote the data, such as a cell of a table or the name of an image. If
    `private`, such a message is only printed in the site's own log.
    """

    def reply_to(message: Message, context: Context) -> RecordDict:
        try:
            exp, site = make_site(context)
            features = read_header(message.content, ColumnOrder, "request").features
            return handle(exp, arrange_columns(site, features), message.content)
        except (InputError, DataError) as error:
            notify(f"moonfl: {error}")
            return pack(ErrorReply(error=MISCONFIGURED if private else str(error)))
        except (RunError, RefusedError) as error:
            return pack(ErrorReply(error=str(error)))
        except Exception as error:
            traceback.print_exc()
            return pack(ErrorReply(error=describe_exception(error, private)))

    def answer(message: Message, context: Context) -> Message:
        with standard_settings():  # as a decorator it could not be sent to Ray's processes
            return Message(reply_to(message, context), reply_to=message)

    return answer


def describe_exception(error: Exception, private: bool) -> str:
    """Return one line about an unexpected exception; only its type if `private`."""
    kind = type(error).__name__
    if private:
        return f"{kind}; see the log of the site"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{kind}: {error} ({Path(frame.filename).name}, line {frame.lineno})"


def describe(exp: Experiment, site: Site, content: RecordDict) -> RecordDict:
    """Describe the site and its data: sizes, names and a hash, but no samples."""
    task = site.task
    task.check_images()
    task.notify_duplicates()
    examples = task.parties[site.party]
    record = schema.SiteRecord(
        party=site.party,
        name=site.name,
        secret=site.secret,
        versions=versions(),
        shape=list(examples.x.shape[1:]),
        dtype=str(examples.x.dtype),
        classes=list(task.classes),
        features=list(site.features),
        counts=task.counts(examples),
        sha256=site.sha256(),
        held_out=len(task.test.y),
        validation=0 if task.validation is None else len(task.validation.y),
    )
    if standardises(task.build()):
        number, mean, squares = compute_moments(examples)
        record.moments = schema.Moments(number=number, mean=mean.tolist(), squares=squares.tolist())
    return pack(record)


def train(exp: Experiment, site: Site, content: RecordDict) -> RecordDict:
    """Train the party for one round, from the state of the last round that the server accepted."""
    request, server = read_train_request(content, site.party, blank_server(exp, site.task))
    states = site.states(request.run)
    state = states.load(site.party, request.accepted)
    workbench = Workbench(site.task.build)
    with one_thread():
        update, new_state = local_update(
            exp,
            site.task,
            workbench,
            server,
            state=state,
            party=site.party,
            t=request.round,
        )
    states.save(site.party, request.round, new_state, request.accepted)
    return pack_update(update, request.round, site.sha256())


def evaluate(exp: Experiment, site: Site, content: RecordDict) -> RecordDict:
    """Evaluate a model on the site's test and validation samples, and return the counts.

    Its personal tensors are those of the last round that the server accepted.
    """
    task = site.task
    expected = blank_server(exp, task)
    like = {**expected.params, **expected.buffers}
    request, params = read_evaluate_request(content, site.party, like)
    state = None
    if task.personal:
        state = site.states(request.run).load(site.party, request.accepted)
    personal = task.personal_part(state, exp.seed)
    with one_thread():
        model = Workbench(task.build).module({**params, **personal})
        tallies = task.tallies(task.evaluate_chunks(model, range(len(task.chunks()))))
    counts = {name: to_counts(tally) for name, tally in tallies.items()}
    return pack(EvaluationHeader(party=site.party, **counts))


def blank_server(exp: Experiment, task: Task) -> Server:
    """Return a server with the site's own model: what the server sends must look like it."""
    return exp.algorithm.init_server(*task.init_shared(exp.seed))


def arrange_columns(site: Site, features: list[str]) -> Site:
    """Return the site with the columns of its table in the order that all sites agreed on."""
    if not features or not site.features or list(site.features) == features:
        return site
    if set(features) != set(site.features):
        raise RefusedError(f"its columns differ: {describe_columns(site.features, features)}")
    order = torch.tensor([site.features.index(name) for name in features])

    def arrange(examples: Examples) -> Examples:
        assert not isinstance(examples.x, Images)
        return examples._replace(x=examples.x[:, order.to(examples.x.device)])

    task = replace(
        site.task,
        parties={site.party: arrange(site.task.parties[site.party])},
        test=arrange(site.task.test),
        validation=None if site.task.validation is None else arrange(site.task.validation),
        features=tuple(features),
    )
    return replace(site, task=task, features=tuple(features))


def to_counts(tally: Any) -> EvaluationCounts:
    """Return a tally as part of a message."""
    return EvaluationCounts(
        loss=tally.loss, actual=tally.actual, predicted=tally.predicted, hits=tally.hits
    )
