"""The model that is exported, with what is known about it, and the README.md that describes it."""

from dataclasses import dataclass
from importlib import metadata

import torch

from ..experiment import CUSTOM_MODEL, Experiment
from ..measures import is_evaluated, measure_of
from ..report.tables import markdown_text
from ..runs.schema import RoundRecord
from ..trained_model import Blueprint, describe
from ..types import GLOBAL, Params, party_of_model

WEIGHTS = "model.safetensors"
PROGRAM = "model.pt2"
README = "README.md"
DECISIONS = {  # by task: what the model returns, how it is used, and what its columns are
    "classification": ("logits", "logits.argmax(dim=1)", "Classes"),
    "regression": ("predictions", "predictions", "Targets, in the units of the data,"),
    "multilabel": ("logits", "logits.sigmoid() > 0.5", "Labels"),
}


@dataclass(frozen=True)
class Artifact:
    """A trained model of a run."""

    experiment: Experiment
    blueprint: Blueprint
    params: Params
    name: str  # "global", or "party0", "party1", ...
    record: RoundRecord  # of the round that the model is from
    parties: tuple[str, ...] = ()  # names of all parties, if they have any
    best: bool = False  # whether this is the best round on validation data, instead of the last

    @property
    def title(self) -> str:
        """Describe the model, as in "the global model after round 3 of 10, accuracy 81.2 %"."""
        if not is_evaluated(self.record):
            return f"{self._model()} after {self._round()}, not evaluated"
        measure = measure_of(self.record)
        value = f"{measure.name} {measure.text(self._value())}"
        absent = ", ".join(self.record.absent or {})
        mark = f" (evaluated without party {absent})" if absent else ""
        return f"{self._model()} after {self._round()}, {value}{mark}"

    def _value(self) -> float:
        """Return the measure of this model; that of a party has its party's held-out samples."""
        measure = measure_of(self.record)
        party = str(party_of_model(self.name))  # as a key of the record
        sites = self.record.sites or {}
        if self.experiment.has_party_models and party in sites:
            return measure.from_sums([sites[party]])
        if self.record.global_score is not None:
            return self.record.global_score
        return measure.model_value(self.record, self.name)

    def _model(self) -> str:
        number = party_of_model(self.name)
        if number is None:
            return "the global model"
        if self.parties:
            return f"the model of party {numbered_name(number, self.parties)}"
        return f"party {number}'s model"

    def _round(self) -> str:
        if self.best:
            return f"round {self.record.round}, best on the validation samples"
        most = "at most " if self.experiment.patience is not None else ""
        return f"round {self.record.round} of {most}{self.experiment.rounds}"


def numbered_name(party: int, names: tuple[str, ...]) -> str:
    """Return the number of a party, followed by its name if it has one, as in "0 East"."""
    return f"{party} {names[party]}" if party < len(names) else str(party)


def is_custom(model: str) -> bool:
    """Return True if a network is user code, which is not part of an export."""
    return model == CUSTOM_MODEL or ":" in model


def describe_columns(blueprint: Blueprint) -> str:
    """Describe the columns of a sample, if it is the row of a table."""
    if not blueprint.features:
        return ""
    names = markdown_text(", ".join(blueprint.features))
    lines = ["", f"Columns of the table in the order of a sample: {names}."]
    encoding = blueprint.preparation.encoding
    if encoding is not None:
        lines += [
            "A missing value is NaN. The numbers of categories follow; -1 is any other category.",
            "`moonfl predict` and `moonfl.predict` take rows with the names of categories.",
            "",
        ]
        for column in encoding.columns:
            if column.categories is not None:
                numbered = ", ".join(f"{k} {name}" for k, name in enumerate(column.categories))
                lines.append(f"- {markdown_text(column.name)}: {markdown_text(numbered)}")
    return "\n".join([*lines, ""])


def describe_privacy(artifact: Artifact) -> str:
    """Describe the differential privacy of the global model, if it has some."""
    exp = artifact.experiment
    if not exp.dp.is_private or artifact.name != GLOBAL:
        return ""
    guarantee = exp.dp.guarantee(exp.sample_fraction, artifact.record.round)
    lines = [
        "",
        f"Differential privacy of every party with all of its samples: {guarantee}.",
        "It covers the model and not the evaluation above.",
    ]
    caution = exp.dp.caution()
    if caution:
        lines.append(f"**It is void if you publish the model: {caution}.**")
    return "\n".join([*lines, ""])


def readme(artifact: Artifact) -> str:
    """Return the text of README.md."""
    exp = artifact.experiment
    blueprint = artifact.blueprint
    stored = describe(blueprint.dtype, blueprint.shape)
    if blueprint.deployed(artifact.params).preparation is not None:
        stored += f", pixels from 0 to {blueprint.preparation.scale:g}"
    model_argument = ", model" if is_custom(str(exp.model)) else ""
    columns = describe_columns(blueprint)
    privacy = describe_privacy(artifact)
    sizes = ", ".join(map(str, blueprint.shape))
    title = markdown_text(artifact.title[0].upper() + artifact.title[1:])
    method = markdown_text(exp.algorithm.label)
    encoder = markdown_text(str(exp.model))
    classes = markdown_text(", ".join(blueprint.classes))
    outputs, decision, names = DECISIONS[exp.task]
    return f"""# A model trained by federated learning

{title}.
Method {method}, {exp.parties} parties, dataset {exp.dataset}, encoder {encoder}.
Exported by moonfl {metadata.version("moonfl")} with torch {torch.__version__}.
{privacy}
| file | contents |
|---|---|
| `{PROGRAM}` | the complete model, including the preparation of samples; it needs only torch |
| `{WEIGHTS}` | weights and buffers by name, for `moonfl.load_model("{WEIGHTS}"{model_argument})` |

The model takes a batch of samples as they are stored, {stored}.
It returns their representations z and their {outputs}:

```python
import torch
model = torch.export.load("{PROGRAM}").module()
z, {outputs} = model(torch.zeros(1, {sizes}, dtype={blueprint.dtype}))
print({decision})
```

Loading `{PROGRAM}` can execute code. Load it only from somebody you trust; loading `{WEIGHTS}`
executes none.

{names} in the order of the {outputs}: {classes}.
{columns}"""
