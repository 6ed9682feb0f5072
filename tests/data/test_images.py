"""Tests of image files: formats, depth, orientation, size, and files that are damaged."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image, ImageOps

import moonfl
from helpers.equality import same
from helpers.interruption import results_of
from helpers.problems import write_images
from moonfl import Experiment
from moonfl.cli import main
from moonfl.data.base import Reading
from moonfl.data.folder import read_folder
from moonfl.data.images import MAX_PIXELS
from moonfl.errors import InputError, RunError
from moonfl.runs.schema import RoundRecord

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n"


def png_of_16_bits() -> bytes:
    """Return a PNG file of 4x4 RGB pixels with 16 bits per channel."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    rows = (b"\0" + bytes(4 * 6)) * 4
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def tiff_of_16_bits() -> bytes:
    """Return a TIFF file of 4x4 RGB pixels with 16 bits per channel."""
    pixels = bytes(4 * 4 * 6)
    bits = struct.pack("<HHH", 16, 16, 16)
    short, long = 3, 4
    tags = [
        (256, short, 1, 4),  # width
        (257, short, 1, 4),  # height
        (258, short, 3, 8),  # bits per sample, at offset 8
        (259, short, 1, 1),  # no compression
        (262, short, 1, 2),  # RGB
        (273, long, 1, 14),  # the pixels, at offset 14
        (277, short, 1, 3),  # samples per pixel
        (278, short, 1, 4),  # rows per strip
        (279, long, 1, len(pixels)),
    ]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    start = 14 + len(pixels)
    header = b"II*\0" + struct.pack("<I", start)
    return header + bits + pixels + struct.pack("<H", len(tags)) + entries + bytes(4)


def write_image(folder: Path, name: str, content: bytes) -> Path:
    """Write an image file of class `a` and return the folder of the dataset."""
    (folder / "a").mkdir(parents=True, exist_ok=True)
    (folder / "a" / name).write_bytes(content)
    return folder


def test_a_file_of_another_format_does_not_start_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow decodes EPS with Ghostscript, whatever the extension of the file is."""
    started = tmp_path / "started"
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {started}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(ghostscript.parent), prepend=os.pathsep)
    folder = write_image(tmp_path / "images", "z.png", EPS)
    with pytest.raises(InputError, match=r"z\.png is not a readable image: .*none of .*PNG, JPEG"):
        read_folder(folder, Reading()).train.x[torch.tensor([0])]
    assert not started.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("scan.png", png_of_16_bits()),
        ("scan.tif", tiff_of_16_bits()),
        ("scan.ppm", b"P6 4 4 65535\n" + bytes(4 * 4 * 6)),
        ("scan.pgm", b"P5 4 4 4095\n" + bytes(4 * 4 * 2)),
    ],
    ids=["png", "tif", "ppm", "pgm"],
)
def test_pixels_of_16_bits_are_refused_in_colour_too(
    name: str, content: bytes, tmp_path: Path
) -> None:
    folder = write_image(tmp_path, name, content)
    with pytest.raises(InputError, match="more than 8 bits per channel; scale them"):
        read_folder(folder, Reading())


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.bmp", "a.gif", "a.tif", "a.webp", "a.ppm"])
def test_every_listed_format_is_read(name: str, tmp_path: Path) -> None:
    image = Image.new("RGB", (6, 4), (200, 10, 10))
    (tmp_path / "a").mkdir()
    image.save(tmp_path / "a" / name)
    pixels = read_folder(tmp_path, Reading()).train.x[torch.tensor([0])]
    expected = torch.tensor([200.0, 10.0, 10.0]).view(3, 1, 1)
    assert (pixels[0].float() - expected).abs().max() < 10


@pytest.mark.parametrize("suffix", ["png", "tif", "jpg", "webp"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 7, 0, 99])
def test_images_are_upright(suffix: str, orientation: int, tmp_path: Path) -> None:
    """A photo is often stored lying on its side, with its orientation in the EXIF data."""
    image = Image.fromarray(np.arange(48, dtype=np.uint8).repeat(3).reshape(6, 8, 3))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    path = tmp_path / "a" / f"photo.{suffix}"
    path.parent.mkdir()
    image.save(path, exif=exif)
    with Image.open(path) as stored:
        upright = np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))
    assert upright.shape == ((8, 6, 3) if orientation in (6, 7) else (6, 8, 3))
    x = read_folder(tmp_path, Reading()).train.x
    assert x.shape == (1, 3, *upright.shape[:2])
    assert np.array_equal(x[torch.tensor([0])][0].permute(1, 2, 0).numpy(), upright)


@pytest.mark.parametrize("mode", ["L", "P", "RGB", "RGBA"])
@pytest.mark.parametrize(("orientation", "turns"), [(3, 2), (6, 3), (8, 1)])
def test_the_pixels_of_a_turned_tiff_are_those_of_the_file(
    mode: str, orientation: int, turns: int, tmp_path: Path
) -> None:
    """Pillow maps uncompressed files into memory, with the height and width of the wrong side."""
    shape = (20, 30, len(mode)) if len(mode) > 1 else (20, 30)
    stored = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    image = Image.fromarray(stored).convert(mode)
    (tmp_path / "a").mkdir()
    image.save(tmp_path / "a" / "scan.tif", tiffinfo={ExifTags.Base.Orientation: orientation})
    grey = stored[:, :, None].repeat(3, axis=2) if len(mode) == 1 else stored[:, :, :3]
    x = read_folder(tmp_path, Reading()).train.x
    assert np.array_equal(x[torch.tensor([0])][0].permute(1, 2, 0).numpy(), np.rot90(grey, turns))


def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L", (MAX_PIXELS // 1024 + 1, 1024)).save(tmp_path / "a" / "large.png")
    with pytest.raises(InputError, match=r"large\.png has 65537x1024 pixels, more than 67,108,864"):
        read_folder(tmp_path, Reading(image_size=32))


def test_folders_and_pipes_in_a_class_folder_are_refused(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images")
    os.mkfifo(folder / "red" / "pipe.png")
    with pytest.raises(InputError, match=r"pipe\.png cannot be read: it is a pipe or device"):
        read_folder(folder, Reading())
    (folder / "red" / "pipe.png").unlink()
    deep = write_images(tmp_path / "deep", ("north",))
    (deep / "north" / "red" / "more").mkdir()
    with pytest.raises(InputError, match="more is a folder in a class folder"):
        read_folder(deep, Reading())


def image_run(folder: Path) -> Experiment:
    """Return a run of two rounds with the images of a folder."""
    return Experiment(
        dataset="folder",
        data_dir=str(folder),
        model="mlp",
        partition="column",
        column="party",
        rounds=2,
        epochs=1,
        out_dim=8,
    )


def write_noise(path: Path) -> Path:
    """Write an image whose header is intact if half of the file is missing."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def truncate(path: Path) -> bytes:
    """Cut an image file in half and return what it was."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return content


@pytest.mark.parametrize("out", ["run", None])
def test_a_truncated_image_is_found_before_the_first_round(out: str | None, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", ("north", "south"))
    truncate(write_noise(folder / "south" / "red" / "003.png"))
    directory = None if out is None else tmp_path / out
    with pytest.raises(
        InputError, match=r"south/red/003\.png is not a readable image: .*truncated"
    ):
        moonfl.run(image_run(folder), directory, workers=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_resumes_after_an_image_that_was_damaged_meanwhile_is_repaired(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonfl.data.images.CACHE_BYTES", 0)
    folder = write_images(tmp_path / "images", ("north", "south"))
    path = write_noise(folder / "north" / "blue" / "002.png")
    exp = image_run(folder)
    expected = moonfl.run(exp, workers=workers)
    contents = []

    def damage(record: RoundRecord) -> None:
        contents.append(truncate(path))

    with pytest.raises(RunError, match=r"002\.png is not a readable image: .*restore the file"):
        moonfl.run(exp, tmp_path / "run", workers=workers, watch=damage)
    with pytest.raises(InputError, match=r"002\.png is not a readable image"):
        moonfl.resume(tmp_path / "run", workers=workers)
    path.write_bytes(contents[0])
    result = moonfl.resume(tmp_path / "run", workers=workers)
    assert len(result.rounds) == 2
    assert same(results_of(result), results_of(expected))


def test_the_command_line_says_how_to_resume_after_the_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("moonfl.data.images.CACHE_BYTES", 0)
    folder = write_images(tmp_path / "images", ("north", "south"))
    path = write_noise(folder / "north" / "blue" / "002.png")

    def damage(progress: object, record: RoundRecord) -> None:
        truncate(path)

    monkeypatch.setattr("moonfl.runs.progress.Progress.__call__", damage)
    words = ["dataset=folder", f"data_dir={folder}", "column=party", "model=mlp"]
    out = str(tmp_path / "run")
    assert main(["run", *words, "rounds=2", "epochs=1", "--out", out, "--workers", "1"]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert "002.png is not a readable image" in message
    assert f"`moonfl resume {out}` resumes from the last finished round" in message
