"""FedRep: a party fits its personal head first, then the shared body below it.

Collins, Hassani, Mokhtari, Shakkottai, Exploiting Shared Representations for Personalized
Federated Learning, ICML 2021. https://arxiv.org/abs/2102.07078
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ..settings import setting
from ..types import Party, Phase
from .base import Algorithm


@dataclass(frozen=True)
class FedRep(Algorithm):
    """min over h_i of l(phi^t, h_i), then min over phi of l(phi, h_i^{t+1}), both by SGD.

    The head h_i is what `personal` keeps at the party, and the body phi is the rest.
    """

    choice: ClassVar[str] = (
        "epochs are those of the body; BatchNorm statistics are updated in both phases"
    )
    requires: ClassVar[Mapping[str, str]] = {"personal": "output"}

    head_epochs: int = setting(10, "local epochs of the personal head, before the body", low=1)

    def phases(self, party: Party, main: Phase) -> Sequence[Phase]:
        head = replace(
            main,
            stream="fedrep",
            epochs=self.head_epochs,
            trains=lambda name: name in party.personal,
        )
        body = replace(main, trains=lambda name: name not in party.personal)
        return (head, body)
