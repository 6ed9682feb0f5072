"""`moonfl flower init`: the folder of a deployment, laid out for a person to read."""

import hashlib
import importlib.util
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from string import Template

import tomli_w
import torch
from cryptography import x509
from torch import Tensor

from ..data.datasets import source
from ..data.npz import write_npz
from ..errors import InputError
from ..experiment import HOLDOUT, Experiment, part_name, to_toml
from ..task import Task, make_task
from .certificates import name_of, write_certificates, write_node_key
from .membership import Rules

NAME, CONNECTION = "deployment.toml", "moonfl"
TEMPLATES = Path(__file__).parent / "templates"


def init(folder: Path, exp: Experiment, sites: int, address: str, with_data: bool) -> None:
    """All of it or nothing; what is made can be read, changed, and copied to where it belongs."""
    exp = replace(exp, parties=sites, device="cpu")  # what a site trains on is its own to say
    host, port = check(folder, exp, sites, address, with_data)
    whole = replace(
        exp, validation=None, patience=None
    )  # each site keeps its validation samples apart itself
    task = make_task(whole) if with_data else None
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.absolute().parent, prefix=".moonfl-") as made:
        share = exp.holdout or HOLDOUT
        lay_out(
            Path(made) / "all",
            replace(exp, data_dir="data"),
            host,
            port,
            lambda k: 0.0 if task is not None and len(held_by(task, k)) == 0 else share,
        )
        if task is not None:
            for k in range(sites):
                deal(Path(made) / "all" / f"site-{k + 1}", k, task)
        if folder.exists():
            folder.rmdir()
        os.rename(Path(made) / "all", folder)


def lay_out(
    folder: Path, exp: Experiment, host: str, port: int, holdout: Callable[[int], float]
) -> None:
    """`holdout`: the share that each site is to hold out of its data."""
    sites = exp.parties
    for inner in ("app", "server", *(f"site-{k + 1}" for k in range(sites))):
        (folder / inner).mkdir(parents=True)
    write_certificates(folder / "server", host)
    hidden = [secrets.token_hex(16) for _ in range(sites)]
    hashes = ",".join(hashlib.sha256(secret.encode()).hexdigest() for secret in hidden)
    listen = host if is_address(host) else "0.0.0.0"
    values = {"HOST": listen, "PORT": port, "ADDRESS": f"{host}:{port}", "SITES": sites}
    rules = {f.name: f.default for f in fields(Rules)} | {"min_parties": max(1, sites - 1)}
    write(
        folder / "app" / "pyproject.toml",
        "app.toml",
        {"RULES": tomli_w.dumps(rules).strip(), "SECRETS": hashes},
    )
    write(folder / "app" / "moonfl_app.py", "moonfl_app.py", {})
    (folder / "app" / "experiment.toml").write_text(to_toml(exp), encoding="utf-8")
    for path in own_modules(exp):
        shutil.copy(path, folder / "app" / path.name)
    write(folder / "server" / "start.sh", "server.sh", values, run=True)
    write(folder / "server" / "register.sh", "register.sh", values, run=True)
    write(folder / "README.md", "README.md", values)
    (folder / NAME).write_text(tomli_w.dumps({"address": values["ADDRESS"]}), encoding="utf-8")
    for k, secret in enumerate(hidden):
        site = folder / f"site-{k + 1}"
        told = {"PARTY": k, "NAME": site.name, "SECRET": secret, "HOLDOUT": holdout(k)}
        write(site / "site.toml", "site.toml", told)
        (site / "site.toml").chmod(0o600)  # it has the secret
        write(site / "start.sh", "site.sh", values | {"OWN_PORT": port + 1 + k}, run=True)
        (site / "ca.crt").write_bytes((folder / "server" / "ca.crt").read_bytes())
        write_node_key(site / "key")


def check(
    folder: Path, exp: Experiment, sites: int, address: str, with_data: bool
) -> tuple[str, int]:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there and not empty; name a new folder")
    if folder.exists() and folder.samefile("."):
        raise InputError(
            f"{folder} is the folder you are in, and would be replaced; name a new one"
        )
    check_path(folder)
    if sites < 2:
        raise InputError(f"a federation needs at least 2 sites, not {sites}")
    if exp.partition == "column" and not with_data:
        raise InputError("at sites the data are dealt already; leave partition=column out")
    host, _, port = address.rpartition(":")
    if (
        not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?", host)
        or not port.isdecimal()
    ):
        raise InputError(
            f"--address is HOST:PORT, such as fl.example.org:8000 or 10.0.0.5:8000, not {address!r}"
        )
    if not 0 < int(port) <= 65535 - sites:
        raise InputError(
            f"--address: the port must be from 1 to {65535 - sites}, for each site has one of its own"
        )
    if not with_data and exp.dataset != "cifar10" and source(exp.dataset).preparation is not None:
        raise InputError(
            f"{exp.dataset} has a preparation of its own, which other data must not get: say dataset=sites for sites "
            f"with their own, or --with-data to deal {exp.dataset} to them"
        )
    return host, int(port)


def check_path(path: Path) -> None:
    """Paths go through the configuration of Flower, which has no way to quote these."""
    if set(str(path.absolute())) & set('"\\\n'):
        raise InputError(f"{path}: Flower can have no quotation marks and no backslashes in a path")


def own_modules(exp: Experiment) -> list[Path]:
    """Files beside the user that hold her method, server step or model: the app takes them along to the sites.

    What is in a package is not taken: that must be installed at the server and at every site, as moonfl is.
    """
    named = [part_name(exp.algorithm), part_name(exp.server), str(exp.model)]
    modules = {name.partition(":")[0] for name in named if ":" in name}
    found = [importlib.util.find_spec(module) for module in sorted(modules) if "." not in module]
    paths = [Path(spec.origin) for spec in found if spec is not None and spec.origin is not None]
    return [path for path in paths if path.suffix == ".py" and path.name != "__init__.py"]


def is_address(host: str) -> bool:
    """Of this machine, to listen at; a name is listened to on every address."""
    return host == "localhost" or isinstance(name_of(host), x509.IPAddress)


def deal(site: Path, k: int, task: Task) -> None:
    """The experiment's own data set, dealt to the sites as `moonfl run` would, so that both can be compared."""
    rows = held_by(task, k)
    write_npz(
        site / "data.npz",
        task.parties[k],
        task.test.take(rows) if len(rows) > 0 else None,
        task.classes,
    )


def held_by(task: Task, k: int) -> Tensor:
    """Which test samples go to this site; a small one may have none."""
    if task.test_party is not None:
        return (task.test_party == k).nonzero()[:, 0]
    return torch.arange(k, len(task.test.y), len(task.parties))


def write(path: Path, template: str, values: dict[str, object], run: bool = False) -> None:
    text = Template((TEMPLATES / template).read_text(encoding="utf-8"))
    path.write_text(
        text.substitute({key: str(value) for key, value in values.items()}), encoding="utf-8"
    )
    if run:
        path.chmod(0o755)


def connect(folder: Path, address: str) -> Path:
    """Tell Flower's own commands where the SuperLink is; the folder may have moved since."""
    home = folder.resolve() / "server" / "flower"
    home.mkdir(exist_ok=True)
    link = {"address": address, "root-certificates": str(folder.resolve() / "server" / "ca.crt")}
    config = {"superlink": {"default": CONNECTION, CONNECTION: link}}
    (home / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    return home
