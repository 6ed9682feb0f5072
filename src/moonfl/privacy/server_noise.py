"""DP-FedAvg: clipped updates of equal weight, and Gaussian noise at the server.

McMahan, Ramage, Talwar, Zhang, Learning Differentially Private Recurrent Language Models, ICLR
2018. https://arxiv.org/abs/1710.06963
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from .. import tree
from ..errors import InputError
from ..settings import setting
from ..types import Params, Update
from . import accountant
from .base import Guarantee, Privacy, PrivateRound
from .random_bits import new_key, normal, seed_key, uniform

MODEL = "params"  # names the change of the model among what a party sends


@dataclass(frozen=True)
class ServerNoise(Privacy):
    """w^{t+1} = w^t + (sum clip(w_i - w^t) + noise clip N(0, I)) / (q N).

    Each party takes part in a round with probability q, independently of the others. q N, the
    expected number, replaces the number of parties of the round. What parties send in addition to
    the model (SCAFFOLD's delta c_i) is treated in the same way: with k vectors in all, the noise of
    each is sqrt(k) times as large, so that the guarantee holds for all of them together.
    """

    choice: ClassVar[str] = (
        "a party takes part with probability sample_fraction; updates are clipped, have equal "
        "weights, and are divided by the expected number of parties; buffers are not aggregated"
    )

    noise: float | None = setting(
        None,
        "noise multiplier: standard deviation of the noise on the sum of updates, divided by clip",
        above=0,
    )
    epsilon: float | None = setting(
        None, "epsilon after all rounds, instead of noise, which is computed from it", above=0
    )
    delta: float = setting(1e-5, "delta of the guarantee, smaller than 1/parties", above=0, below=1)
    secret: bool = setting(
        False,
        "whether noise and sampling are secret and different in every run; false: they follow from "
        "the seed, and whoever knows it can remove the noise",
    )

    def __post_init__(self) -> None:
        if (self.noise is None) == (self.epsilon is None):
            raise InputError("dp=server needs dp.noise or dp.epsilon, and not both")

    def describe(self) -> str:
        origin = "secret" if self.secret else "from the seed"
        return f"noise at the server, multiplier {self.multiplier:.4g}, {origin}"

    def check(self, parties: int) -> None:
        if parties * self.delta >= 1:
            raise InputError(
                f"dp.delta must be smaller than 1/parties, got {self.delta:g} with {parties} "
                "parties: it would allow to publish all samples of one random party"
            )

    def sample(self, parties: int, rate: float, seed: int, t: int) -> list[int]:
        drawn = uniform(self._key(seed, t), "sampling", parties)
        return [i for i in range(parties) if drawn[i] < rate]

    def privatise(self, updates: list[Update], private: PrivateRound) -> list[Update]:
        """Return as many copies of the noisy mean as parties are expected in a round."""
        zeros = tree.zeros_like(private.params)
        origins = {MODEL: private.params} | dict.fromkeys(private.extra, zeros)
        expected = private.rate * private.parties
        std = self.multiplier * private.clip * math.sqrt(len(origins))
        key = self._key(private.seed, private.t)
        means: dict[str, Params] = {}
        for label, origin in origins.items():
            vectors = [u.params if label == MODEL else u.extra[label] for u in updates]
            total = sum_clipped(vectors, origin, private.clip)
            mean = {}
            for name, value in origin.items():
                noise = std * normal(key, f"{label} {name}", value.shape)
                moved = value.double().cpu() + (total[name] + noise) / expected
                mean[name] = moved.to(value)
            means[label] = mean
        extra = {label: means[label] for label in private.extra}
        update = Update(
            party=0,
            params=means[MODEL],
            buffers={},
            num_samples=1,
            num_steps=1,
            extra=extra,
        )
        return [update] * max(1, round(expected))

    def calibrated(self, rate: float, rounds: int) -> "ServerNoise":
        accountant.library()  # a run without it would fail in its last round
        if self.epsilon is None:
            return self
        noise = accountant.noise_for(self.epsilon, rate, rounds, self.delta)
        return replace(self, noise=noise, epsilon=None)

    def with_secrets(self) -> "ServerNoise":
        return replace(self, secret=True)

    def guarantee(self, rate: float, rounds: int) -> Guarantee:
        epsilon = accountant.epsilon(self.multiplier, rate, rounds, self.delta)
        return Guarantee(epsilon=epsilon, delta=self.delta, accountant=accountant.name())

    @property
    def multiplier(self) -> float:
        """Return the noise multiplier."""
        if self.noise is None:
            raise ValueError("the noise is computed from epsilon before the first round")
        return self.noise

    def _key(self, seed: int, t: int) -> bytes:
        return new_key() if self.secret else seed_key(seed, t)


def sum_clipped(vectors: list[Params], origin: Params, clip: float) -> dict[str, Tensor]:
    """Return sum (a - origin) min(1, clip/||a - origin||) in float64.

    A vector whose norm is not finite adds nothing, like that of a party that does not take part.
    """
    total = {name: tree.zeros_like({name: value})[name].double() for name, value in origin.items()}
    for vector in vectors:
        change = {name: vector[name].double() - value.double() for name, value in origin.items()}
        norm = float(tree.norm(change))
        if math.isfinite(norm):
            scale = min(1.0, clip / norm) if norm > 0 else 1.0
            total = {name: total[name] + scale * change[name] for name in total}
    return total
