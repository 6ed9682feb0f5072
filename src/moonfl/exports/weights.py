"""model.safetensors: weights and buffers by name, and in its head all that rebuilds the network."""

import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save

from .. import tree
from ..data.augment import Preparation
from ..errors import InputError
from ..experiment import CUSTOM_MODEL, Experiment, part_name, to_dict
from ..models.encoders import ModelSource
from ..runs.schema import RoundRecord
from ..task import make_builder
from ..trained_model import Blueprint, TrainedModel, describe
from ..types import Params

WEIGHTS, PROGRAM, README = "model.safetensors", "model.pt2", "README.md"
HEAD = (
    "moonfl"  # of the file: one JSON text of all that is told, so that equal models are equal files
)
BUILDING = ("model", "head", "out_dim", "standardise")  # the settings that decide the network
OF_THE_MACHINE = ("data_dir", "device")  # those that are nobody's business elsewhere


@dataclass(frozen=True)
class Artifact:
    """A trained model and what is told of it."""

    experiment: Experiment
    blueprint: Blueprint
    params: Params
    name: str  # global, or whose: party0
    fact: RoundRecord  # what is recorded of the round it is of
    best: bool = False  # that round is the best on the validation samples, not the last

    @property
    def model(self) -> str:
        """Which it is, in words."""
        most = "at most " if self.experiment.patience is not None else ""
        which = (
            ", best on the validation samples"
            if self.best
            else f" of {most}{self.experiment.rounds}"
        )
        round = f"round {self.fact.round}{which}"
        accuracy = (self.fact.accuracies or {}).get(self.name, self.fact.accuracy)
        whose = (
            f"party {self.name.removeprefix('party')}'s"
            if self.name.startswith("party")
            else "the global"
        )
        return f"{whose} model after {round}, accuracy {100 * accuracy:.1f} %"


def write(path: Path, artifact: Artifact) -> None:
    made = artifact.blueprint
    settings = {
        key: value
        for key, value in to_dict(artifact.experiment).items()
        if key not in OF_THE_MACHINE
    }
    prepared = {
        "mean": made.preparation.mean,
        "std": made.preparation.std,
        "scale": made.preparation.scale,
    }
    head = {
        "version": metadata.version("moonfl"),
        "name": artifact.name,
        "round": artifact.fact.round,
        "experiment": settings,
        "shape": made.shape,
        "dtype": str(made.dtype),
        "classes": made.classes,
        "preparation": prepared,
        **({"features": made.features} if made.features else {}),
    }
    tensors = dict(tree.copy(artifact.params))
    path.write_bytes(
        save(tensors, {HEAD: json.dumps(head)})
    )  # a file by safetensors' own hand is its owner's alone


def load_model(path: str | Path, model: ModelSource | None = None) -> TrainedModel:
    """The model of an export, the folder or its model.safetensors, in eval mode; it takes samples as they are stored.

    `model`: the module, what makes it, or its dotted path, where it is somebody's own: no code is run that only the
    file names.
    """
    path = Path(path) / WEIGHTS if Path(path).is_dir() else Path(path)
    head, params = read(path)
    try:
        settings = {key: value for key, value in head["experiment"].items() if key in BUILDING}
        shape, dtype = sample(head)
        classes = tuple(str(name) for name in head["classes"])
        given = head["preparation"]
        mean, std = (tuple(float(value) for value in given[key]) for key in ("mean", "std"))
        preparation = Preparation(mean, std, float(given["scale"]))
        if is_own(settings["model"]) and model is None:  # a file must not run code
            raise InputError(
                f"its network ({settings['model']}) is code of somebody's own, which is not in this file; "
                "load_model(path, model) takes it, and the model.pt2 beside it needs nothing"
            )
        exp = Experiment(**settings | ({} if model is None else {"model": CUSTOM_MODEL}))
        build = make_builder(exp, shape, dtype, len(classes), model).build
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, repr(error)) from None
    made = tree.build_module(build)
    wanted, found = (
        {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        for tensors in (tree.params_of(made) | tree.buffers_of(made), params)
    )
    if wanted != found:
        odd = sorted(
            name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
        )
        raise InputError(
            f"{path} does not fit model={settings['model']}: it has another {odd[0]}, or none"
        )
    return Blueprint(build, shape, dtype, classes, preparation).deployed(params)


def read(path: Path) -> tuple[dict[str, Any], Params]:
    """The head and the tensors."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            head, names = json.loads(file.metadata()[HEAD]), file.keys()
            return head, {name: file.get_tensor(name).clone() for name in names}
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise damaged(path, str(error)) from None


def damaged(path: str | Path, reason: str) -> InputError:
    return InputError(f"{path} is not a model that `moonfl export` wrote, or is damaged: {reason}")


def is_artifact(path: Path) -> bool:
    try:
        with safetensors.safe_open(path, "pt") as file:
            return HEAD in (file.metadata() or {})
    except (OSError, safetensors.SafetensorError):
        return False


def sample(told: dict[str, Any]) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and type of a sample, as a file tells them."""
    dtype = getattr(torch, str(told["dtype"]).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{told['dtype']} is no type of numbers")
    return tuple(int(side) for side in told["shape"]), dtype


def is_own(model: str) -> bool:
    """Whether the network is somebody's own code."""
    return model == CUSTOM_MODEL or ":" in model


def explained(artifact: Artifact) -> str:
    """The README.md beside the files."""
    exp, made = artifact.experiment, artifact.blueprint
    pixels = (
        f", pixels from 0 to {made.preparation.scale:g}"
        if made.deployed(artifact.params).preparation
        else ""
    )
    stored = describe(made.dtype, made.shape)
    network = ", model" if is_own(str(exp.model)) else ""
    columns = (
        f"\nColumns of the table in the order of a sample: {', '.join(made.features)}.\n"
        if made.features
        else ""
    )
    return f"""# A model trained by federated learning

{artifact.model[0].upper()}{artifact.model[1:]}; {part_name(exp.algorithm)} over {exp.parties} parties on
{exp.dataset}, encoder {exp.model}. Made by moonfl {metadata.version("moonfl")} with torch {torch.__version__}.

- `model.pt2`: the whole model, preparation of the samples included, for torch alone
- `model.safetensors`: its weights and buffers by name; `moonfl.load_model("model.safetensors"{network})` makes a
  module of them

It takes any number B of samples as they are stored, {stored}{pixels}, and gives their
representations z and logits:

```python
import torch
model = torch.export.load("model.pt2").module()
z, logits = model(torch.zeros(1, {", ".join(map(str, made.shape))}, dtype={made.dtype}))
print(logits.argmax(dim=1))
```

Classes in the order of the logits: {", ".join(made.classes)}.
{columns}"""
