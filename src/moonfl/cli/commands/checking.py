"""`moonfl check`: every problem of a dataset, with advice."""

import argparse
import re
from pathlib import Path

from ...data.base import Dataset
from ...data.checks import ERROR, Finding, dataset_warnings, list_problems
from ...data.datasets import load
from ...data.locations import directory
from ...errors import InputError, RunError, displayed, plural, quoted
from ...experiment import Experiment
from ...task import build_task, make_partition, split
from ..experiments import check_spaces, dataset_of, select_experiment


def check(args: argparse.Namespace) -> None:
    """Print every problem of a dataset; fail if one of them prevents a run."""
    check_spaces(args.words)
    for word in args.words:
        if "=" not in word:
            raise InputError(
                f"`moonfl check` takes one file or folder and then key=value settings, got {word}; "
                f"if it is a column, write {quoted(f'label={word}')}"
            )
    words = [f"data_dir={args.data}", *args.words]
    if not any(word.startswith("dataset=") for word in args.words):
        words.append(f"dataset={dataset_of(Path(args.data))}")
    _, exp = select_experiment(words, trust=False)
    findings = find_problems(exp)
    for finding in findings:
        print(displayed(str(finding)))
    errors = sum(finding.severity == ERROR for finding in findings)
    if errors > 0:
        verb = "prevents" if errors == 1 else "prevent"
        warnings = plural(len(findings) - errors, "warning")
        raise RunError(f"{plural(errors, 'error')} {verb} a run, {warnings}")
    command = " ".join(quoted(word) for word in words)
    print(f"no errors, {plural(len(findings), 'warning')}; train with: moonfl run {command}")


def find_problems(exp: Experiment) -> list[Finding]:
    """Return the problems of an experiment's data, also of encoding and standardising them."""
    path = directory(exp.data_dir)
    findings = list_problems(exp.dataset, path, exp.reading)
    try:
        data = load(exp.dataset, path, exp.reading)
        findings += dataset_warnings(data, exp.reading, party_sizes(exp, data))
        build_task(exp, split(exp, data))
    except InputError as error:
        if not is_listed(str(error), findings):
            findings.append(Finding(ERROR, str(error)))
    return findings


def check_hint(exp: Experiment, words: list[str]) -> str:
    """Return the command that lists all errors of a table; empty if there are not several."""
    if exp.dataset != "csv":
        return ""
    findings = list_problems(exp.dataset, directory(exp.data_dir), exp.reading)
    errors = sum(finding.severity == ERROR for finding in findings)
    if errors < 2:
        return ""
    keys = [word for word in words if not word.startswith(("data_dir=", "dataset="))]
    command = " ".join(quoted(word) for word in ["moonfl", "check", str(exp.data_dir), *keys])
    return f"; this is one of {errors} errors, which `{command}` lists"


def is_listed(message: str, findings: list[Finding]) -> bool:
    """Return True if the reader's error is about a column or file that already has an error."""
    errors = [finding.text for finding in findings if finding.severity == ERROR]
    column = re.search("column '[^']*'", message)
    if column is not None:
        return any(column[0] in text for text in errors)
    return any(text.startswith(message) for text in errors)


def party_sizes(exp: Experiment, data: Dataset) -> dict[str, int]:
    """Return the number of samples of each party."""
    partition = make_partition(exp, data)
    names = partition.names or tuple(map(str, range(len(partition.parts))))
    return {name: len(part) for name, part in zip(names, partition.parts, strict=True)}
