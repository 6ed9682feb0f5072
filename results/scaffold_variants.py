"""SCAFFOLD as in the code of NIID-Bench until August 2022: which difference from ours matters?

Run in this folder, for example:

    moonfl run cifar10-scaffold algorithm=scaffold_variants:NIIDBench head=false \
        parties=100 sample_fraction=0.1 rounds=500
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from moonfl import tree
from moonfl.algorithms.scaffold import Scaffold
from moonfl.types import Mean, Params, Party, Server, State, Term, Update


@dataclass(frozen=True)
class RandomStart(Scaffold):
    """Start c and all c_i as the weights of a random network, the same for all parties.

    https://github.com/Xtra-Computing/NIID-Bench/issues/8 reports this.
    """

    label: ClassVar[str] = "SCAFFOLD, random c and c_i"

    def init_server(self, params: Params, buffers: Params) -> Server:
        shared = {"c": random_weights(params)}
        return Server(params=params, buffers=buffers, shared=shared)

    def init_party(self, params: Params) -> State:
        return {"c_i": random_weights(params)}


@dataclass(frozen=True)
class MeanOverSampled(Scaffold):
    """Add the mean of the sampled parties' delta c_i to c, not |S|/N of it.

    https://github.com/Xtra-Computing/NIID-Bench/issues/12 corrected this in August 2022.
    """

    label: ClassVar[str] = "SCAFFOLD, c not scaled by |S|/N"

    def finish_round(
        self, server: Server, updates: list[Update], parties: int, mean: Mean
    ) -> tuple[State, State]:
        delta = mean((u.extra["delta_c"], 1) for u in updates)
        return {"c": tree.add(server.shared["c"], delta)}, {}


@dataclass(frozen=True)
class CorrectionAfterStep(Scaffold):
    """Subtract lr (c - c_i) after each step of SGD, outside its momentum, and divide by lr K.

    A constant correction d passes through momentum r with the weight d/(1 - r), so (1 - r) d in the
    gradient is the same as d after the step, except in the first steps of a round.
    """

    label: ClassVar[str] = "SCAFFOLD, correction after the step"

    def term(self, party: Party) -> Term:
        drift = tree.sub(party.shared["c"], party.state["c_i"])
        correction = tree.mul(drift, 1 - party.momentum)
        return lambda output, batch, w: tree.dot(w, correction)

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        scale = 1 / (party.lr * steps)
        gradient = tree.mul(tree.sub(party.global_params, trained), scale)
        delta = tree.sub(gradient, party.shared["c"])
        return {"c_i": tree.add(party.state["c_i"], delta)}, {"delta_c": delta}


@dataclass(frozen=True)
class RandomStartMeanOverSampled(RandomStart, MeanOverSampled):
    """The first two differences together."""

    label: ClassVar[str] = "SCAFFOLD, random c and c_i, c not scaled by |S|/N"


@dataclass(frozen=True)
class NIIDBench(RandomStart, MeanOverSampled, CorrectionAfterStep):
    """All three differences together."""

    label: ClassVar[str] = "SCAFFOLD as in NIID-Bench's code"


def random_weights(params: Params) -> Params:
    """Return random weights with the standard deviations of PyTorch's initial ones.

    They are uniform in +-1/sqrt(fan in); a bias follows its weight and has the same bound.
    """
    generator = torch.Generator().manual_seed(0)
    weights = {}
    bound = 1.0
    for name, tensor in params.items():
        if tensor.dim() > 1:
            bound = (tensor.numel() / len(tensor)) ** -0.5
        uniform = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)
        weights[name] = bound * (2 * uniform - 1)
    return weights
