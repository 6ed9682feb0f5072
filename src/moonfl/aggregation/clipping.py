"""Norm clipping: a limit on how far one party can move the model.

Sun, Kairouz, Suresh, McMahan, Can You Really Backdoor Federated Learning?, 2019.
https://arxiv.org/abs/1911.07963
"""

from dataclasses import replace

from torch import Tensor

from .. import tree
from ..types import Params, Update


def clip_update(update: Update, w: Params, clip: float) -> Update:
    """Return the update with w_i' = w + (w_i - w) min(1, clip/||w_i - w||).

    w are the trainable parameters. Other values of their shape that a party sends (SCAFFOLD's
    delta c_i) are clipped to the same norm separately, not scaled with w_i.

    A party that stores what it sends must count it in the same way, or the two differ from then on:
    methods apply `Party.clip_difference` to it.
    """
    extra = {}
    for label, values in update.extra.items():
        is_like_model = values.keys() == w.keys()
        extra[label] = clip_norm(values, tree.zeros_like(w), clip) if is_like_model else values
    return replace(update, params=clip_norm(update.params, w, clip), extra=extra)


def clip_difference(difference: Params, clip: float | None) -> Params:
    """Return what the server counts of a difference that a party sends; None: all of it."""
    if clip is None:
        return difference
    return {**clip_norm(difference, tree.zeros_like(difference), clip)}


def clip_norm(a: Params, origin: Params, clip: float) -> Params:
    """Return origin + (a - origin) min(1, clip/||a - origin||); `a` itself if it is short."""
    change = tree.Lazy(origin, lambda k: a[k].double() - origin[k].double())
    norm = tree.norm(change)
    if norm <= clip:
        return a
    scale = clip / norm

    def clipped(name: str) -> Tensor:
        moved = origin[name].double() + change[name] * scale
        return moved.to(origin[name].dtype)

    return tree.Lazy(origin, clipped)
