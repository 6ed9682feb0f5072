"""The one store of party states.

Each party has two generations, tagged with the round that made them, so that a repeated round starts from the
state that round started from.
"""

from .types import State


class States:
    def __init__(self) -> None:
        self._kept: dict[int, list[tuple[int, State]]] = {}  # party -> (round, state), newest first

    def before(self, party: int, round: int) -> State | None:
        """What the party kept when it last took part before `round`; None if it never did."""
        return next((state for made, state in self._kept.get(party, []) if made < round), None)

    def keep(self, party: int, round: int, state: State) -> None:
        """The state the party leaves `round` with; whatever it had of that round or later is void."""
        older = [(made, old) for made, old in self._kept.get(party, []) if made < round]
        self._kept[party] = [(round, state), *older[:1]]
