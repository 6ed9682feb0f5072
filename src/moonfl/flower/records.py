"""What travels between server and sites: facts as JSON, tensors as Flower's arrays, both checked when they arrive."""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from ..types import Params, Server, State, Update

FACTS = "moonfl"
Facts = dict[str, Any]


class RefusedError(Exception):
    """What arrived is not what was agreed; the text says why."""


@dataclass(frozen=True)
class Order:
    """What the server tells a party at the start of a round."""

    run: str  # which run the party's state belongs to
    party: int
    round: int
    accepted: int | None  # the last round of this party that the server accepted
    server: Server  # params, buffers and shared; what the server keeps to itself is not sent


def pack(facts: Facts, tensors: State | None = None) -> RecordDict:
    """Names are listed beside the tensors, so that sums over them go in the same order at both ends."""
    tensors = tensors or {}
    names = {label: list(params) for label, params in tensors.items()}
    content = RecordDict({FACTS: ConfigRecord({"facts": json.dumps(facts), "names": json.dumps(names)})})
    for label, params in tensors.items():
        arrays = {name: Array(tensor.detach().cpu().contiguous().numpy()) for name, tensor in params.items()}
        content[f"tensors:{label}"] = ArrayRecord(arrays)
    return content


def unpack(content: RecordDict) -> tuple[Facts, State]:
    """Tensors come in storage of their own, aligned as torch aligns it."""
    try:
        told = content.config_records[FACTS]
        facts, names = json.loads(str(told["facts"])), json.loads(str(told["names"]))
        tensors: dict[str, Params] = {}
        for label, of_label in names.items():
            arrays = content.array_records[f"tensors:{label}"]
            tensors[label] = {name: torch.from_numpy(np.array(arrays[name].numpy())).clone() for name in of_label}
    except Exception as error:  # whatever a stranger may send
        raise RefusedError(f"not a message of moonfl's ({type(error).__name__}: {error})") from None
    if not isinstance(facts, dict):
        raise RefusedError("not a message of moonfl's (no facts)")
    return facts, tensors


def pack_order(order: Order) -> RecordDict:
    facts = {key: getattr(order, key) for key in ("run", "party", "round", "accepted")}
    shared = {f"shared:{label}": params for label, params in order.server.shared.items()}
    return pack(facts, {"params": order.server.params, "buffers": order.server.buffers, **shared})


def unpack_order(content: RecordDict) -> Order:
    facts, tensors = unpack(content)
    return Order(**facts, server=Server(tensors["params"], tensors["buffers"], labelled("shared", tensors)))


def pack_update(update: Update, order: Order) -> RecordDict:
    facts = {"party": update.party, "round": order.round, "samples": update.num_samples, "steps": update.num_steps}
    extra = {f"extra:{label}": params for label, params in update.extra.items()}
    return pack(facts | {"metrics": update.metrics}, {"params": update.params, "buffers": update.buffers, **extra})


def unpack_update(content: RecordDict, order: Order, extra_like: State, samples: int, most_steps: int) -> Update:
    """A party's update, or RefusedError: nothing that is not as it must be reaches the average."""
    facts, tensors = unpack(content)
    check_party(facts, order.party)
    if facts.get("round") != order.round:
        raise RefusedError(f"it answers for round {facts.get('round')}, not {order.round}")
    if facts.get("samples") != samples:
        raise RefusedError(f"it says {facts.get('samples')} samples, and said {samples} before the first round")
    steps = facts.get("steps")
    if not isinstance(steps, int) or not 0 <= steps <= most_steps:
        raise RefusedError(f"it says {steps} steps of training; {samples} samples allow 0 to {most_steps}")
    metrics = facts.get("metrics")
    if not isinstance(metrics, dict) or not all(_is_number(value) for value in metrics.values()):
        raise RefusedError("its metrics are not finite numbers")
    check_tensors("the model", tensors.get("params", {}), order.server.params)
    check_tensors("the buffers", tensors.get("buffers", {}), order.server.buffers)
    extra = labelled("extra", tensors)
    if steps > 0 and list(extra) != list(extra_like):
        raise RefusedError(f"beside the model it sends {list(extra)}, not {list(extra_like)}")
    for label, params in extra.items() if steps > 0 else ():
        check_tensors(label, params, extra_like[label])
    return Update(order.party, tensors["params"], tensors["buffers"], samples, steps, extra, metrics)


def check_party(facts: Facts, party: int) -> None:
    if facts.get("party") != party:
        raise RefusedError(f"it answers as party {facts.get('party')}")


def check_tensors(what: str, given: Params, wanted: Params) -> None:
    if list(given) != list(wanted):
        odd = next(iter(set(given) ^ set(wanted)), "their order")
        raise RefusedError(f"{what} has other tensors than was sent ({odd})")
    for name, tensor in given.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            have, want = (f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (tensor, wanted[name]))
            raise RefusedError(f"{name} of {what} is {have}, not {want}")
    check_finite(what, given)


def check_finite(what: str, given: Params) -> None:
    for name, tensor in given.items():
        if not bool(torch.isfinite(tensor).all()):
            raise RefusedError(f"{name} of {what} is not finite")


def labelled(kind: str, tensors: State) -> dict[str, Params]:
    return {label.removeprefix(f"{kind}:"): t for label, t in tensors.items() if label.startswith(f"{kind}:")}


def counts(facts: Facts, key: str) -> list[tuple[int, float]]:
    """Pairs of (how many are right, the sum of their losses), one a chunk of a test set."""
    pairs = facts.get(key)
    if not isinstance(pairs, list) or not pairs:
        raise RefusedError("it did not count")
    for pair in pairs:
        good = isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int) and _is_number(pair[1])
        if not good or pair[0] < 0 or pair[1] < 0:
            raise RefusedError(f"{pair} is not a count and a loss")
    return [(right, float(loss)) for right, loss in pairs]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
