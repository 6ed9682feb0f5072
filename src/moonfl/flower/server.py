"""The Flower apps of a deployment.

The ServerApp starts or resumes a run, and the ClientApp is that of a site.
The run prints RunEvents (protocol.py) in Flower's log, which `moonfl flower run` follows.
"""

import functools
import hashlib
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from .. import settings
from ..api.experiments import Execution, resume_run, start_run
from ..data.base import Dataset, Examples, Reading
from ..data.columns import rules_of
from ..data.datasets import preparation_of
from ..data.encoding import Encoding, columns_of, from_column_records, learn_encoding
from ..data.npz import read_npz
from ..data.targets import CLASSIFICATION, REGRESSION
from ..errors import DivergenceError, InputError, RunError, unknown
from ..experiment import Experiment, code_names, fingerprint, from_toml
from ..numerics import standard_settings
from ..report.runs import read_run
from ..runs import schema
from ..runs.directory import read_experiment
from ..runs.index import PARTITION
from ..runs.recovery import Hints, recovery_hints
from ..runs.result import Result, Watch
from ..runs.states import States
from ..runs.summary import summarise_result
from ..task import FederatedData, Task, build_task, hash_examples, with_noise
from ..trackers.table import check_trackers
from .client import Site, client_app
from .engine import SiteEngine
from .membership import Membership, RoundRules
from .protocol import RunEvent, format_event
from .refusals import RefusedError
from .site import load_site
from .site_checks import check_site, read_moments, read_target_moments

FAILURES: dict[str, type[InputError | RunError]] = {
    "input": InputError,
    "divergence": DivergenceError,
    "run": RunError,
}  # RunEvent.failure -> exception
DTYPES = {str(dtype): dtype for dtype in (torch.uint8, torch.float32, torch.float64)}  # of samples
SERVER_DEVICE = {"device": "cpu"}  # replaces the experiment's; each site sets its own in site.toml
# of the app's config, with the RoundRules
RUN_KEYS = ("out", "resume", "previous", "test", "track", "secrets")

HINTS = Hints(
    exists="--resume resumes it, another --out keeps it",
    previous=(
        "`moonfl flower run DEPLOYMENT --out {run} --resume --previous` resumes from the previous "
        "checkpoint"
    ),
    restart="`moonfl flower run DEPLOYMENT` with another --out starts a new run",
)


@dataclass(frozen=True)
class SiteTask(Task):
    """A task whose training data are at the sites; the server knows only what they report."""

    run: str = ""
    sites: tuple[schema.SiteRecord, ...] = ()

    def partition_record(self) -> schema.PartitionRecord:
        """Return the sites' descriptions, and a hash that detects changed data."""
        return schema.PartitionRecord(
            classes=list(self.classes),
            counts=[site.counts for site in self.sites],
            samples=self.site_samples(),
            names=list(self.names),
            encoding=self.encoding_record(),
            sha256=self.sha256,
            run=self.run,
            sites=list(self.sites),
            test=hash_test_set(self.test),
        )

    @functools.cached_property
    def sha256(self) -> str:
        """Return a hash of the hashes that the sites report."""
        hashes = "".join(site.sha256 for site in self.sites)
        return hashlib.sha256(hashes.encode()).hexdigest()

    def site_samples(self) -> list[int] | None:
        """Return the samples of each site; None if every sample has one class."""
        if self.objective.name == CLASSIFICATION:
            return None
        return [site.num_samples for site in self.sites]


def server_app(experiment: Path) -> ServerApp:
    """Return the ServerApp of a deployment; `experiment` is its experiment.toml."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            exp = from_toml(experiment, SERVER_DEVICE, trust=True)  # part of the running app
            config = dict(context.run_config)
            result = serve(grid, exp, config, lambda record: emit(RunEvent(round=record)))
        except DivergenceError as error:
            emit(RunEvent(error=str(error), failure="divergence"))
            raise
        except InputError as error:
            emit(RunEvent(error=str(error), failure="input"))
            raise
        except RunError as error:
            emit(RunEvent(error=str(error), failure="run"))
            raise
        emit(RunEvent(summary=summarise_result(result)))

    return app


def emit(event: RunEvent) -> None:
    """Print an event on its own line, in one write: no other output may come between."""
    sys.stdout.write(f"\n{format_event(event)}\n")
    sys.stdout.flush()


def site_app(experiment: Path) -> ClientApp:
    """Return the ClientApp of a site, whose path of site.toml is in the node-config."""

    def make_site(context: Context) -> tuple[Experiment, Site]:
        path = context.node_config.get("site")
        if not isinstance(path, str):
            raise InputError(
                "the --node-config of this SuperNode does not name a site.toml; "
                "start it with the site's start.sh"
            )
        return load_site(Path(path), from_toml(experiment, SERVER_DEVICE, trust=True))

    return client_app(make_site)


@standard_settings()
def serve(grid: Grid, exp: Experiment, config: dict[str, Any], watch: Watch) -> Result:
    """Run an experiment over all sites, or resume a run with those that are connected."""
    check_secret(exp)
    exp = with_noise(exp)
    rules = check_config(exp, config)
    track = check_trackers(read_names(config, "track"))
    out = Path(config["out"])
    stored = read_stored(out, exp) if config.get("resume") else None
    test = read_test(str(config.get("test", "")), exp)
    if stored is not None:
        check_same_test(stored, with_site_dtype(test, stored.sites or []), out)
    membership = Membership(
        grid=grid, parties=exp.parties, rules=rules, secrets=read_secrets(exp, config)
    )
    if stored is None:
        run = uuid.uuid4().hex
        membership.start()
    else:
        run = stored.run or ""
        continues = bool(config.get("previous")) or not read_run(out).finished
        membership.restore(stored.sites or [], wait=continues)
    sites = membership.site_records()
    test = with_site_dtype(test, sites)
    check_sites(exp, sites, test)
    task = make_site_task(exp, sites, run, test)
    membership.encoding = task.encoding_record()

    def engine(exp: Experiment, task: Task, states: States) -> SiteEngine:
        return SiteEngine(exp=exp, task=task, states=states, membership=membership, run=run)

    options = Execution(watch=watch, engine=engine, trust=code_names(exp), track=track)
    with recovery_hints(HINTS, out):
        if stored is None:
            return start_run(exp, out, task=task, options=options)
        previous = bool(config.get("previous"))
        return resume_run(out, previous=previous, task=task, options=options)


def check_secret(exp: Experiment) -> None:
    """Refuse noise of differential privacy that follows from the seed, which every site has."""
    if exp.dp.is_private and exp.dp != exp.dp.with_secrets():
        raise InputError(
            "the noise of dp follows from the seed, which every site has; set secret = true below "
            "[dp] in app/experiment.toml"
        )


def check_config(exp: Experiment, config: dict[str, Any]) -> RoundRules:
    """Check the [tool.flwr.app.config] of the app, and return the rules in it."""
    allowed = [*RUN_KEYS, *settings.names(RoundRules)]
    for key in config:
        if key not in allowed:
            raise unknown("key of [tool.flwr.app.config]", key, allowed)
    values = {key: value for key, value in config.items() if key not in RUN_KEYS}
    rules = settings.build(RoundRules, values, "")
    if rules.min_parties > exp.parties:
        raise InputError(
            f"min_parties={rules.min_parties} is more than the {exp.parties} parties there are"
        )
    if not config.get("out"):
        raise InputError("out, the run directory, is not set; `moonfl flower run` sets it")
    return rules


def read_names(config: dict[str, Any], key: str) -> tuple[str, ...]:
    """Return the comma-separated names of a key of the app's config."""
    words = str(config.get(key, "")).split(",")
    return tuple(word.strip() for word in words if word.strip())


def read_secrets(exp: Experiment, config: dict[str, Any]) -> tuple[str, ...]:
    """Return the sha256 of each party's secret from the app's config; empty if there are none."""
    secrets = read_names(config, "secrets")
    if secrets and len(secrets) != exp.parties:
        raise InputError(
            f"app/pyproject.toml has the secrets of {len(secrets)} sites, "
            f"but app/experiment.toml has parties={exp.parties}; add or remove secrets, or change "
            "parties"
        )
    return secrets


def read_test(path: str, exp: Experiment) -> Dataset | None:
    """Return the server's own test set from an .npz file, if `path` is set, as `train`."""
    if not path:
        return None
    data = read_npz(Path(path), Reading(task=exp.task))
    return data if data.test is None else replace(data, train=data.test)


def with_site_dtype(test: Dataset | None, sites: Sequence[schema.SiteRecord]) -> Dataset | None:
    """Return the server's test set with float samples of the type that the sites have."""
    dtype = DTYPES.get(sites[0].dtype) if sites else None
    if test is None or dtype is None or not dtype.is_floating_point:
        return test
    return test.with_dtype(dtype)


def hash_test_set(test: Examples | None) -> str:
    """Return the hash of the server's test set; empty if it has none."""
    if test is None or len(test.y) == 0:
        return ""
    return hash_examples(test)


def check_same_test(stored: schema.PartitionRecord, test: Dataset | None, out: Path) -> None:
    """Check that a resumed run has the test set it started with."""
    sha256 = hash_test_set(None if test is None else test.train)
    if stored.test is None or stored.test == sha256:  # None: a run of an old version
        return
    before = "on another test set at the server" if stored.test else "by the sites"
    raise InputError(
        f"the models of {out} were evaluated {before}; "
        "--test must be the same as when the run started"
    )


def check_sites(
    exp: Experiment, sites: tuple[schema.SiteRecord, ...], test: Dataset | None
) -> None:
    """Check that the sites have data for the task, and samples to evaluate models on."""
    if sites[0].dtype not in DTYPES:
        raise InputError(
            f"the sites have samples of type {sites[0].dtype}; supported are {' and '.join(DTYPES)}"
        )
    check_targets(exp, sites)
    check_held_out(exp, sites, test)


def make_site_task(
    exp: Experiment, sites: tuple[schema.SiteRecord, ...], run: str, test: Dataset | None
) -> SiteTask:
    """Build the task of a run over sites; `test` is the server's test set if it has one."""
    encoding = learn_site_encoding(exp, sites)
    shape = tuple(sites[0].shape)
    dtype = DTYPES[sites[0].dtype]
    classes = tuple(sites[0].classes)
    no_samples = Examples(torch.zeros(0, *shape, dtype=dtype), no_targets(exp.task, len(classes)))
    data = FederatedData(
        train=no_samples,
        parts={},
        test=no_samples if test is None else test.train,
        classes=classes,
        preparation=preparation_of(exp.dataset, dtype, len(shape)),
        names=tuple(site.name for site in sites),
        table=None if encoding is None else columns_of(encoding),
    )
    moments = (read_moments(site) for site in sites)
    targets = (read_target_moments(site) for site in sites)
    try:
        task = build_task(
            exp, data, party_moments=moments, party_targets=targets, encoding=encoding
        )
    except RefusedError as error:  # a site reports no moments although the model needs them
        raise RunError(str(error)) from None
    values = {field.name: getattr(task, field.name) for field in fields(task)}
    return SiteTask(**values, run=run, sites=sites)


def check_targets(exp: Experiment, sites: tuple[schema.SiteRecord, ...]) -> None:
    """Check that the sites have read their data for the task of the experiment."""
    for site in sites:
        has_classes = site.samples is None
        if has_classes != (exp.task == CLASSIFICATION):
            raise RunError(
                f"{site.name} does not describe its data as task={exp.task} needs; all sites and "
                "the server must have the same app/experiment.toml"
            )


def no_targets(task: str, targets: int) -> Tensor:
    """Return the labels or targets of no sample."""
    if task == CLASSIFICATION:
        return torch.zeros(0, dtype=torch.long)
    dtype = torch.float64 if task == REGRESSION else torch.float32
    return torch.zeros(0, targets, dtype=dtype)


def learn_site_encoding(exp: Experiment, sites: tuple[schema.SiteRecord, ...]) -> Encoding | None:
    """Return the encoding of the sites' tables from the counts that they share."""
    if not rules_of(exp.reading).encodes:
        return None
    summaries = []
    for site in sites:
        if site.columns is None:
            raise RunError(
                f"{site.name} reports no counts of columns; with impute or encode every site needs "
                "a table (.csv)"
            )
        summaries.append(from_column_records(site.columns))
    return learn_encoding(sites[0].features, summaries, exp.impute, exp.min_category)


def check_held_out(
    exp: Experiment, sites: tuple[schema.SiteRecord, ...], test: Dataset | None
) -> None:
    """Check that there are samples to evaluate models on, and that --test fits the sites."""
    if exp.validation is not None and not any(site.validation for site in sites):
        raise InputError(
            f"no site has enough samples to hold out a share of {exp.validation:g}; "
            "increase validation"
        )
    if test is not None and rules_of(exp.reading).encodes:
        raise InputError(
            "with impute or encode the sites evaluate models on their own rows; remove --test"
        )
    if test is not None and exp.has_party_models:
        raise InputError(
            "each site has its own model (personal, finetune or the algorithm), which only the "
            "site can evaluate; remove --test"
        )
    if test is None:
        if not any(site.held_out for site in sites):
            raise InputError(
                "no site holds out samples and the server has no test set (--test): "
                "models could not be evaluated"
            )
        return
    x = test.train.x
    description = (list(x.shape[1:]), str(x.dtype), list(test.classes))
    expected = (sites[0].shape, sites[0].dtype, sites[0].classes)
    if description != expected:
        raise InputError(
            f"--test must have the sites' shape {expected[0]}, type {expected[1]} and classes "
            f"{expected[2]}, got {description[0]}, {description[1]} and {description[2]}"
        )


def read_stored(out: Path, exp: Experiment) -> schema.PartitionRecord:
    """Return what a run over sites stored about them when it started."""
    names = code_names(exp)
    if fingerprint(read_experiment(out, trust=names)) != fingerprint(exp):
        raise InputError(f"{out} is a run of another experiment than app/experiment.toml")
    path = out / PARTITION
    try:
        stored = schema.decode(path.read_bytes(), schema.PartitionRecord, PARTITION)
        sites = stored.sites or []
        for site in sites:
            check_site(site, exp.parties)
    except (OSError, InputError, RefusedError) as error:
        raise damaged_partition(path, str(error)) from None
    if len(sites) != exp.parties:
        raise damaged_partition(path, f"it lists {len(sites)} of {exp.parties} sites")
    if [site.party for site in sites] != list(range(exp.parties)):
        raise damaged_partition(path, "its sites are not in the order of the parties")
    if not stored.run:
        raise damaged_partition(path, "it has no run id")
    return stored


def damaged_partition(path: Path, reason: str) -> InputError:
    """Return the error for a partition.json that does not describe a run over sites."""
    return InputError(f"{path} is damaged or does not belong to a run over sites: {reason}")
