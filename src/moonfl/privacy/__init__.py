"""Differential privacy: mechanisms that hide every single party. `table.py` lists them by name."""

from .base import Guarantee, NoPrivacy, Privacy, PrivateRound
from .server_noise import ServerNoise
from .table import PRIVACY

__all__ = ["PRIVACY", "Guarantee", "NoPrivacy", "Privacy", "PrivateRound", "ServerNoise"]
