"""Exceptions and user-facing messages.

`InputError` and `RunError` are what a caller of moonfl may catch. `unknown` builds the error for a
misspelled name, and `notify` prints a line to stderr.
"""

import contextlib
import difflib
import shlex
import sys
from collections.abc import Collection, Iterable, Sequence

MAX_NAMES = 100  # allowed names that an error lists
MAX_START, MAX_END = 4000, 900  # characters that are shown of a longer message
SYNONYMS = {  # what papers and other tools call a setting -> its name here, for suggestions only
    "alpha": "beta",
    "arch": "model",
    "backbone": "model",
    "bs": "batch_size",
    "client_fraction": "sample_fraction",
    "client_lr": "lr",
    "clients": "parties",
    "clip_norm": "clip",
    "comm_round": "rounds",
    "communication_rounds": "rounds",
    "concentration": "beta",
    "dataset_name": "dataset",
    "dirichlet_alpha": "beta",
    "fraction_fit": "sample_fraction",
    "join_ratio": "sample_fraction",
    "learning_rate": "lr",
    "local_epochs": "epochs",
    "local_lr": "lr",
    "max_grad_norm": "grad_clip",
    "method": "algorithm",
    "n_clients": "parties",
    "n_parties": "parties",
    "network": "model",
    "noise_multiplier": "dp.noise",
    "num_clients": "parties",
    "num_epochs": "epochs",
    "num_parties": "parties",
    "num_rounds": "rounds",
    "participation": "sample_fraction",
    "proximal_mu": "mu",
    "random_seed": "seed",
    "random_state": "seed",
    "server_lr": "server.lr",
    "strategy": "algorithm",
    "target": "label",
    "temperature": "tau",
    "wd": "weight_decay",
}


class InputError(ValueError):
    """Invalid input: the message states what was given, what is allowed, and where to fix it."""


class RunExistsError(InputError):
    """A directory for a new run that already holds one."""


class DamagedRunError(InputError):
    """A run directory that cannot be resumed as it is."""

    def __init__(self, message: str, has_previous: bool = False) -> None:
        """Store whether the previous checkpoint looks usable (`has_previous`)."""
        super().__init__(message)
        self.has_previous = has_previous


class ChangedRunError(InputError):
    """A stored run of other data or other code than those of this process."""


class RunError(RuntimeError):
    """A run that cannot continue. The rounds recorded so far stay on disk."""


class DataError(RunError):
    """Data that became unreadable during a run, which can be resumed once they are restored.

    The message may name files or quote values, so a Flower site does not send it to the server.
    """


class FileError(RunError):
    """A file of a run that cannot be read or written; the message has its path."""

    def __init__(self, message: str, reason: str = "") -> None:
        """Store the message without the path (`reason`), which a Flower site may send."""
        super().__init__(message)
        self.reason = reason


class DivergenceError(RunError):
    """Training that produced infinite or undefined weights, and would do so again if repeated."""


class Interrupted(KeyboardInterrupt):
    """An interrupt (Ctrl-C) with a message for the user, such as how to resume."""


def unknown(kind: str, name: str, allowed: Iterable[str], also: str = "") -> InputError:
    """Return the error for an unknown name.

    It lists the closest allowed names first, then all of them, then `also`, a description of
    other accepted values.
    """
    names = sorted(allowed)
    closest = closest_names(name, names, cutoff=0.5)
    hint = f"; did you mean {' or '.join(closest)}?" if closest else ""
    if len(names) > MAX_NAMES:
        names = [*names[:MAX_NAMES], f"and {len(names) - MAX_NAMES} more"]
    if also:
        names.append(also)
    return InputError(f"unknown {kind} '{name}'{hint} (allowed: {', '.join(names)})")


def closest_names(name: str, allowed: Collection[str], cutoff: float) -> list[str]:
    """Return up to three allowed names that are close to an unknown one.

    What other tools call a setting comes first. `cutoff` is the least similarity of the others.
    """
    synonyms = [SYNONYMS[name]] if SYNONYMS.get(name) in allowed else []
    similar = difflib.get_close_matches(name, allowed, n=3, cutoff=cutoff)
    return list(dict.fromkeys([*synonyms, *similar]))[:3]


def first_names(names: Sequence[str], limit: int) -> str:
    """Return the first names as a list, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{', '.join(names[:limit])}{more}"


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun, as in "1 round", "2 rounds" and "2 parties"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {nouns or noun + 's'}"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if there is none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def quoted(path: object) -> str:
    """Return a path quoted for a shell."""
    return shlex.quote(str(path))


def printable(text: str) -> str:
    """Return a text whose unprintable characters, except line breaks, are escaped as in \\x1b."""
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else character.encode("unicode_escape").decode()
        for character in text
    )


def displayed(message: str) -> str:
    """Return a message as it is shown.

    It may quote a name or a cell, so characters that control a terminal are escaped, and the middle
    of a very long message is left out.
    """
    if len(message) > MAX_START + MAX_END:
        message = f"{message[:MAX_START]} ... {message[-MAX_END:]}"
    return printable(message)


def notify(message: str) -> None:
    """Print a message to stderr. A closed stderr is ignored, so that it never stops a run."""
    if sys.stderr is None:  # Python was started without it
        return
    with contextlib.suppress(OSError, ValueError):  # a closed pipe, terminal or stream
        print(displayed(message), file=sys.stderr, flush=True)
