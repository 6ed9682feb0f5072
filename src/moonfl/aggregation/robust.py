"""Robust combination: rules in place of the weighted mean that a minority of parties cannot lead astray, and a limit
on how far one party may move the model.

Median and trimmed mean: Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates, ICML 2018. https://arxiv.org/abs/1803.01498
Clipping by norm: Sun, Kairouz, Suresh, McMahan, Can You Really Backdoor Federated Learning?, 2019.
https://arxiv.org/abs/1911.07963
"""

import functools
import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from .. import tree
from ..experiment import Experiment
from ..types import Mean, Params, Update

PIECE = 2**20  # coordinates that are sorted at a time: sorting takes several times their memory


def mean_of(exp: Experiment) -> Mean:
    """What the experiment puts in place of a mean over parties."""
    if exp.combination is None:
        return tree.mean
    return functools.partial(centre, trim=0.5 if exp.combination == "median" else exp.trim or 0.0)


def centre(trees: Iterable[tuple[Params, float]], trim: float) -> Params:
    """The trimmed mean of each coordinate, name by name; 0.5 is the median. Dtypes are kept, integers are rounded.

    Each party has one vote: weights are numbers of samples, which a party only claims.
    """
    voters = [params for params, _ in trees]
    cut = num_trimmed(len(voters), trim)
    return {name: trimmed_mean([params[name] for params in voters], cut) for name in voters[0]}


def num_trimmed(parties: int, trim: float) -> int:
    """floor(trim n) of n parties, left out at either end; but at least one, and never all.

    So a trim above 0 protects from one party of three or more, however few took part; of two there is only the mean.
    """
    if trim == 0:
        return 0
    share = math.floor(trim * parties + 1e-9)  # 0.29 * 100 is a hair below 29
    return min(max(1, share), (parties - 1) // 2)


def trimmed_mean(values: list[Tensor], cut: int) -> Tensor:
    """x_(cut+1), ..., x_(n-cut) of the n sorted values of each coordinate, their mean.

    With the largest cut it is the median, of an even number the mean of the two in the middle. Any `cut` values may be
    anything, also not a number (sorted last): the mean lies between two of the others.
    """
    if values[0].is_complex():
        return torch.view_as_complex(trimmed_mean([torch.view_as_real(v) for v in values], cut))
    if tree.is_integer(values[0].dtype) and all(v.equal(values[0]) for v in values):
        return values[0].clone()
    pieces = zip(*(v.flatten().split(PIECE) for v in values), strict=True)
    return torch.cat([_trimmed_mean(torch.stack(piece, dim=1), cut) for piece in pieces]).view_as(
        values[0]
    )


def _trimmed_mean(values: Tensor, cut: int) -> Tensor:
    """[M, n] -> [M]; summed in float64, one after the other, so that no number of threads changes a bit."""
    kept = values.sort(dim=1).values[:, cut : values.shape[1] - cut].double()
    return tree.to_dtype(
        functools.reduce(torch.add, kept.unbind(dim=1)) / kept.shape[1], values.dtype
    )


def clipped(update: Update, w: Params, clip: float) -> Update:
    """w_i' = w + (w_i - w) min(1, clip/||w_i - w||), over trainable parameters.

    What else a party sends of the parameters' shape (SCAFFOLD's delta c_i) is held to the same norm by itself, not
    scaled with w_i: c stays the mean of the c_i that the parties keep unless a delta c_i is itself too long.
    """
    extra = {
        label: shortened(sent, tree.zeros_like(w), clip) if sent.keys() == w.keys() else sent
        for label, sent in update.extra.items()
    }
    return replace(update, params=shortened(update.params, w, clip), extra=extra)


def shortened(a: Params, origin: Params, clip: float) -> Params:
    """origin + (a - origin) min(1, clip/||a - origin||); `a` itself, to the bit, where it is short enough."""
    moved = tree.Lazy(origin, lambda k: a[k].double() - origin[k].double())
    norm = tree.norm(moved)
    if norm <= clip:
        return a
    return tree.Lazy(
        origin, lambda k: (origin[k].double() + moved[k] * (clip / norm)).to(origin[k].dtype)
    )


def described(exp: Experiment) -> str:
    """How updates are combined, for people."""
    rules = {
        "median": "coordinate median, each party one vote",
        "trimmed-mean": f"coordinate mean without {100 * (exp.trim or 0):g} % of the parties at either end, "
        "each party one vote",
    }
    rule = exp.algorithm.weighting if exp.combination is None else rules[exp.combination]
    return (
        rule
        if exp.clip is None
        else f"{rule}; changes of norm above {exp.clip:g} are scaled down to it"
    )
