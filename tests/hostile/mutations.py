"""Changes of valid inputs: of bytes, of text, of the structure of known formats, and of files.

`mutate` changes an input folder with a seeded generator. A format is recognised by its content, so
that a new reader of a known format needs nothing here.
"""

import gzip
import io
import json
import os
import pickle
import random
import re
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from .harness import CANARY

Change = Callable[[bytes, random.Random], bytes]
INTEGERS = (0, 1, 2**15 - 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
TEXTS = (
    "",
    "-1",
    "0",
    "nan",
    "-inf",
    "1e999",
    "1e38",
    "99999999999999999999",
    "4294967296",
    "0x10",
    "1_000",
    "true",
    "null",
    "[]",
    "{}",
    '"',
    "'",
    "\\",
    "\x00",
    "\x1b[2J",
    "\r\n",
    "\u2028",
    "\u202e",
    "=cmd|'/c calc'!A0",
    "<script>alert(1)</script>",
    "../../../../etc/passwd",
    "/dev/zero",
    "~nobody",
    f"{CANARY}:Model",
    "os:system",
    "x" * 100_000,
    "[" * 100_000,
    "9" * 5000,
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    10**30,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\x00",
    "\x1b[2J\n",
    "../../x",
    "/dev/zero",
    f"{CANARY}:Model",
    "os:system",
    "x" * 10_000,
    [],
    [[]],
    [1, 2, 3],
    {},
    {"a": 1},
)
FORMAT_WEIGHT = 8  # how often a format is changed for each change of bytes
NAMES = ("a\nb.png", "\x1b[2J", "-rf", "..%2f", "x" * 200, "a.eps", "a,b", "=1+1", "\u202egnp.exe")
COMMAND = f"touch {CANARY}"


class Payload:
    """An object whose pickle executes a command when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (COMMAND,)


PAYLOADS = (
    pickle.dumps(Payload(), protocol=0),
    pickle.dumps(Payload(), protocol=2),
    pickle.dumps({b"data": Payload()}, protocol=4),
    b"cbuiltins\nexec\n(S'import os; os.system(\"" + COMMAND.encode() + b"\")'\ntR.",
    b"\x80\x04\x8c" + bytes([len(CANARY)]) + CANARY.encode() + b"\x8c\x01x\x93.",
    b"c_codecs\nencode\n(Vx\nVhex\ntR.",
    b"cnumpy\nndarray\n((I99999999999\ntR.",
    b"(" + b"lp0\n" * 50_000 + b".",
)


def mutate(folder: Path, rng: random.Random) -> str:
    """Change one file of an input, and sometimes a second one; return a description."""
    description = _mutate_file(folder, rng, changes_of)
    if rng.random() < 0.15:
        description += ", " + _mutate_file(folder, rng, lambda content: BYTE_CHANGES)
    return description


def _mutate_file(folder: Path, rng: random.Random, choices: Callable[[bytes], list[Change]]) -> str:
    """Change one file in one way; `choices` returns the changes that suit a content."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if not files:
        return "no file left"
    path = rng.choice(files)
    name = path.relative_to(folder)
    if rng.random() < 0.06:
        change_file = rng.choice(FILE_CHANGES)
        change_file(path, rng)
        return f"{change_file.__name__} {name}"
    content = path.read_bytes()
    change = rng.choice(choices(content))
    path.write_bytes(change(content, rng))
    return f"{change.__name__} {name}"


def changes_of(content: bytes) -> list[Change]:
    """Return the changes that suit the content of a file; its format counts most."""
    for is_format, changes in FORMATS:
        if is_format(content):
            return [*changes * FORMAT_WEIGHT, *BYTE_CHANGES]
    try:
        content.decode()
    except UnicodeDecodeError:
        return BYTE_CHANGES
    return [*TEXT_CHANGES, *BYTE_CHANGES]


# Bytes


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 2, 8, 32))):
        data[_position(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(data)


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: _position(content, rng)]


def drop_bytes(content: bytes, rng: random.Random) -> bytes:
    start, end = _section(content, rng)
    return content[:start] + content[end:]


def repeat_bytes(content: bytes, rng: random.Random) -> bytes:
    start, end = _section(content, rng)
    return content[:end] + content[start:end] * rng.choice((1, 2, 50)) + content[end:]


def swap_bytes(content: bytes, rng: random.Random) -> bytes:
    start, end = _section(content, rng)
    return content[end:] + content[start:end] + content[:start]


def overwrite_integer(content: bytes, rng: random.Random) -> bytes:
    """Write an extreme integer, as in a header that declares a huge size."""
    size, code = rng.choice(((1, "B"), (2, "H"), (4, "I"), (8, "Q")))
    value = rng.choice(INTEGERS) & (2 ** (8 * size) - 1)
    packed = struct.pack(rng.choice("<>") + code, value)
    start = _position(content, rng)
    return content[:start] + packed + content[start + size :]


def overwrite_bytes(content: bytes, rng: random.Random) -> bytes:
    start, end = _section(content, rng)
    filler = rng.choice((b"\x00", b"\xff", b"\x80", b"("))
    return content[:start] + filler * (end - start) + content[end:]


def insert_bytes(content: bytes, rng: random.Random) -> bytes:
    start = _position(content, rng)
    return content[:start] + rng.randbytes(rng.choice((1, 4, 100))) + content[start:]


def replace_by_payload(content: bytes, rng: random.Random) -> bytes:
    return rng.choice(PAYLOADS)


def empty(content: bytes, rng: random.Random) -> bytes:
    return b""


def _position(content: bytes | bytearray, rng: random.Random) -> int:
    """Return a position; half of the time in the first bytes, where headers are."""
    limit = max(1, len(content))
    return rng.randrange(min(limit, 128) if rng.random() < 0.5 else limit)


def _section(content: bytes, rng: random.Random) -> tuple[int, int]:
    start = _position(content, rng)
    return start, min(len(content), start + rng.choice((1, 4, 16, 256, 4096)))


# Text


def replace_token(content: bytes, rng: random.Random) -> bytes:
    """Replace a number or word."""
    text = content.decode()
    tokens = list(re.finditer(r"[\w.+-]+", text)) or [re.match("", text)]
    token = rng.choice(tokens)
    assert token is not None
    return (text[: token.start()] + rng.choice(TEXTS) + text[token.end() :]).encode()


def insert_text(content: bytes, rng: random.Random) -> bytes:
    text = content.decode()
    start = _position(text.encode(), rng)
    return (text[:start] + rng.choice(TEXTS) + text[start:]).encode()


def shuffle_lines(content: bytes, rng: random.Random) -> bytes:
    """Drop, repeat or exchange lines."""
    lines = content.splitlines(keepends=True) or [b""]
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(3)
    if kind == 0:
        del lines[first]
    elif kind == 1:
        lines.insert(second, lines[first])
    else:
        lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


def encode_otherwise(content: bytes, rng: random.Random) -> bytes:
    encoding = rng.choice(("utf-16", "utf-32", "utf-8-sig", "utf-7"))
    return content.decode().encode(encoding)


# JSON, TOML and safetensors: values at any place


def _replace_value(values: Any, rng: random.Random) -> Any:
    """Replace, remove, repeat or add a value somewhere in nested values."""
    places = list(_places(values))
    if not places:
        return rng.choice(VALUES)
    container, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, list):
        container.extend([container[key]] * rng.choice((1, 3, 1000)))
    elif kind == 1:
        container[rng.choice(("", "x", "\x1b", "__class__", str(key).upper()))] = container[key]
    elif kind == 2 and isinstance(container[key], str):
        container[key] = rng.choice(TEXTS)
    else:
        container[key] = rng.choice(VALUES)
    return values


def _places(values: Any) -> list[tuple[Any, Any]]:
    """Return the container and key of every value."""
    items: list[tuple[Any, Any]] = []
    if isinstance(values, dict):
        items = list(values.items())
    elif isinstance(values, list):
        items = list(enumerate(values))
    places = [(values, key) for key, _ in items]
    for _, value in items:
        places += _places(value)
    return places


def edit_json(content: bytes, rng: random.Random) -> bytes:
    """Replace a value; a file with several lines has one JSON text on each."""
    lines = content.splitlines() or [b"{}"]
    number = rng.randrange(len(lines))
    lines[number] = json.dumps(_replace_value(json.loads(lines[number]), rng)).encode()
    return b"\n".join(lines) + b"\n"


def edit_toml(content: bytes, rng: random.Random) -> bytes:
    values = _replace_value(tomllib.loads(content.decode()), rng)
    try:
        return tomli_w.dumps(values).encode()
    except (TypeError, AttributeError):  # TOML has no null
        return replace_token(content, rng)


def edit_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Replace a value in the header, or in the JSON text that moonfl stores in it."""
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    metadata = header.get("__metadata__", {})
    if "moonfl" in metadata and rng.random() < 0.6:
        metadata["moonfl"] = edit_json(metadata["moonfl"].encode(), rng).decode()
    else:
        header = _replace_value(header, rng)
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + content[8 + size :]


# Archives and arrays


def edit_zip(content: bytes, rng: random.Random) -> bytes:
    """Change, rename, drop or repeat a member of an archive whose checksums stay correct."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    if not members:
        return content
    number = rng.randrange(len(members))
    name, data = members[number]
    kind = rng.randrange(8)
    if kind == 0:
        del members[number]
    elif kind == 1:
        members.append((name, rng.choice(members)[1]))
    elif kind == 2:
        members[number] = (rng.choice(("y.npy", "x", "../x.npy", "\x1b.npy", "classes.npy")), data)
    else:
        members[number] = (name, rng.choice(changes_of(data))(data, rng))
    file = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(file, "w", method) as archive:
        for member, data in members:
            archive.writestr(zipfile.ZipInfo(member), data, method)
    return file.getvalue()


def edit_npy(content: bytes, rng: random.Random) -> bytes:
    """Change the header of an .npy file: its shape, order or dtype."""
    size = struct.unpack("<H", content[8:10])[0]
    header = content[10 : 10 + size].decode("latin1")
    if rng.random() < 0.5:
        shapes = ("(-1,)", "(0,)", "()", "(99999999999, 9)", "(2, 3)", "(1,)", "(True,)", "(1e9,)")
        header = re.sub(r"\([^)]*\)", rng.choice(shapes), header, count=1)
    else:
        dtypes = ("|O", "<f8", ">f4", "<U99999", "|V8", "<M8[s]", "<c16", "|b1", "<f2", "|S4")
        header = re.sub(r"'[<>|=][^']*'", f"'{rng.choice(dtypes)}'", header, count=1)
    encoded = header.encode("latin1")
    data = rng.choice((content[10 + size :], content[10 + size :], rng.choice(PAYLOADS)))
    return content[:8] + struct.pack("<H", len(encoded)) + encoded + data


def edit_gzip(content: bytes, rng: random.Random) -> bytes:
    """Change what a file contains after decompression."""
    data = gzip.decompress(content)
    return gzip.compress(rng.choice(changes_of(data))(data, rng), mtime=0)


def edit_matlab(content: bytes, rng: random.Random) -> bytes:
    """Change a variable of a MATLAB file, which is compressed."""
    start = 128
    variables = []
    while start + 8 <= len(content):
        kind, size = struct.unpack("<II", content[start : start + 8])
        variables.append((kind, content[start + 8 : start + 8 + size]))
        start += 8 + size
    number = rng.randrange(len(variables))
    kind, data = variables[number]
    if kind == MATLAB_COMPRESSED:
        data = zlib.compress(rng.choice(BYTE_CHANGES)(zlib.decompress(data), rng))
    variables[number] = (kind, data)
    parts = [struct.pack("<II", kind, len(data)) + data for kind, data in variables]
    return content[:128] + b"".join(parts)


def insert_payload(content: bytes, rng: random.Random) -> bytes:
    """Insert opcodes that execute a command between those of a valid pickle."""
    start = rng.choice([match.start() for match in re.finditer(b"[(q.]", content)])
    return content[:start] + rng.choice(PAYLOADS)[:-1] + content[start:]


def _is_json(content: bytes) -> bool:
    try:
        return all(isinstance(json.loads(line), dict) for line in content.splitlines())
    except (ValueError, RecursionError):
        return False


def _is_toml(content: bytes) -> bool:
    try:
        return bool(tomllib.loads(content.decode()))
    except (ValueError, RecursionError):
        return False


def _is_safetensors(content: bytes) -> bool:
    size = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else len(content)
    return size < len(content) and _is_json(content[8 : 8 + size])


def _is_zip(content: bytes) -> bool:
    if not content.startswith(b"PK"):
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except Exception:  # an earlier change damaged it
        return False


def _is_gzip(content: bytes) -> bool:
    try:
        return content.startswith(b"\x1f\x8b") and bool(gzip.decompress(content))
    except (OSError, EOFError, zlib.error):
        return False


def _is_matlab(content: bytes) -> bool:
    return content.startswith(b"MATLAB 5.0") and len(content) > 136


def _is_pickle(content: bytes) -> bool:
    return content.startswith(b"\x80") and content.endswith(b".")


def _is_npy(content: bytes) -> bool:
    return content.startswith(b"\x93NUMPY\x01") and len(content) > 128


# Files


def remove(path: Path, rng: random.Random) -> None:
    path.unlink()


def make_pipe(path: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def make_folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def make_link(path: Path, rng: random.Random) -> None:
    """Replace a file by a link to a device, to nothing, or to itself."""
    path.unlink()
    path.symlink_to(rng.choice(("/dev/zero", "nothing", path.name)))


def rename(path: Path, rng: random.Random) -> None:
    path.rename(path.with_name(rng.choice(NAMES) + path.suffix))


def exchange(path: Path, rng: random.Random) -> None:
    """Replace the content by that of another file."""
    others = sorted(other for other in path.parent.iterdir() if other.is_file())
    path.write_bytes(rng.choice(others).read_bytes())


MATLAB_COMPRESSED = 15  # the type of a compressed element
BYTE_CHANGES: list[Change] = [
    flip_bits,
    truncate,
    drop_bytes,
    repeat_bytes,
    swap_bytes,
    overwrite_integer,
    overwrite_bytes,
    insert_bytes,
    replace_by_payload,
    empty,
]
TEXT_CHANGES: list[Change] = [
    replace_token,
    replace_token,
    insert_text,
    shuffle_lines,
    encode_otherwise,
]
FORMATS: list[tuple[Callable[[bytes], bool], list[Change]]] = [
    (_is_zip, [edit_zip]),
    (_is_npy, [edit_npy]),
    (_is_gzip, [edit_gzip]),
    (_is_matlab, [edit_matlab]),
    (_is_safetensors, [edit_safetensors]),
    (_is_pickle, [insert_payload]),
    (_is_json, [edit_json, *TEXT_CHANGES[1:]]),
    (_is_toml, [edit_toml, *TEXT_CHANGES[1:]]),
]
FILE_CHANGES: list[Callable[[Path, random.Random], None]] = [
    remove,
    make_pipe,
    make_folder,
    make_link,
    rename,
    exchange,
]
