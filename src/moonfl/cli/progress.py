"""What a run shows on stderr while it goes: a bar on a terminal, a line a round elsewhere."""

import os
import sys
from types import TracebackType

from tqdm import tqdm

from ..errors import notify
from ..runs.directory import Fact


def on_terminal() -> bool:
    """Whether stderr is a terminal that a bar can be drawn on; some tell no size."""
    return (
        sys.stderr is not None
        and sys.stderr.isatty()
        and os.get_terminal_size(sys.stderr.fileno()).lines > 0
    )


class Progress:
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.bar = (
            tqdm(total=rounds, unit="round", leave=False, mininterval=0, miniters=1)
            if on_terminal()
            else None
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, fact: Fact) -> None:
        accuracy = f"accuracy {100 * fact['accuracy']:.1f} %"
        if self.bar is not None:
            if (
                self.bar.n == 0
            ):  # a resumed run starts where it was, and its earlier rounds say nothing of the pace
                self.bar.initial = self.bar.n = fact["round"] - 1
            self.bar.set_postfix_str(accuracy, refresh=False)
            self.bar.update()
        else:
            line = f"round {fact['round']}/{self.rounds}  {accuracy}  loss {fact['loss']:.3f}  {fact['seconds']:.1f} s"
            notify(line)
