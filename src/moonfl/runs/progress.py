"""Progress of a run: a bar on a terminal or in a notebook, otherwise one line per round."""

import os
import sys
import warnings
from types import TracebackType
from typing import Any

from ..errors import notify
from ..measures import is_evaluated, measure_of
from ..runs.schema import RoundRecord

ANALYSIS = "analysing the final model"  # takes a few seconds


def on_terminal() -> bool:
    """Return True if stderr is a terminal with a known size, on which a bar can be drawn."""
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    return os.get_terminal_size(sys.stderr.fileno()).lines > 0


def in_notebook() -> bool:
    """Return True if this process is the kernel of a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return hasattr(get_shell and get_shell(), "kernel")


def make_bar(rounds: int) -> Any:
    """Return a bar of tqdm: a widget in notebooks that can show one, otherwise text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without widgets
        from tqdm.auto import tqdm

    return tqdm(total=rounds, unit="round", leave=False, mininterval=0, miniters=1)


class Progress:
    """A context manager that is called with the record of each round."""

    def __init__(self, rounds: int, *, shows_lr: bool = False) -> None:
        """Prepare the display of a run with this many rounds.

        `shows_lr`: show the learning rate too.
        """
        self.rounds = rounds
        self.shows_lr = shows_lr
        self.shown = 0  # the last round that was shown
        self.bar = make_bar(rounds) if on_terminal() or in_notebook() else None

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

    def __call__(self, record: RoundRecord) -> None:
        """Show the metrics of a round, once."""
        if record.round > self.shown:
            self.shown = record.round
            self._show(record)

    def before_analysis(self, record: RoundRecord) -> None:
        """Show the last round and that the final analysis begins, which takes seconds."""
        self(record)
        if self.bar is None:
            notify(ANALYSIS)
        else:
            self.bar.set_description_str(ANALYSIS)

    def _show(self, record: RoundRecord) -> None:
        loss = f"loss {record.loss:.3f}  " if is_evaluated(record) else ""
        value = self._value(record)
        if self.bar is None:
            notify(
                f"round {record.round}/{self.rounds}  {value}  {loss}"
                f"{self._rate(record)}{record.seconds:.1f} s"
            )
            return
        if self.bar.n == 0:  # a resumed run: earlier rounds must not count for the speed
            self.bar.initial = self.bar.n = record.round - 1
        self.bar.set_postfix_str(f"{self._rate(record)}{value}", refresh=False)
        self.bar.update()

    def _value(self, record: RoundRecord) -> str:
        """Return the measure of a round, or that it was not evaluated."""
        if not is_evaluated(record):
            return "not evaluated"
        measure = measure_of(record)
        return f"{measure.name} {measure.text(measure.value(record))}{absence_mark(record)}"

    def _rate(self, record: RoundRecord) -> str:
        """Return the learning rate of a round, if it is to be shown and was recorded."""
        return f"lr {record.lr:.3g}  " if self.shows_lr and record.lr is not None else ""


def absence_mark(record: RoundRecord) -> str:
    """Return the mark of a round that was evaluated or validated without some parties."""
    for verb, absent in (("evaluated", record.absent), ("validated", record.validation_absent)):
        if absent:
            return f" ({verb} without party {', '.join(absent)})"
    return ""
