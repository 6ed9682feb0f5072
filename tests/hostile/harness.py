"""Read hostile inputs in processes with limits, and judge what happened.

A case is acceptable if the reader returns a correct value, or raises one of its own errors with one
clear message. Everything else is a finding: another exception, a dead process, a hang, too much
memory, and anything that an audit hook of Python reports while the input is read, such as a started
program, an unpickled class, an unexpected import, a connection, or a file written elsewhere.
"""

import faulthandler
import json
import os
import resource
import select
import shutil
import signal
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import moonfl
from moonfl import InputError, RunError
from moonfl.errors import displayed

MEMORY = 2**31  # bytes that reading one small input may allocate
SECONDS = 30.0  # that reading one small input may take; it takes milliseconds on an idle machine
MAX_FINDINGS = 10  # of a reader, after which its other cases are not run
MAX_MESSAGE = 5000  # characters
CANARY = "hostile_canary"  # the module and the file that malicious inputs try to import or create
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.kill",
    "os.putenv",
    "subprocess.Popen",
    "pty.spawn",
    "pickle.find_class",
    "ctypes.dlopen",
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
    "urllib.Request",
    "webbrowser.open",
)
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
INSTALLED = tuple(
    str(Path(folder).resolve())
    for folder in (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        Path(moonfl.__file__).parent,
    )
)  # code from here may be executed


@dataclass(frozen=True)
class Reader:
    """Something that reads files. To cover another one, add it to READERS in readers.py."""

    write: Callable[[Path], None]  # writes a valid input into an empty folder
    read: Callable[[Path], object]  # reads the folder; raises one of `errors` or returns a value
    check: Callable[[Any, Any], None] = lambda value, expected: None
    # raises AssertionError if a value that was read cannot be correct; `expected` is that of the
    # valid input
    errors: tuple[type[Exception], ...] = (InputError, RunError)
    cases: int = 400  # mutated inputs
    finish: Callable[[Path], None] | None = None  # applied to half of the mutated inputs


class Case(NamedTuple):
    """An input: a change of the valid one, which returns its description."""

    name: str
    change: Callable[[Path], str]


class Outcome(NamedTuple):
    """What happened with a case: the message or value, or the problem that was found."""

    case: str
    change: str
    result: str
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.case} ({self.change}): {self.problem or self.result}"


def run_cases(
    reader: Reader, cases: Sequence[Case], folder: Path, seconds: float = SECONDS
) -> list[Outcome]:
    """Run cases in limited processes and return their outcomes.

    A process that dies or hangs is replaced by another, which continues with the next case. The
    input of a case with a problem stays in `folder`.
    """
    valid = folder / "valid"
    valid.mkdir(parents=True)
    reader.write(valid)
    # This also imports what the reader imports on demand, as the audit hook reports imports.
    expected = reader.read(valid)
    reader.check(expected, expected)
    outcomes: list[Outcome] = []
    while len(outcomes) < len(cases) and len(findings(outcomes)) < MAX_FINDINGS:
        outcomes += _run_process(reader, cases[len(outcomes) :], folder, expected, seconds)
    return outcomes


def findings(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with a problem."""
    return [outcome for outcome in outcomes if outcome.problem]


def _run_process(
    reader: Reader, cases: Sequence[Case], folder: Path, expected: object, seconds: float
) -> list[Outcome]:
    """Run cases in one process until all are done, or one of them ends it."""
    source, target = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        try:
            _work(reader, cases, folder, expected, target)
        except BaseException as error:
            _report(target, "change", [f"failure of the suite itself: {error!r}"])
        finally:
            os._exit(1)
    os.close(target)
    outcomes: list[Outcome] = []
    problem = ""
    change = "not reported"
    try:
        for kind, fields in _lines(source, seconds):
            if kind == "change":
                change = fields[0]
            else:
                outcomes.append(Outcome(*fields))
                change = "not reported"
    except TimeoutError:
        problem = f"hang: no result after {seconds:g} seconds"
        os.kill(pid, signal.SIGKILL)
    finally:
        os.close(source)
        _, status = os.waitpid(pid, 0)
    if len(outcomes) < len(cases) and len(findings(outcomes)) < MAX_FINDINGS:
        problem = problem or f"the process died: {os.waitstatus_to_exitcode(status)}"
        outcomes.append(Outcome(cases[len(outcomes)].name, change, "", problem))
    return outcomes


def _lines(source: int, seconds: float) -> Iterator[tuple[str, list[str]]]:
    """Yield the reports of a process; raise TimeoutError if none arrives in time."""
    buffer = b""
    while True:
        ready, _, _ = select.select([source], [], [], seconds)
        if not ready:
            raise TimeoutError
        content = os.read(source, 2**16)
        if not content:
            return
        *lines, buffer = (buffer + content).split(b"\n")
        for line in lines:
            kind, fields = json.loads(line)
            yield kind, fields


def _work(
    reader: Reader, cases: Sequence[Case], folder: Path, expected: object, target: int
) -> None:
    """Run cases in this process and report them."""
    warnings.simplefilter("ignore")  # of libraries, which are no errors for a user
    faulthandler.disable()  # a crash is reported as the outcome of its case
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    audit = Audit(folder)
    sys.addaudithook(audit)
    _limit_memory()
    problems = 0
    for case in cases:
        inputs = folder / case.name
        shutil.copytree(folder / "valid", inputs, symlinks=True)
        change = case.change(inputs)
        _report(target, "change", [change])
        outcome = Outcome(case.name, change, *judge(reader, inputs, expected, audit))
        _report(target, "outcome", list(outcome))
        if not outcome.problem:
            shutil.rmtree(inputs)
            continue
        problems += 1
        if problems == MAX_FINDINGS:
            return


def _report(target: int, kind: str, fields: list[str]) -> None:
    line = json.dumps([kind, fields]).encode() + b"\n"
    while line:
        line = line[os.write(target, line) :]


def _limit_memory() -> None:
    """Limit the memory of this process to what it has now and MEMORY."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def judge(reader: Reader, inputs: Path, expected: object, audit: "Audit") -> tuple[str, str]:
    """Read an input. Return a description of the result, and of the problem if there is one."""
    problem = ""
    audit.start(inputs)
    try:
        value = reader.read(inputs)
        audit.stop()
        result = f"accepted: {type(value).__name__}"
        problem = _judge_value(reader, value, expected)
    except reader.errors as error:
        result = f"{type(error).__name__}: {error}"
        problem = judge_message(error)
    except BaseException as error:
        result = type(error).__name__
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-4:]]
        problem = f"raw {type(error).__name__}: {str(error)[:300]} ({' > '.join(places)})"
    finally:
        audit.stop()
    if audit.events:
        problem = f"forbidden while reading: {'; '.join(audit.events[:3])}"
    if (inputs / CANARY).exists():
        problem = "a malicious input was executed: it wrote a file"
    return result[:MAX_MESSAGE], problem


def _judge_value(reader: Reader, value: object, expected: object) -> str:
    """Return the problem of a value that was accepted; empty if there is none."""
    try:
        reader.check(value, expected)
    except Exception as error:
        return f"accepted with a wrong result: {str(error) or repr(error)}"
    return ""


def judge_message(error: BaseException) -> str:
    """Return the problem of an error message; empty if it is one clear line."""
    message = displayed(str(error))
    if not message.strip():
        return "an error without a message"
    if len(message) > MAX_MESSAGE:
        return f"a message of {len(message)} characters: {message[:300]!r}"
    if "Traceback" in message:
        return f"a traceback in a message: {message[:300]!r}"
    if any(_is_memory_error(cause) for cause in _causes(error)):
        return f"more than {MEMORY:,} bytes requested for a small input: {message[:300]!r}"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it replaced."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _is_memory_error(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


class Audit:
    """An audit hook that refuses and records what reading an input must never do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = folder
        self.active = False
        self.events: list[str] = []

    def start(self, inputs: Path) -> None:
        """Begin to record; files may be written in `inputs` only."""
        self.inputs = inputs.resolve()
        self.events = []
        self.active = True

    def stop(self) -> None:
        """Stop recording."""
        self.active = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active:
            return
        self.active = False  # what this method does is no event
        try:
            reason = self._violation(event, args)
        finally:
            self.active = True
        if reason:
            self.events.append(f"{event} {reason}"[:300])
            raise PermissionError(f"refused by the hostile-input suite: {event}")

    def _violation(self, event: str, args: tuple[Any, ...]) -> str:
        """Return why an event is forbidden; empty if it is allowed."""
        if event.startswith(FORBIDDEN):
            return repr(args)
        if event == "import" and str(args[0]).startswith(CANARY):
            return repr(args[0])
        if event == "exec" and not _is_installed(args[0].co_filename):
            return args[0].co_filename
        if event == "open" and isinstance(args[2], int) and args[2] & WRITING:
            return self._outside(args[0])
        if event in CHANGES:
            paths = [path for path in args[:2] if isinstance(path, str | bytes | os.PathLike)]
            return "".join(self._outside(path, args[-1]) for path in paths)
        return ""

    def _outside(self, path: str | bytes | int, folder: object = None) -> str:
        """Return a path that is not below the input; empty for others.

        `folder` is the descriptor of the folder that the path is relative to, if there is one.
        """
        if isinstance(path, int):  # an open file
            return ""
        base = (
            Path(f"/proc/self/fd/{folder}") if isinstance(folder, int) and folder >= 0 else Path()
        )
        resolved = os.path.realpath(base / os.fsdecode(path))
        is_inside = Path(resolved).is_relative_to(self.inputs) or resolved == os.devnull
        return "" if is_inside else resolved


def _is_installed(filename: str) -> bool:
    return filename.startswith(("<frozen", *INSTALLED))
