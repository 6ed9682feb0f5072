"""The ClientApp: how a site answers the server's messages.

A site describes itself (query), trains its party with the same `local_update` as every other engine
(train), and evaluates models on its held-out samples (evaluate). protocol.py defines the messages.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ..data.encoding import from_record, summarise, to_column_records, unlearned_encoding
from ..data.images import Images
from ..data.moments import Moments, compute_moments, target_moments
from ..data.targets import CLASSIFICATION, REGRESSION
from ..errors import DataError, FileError, InputError, RunError, notify
from ..experiment import Experiment
from ..local import Workbench, local_update
from ..models.base import standardises
from ..numerics import standard_settings
from ..party_models import evaluate_party, own_tensors
from ..personal import LABEL
from ..runs import schema
from ..runs.directory import versions
from ..runs.site_states import SiteStates
from ..seeds import one_thread, restored
from ..task import FederatedData, Task, build_task, hash_examples
from ..types import GLOBAL, Params, Server, State
from .columns import check_same_columns, order_rows, order_task
from .counts import FORMATS
from .protocol import (
    ColumnOrder,
    ErrorReply,
    EvaluateRequest,
    EvaluationHeader,
    TrainRequest,
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
    table: FederatedData | None = None  # the site's own rows, if they are encoded
    secret: str = ""  # proves to the server that it is this party

    def sha256(self) -> str:
        """Return the hash of the site's training and held-out data."""
        if self.table is not None:
            return hash_rows(self.table)
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

    An error message may quote the data, such as a cell of a table or the name of an image, or have
    a path of the site's machine. If `private`, such a message is only printed in the site's log.
    """

    def reply_to(message: Message, context: Context) -> RecordDict:
        try:
            exp, site = make_site(context)
            order = read_header(message.content, ColumnOrder, "request")
            return handle(exp, with_columns(exp, site, order), message.content)
        except (InputError, DataError) as error:
            notify(f"moonfl: {error}")
            return pack(ErrorReply(error=MISCONFIGURED if private else str(error)))
        except FileError as error:
            notify(f"moonfl: {error}")
            return pack(ErrorReply(error=error.reason if private else str(error)))
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
        samples=None if exp.task == CLASSIFICATION else len(examples.y),
        sha256=site.sha256(),
        held_out=len(task.test.y),
        validation=0 if task.validation is None else len(task.validation.y),
    )
    if exp.task == REGRESSION:
        record.targets = moments_record(target_moments(examples.y))
    if site.table is not None:
        rows = site.table.train.take(torch.from_numpy(site.table.parts[site.party])).x
        assert not isinstance(rows, Images)
        record.columns = to_column_records(summarise(rows, site.table.table or ()))
    elif task.preparation.encoding is None and standardises(task.build()):
        record.moments = moments_record(compute_moments(examples))
    return pack(record)


def moments_record(moments: Moments) -> schema.Moments:
    """Return the sums of a site, from which mean and standard deviation are computed."""
    number, mean, squares = moments
    return schema.Moments(number=number, mean=mean.tolist(), squares=squares.tolist())


def train(exp: Experiment, site: Site, content: RecordDict) -> RecordDict:
    """Train the party for one round, from the state of the last round that the server accepted."""
    request, server = read_train_request(content, site.party, blank_server(exp, site.task))
    task = with_target_scales(site.task, server.buffers)
    workbench = Workbench(site.task.build)
    with one_thread(), restored():
        update, new_state = local_update(
            exp,
            task,
            workbench,
            server,
            state=load_state(exp, site, request),
            party=site.party,
            t=request.round,
        )
    site.states(request.run).save(site.party, request.round, new_state, request.accepted)
    return pack_update(update, request.round, sha256=site.sha256(), version=versions()["moonfl"])


def evaluate(exp: Experiment, site: Site, content: RecordDict) -> RecordDict:
    """Evaluate a model on the site's test and validation samples, and return the counts.

    The party's own tensors are those of the last round that the server accepted.
    """
    task = site.task
    like = blank_server(exp, task).model
    request, params = read_evaluate_request(content, site.party, like)
    task = with_target_scales(task, params)
    to_counts = FORMATS[exp.task].pack
    workbench = Workbench(task.build)
    if not exp.has_party_models:
        with one_thread():
            model = workbench.module(params)
            tallies = task.tallies(task.evaluate_chunks(model, range(len(task.chunks()))))
        return pack_evaluation(site, {name: to_counts(tally) for name, tally in tallies.items()})
    own = own_tensors(exp, task, load_state(exp, site, request))
    with one_thread():
        by_model = evaluate_party(
            exp, task, workbench, params, own=own, party=site.party, t=request.round
        )
    counts = {name: to_counts(tally) for name, tally in by_model[LABEL].items()}
    for name, tally in by_model.get(GLOBAL, {}).items():
        counts[f"global_{name}"] = to_counts(tally)
    return pack_evaluation(site, counts)


def pack_evaluation(site: Site, counts: dict[str, Any]) -> RecordDict:
    """Return the counts of a site on its evaluation sets as a message."""
    header = EvaluationHeader(
        party=site.party, sha256=site.sha256(), version=versions()["moonfl"], **counts
    )
    return pack(header)


def load_state(
    exp: Experiment, site: Site, request: TrainRequest | EvaluateRequest
) -> State | None:
    """Return the party's state after its last accepted round, None before its first round.

    Without anything to store there is no difference, and a site that lost its disk can continue.
    """
    if not exp.has_party_states:
        return None
    return site.states(request.run).load(site.party, request.accepted)


def blank_server(exp: Experiment, task: Task) -> Server:
    """Return a server with the site's own model: what the server sends must look like it."""
    return exp.algorithm.init_server(*task.init_shared(exp.seed))


def hash_rows(data: FederatedData) -> str:
    """Return the hash of a site's own rows, and of the names of their categories."""
    train = data.train.take(torch.from_numpy(np.concatenate(list(data.parts.values()))))
    held_out = [part for part in (data.test, data.validation) if part is not None]
    encoding = unlearned_encoding(data.table or ()).to_record()
    return hash_examples(train, *held_out, encoding=encoding)


def with_columns(exp: Experiment, site: Site, order: ColumnOrder) -> Site:
    """Return the site with the columns, and the encoding of them, that all sites agreed on."""
    if site.table is None:
        if not order.features or not site.features:
            return site
        task = order_task(site.task, site.party, order.features)
        return replace(site, task=task, features=task.features)
    data = order_rows(site.table, order.features)
    if order.encoding is None:
        encoding = unlearned_encoding(data.table or ())
    else:
        encoding = from_record(order.encoding)
        check_same_columns(data.features, [column.name for column in encoding.columns])
    task = build_task(exp, data, encoding=encoding)
    return replace(site, task=task, table=data, features=data.features)


def with_target_scales(task: Task, buffers: Params) -> Task:
    """Return the task with the mean and standard deviation of the targets that the model holds."""
    return replace(task, objective=task.objective.with_statistics(buffers))
