"""Datasets of the Hugging Face hub, and files that its library `datasets` reads or has saved.

The library is the extra `moonfl[hub]`; only this file imports it. Formats that can execute code,
such as dataset scripts and pickles, are not read. Files are read without the network.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import InputError, RunError, first_line, notify, unknown
from .augment import default_preparation
from .base import Dataset, Examples, Reading
from .columns import rules_of
from .folder import EXTENSIONS
from .images import Cache, EncodedImage, Images, common_size
from .locations import check_file
from .tables import (
    Table,
    check_columns,
    check_ignored,
    column_names,
    dataset_of_tables,
    group_columns,
    labels_of,
)
from .targets import CLASSIFICATION

FORMATS = {  # builders of `datasets` that are used, and the extensions of their files
    "csv": (".csv", ".tsv"),
    "json": (".json", ".jsonl"),
    "parquet": (".parquet",),
    "arrow": (".arrow",),
    "imagefolder": tuple(sorted(EXTENSIONS)),
}
METADATA = ["metadata.csv", "metadata.jsonl", "metadata.parquet"]  # tables of an image folder
CACHED = "cache"  # the builder of a dataset that was downloaded before
TEST_SPLITS = ("test", "validation", "valid", "val", "dev")  # the first of them is the test set
HUB_NAME = re.compile(r"((?:[\w.-]+/)?[\w.-]+)(?:@([\w./-]+))?")  # owner/name@revision
TIMEOUT = 20  # seconds until the hub must have answered the first request
CELL = re.compile(r"u?int\d+|float\d+|bool|(large_)?string|decimal\d+\(.*\)")  # types of columns
Splits = Mapping[str, Any]  # name -> datasets.Dataset


class Roles(NamedTuple):
    """What the columns of a dataset are used for."""

    labels: tuple[str, ...]  # the column of the classes; of another task, those of the targets
    groups: list[str]  # the columns of parties, and of samples that are held out together
    image: str | None  # None: the samples are rows of a table
    features: list[str]  # of a table


@dataclass(frozen=True, eq=False)
class ImageCell:
    """An encoded image in a column of a table. The table stays on disk."""

    column: Any  # pyarrow.ChunkedArray of binary values
    row: int
    table: Path

    def read_bytes(self) -> bytes:
        """Return the encoded image."""
        content: bytes = self.column[self.row].as_py()
        return content

    def __str__(self) -> str:
        return f"{self.table}, row {self.row}"


def read_hub(path: Path, reading: Reading) -> Dataset:
    """Read the dataset in a folder or file, or the one that has this name on the hub."""
    library = _import_library()
    splits = _read_splits(library, path, reading)
    train, *tests = _choose_splits(path, splits)
    features = splits[train].features
    reading = _with_label(library, path / train, features, reading)
    roles = _assign_roles(library, path / train, features, reading)
    tables = []
    for name in (train, *tests):
        _check_split(path / name, splits[name], roles)
        tables.append(_text_table(library, path / name, splits[name], roles))
    if roles.image is None:
        return dataset_of_tables(tables, reading)
    if rules_of(reading).encodes or reading.categorical:
        raise InputError(
            f"impute, encode and categorical are for tables, and {path} has images in its column "
            f"'{roles.image}'; remove these settings"
        )
    folders = _image_folders(library, path)
    images = [
        _encoded_images(path / name, splits[name], roles.image, folders) for name in (train, *tests)
    ]
    return _image_dataset(tables, images, roles, reading)


def _import_library() -> Any:
    """Import the library `datasets`."""
    try:
        import datasets
    except ImportError:
        raise InputError(
            "dataset=hub needs the library datasets; install it with `pip install 'moonfl[hub]'`"
        ) from None
    return datasets


@contextlib.contextmanager
def _library_errors(path: Path) -> Iterator[None]:
    """Turn errors of the library while it reads `path` into an InputError of one line."""
    try:
        yield
    except (InputError, RunError):
        raise
    except Exception as error:  # a damaged file raises nearly anything
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise InputError(
            f"{path} cannot be read with the library datasets: {type(cause).__name__}: "
            f"{first_line(cause)}"
        ) from None


def _read_splits(library: Any, path: Path, reading: Reading) -> Splits:
    """Return the splits of a dataset by name; large columns stay on disk."""
    if not os.path.exists(path):  # unlike Path.exists it accepts impossible names
        return _read_from_hub(library, str(path), reading.subset)
    if reading.subset is not None:
        raise InputError(
            f"subset={reading.subset} is for datasets of the hub, and {path} is a folder or file; "
            "remove subset"
        )
    with _library_errors(path), _without_progress(library):
        for file in _files(path):
            check_file(file)
        if path.is_dir() and _is_saved(path):
            _check_saved(path)
            saved = library.load_from_disk(str(path.resolve()), keep_in_memory=False)
            return saved if isinstance(saved, dict) else {"train": saved}
        return _read_files(library, path)


def _files(path: Path) -> list[Path]:
    """Return all files below a folder, or the one file."""
    if not path.is_dir():
        return [path]
    return [Path(folder) / name for folder, _, names in os.walk(path) for name in names]


def _is_saved(folder: Path) -> bool:
    """Return True if `save_to_disk` wrote this folder."""
    is_single = (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    return is_single or (folder / "dataset_dict.json").is_file()


def _check_saved(folder: Path) -> None:
    """Check that what `save_to_disk` wrote names files of its own folder only."""
    names: list[str] = []
    if (folder / "dataset_dict.json").is_file():
        names += json.loads((folder / "dataset_dict.json").read_bytes())["splits"]
    for state in folder.rglob("state.json"):
        names += [entry["filename"] for entry in json.loads(state.read_bytes())["_data_files"]]
    for name in names:
        if name in ("", "..") or Path(name).name != name:
            raise InputError(f"{folder} names the file {name}, which is not in the folder")


@contextlib.contextmanager
def _without_progress(library: Any) -> Iterator[None]:
    """Hide the progress bars of the library, unless the user has hidden them for good."""
    are_hidden = library.are_progress_bars_disabled()
    library.disable_progress_bars()
    try:
        yield
    finally:
        if not are_hidden:
            library.enable_progress_bars()


def _read_files(library: Any, path: Path) -> Splits:
    """Read a file, or all files of a folder; their names determine the split."""
    builder = _builder_name(path)
    files: Any = {"train": [str(path.resolve())]}
    if path.is_dir():
        folder = str(path.resolve())
        patterns = library.data_files.get_data_patterns(folder)
        data_files = library.data_files.DataFilesDict.from_patterns(patterns, base_path=folder)
        names = METADATA if builder == "imagefolder" else []
        files = data_files.filter(extensions=list(FORMATS[builder]), file_names=names)
    splits: Splits = library.load_dataset(builder, data_files=files)
    return splits


def _builder_name(path: Path) -> str:
    """Return the builder for the files of a folder, or for one file, by their extensions."""
    formats = {extension: name for name in FORMATS for extension in FORMATS[name]}
    extensions = [file.suffix.lower() for file in _files(path) if file.name not in METADATA]
    names = {formats[extension] for extension in extensions if extension in formats}
    if not names:
        raise InputError(
            f"{path} has no files that dataset=hub reads; they are images, or have the extension "
            f"{', '.join(sorted(set(formats) - EXTENSIONS))}, or were written by save_to_disk"
        )
    if len(names) > 1:
        raise InputError(
            f"{path} has files of several formats ({', '.join(sorted(names))}); move all but one "
            "of them away"
        )
    (name,) = names
    return name


def _read_from_hub(library: Any, text: str, subset: str | None) -> Splits:
    """Download a dataset of the hub; what was downloaded before is used again."""
    match = HUB_NAME.fullmatch(text)
    if match is None:
        raise InputError(
            f"{text} does not exist, and is not the name of a dataset on the Hugging Face hub "
            "(OWNER/NAME or OWNER/NAME@REVISION)"
        )
    name, revision = match.groups()
    if not library.config.HF_HUB_OFFLINE:
        revision = _find_revision(name, revision)
        notify(
            f"moonfl: {name} is dataset {name}@{revision} of the Hugging Face hub; what is not in "
            "the cache of the library datasets is downloaded"
        )
    try:
        builder = library.load_dataset_builder(name, subset, revision=revision)
    except ConnectionError:
        raise RunError(
            f"{name} does not exist here, and is not in the cache of the library datasets; it "
            "cannot be downloaded, because HF_HUB_OFFLINE is set"
        ) from None
    except ValueError as error:
        raise InputError(f"{name}: {first_line(error)} (set one with subset=NAME)") from None
    _check_builder(name, builder)
    with _library_errors(Path(name)):
        builder.download_and_prepare()
        splits: Splits = builder.as_dataset()
        return splits


def _find_revision(name: str, revision: str | None) -> str:
    """Return the commit of a dataset on the hub."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        info = huggingface_hub.HfApi().dataset_info(name, revision=revision, timeout=TIMEOUT)
    except HfHubHTTPError as error:
        raise InputError(
            f"{name} does not exist here, and the Hugging Face hub refuses it: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from None
    except Exception as error:  # of the network; their classes depend on the version
        raise RunError(
            f"{name} does not exist here, and the Hugging Face hub cannot be reached "
            f"({first_line(error)}). Without a network, set HF_HUB_OFFLINE=1 to use a dataset that "
            "was downloaded before, or set data_dir to a folder that save_to_disk wrote"
        ) from None
    return str(info.sha)


def _check_builder(name: str, builder: Any) -> None:
    """Check that a dataset of the hub has a known format and consists of its own files."""
    kind = type(builder).__module__.split(".")[-1]
    if kind not in (*FORMATS, CACHED):
        raise InputError(
            f"{name} has files of the format {kind}; dataset=hub reads {', '.join(FORMATS)}"
        )
    for files in (builder.config.data_files or {}).values():
        for file in files:
            if not str(file).startswith(f"hf://datasets/{name}@"):
                raise InputError(
                    f"{name} names a file outside of its repository, {file}; it is not downloaded"
                )


def _choose_splits(path: Path, splits: Splits) -> list[str]:
    """Return the name of the training split and, if there is one, of the test split."""
    names = [str(name) for name in splits]
    if "train" not in names and len(names) != 1:
        raise InputError(
            f"{path} has no split named train; its splits are {', '.join(names) or 'none'}"
        )
    train = "train" if "train" in names else names[0]
    tests = [name for name in TEST_SPLITS if name in names and name != train][:1]
    unused = [name for name in names if name not in (train, *tests)]
    if tests and tests[0] != "test":
        notify(f"moonfl: {path} has no split named test; its split {tests[0]} is the test set")
    if unused:
        notify(f"moonfl: of {path} these splits are not used: {', '.join(unused)}")
    return [train, *tests]


def _with_label(
    library: Any, table: Path, features: Mapping[str, Any], reading: Reading
) -> Reading:
    """Return the options with the column of the classes and, if it knows them, the classes."""
    if reading.task != CLASSIFICATION:
        return reading
    label = reading.label
    if label not in features and label == Reading.label:
        candidates = [k for k, kind in features.items() if isinstance(kind, library.ClassLabel)]
        if len(candidates) != 1:
            likely = f" of classes ({', '.join(candidates)})" if candidates else ""
            raise InputError(
                f"{table} has no column 'label' and {len(candidates) or 'no'} columns{likely}; set "
                f"label=NAME to one of its columns: {', '.join(features)}"
            )
        label = candidates[0]
        notify(f"moonfl: the classes of {table} are in its column '{label}'")
    classes = reading.classes
    if not classes and isinstance(features.get(label), library.ClassLabel):
        classes = tuple(features[label].names)
    return replace(reading, label=label, classes=classes)


def _assign_roles(
    library: Any, table: Path, features: Mapping[str, Any], reading: Reading
) -> Roles:
    """Return what the columns are used for; missing columns and other types are refused."""
    check_columns(table, features, reading)
    check_ignored(table, features, reading)
    groups = [name for name in (reading.column, reading.holdout_by) if name is not None]
    for name in groups:
        if name not in features:
            raise unknown(f"column of {table}", name, features)
    others = [k for k in features if k not in (*reading.labels, *groups, *reading.ignore)]
    images = [name for name in others if isinstance(features[name], library.Image)]
    if len(images) > 1:
        raise InputError(
            f"{table} has several columns of images ({', '.join(images)}); leave out all but one "
            f"with ignore={','.join(images[1:])}"
        )
    columns = [*reading.labels, *groups, *([] if images else others)]
    for name in columns:
        _check_type(library, table, name, features[name])
    image = images[0] if images else None
    return Roles(labels=reading.labels, groups=groups, image=image, features=others)


def _check_type(library: Any, table: Path, name: str, feature: Any) -> None:
    """Check that the values of a column can be cells of a table."""
    if isinstance(feature, library.ClassLabel):
        return
    kind = getattr(feature, "dtype", "")
    if isinstance(feature, library.Value) and CELL.fullmatch(kind):
        return
    raise InputError(
        f"column '{name}' of {table} has the type {str(feature)[:100]}; dataset=hub reads numbers, "
        f"strings, classes and images: leave it out with ignore={name}, or use an .npz file"
    )


def _check_split(table: Path, split: Any, roles: Roles) -> None:
    """Check that a split has rows, and the columns that its samples need."""
    if split.num_rows == 0:
        raise InputError(f"{table} has no rows")
    needed = [*roles.labels, *([] if roles.image is None else [roles.image])]
    for name in needed:
        if name not in split.features:
            raise unknown(f"column of {table}", name, split.features)


def _arrow_table(table: Path, split: Any, names: list[str]) -> Any:
    """Return columns of a split as a pyarrow.Table, whose values stay on disk."""
    with _library_errors(table):
        content = split.select_columns(names).with_format("arrow")[:]
        content.validate(full=True)
        return content


def _text_table(library: Any, path: Path, split: Any, roles: Roles) -> Table:
    """Return the labels, the groups and the features of a split as text."""
    wanted = [*roles.labels, *roles.groups]
    if roles.image is None:
        wanted += roles.features
    names = [name for name in dict.fromkeys(wanted) if name in split.features]
    for name in names:
        _check_type(library, path, name, split.features[name])
    content = _arrow_table(path, split, names)
    columns = []
    for name in names:
        values = content.column(name).to_pylist()
        if isinstance(split.features[name], library.ClassLabel):
            values = _class_texts(path, name, values, split.features[name].names)
        columns.append([_text(value) for value in values])
    header = {name: k for k, name in enumerate(names)}
    rows = [list(row) for row in zip(*columns, strict=True)]
    return Table(path=path, header=header, rows=rows, lines=range(len(rows)), unit="row")


def _class_texts(
    table: Path, column: str, values: list[int | None], names: list[str]
) -> list[str | None]:
    """Return the name of each class; -1 and None are missing values."""
    texts: list[str | None] = []
    for row, value in enumerate(values):
        if value is not None and not -1 <= value < len(names):
            raise InputError(
                f"{table}, row {row}: column '{column}' has the class {value}, but only "
                f"{len(names)} classes have names"
            )
        texts.append(None if value is None or value == -1 else names[value])
    return texts


def _text(value: object) -> str:
    """Return a cell as text; a missing one, which may be NaN, is empty."""
    is_nan = value != value
    return "" if value is None or is_nan else str(value)


def _image_folders(library: Any, path: Path) -> list[Path]:
    """Return the folders that the images of a dataset are in: its own, or the library's caches."""
    if os.path.exists(path):
        resolved = path.resolve()
        return [resolved if resolved.is_dir() else resolved.parent]
    from huggingface_hub import constants

    caches = (
        library.config.HF_DATASETS_CACHE,
        library.config.DOWNLOADED_DATASETS_PATH,
        library.config.EXTRACTED_DATASETS_PATH,
        constants.HF_HUB_CACHE,
    )
    return [Path(os.path.abspath(cache)) for cache in caches]


def _encoded_images(
    table: Path, split: Any, column: str, folders: list[Path]
) -> list[EncodedImage]:
    """Return the images of a split: cells of the table, or files in `folders` that cells name."""
    from pyarrow import compute

    with _library_errors(table):
        undecoded = split.cast_column(column, type(split.features[column])(decode=False))
        cells = _arrow_table(table, undecoded, [column]).column(column)
        contents = compute.struct_field(cells, "bytes")
        paths = compute.struct_field(cells, "path").to_pylist()
        has_content = contents.is_valid().to_pylist()
    sources: list[EncodedImage] = []
    for row, path in enumerate(paths):
        if has_content[row]:
            sources.append(ImageCell(contents, row, table))
        elif path is not None:
            if not any(Path(os.path.abspath(path)).is_relative_to(folder) for folder in folders):
                raise InputError(
                    f"{table}, row {row}: column '{column}' names {path}, which is outside of "
                    f"{folders[0]}; files elsewhere are not read"
                )
            sources.append(Path(path))
        else:
            raise InputError(f"{table}, row {row}: column '{column}' has no image; remove the row")
    return sources


def _image_dataset(
    tables: list[Table], images: list[list[EncodedImage]], roles: Roles, reading: Reading
) -> Dataset:
    """Return a dataset of images that are decoded when they are needed."""
    classes = column_names(tables, reading)
    everything = [source for sources in images for source in sources]
    size = common_size(everything, reading.image_size)
    cache: Cache = {}
    examples = []
    for table, sources in zip(tables, images, strict=True):
        x = Images(sources, size, resize=reading.image_size is not None, cache=cache)
        examples.append(Examples(x, labels_of(table, reading, classes)))
    columns = [group_columns(table, roles.groups) for table in tables]
    has_test = len(tables) > 1
    return Dataset(
        train=examples[0],
        test=examples[1] if has_test else None,
        classes=classes,
        preparation=default_preparation(torch.uint8, 3),
        columns=columns[0],
        test_columns=columns[1] if has_test else {},
    )
