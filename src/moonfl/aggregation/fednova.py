"""FedNova as an aggregation rule for other methods: scale updates to the same number of steps.

Wang, Liu, Liang, Joshi, Poor, Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization, NeurIPS 2020. https://arxiv.org/abs/2007.07481
`algorithm=fednova` is FedAvg with this rule; without `clip` the two agree up to rounding.
"""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from .. import tree
from ..algorithms.fednova import check_divisor
from ..types import Params, Update


def normalise(
    updates: list[Update], w: Params, effective_steps: Callable[[int], float]
) -> list[Update]:
    """Return updates with w^t + tau_eff/a_i (w_i - w^t) in place of w_i.

    Their weighted mean is FedNova's w^t + tau_eff sum p_i (w_i - w^t)/a_i, where p_i is the weight
    of a party, a_i its effective number of steps, and tau_eff = sum p_i a_i.
    """
    steps = [check_divisor(effective_steps(u.num_steps)) for u in updates]
    samples = sum(u.num_samples for u in updates)
    weighted = sum(u.num_samples * a for u, a in zip(updates, steps, strict=True))
    tau_eff = weighted / samples
    return [
        replace(u, params=scale_change(u.params, w, tau_eff / a))
        for u, a in zip(updates, steps, strict=True)
    ]


def scale_change(params: Params, w: Params, scale: float) -> Params:
    """Return w + scale (params - w)."""

    def scaled(name: str) -> Tensor:
        origin = w[name].double()
        moved = origin + scale * (params[name].double() - origin)
        return moved.to(w[name].dtype)

    return tree.Lazy(w, scaled)
