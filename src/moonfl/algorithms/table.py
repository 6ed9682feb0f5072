"""The algorithms by name, in the order of reports and compositions.

A new method is a file next to this one and an entry here, before SOLO.
"""

from .base import Algorithm
from .ditto import Ditto
from .fedavg import FedAvg
from .feddecorr import FedDecorr
from .feddyn import FedDyn
from .fedexp import FedExP
from .fedlc import FedLC
from .fednova import FedNova
from .fedntd import FedNTD
from .fedprox import FedProx
from .fedrep import FedRep
from .fedrs import FedRS
from .fedsam import FedSAM
from .moon import MOON
from .perfedavg import PerFedAvg
from .qfedavg import QFedAvg
from .scaffold import Scaffold
from .solo import Solo

ALGORITHMS: dict[str, type[Algorithm]] = {
    "moon": MOON,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "feddecorr": FedDecorr,
    "fedntd": FedNTD,
    "fedlc": FedLC,
    "fedrs": FedRS,
    "fedsam": FedSAM,
    "fedexp": FedExP,
    "qfedavg": QFedAvg,
    "ditto": Ditto,
    "fedrep": FedRep,
    "perfedavg": PerFedAvg,
    "solo": Solo,
}
