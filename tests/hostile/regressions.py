"""Inputs that once failed, and attacks that must never succeed. They are written by code.

An entry is the name of a reader, a change of its valid input, and what the error says.
"""

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from .mutations import COMMAND, PAYLOADS

BLOCK = 2**20  # bytes of zeros that are compressed at once
BOMB = 3 * 2**30  # bytes after decompression


class Regression(NamedTuple):
    """An input and the message with which it is refused."""

    reader: str
    change: Callable[[Path], object]
    message: str  # a regular expression


def write_eps(folder: Path) -> None:
    """Name a PostScript file .png: Pillow would start Ghostscript to decode it."""
    path = folder / "data" / "red" / "000.png"
    Image.open(path).save(path.with_suffix(".eps"), "EPS")
    path.with_suffix(".eps").replace(path)


def png(width: int, height: int, *, depth: int = 8, rows: bytes = b"") -> bytes:
    """Return a PNG file in RGB with any declared size."""
    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks:
        content += struct.pack(">I", len(data)) + kind + data
        content += struct.pack(">I", zlib.crc32(kind + data))
    return content


def write_image(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "data" / "red" / "000.png").write_bytes(content)


def truncate_image(folder: Path) -> None:
    """Cut the pixels: the header is intact, so the file was accepted until it was decoded."""
    path = folder / "data" / "blue" / "1.bmp"
    path.write_bytes(path.read_bytes()[:-100])


def write_pickle(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)


def deflated_zeros(size: int, wbits: int) -> bytes:
    """Return the compressed form of many zeros, without compressing all of them."""
    stream = zlib.compressobj(9, zlib.DEFLATED, wbits)
    start = stream.compress(bytes(BLOCK)) + stream.flush(zlib.Z_FULL_FLUSH)
    block = stream.compress(bytes(BLOCK)) + stream.flush(zlib.Z_FULL_FLUSH)
    return start + block * (size // BLOCK) + stream.flush()


def write_gzip_bomb(folder: Path) -> None:
    path = folder / "emnist" / "emnist-digits-train-images-idx3-ubyte.gz"
    path.write_bytes(deflated_zeros(BOMB, 16 + zlib.MAX_WBITS))


def write_matlab_bomb(folder: Path) -> None:
    path = folder / "svhn" / "train_32x32.mat"
    bomb = deflated_zeros(BOMB, zlib.MAX_WBITS)
    path.write_bytes(path.read_bytes()[:128] + struct.pack("<II", 15, len(bomb)) + bomb)


def crash_scipy(folder: Path) -> None:
    """Declare an unknown type of values: scipy.io.loadmat ended the process."""
    path = folder / "svhn" / "test_32x32.mat"
    content = bytearray(path.read_bytes())
    content[185] = 255  # in the type of the values of X
    path.write_bytes(content)


def write_npz_bomb(folder: Path) -> None:
    """Write an array that is 1,000 times as large as the file."""
    header = io.BytesIO()
    description = {"descr": "|u1", "fortran_order": False, "shape": (BOMB // BLOCK, BLOCK)}
    np.lib.format.write_array_header_1_0(header, description)
    with zipfile.ZipFile(folder / "data", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as file:
            file.write(header.getvalue())
            for _ in range(BOMB // BLOCK):
                file.write(bytes(BLOCK))
        labels = io.BytesIO()
        np.save(labels, np.zeros(BOMB // BLOCK, np.int64))
        archive.writestr("y.npy", labels.getvalue())


def write_npz_with_false_shape(folder: Path) -> None:
    """Claim a shape of 8 TB for a few bytes."""
    with zipfile.ZipFile(folder / "data") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["x.npy"] = members["x.npy"].replace(b"(12, 5), }      ", b"(999999999999,)}")
    with zipfile.ZipFile(folder / "data", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def write_false_characters(folder: Path) -> None:
    """Write labels whose characters do not exist: converting them was a SystemError."""
    labels = np.frombuffer(np.full(4, 2**31, np.uint32).tobytes(), "<U2")
    with open(folder / "data", "wb") as file:
        np.savez(file, x=np.zeros((2, 3)), y=labels)


def write_objects(folder: Path) -> None:
    """Save Python objects, which only pickle can read."""
    with open(folder / "data", "wb") as file:
        np.savez(file, x=np.array([{}, []], dtype=object), y=np.arange(2))


def replace_text(name: str, old: str, new: str) -> Callable[[Path], object]:
    """Return a change that replaces a text in a file."""

    def change(folder: Path) -> None:
        path = folder / name
        text = path.read_text()
        assert old in text, text
        path.write_text(text.replace(old, new))

    return change


def make_pipe(name: str) -> Callable[[Path], object]:
    """Return a change that replaces a file by a pipe, from which nobody reads or writes."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def link_to_zeros(folder: Path) -> None:
    (folder / "data").unlink()
    (folder / "data").symlink_to("/dev/zero")


def edit_weight(folder: Path) -> None:
    """Change one bit of a weight in the newest checkpoint."""
    path = folder / "run" / "checkpoint" / "server-2.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def execute_by_toml(folder: Path) -> None:
    """Name a module next to the file as the model, which creates a file when it is imported."""
    (folder / "hostile_canary.py").write_text(f"import os\nos.system({COMMAND!r})\n")
    path = folder / "experiment.toml"
    path.write_text('model = "hostile_canary:Model"\n')


REGRESSIONS: dict[str, Regression] = {
    "EPS named PNG": Regression("image folder", write_eps, "its content has none of the formats"),
    "169 megapixels": Regression(
        "image folder", write_image(png(13_000, 13_000)), "13000x13000 pixels, more than"
    ),
    "4 gigapixels": Regression("image folder", write_image(png(65_535, 65_535)), "exceeds limit"),
    "16 bits": Regression(
        "image folder",
        write_image(png(20, 20, depth=16, rows=bytes(20 * 121))),
        "more than 8 bits per channel",
    ),
    "truncated image": Regression("image folder", truncate_image, "not a readable image"),
    "name that controls a terminal": Regression(
        "image folder",
        lambda folder: (folder / "data" / "red").rename(folder / "data" / "\x1b[2Jred"),
        "names must be printable",
    ),
    **{
        f"pickle {k}": Regression("cifar10", write_pickle(payload), "is not a CIFAR file")
        for k, payload in enumerate(PAYLOADS)
    },
    "pickle that reserves memory": Regression(
        "cifar10", write_pickle(b"\x80\x02}r\xff\xff\xff\x7f."), "under the number 2147483647"
    ),
    "gzip bomb": Regression("emnist", write_gzip_bomb, "more than .* bytes after decompression"),
    "pipe as IDX file": Regression(
        "mnist", make_pipe("mnist/train-labels-idx1-ubyte"), "a pipe or device"
    ),
    "MATLAB bomb": Regression("svhn", write_matlab_bomb, "more than .* bytes after decompression"),
    "MATLAB file that crashed SciPy": Regression("svhn", crash_scipy, "is not a MATLAB file"),
    "pipe as MATLAB file": Regression(
        "svhn", make_pipe("svhn/train_32x32.mat"), "a pipe or device"
    ),
    "npz bomb": Regression("npz of images", write_npz_bomb, "factor of at most 100"),
    "npz with a false shape": Regression("npz", write_npz_with_false_shape, "has only .* bytes"),
    "npz with numbers that are no characters": Regression(
        "npz", write_false_characters, "no characters of Unicode"
    ),
    "npz of objects": Regression("npz", write_objects, "holds Python objects"),
    "/dev/zero as a table": Regression("csv", link_to_zeros, "a pipe or device"),
    "underscore in a number": Regression("csv", replace_text("data", "\n50,", "\n5_0,"), "'5_0'"),
    "column that controls a terminal": Regression(
        "moonfl partition", replace_text("data", "ill", "\x1b[2J"), "names must be printable"
    ),
    "long line in annotations": Regression(
        "tiny-imagenet",
        replace_text("tiny-imagenet-200/val/val_annotations.txt", "n00000001", "x" * 100_000),
        "no class of the train folder",
    ),
    "code named by TOML": Regression("experiment", execute_by_toml, "add --trust"),
    "pipe as exported model": Regression(
        "exported model", make_pipe("model.safetensors"), "a pipe or device"
    ),
    "pipe as state of a site": Regression(
        "site state", make_pipe("party-0-round-1.safetensors"), "a pipe or device"
    ),
    "changed weight": Regression("checkpoint", edit_weight, "is damaged"),
    "changed weight, export": Regression("model of a run", edit_weight, "is damaged"),
}
