"""`moonfl flower init`: the folders of a deployment, written from templates/."""

import csv
import hashlib
import importlib.util
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from string import Template

import tomli_w
import torch
from cryptography import x509
from torch import Tensor

from ..components import COMPONENTS, component_name, parts_of
from ..data.base import Examples, Reading
from ..data.datasets import source
from ..data.encoding import Column, columns_of, decode, unlearned_encoding
from ..data.images import Images
from ..data.npz import write_npz
from ..data.targets import CLASSIFICATION, MULTILABEL, REGRESSION
from ..errors import InputError
from ..experiment import HOLDOUT, Experiment, to_toml
from ..task import Task, build_task, read, split, with_noise
from .certificates import general_name, write_certificates, write_node_key
from .membership import RoundRules
from .refusals import sanitize

DEPLOYMENT_FILE = "deployment.toml"
CONNECTION = "moonfl"  # name of the SuperLink in Flower's configuration
TABLES = "tables"  # folder of a site's train.csv and test.csv
TEMPLATES = Path(__file__).parent / "templates"
DATA_COMMENTS = {  # comments of site.toml about the data, by task
    CLASSIFICATION: """\
# The data, one of:
# - an .npz file with arrays x [N, ...] and y [N], classes as integers from 0 or strings;
# - a .csv file, or a folder with train.csv and test.csv. The class is the column $LABELS;
# - a folder of images with one folder per class;
# - a folder with any of CIFAR-10's data_batch_1 ... data_batch_5.""",
    REGRESSION: """\
# The data, for task=regression, one of:
# - a .csv file, or a folder with train.csv and test.csv. The targets are the columns $LABELS;
# - an .npz file with arrays x [N, ...] and y [N] or [N, targets], and their names in classes.
# Targets must be finite numbers. All sites need the same names of targets in the same order.""",
    MULTILABEL: """\
# The data, for task=multilabel, one of:
# - a .csv file, or a folder with train.csv and test.csv. The labels are the columns $LABELS;
# - an .npz file with arrays x [N, ...] and y [N, labels], and their names in classes.
# Labels must be 0 or 1. All sites need the same names of labels in the same order.""",
}
PARTITION_KEYS = (  # settings without effect if sites have their own data
    "partition",
    "column",
    "beta",
    "min_samples",
    "classes_per_party",
    "shards_per_party",
    "partition_seed",
)
HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?"


@dataclass(frozen=True)
class Address:
    """Where sites reach the server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def listen(self) -> str:
        """Return the address that the server listens on; for a host name every address."""
        is_ip = isinstance(general_name(self.host), x509.IPAddress)
        return self.host if is_ip or self.host == "localhost" else "0.0.0.0"


def init(folder: Path, exp: Experiment, sites: int, address: str, with_data: bool) -> None:
    """Create the folder of a deployment, completely or not at all.

    With `with_data` the experiment's dataset is split among the sites, as `moonfl run` would.
    """
    check_folder(folder)
    server = parse_address(address, sites)
    check_experiment(exp, sites, with_data)
    exp = replace(exp, parties=sites, device="cpu")  # each site sets its device in site.toml
    if exp.dp.is_private:
        exp = replace(exp, dp=with_noise(exp).dp.with_secrets())
    # Each site splits off its validation samples itself.
    task = make_whole_task(replace(exp, validation=None, patience=None)) if with_data else None
    parent = folder.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".moonfl-") as temporary:
        new = Path(temporary) / "deployment"
        write_app(new / "app", replace(with_classes(exp, task), data_dir="data"))
        write_server(new, server, sites)
        site_secrets = [
            write_site(new, k, server, data_settings(exp, task, k)) for k in range(sites)
        ]
        write_config(new / "app" / "pyproject.toml", site_secrets)
        if task is not None:
            for k in range(sites):
                write_site_data(site_folder(new, k), k, task, exp)
        if folder.exists():
            folder.rmdir()
        os.rename(new, folder)


def check_folder(folder: Path) -> None:
    """Check that a deployment can be created at `folder`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} already exists and is not empty; choose a new folder")
    if folder.exists() and folder.samefile("."):
        raise InputError(
            f"{folder} is the current folder, which would be replaced; choose a new folder"
        )
    check_path(folder)


def check_path(path: Path) -> None:
    """Check that a path has no character that Flower's configuration cannot quote."""
    if set(str(path.absolute())) & set('"\\\n'):
        raise InputError(
            f"{path}: Flower does not support quotation marks or backslashes in a path"
        )


def check_experiment(exp: Experiment, sites: int, with_data: bool) -> None:
    """Check that an experiment can be run over so many sites."""
    if sites < 2:
        raise InputError(f"a federation needs at least 2 sites, got {sites}")
    if not with_data:
        check_own_data(exp, sites)
    elif exp.holdout_by is not None:
        raise InputError(
            f"--with-data cannot be combined with holdout_by={exp.holdout_by}: the files that it "
            "writes lack this column; remove holdout_by, or use dataset=sites and give each site "
            "its own data"
        )


def check_own_data(exp: Experiment, sites: int) -> None:
    """Check an experiment whose sites have their own data: nothing splits or shifts them."""
    keys = list(PARTITION_KEYS)
    if exp.task != CLASSIFICATION:  # Experiment requires a partition that does not use classes
        keys.remove("partition")
    changed = [
        f"{key}={getattr(exp, key)}"
        for key in keys
        if getattr(exp, key) != getattr(Experiment, key)
    ]
    if changed:
        raise InputError(
            f"the data of sites are already split; remove {', '.join(changed)}, or use --with-data"
        )
    if exp.parties not in (sites, Experiment().parties):  # the default is no choice of the user
        raise InputError(
            f"--sites {sites} sets the number of parties, got parties={exp.parties}; remove "
            f"parties, or set parties={sites}"
        )
    if exp.shift is not None:
        raise InputError(
            f"the data of sites are not shifted; remove shift={exp.shift}, or use --with-data"
        )
    if exp.dataset != "cifar10" and source(exp.dataset).preparation is not None:
        raise InputError(
            f"{exp.dataset} has its own preprocessing, which must not be applied to other data: "
            "use dataset=sites for sites with their own data, or --with-data to split "
            f"{exp.dataset} among the sites"
        )


def parse_address(address: str, sites: int) -> Address:
    """Return the server's address from HOST:PORT. The ports after it are those of the sites."""
    host, _, port = address.rpartition(":")
    if not re.fullmatch(HOST, host) or not (port.isascii() and port.isdecimal()):
        raise InputError(
            "--address must be HOST:PORT, such as fl.example.org:8000 or 10.0.0.5:8000, "
            f"got {address!r}"
        )
    highest = 65535 - sites
    if not 0 < int(port) <= highest:
        raise InputError(
            f"--address: the port must be from 1 to {highest}, got {port}: "
            "each site uses one of the next ports"
        )
    return Address(host, int(port))


def write_app(folder: Path, exp: Experiment) -> None:
    """Write the Flower app: the experiment and the user's modules that it needs."""
    folder.mkdir(parents=True)
    write(folder / "moonfl_app.py", "moonfl_app.py", {})
    (folder / "experiment.toml").write_text(to_toml(exp), encoding="utf-8")
    for path in user_modules(exp):
        shutil.copy(path, folder / path.name)


def write_config(path: Path, site_secrets: list[str]) -> None:
    """Write the app's pyproject.toml, with the rules of a round and the hashes of the secrets."""
    hashes = [hashlib.sha256(secret.encode()).hexdigest() for secret in site_secrets]
    rules = {f.name: f.default for f in fields(RoundRules)}
    rules["min_parties"] = max(1, len(site_secrets) - 1)
    values = {"RULES": tomli_w.dumps(rules).strip(), "SECRETS": ",".join(hashes)}
    write(path, "app.toml", values)


def write_server(folder: Path, address: Address, sites: int) -> None:
    """Write the server's scripts and certificates, and the files at the top of a deployment."""
    server = folder / "server"
    server.mkdir()
    write_certificates(server, address.host)
    values = {
        "HOST": address.listen(),
        "PORT": address.port,
        "ADDRESS": address,
        "SITES": sites,
    }
    write(server / "start.sh", "server.sh", values, executable=True)
    write(server / "register.sh", "register.sh", values, executable=True)
    write(folder / "README.md", "README.md", values)
    deployment = tomli_w.dumps({"address": str(address)})
    (folder / DEPLOYMENT_FILE).write_text(deployment, encoding="utf-8")


def write_site(folder: Path, k: int, address: Address, data: Mapping[str, object]) -> str:
    """Write the folder of site k of a deployment, and return its secret.

    `data` are the settings of its data in site.toml.
    """
    site = site_folder(folder, k)
    site.mkdir()
    secret = secrets.token_hex(16)
    config = {"PARTY": k, "NAME": site.name, "SECRET": secret, **data}
    write(site / "site.toml", "site.toml", config)
    (site / "site.toml").chmod(0o600)  # it contains the secret
    script = {"ADDRESS": address, "SITE_PORT": address.port + 1 + k}
    write(site / "start.sh", "site.sh", script, executable=True)
    shutil.copy(folder / "server" / "ca.crt", site / "ca.crt")
    write_node_key(site / "key")
    return secret


def site_folder(folder: Path, k: int) -> Path:
    """Return the folder of site k of a deployment."""
    return folder / f"site-{k + 1}"


def user_modules(exp: Experiment) -> list[Path]:
    """Return the user's own files with the method, optimizers, schedule or model, for the app.

    Modules in packages are not included: they must be installed at the server and at every site.
    """
    components = [part for kind in COMPONENTS for part in parts_of(getattr(exp, kind))]
    names = [*map(component_name, components), str(exp.model)]
    modules = {name.partition(":")[0] for name in names if ":" in name}
    paths = []
    for module in sorted(modules):
        spec = importlib.util.find_spec(module) if "." not in module else None
        if spec is not None and spec.origin is not None:
            paths.append(Path(spec.origin))
    return [path for path in paths if path.suffix == ".py" and path.name != "__init__.py"]


def make_whole_task(exp: Experiment) -> Task:
    """Build the task whose samples are split among the sites; the sites encode tables."""
    data = split(exp, read(exp))
    encoding = None if data.table is None else unlearned_encoding(data.table)
    return build_task(exp, data, encoding=encoding)


def write_site_data(site: Path, k: int, task: Task, exp: Experiment) -> None:
    """Write the samples of party k, so that results can be compared with those of `moonfl run`."""
    rows = test_rows(task, k)
    test = task.test.take(rows) if len(rows) > 0 else None
    if task.preparation.encoding is not None:
        (site / TABLES).mkdir()
        columns = columns_of(task.preparation.encoding)
        for name, part in (("train", task.parties[k]), ("test", test)):
            if part is not None:
                write_table(site / TABLES / f"{name}.csv", part, columns, task.classes, exp.reading)
        return
    write_npz(site / "data.npz", task.parties[k], test, task.classes)


def with_classes(exp: Experiment, task: Task | None) -> Experiment:
    """Return the experiment with the names of all classes, which the table of a site may lack."""
    if task is None or task.preparation.encoding is None or exp.classes is not None:
        return exp
    if exp.task != CLASSIFICATION:
        return exp
    for name in task.classes:
        if "," in name:
            raise InputError(
                f"--with-data with impute or encode: the class '{name}' has a comma, which "
                "separates the names in classes=a,b,c; rename the class"
            )
    return replace(exp, classes=",".join(task.classes))


def write_table(
    path: Path,
    examples: Examples,
    columns: tuple[Column, ...],
    classes: tuple[str, ...],
    reading: Reading,
) -> None:
    """Write rows as a table; columns that are ignored are empty."""
    assert not isinstance(examples.x, Images)
    empty = [""] * len(reading.ignore)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        labels = [reading.label] if reading.task == CLASSIFICATION else classes
        writer.writerow([*(column.name for column in columns), *reading.ignore, *labels])
        for cells, y in zip(decode(examples.x, columns), examples.y.tolist(), strict=True):
            values = [classes[y]] if reading.task == CLASSIFICATION else y
            writer.writerow([*cells, *empty, *values])


def test_rows(task: Task, k: int) -> Tensor:
    """Return the indices of the test samples that site k gets; a small site may get none."""
    if task.test_party is not None:
        return (task.test_party == k).nonzero()[:, 0]
    return torch.arange(k, len(task.test.y), len(task.parties))


def data_settings(exp: Experiment, task: Task | None, k: int) -> dict[str, object]:
    """Return the data settings of site k: path, share that it holds out, and allowed formats.

    The share is 0 if the site was too small to get test samples.
    """
    is_table = task is not None and task.preparation.encoding is not None
    holdout = exp.holdout or HOLDOUT
    if task is not None and len(test_rows(task, k)) == 0:
        holdout = 0.0
    return {
        "DATA": TABLES if is_table else "data.npz",
        "HOLDOUT": holdout,
        "FORMATS": describe_formats(exp),
    }


def describe_formats(exp: Experiment) -> str:
    """Return the comment of site.toml about the formats of the data."""
    labels = sanitize(", ".join(exp.reading.labels))  # a comment has one line
    return Template(DATA_COMMENTS[exp.task]).substitute(LABELS=labels)


def write(
    path: Path, template: str, values: Mapping[str, object], *, executable: bool = False
) -> None:
    """Write a file from a template."""
    text = Template((TEMPLATES / template).read_text(encoding="utf-8"))
    content = text.substitute({key: str(value) for key, value in values.items()})
    path.write_text(content, encoding="utf-8")
    if executable:
        path.chmod(0o755)


def write_connection(folder: Path, address: str) -> Path:
    """Write Flower's configuration, and return its folder. The deployment may have been moved."""
    home = folder.resolve() / "server" / "flower"
    home.mkdir(exist_ok=True)
    certificate = str(folder.resolve() / "server" / "ca.crt")
    connection = {"address": address, "root-certificates": certificate}
    config = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    return home
