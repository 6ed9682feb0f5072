"""The algorithms by name. A new method is a file next to this one and an entry here."""

from .base import Algorithm
from .fedavg import FedAvg
from .feddyn import FedDyn
from .fednova import FedNova
from .fedprox import FedProx
from .moon import MOON
from .scaffold import Scaffold
from .solo import Solo

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "moon": MOON,
    "solo": Solo,
    "fednova": FedNova,
    "feddyn": FedDyn,
}
