"""Privacy: the contract of a privacy mechanism (`dp=`)."""

from dataclasses import dataclass
from typing import ClassVar

from ..runs.schema import rounded_up
from ..types import Params, State, Update


@dataclass(frozen=True)
class PrivateRound:
    """What a mechanism knows about a round before it sees an update."""

    t: int  # the round, from 0
    seed: int  # of the run
    parties: int  # N, the number of all parties
    rate: float  # q, the probability that a party takes part
    clip: float  # the largest norm of a party's change
    params: Params  # w^t
    extra: State  # what parties send in addition to the model: names and shapes


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy for all samples of one party."""

    epsilon: float
    delta: float
    accountant: str  # name and version of the library that computed epsilon

    def __str__(self) -> str:
        return f"epsilon {rounded_up(self.epsilon)}, delta {self.delta:g}"


@dataclass(frozen=True)
class Privacy:
    """A mechanism that replaces the updates of a round by values that hide every single party.

    Its fields are the hyperparameters. Methods, server optimizers and everything after them see
    only what `privatise` returns, so that they need not know about privacy.
    """

    is_private: ClassVar[bool] = True
    choice: ClassVar[str] = ""  # what is done where implementations differ, stored with the results

    def describe(self) -> str:
        """Describe the mechanism in a few words."""
        raise NotImplementedError

    def check(self, parties: int) -> None:
        """Refuse settings that make no sense for so many parties."""

    def sample(self, parties: int, rate: float, seed: int, t: int) -> list[int]:
        """Return the parties of round t, in ascending order."""
        raise NotImplementedError

    def privatise(self, updates: list[Update], private: PrivateRound) -> list[Update]:
        """Return updates to aggregate instead of those of the parties; there may be none of these.

        The updates are sorted by party.
        """
        raise NotImplementedError

    def calibrated(self, rate: float, rounds: int) -> "Privacy":
        """Return the mechanism with the noise that a run of so many rounds needs."""
        raise NotImplementedError

    def with_secrets(self) -> "Privacy":
        """Return the mechanism with noise and sampling that nobody can compute again."""
        raise NotImplementedError

    def caution(self) -> str:
        """Return what would make the guarantee of a published model void, or nothing."""
        return ""

    def guarantee(self, rate: float, rounds: int) -> "Guarantee":
        """Return what holds for every single party after so many rounds."""
        raise NotImplementedError


@dataclass(frozen=True)
class NoPrivacy(Privacy):
    """No guarantee: updates are aggregated as they are."""

    is_private: ClassVar[bool] = False
