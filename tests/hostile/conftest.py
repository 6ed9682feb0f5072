"""Remove the run that the readers share, and print how many hostile inputs were read."""

import shutil
from collections import Counter
from collections.abc import Iterator

import pytest

from .readers import trained_run


@pytest.fixture(autouse=True, scope="session")
def _shared_run() -> Iterator[None]:
    yield
    if trained_run.cache_info().currsize:
        shutil.rmtree(trained_run())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for key, value in getattr(report, "user_properties", []):
                if key == "hostile" and report.when == "call":
                    counts[value[0]] += value[1]
    if counts:
        listed = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        terminalreporter.write_line(f"{counts.total()} hostile inputs: {listed}")
