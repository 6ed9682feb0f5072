"""`moonfl flower init`: the folder of a deployment, laid out for a person to read."""

from dataclasses import fields, replace
from pathlib import Path
from string import Template

import tomli_w
from cryptography import x509

from ..data.base import Examples
from ..data.npz import write_npz
from ..errors import InputError
from ..experiment import Experiment, to_toml
from ..task import make_task
from .keys import name_of, write_certificates, write_node_key
from .roll import Rules

NAME, CONNECTION = "deployment.toml", "moonfl"
TEMPLATES = Path(__file__).parent / "templates"


def init(folder: Path, exp: Experiment, sites: int, address: str, with_data: bool) -> None:
    """Nothing that is there is touched; what is made here can be read, changed, and copied to where it belongs."""
    host, port = check(folder, exp, sites, address)
    exp = replace(exp, parties=sites, data_dir="data")
    folder.mkdir(parents=True, exist_ok=True)
    for inner in ("app", "server/flower", *(f"site-{k + 1}" for k in range(sites))):
        (folder / inner).mkdir(parents=True)
    write_certificates(folder / "server", host)
    connect(folder, address)
    listen = host if is_address(host) else "0.0.0.0"
    values = {"HOST": listen, "PORT": port, "ADDRESS": address, "SITES": sites}
    rules = {f.name: f.default for f in fields(Rules)} | {"min_parties": max(1, sites - 1)}
    write(folder / "app" / "pyproject.toml", "app.toml", {"RULES": tomli_w.dumps(rules).strip()})
    write(folder / "app" / "moonfl_app.py", "moonfl_app.py", {})
    (folder / "app" / "experiment.toml").write_text(to_toml(exp), encoding="utf-8")
    write(folder / "server" / "start.sh", "server.sh", values, run=True)
    write(folder / "server" / "register.sh", "register.sh", values, run=True)
    write(folder / "README.md", "README.md", values)
    (folder / NAME).write_text(tomli_w.dumps({"address": address, "sites": sites}), encoding="utf-8")
    for k in range(sites):
        site = folder / f"site-{k + 1}"
        write(site / "site.toml", "site.toml", {"PARTY": k, "NAME": site.name})
        write(site / "start.sh", "site.sh", values | {"OWN_PORT": port + 1 + k}, run=True)
        (site / "ca.crt").write_bytes((folder / "server" / "ca.crt").read_bytes())
        write_node_key(site / "key")
    if with_data:
        deal(folder, exp)


def check(folder: Path, exp: Experiment, sites: int, address: str) -> tuple[str, int]:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there and not empty; name a new folder")
    if sites < 2:
        raise InputError(f"a federation needs at least 2 sites, not {sites}")
    if exp.partition == "column":
        raise InputError("at sites the data are dealt already; leave partition=column out")
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"--address is HOST:PORT, such as fl.example.org:8000, not {address!r}")
    return host, int(port)


def is_address(host: str) -> bool:
    """Of this machine, to listen at; a name is listened to on every address."""
    return host == "localhost" or isinstance(name_of(host), x509.IPAddress)


def deal(folder: Path, exp: Experiment) -> None:
    """The experiment's own data set, dealt to the sites as `moonfl run` would, so that both can be compared."""
    task = make_task(exp)
    for k in range(exp.parties):
        test = Examples(task.test.x[k :: exp.parties], task.test.y[k :: exp.parties])
        write_npz(folder / f"site-{k + 1}" / "data.npz", task.parties[k], test, task.classes)


def write(path: Path, template: str, values: dict[str, object], run: bool = False) -> None:
    text = Template((TEMPLATES / template).read_text(encoding="utf-8"))
    path.write_text(text.substitute({key: str(value) for key, value in values.items()}), encoding="utf-8")
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
