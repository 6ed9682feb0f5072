"""DP-FedAvg: clipped updates of equal weight, and Gaussian noise at the server.

McMahan, Ramage, Talwar, Zhang, Learning Differentially Private Recurrent Language Models, ICLR
2018. https://arxiv.org/abs/1710.06963
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from .. import tree
from ..errors import InputError, RunError
from ..settings import setting
from ..types import Params, Update
from . import accountant
from .base import Guarantee, Privacy, PrivateRound
from .random_bits import new_key, normal, seed_key, uniform


@dataclass(frozen=True)
class ServerNoise(Privacy):
    """w^{t+1} = w^t + (sum clip(w_i - w^t) + noise clip N(0, I)) / (q N).

    Each party takes part in a round with probability q, independently of the others. q N, the
    expected number, replaces the number of parties of the round. What parties send in addition to
    the model (SCAFFOLD's delta c_i) is treated in the same way: with k vectors in all, the noise of
    each is sqrt(k) times as large, so that the guarantee holds for all of them together. It is
    divided by the number of updates that methods see, q N rounded, because they may multiply its
    mean by that number.
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
    delta: float = setting(
        1e-5,
        "delta of the guarantee, smaller than 1/parties",
        low=accountant.SMALLEST_DELTA,
        below=1,
    )
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
        expected = private.rate * private.parties
        copies = max(1, round(expected))
        std = self.multiplier * private.clip * math.sqrt(1 + len(private.extra))
        key = self._key(private.seed, private.t)

        def noisy_mean(
            vectors: list[Params], origin: Params, purpose: str, *, count: float
        ) -> Params:
            total = sum_clipped(vectors, origin, private.clip)
            mean = {}
            for name, value in origin.items():
                noise = std * normal(key, f"{purpose} {name}", value.shape)
                moved = value.double().cpu() + (total[name] + noise) / count
                mean[name] = moved.to(value)
            return mean

        models = [u.params for u in updates]
        params = noisy_mean(models, private.params, "params", count=expected)
        extra: dict[str, Params] = {}
        for number, (label, like) in enumerate(private.extra.items()):
            vectors = [u.extra.get(label, {}) for u in updates]
            # A number, because labels and names may contain spaces: no noise is used twice.
            origin = tree.zeros_like(like)
            extra[label] = noisy_mean(vectors, origin, f"extra {number}", count=copies)
        update = Update(
            party=0,
            params=params,
            buffers={},
            num_samples=1,
            num_steps=1,
            extra=extra,
        )
        return [update] * copies

    def calibrated(self, rate: float, rounds: int) -> "ServerNoise":
        resolved = self
        if self.epsilon is not None:
            noise = accountant.noise_for(self.epsilon, rate, rounds, self.delta)
            resolved = replace(self, noise=noise, epsilon=None)
        # before the first round: a run without the library would fail in its last one
        if math.isinf(resolved.guarantee(rate, rounds).epsilon):
            raise InputError(
                f"dp.noise={resolved.noise:g} with dp.delta={self.delta:g} gives no finite epsilon "
                f"after {rounds} rounds; increase dp.noise or dp.delta"
            )
        return resolved

    def with_secrets(self) -> "ServerNoise":
        return replace(self, secret=True)

    def caution(self) -> str:
        if self.secret:
            return ""
        return (
            "the noise follows from the seed, which is part of every export, and can be removed: "
            "use dp.secret=true for a model that leaves your hands"
        )

    def guarantee(self, rate: float, rounds: int) -> Guarantee:
        epsilon = accountant.epsilon(self.multiplier, rate, rounds, self.delta)
        return Guarantee(epsilon=epsilon, delta=self.delta, accountant=accountant.name())

    @property
    def multiplier(self) -> float:
        """Return the noise multiplier."""
        if self.noise is None:
            raise InputError(
                f"dp.epsilon={self.epsilon:g} has no noise yet, which depends on the number of "
                "rounds; use calibrated(rate, rounds), or the experiment of a result"
            )
        return self.noise

    def _key(self, seed: int, t: int) -> bytes:
        return new_key() if self.secret else seed_key(seed, t)


def sum_clipped(vectors: list[Params], origin: Params, clip: float) -> dict[str, Tensor]:
    """Return sum (a - origin) min(1, clip/||a - origin||) in float64.

    A vector whose norm is not finite adds nothing, like that of a party that does not take part.
    """
    total = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in origin.items()}
    for vector in vectors:
        tensors = {**vector}  # may be on disk: read once
        check_shapes(tensors, origin)
        change = {name: tensors[name].double() - value.double() for name, value in origin.items()}
        norm = tree.norm(change)
        if math.isfinite(norm):
            scale = min(1.0, clip / norm) if norm > 0 else 1.0
            total = {name: total[name] + scale * change[name] for name in total}
    return total


def check_shapes(tensors: Params, origin: Params) -> None:
    """Check what a party sends: torch would repeat noise to fit a larger tensor."""
    sent = {name: list(value.shape) for name, value in tensors.items()}
    declared = {name: list(value.shape) for name, value in origin.items()}
    for name in {**declared, **sent}:
        if sent.get(name) != declared.get(name):
            raise RunError(
                f"dp: a party sends '{name}' with shape {sent.get(name)}, and {declared.get(name)} "
                "is expected; a method declares in extra_like() what its finish() sends"
            )
