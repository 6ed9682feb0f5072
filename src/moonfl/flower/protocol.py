"""What travels between server and sites: facts as JSON, tensors as Flower's arrays, both checked when they arrive."""

import contextlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from .. import tree
from ..data.moments import Moments, statistics_shape
from ..metrics import Tally
from ..report.run_checks import is_number
from ..types import Params, Server, State, Update

FACTS = "moonfl"
MARK = "@moonfl"  # begins a line of JSON in a run's log, for whoever follows it; no text of a site may hold it
Facts = dict[str, Any]

MOST = 1e12  # of a metric: what is beyond was never measured, and a report would refuse it
METRICS = {
    "loss": -MOST,
    "drift": 0,
    "seconds": 0,
    "cpu_seconds": 0,
    "bytes_down": 0,
    "bytes_up": 0,
}  # the least of each
WORST = 1e6  # a mean loss above it is no honest model's
LONGEST = 200  # characters of a text that a site sends
COUNTS = ("actual", "predicted", "hits")  # of a Tally, for each class
HELD = {
    "test": "held_out",
    "validation": "validation",
}  # what a site judges a model on, and where it says how much


class RefusedError(Exception):
    """What arrived is not what was agreed; the text says why."""


class NotFiniteError(RefusedError):
    """A model has no finite loss at a site."""


@dataclass(frozen=True)
class Order:
    """What the server tells a party at the start of a round."""

    run: str  # which run the party's state belongs to
    party: int
    round: int
    accepted: int | None  # the last round of this party that the server accepted
    server: Server  # params, buffers and shared; what the server keeps to itself is not sent


def pack(facts: Facts, tensors: State | None = None) -> RecordDict:
    return assemble(facts, arrays_of(tensors or {}))


def arrays_of(tensors: State) -> dict[str, ArrayRecord]:
    """Made once and put into the message of every party."""
    return {
        label: ArrayRecord(
            {name: Array(t.detach().cpu().contiguous().numpy()) for name, t in params.items()}
        )
        for label, params in tensors.items()
    }


def assemble(facts: Facts, arrays: dict[str, ArrayRecord]) -> RecordDict:
    """Names are listed beside the arrays, so that sums over them go in the same order at both ends."""
    names = {label: list(record) for label, record in arrays.items()}
    content = RecordDict(
        {FACTS: ConfigRecord({"facts": json.dumps(facts), "names": json.dumps(names)})}
    )
    for label, record in arrays.items():
        content[f"tensors:{label}"] = record
    return content


def unpack(content: RecordDict) -> tuple[Facts, State]:
    """Tensors come in storage of their own, aligned as torch aligns it."""
    try:
        told = content.config_records[FACTS]
        facts, names = json.loads(str(told["facts"])), json.loads(str(told["names"]))
        tensors: dict[str, Params] = {}
        for label, of_label in names.items():
            arrays = content.array_records[f"tensors:{label}"]
            tensors[label] = {
                name: torch.from_numpy(np.array(arrays[name].numpy())).clone() for name in of_label
            }
    except Exception as error:  # whatever a stranger may send
        raise RefusedError(
            f"not a message of moonfl's ({clean(f'{type(error).__name__}: {error}')})"
        ) from None
    if not isinstance(facts, dict):
        raise RefusedError("not a message of moonfl's (no facts)")
    return facts, tensors


def server_arrays(server: Server) -> dict[str, ArrayRecord]:
    return arrays_of(
        {
            "params": server.params,
            "buffers": server.buffers,
            **tree.add_prefix("shared", server.shared),
        }
    )


def pack_order(order: Order, arrays: dict[str, ArrayRecord]) -> RecordDict:
    """`arrays` are those of the order's server."""
    return assemble(
        {key: getattr(order, key) for key in ("run", "party", "round", "accepted")}, arrays
    )


def unpack_order(content: RecordDict) -> Order:
    facts, tensors = unpack(content)
    return Order(
        **facts,
        server=Server(tensors["params"], tensors["buffers"], tree.select_prefix("shared", tensors)),
    )


def pack_update(update: Update, order: Order, sha256: str) -> RecordDict:
    """`sha256` is of the party's data."""
    facts = {
        "party": update.party,
        "round": order.round,
        "samples": update.num_samples,
        "steps": update.num_steps,
    }
    tensors = {
        "params": update.params,
        "buffers": update.buffers,
        **tree.add_prefix("extra", update.extra),
    }
    return pack(facts | {"metrics": update.metrics, "sha256": sha256}, tensors)


def read_update(
    facts: Facts, tensors: State, order: Order, site: Facts, steps: int, extra_like: State
) -> Update:
    """A party's update, or RefusedError: nothing that is not as it must be reaches the average.

    `site` is what it said before the first round, `steps` what its samples make, `extra_like` what the server itself
    would send beside that model: tensors must be like it, and numbers (FedNova's norm), made of the steps, the same.
    """
    samples = sum(site["counts"])
    wanted = {"party": order.party, "round": order.round, "samples": samples, "steps": steps}
    for key, value in wanted.items():
        if type(facts.get(key)) is not int or facts[key] != value:
            raise RefusedError(f"it says {key} {clean(str(facts.get(key)))}, not {value}")
    if facts.get("sha256") != site["sha256"]:
        raise RefusedError("its data are not those it had when the run began")
    metrics = facts.get("metrics")
    if not isinstance(metrics, dict) or not all(
        is_number(metrics.get(key, 0), low, MOST) for key, low in METRICS.items()
    ):
        raise RefusedError("its metrics are not numbers that a round can have")
    extra = tree.select_prefix("extra", tensors)
    if [*tensors] != ["params", "buffers", *tree.add_prefix("extra", extra)]:
        raise RefusedError(f"it sends {clean(', '.join(tensors))}, not a model alone")
    check_tensors("the model", tensors["params"], order.server.params)
    check_tensors("the buffers", tensors["buffers"], order.server.buffers, constants=True)
    for name in (
        name for name in tensors["buffers"] if name.startswith("standardise.")
    ):  # set once, for all
        if not tensors["buffers"][name].equal(order.server.buffers[name].cpu()):
            raise RefusedError(f"it changed {name}, which is that of the federation")
    if list(extra) != list(extra_like):
        raise RefusedError(
            f"beside the model it sends {clean(str(list(extra)))}, not {list(extra_like)}"
        )
    for label, params in extra.items():
        check_tensors(label, params, extra_like[label])
        if any(t.dim() == 0 and not t.equal(extra_like[label][name]) for name, t in params.items()):
            raise RefusedError(f"{label} is not what {steps} steps make it")
    told = {key: metrics[key] for key in METRICS if key in metrics}
    return Update(order.party, tensors["params"], tensors["buffers"], samples, steps, extra, told)


def check_site(facts: Facts, parties: int) -> int:
    """What a site says of itself has its form; which party it is."""
    party, count = facts.get("party"), facts.get("counts")
    if type(party) is not int or not 0 <= party < parties:
        raise RefusedError(
            f"it says it is party {clean(str(party))}; parties are 0 to {parties - 1}"
        )
    for key, kind in (("name", str), ("dtype", str), ("sha256", str)):
        if not isinstance(facts.get(key), kind):
            raise RefusedError(f"party {party} does not say its {key}")
    for key, fits in (("shape", is_size), ("classes", is_text), ("features", is_text)):
        if not isinstance(facts.get(key), list) or not all(map(fits, facts[key])):
            raise RefusedError(f"party {party} does not say its {key}")
    if not re.fullmatch(r"[0-9a-f]{64}", facts["sha256"]):
        raise RefusedError(f"party {party} does not say the sha256 of its data")
    if not isinstance(facts.get("versions"), dict):
        raise RefusedError(f"party {party} does not say its versions")
    whole = isinstance(count, list) and all(type(n) is int and 0 <= n < 2**40 for n in count)
    if (
        not isinstance(count, list)
        or not whole
        or len(count) != len(facts["classes"])
        or sum(count) == 0
    ):
        raise RefusedError(f"party {party} does not say how many samples it has of each class")
    for held in (facts.get(key) for key in HELD.values()):
        if type(held) is not int or not 0 <= held < 2**40:
            raise RefusedError(f"party {party} says it holds out {clean(str(held))} samples")
    facts["name"] = clean(facts["name"])
    if "moments" in facts:
        moments_of(facts)
    return party


def is_size(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def is_text(value: object) -> bool:
    return isinstance(value, str)


def moments_of(facts: Facts) -> Moments:
    """What a site shares for standardisation: a count, and a number for each feature."""
    told: Any = facts.get("moments")
    with contextlib.suppress(KeyError, TypeError, ValueError, RuntimeError, ArithmeticError):
        values = math.prod(facts["shape"]) // math.prod(statistics_shape(tuple(facts["shape"])))
        mean, squares = (
            torch.tensor(told[key], dtype=torch.float64) for key in ("mean", "squares")
        )
        like = (math.prod(statistics_shape(tuple(facts["shape"]))),)
        spread = (squares / max(1, told["number"])).sqrt()  # NaN where squares are below 0
        finite = all(
            bool((of.abs() <= torch.finfo(torch.float32).max).all()) for of in (mean, spread)
        )
        if (
            told["number"] == values * sum(facts["counts"])
            and mean.shape == squares.shape == like
            and finite
        ):
            return Moments(told["number"], mean, squares)
    raise RefusedError(
        f"party {facts.get('party')} does not say number, mean and squares of its features as it should"
    )


def clean(text: str) -> str:
    """A text from a site as it may be shown: in one line, of bounded length, nothing that steers a terminal or is
    taken for the run's own words.
    """
    shown = "".join(c if c.isprintable() else " " for c in text[: LONGEST + 1])
    shown = re.sub(f"@+(?={MARK[1:]})", "", shown)
    return shown if len(shown) <= LONGEST else shown[:LONGEST] + "..."


def check_party(facts: Facts, party: int) -> None:
    if facts.get("party") != party:
        raise RefusedError(f"it says party {clean(str(facts.get('party')))}, not {party}")


def check_tensors(what: str, given: Params, wanted: Params, constants: bool = False) -> None:
    """`constants`: what is not finite may be so as it was sent, such as a mask of -inf."""
    if list(given) != list(wanted):
        odd = next(iter(set(given) ^ set(wanted)), "their order")
        raise RefusedError(f"{what} has other tensors than was sent ({clean(odd)})")
    for name, tensor in given.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            have, want = (
                f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
                for t in (tensor, wanted[name])
            )
            raise RefusedError(f"{name} of {what} is {have}, not {want}")
        finite = torch.isfinite(tensor)
        if not bool((finite | as_sent(tensor, wanted[name]) if constants else finite).all()):
            raise RefusedError(f"{name} of {what} is not finite")
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise RefusedError(f"{name} of {what} is a variance below 0")


def as_sent(tensor: Tensor, sent: Tensor) -> Tensor:
    """Where it has the value that was sent."""
    return (tensor == sent) | (tensor.isnan() & sent.isnan())


def read_tally(told: Any, held: int, classes: int, party: int) -> Tally:
    """What a site counted on the samples that it holds out, or RefusedError: numbers that cannot be true together."""
    told = told if isinstance(told, dict) else {}
    loss, counts = told.get("loss"), {key: told.get(key) for key in COUNTS}
    if isinstance(loss, float) and not math.isfinite(loss):
        raise NotFiniteError("its loss is not finite")
    if not isinstance(loss, int | float) or not is_number(loss, 0, WORST * held):
        raise RefusedError(f"it says the sum of its losses is {clean(str(loss))}")
    for key, of in counts.items():
        whole = isinstance(of, list) and all(type(n) is int and 0 <= n <= held for n in of)
        if not whole or len(of) != classes:
            raise RefusedError(
                f"of {key} it says {clean(str(of))}, not a whole number for each of {classes} classes"
            )
        if key != "hits" and sum(of) != held:
            raise RefusedError(f"it counts {sum(of)} {key}, and holds out {held} samples")
    actual, predicted, hits = counts.values()
    if any(right > min(pair) for right, *pair in zip(hits, actual, predicted, strict=True)):
        raise RefusedError(
            "of a class it says that more samples are right than there are, or were taken for it"
        )
    return Tally(float(loss), actual, predicted, hits, {party: (sum(hits), held)})
