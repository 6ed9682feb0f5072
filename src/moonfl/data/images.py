"""Images that are decoded on demand, from files or cells of a table.

There may be more of them than fit into memory.
"""

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError, InputError, first_line
from .locations import check_file

if TYPE_CHECKING:
    from PIL import Image, ImageFile

# The formats that are decoded, whatever the name of a file is. Pillow knows others that run
# external programs (EPS starts Ghostscript).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
MAX_PIXELS = 2**26  # of an image: 8192x8192, 200 MB when decoded
TURNED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width
CACHE_BYTES = 256 * 2**20  # decoded pixels that a process keeps
Pixels = NDArray[np.uint8]


class EncodedImage(Protocol):
    """An image file, or another place of an encoded image; `str` describes it in messages."""

    def read_bytes(self) -> bytes:
        """Return the encoded image."""
        ...


Cache = dict[EncodedImage, Pixels]  # decoded images


class Images:
    """Images uint8 [N, 3, H, W] that are decoded when they are needed.

    Images that fit into a cache of `CACHE_BYTES` are decoded once.
    """

    dtype = torch.uint8

    def __init__(
        self,
        sources: Sequence[EncodedImage],
        size: tuple[int, int],
        resize: bool = False,
        device: str | torch.device = "cpu",
        cache: Cache | None = None,
    ) -> None:
        """Describe images of these files or cells; `size` is height and width.

        With `resize` images of another size are resized, otherwise refused. `cache` may be shared.
        """
        self.sources = sources
        self.size = size
        self.resize = resize
        self.device = device
        self.shape = torch.Size((len(sources), 3, *size))
        self._cache: Cache = {} if cache is None else cache

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the decoded images with these indices.

        A file that was damaged or removed after `check` is a DataError.
        """
        pixels = np.empty((len(rows), *self.shape[1:]), dtype=np.uint8)
        for i, row in enumerate(rows.tolist()):
            try:
                pixels[i] = self._read(self.sources[row])
            except InputError as error:
                raise DataError(f"{error}; restore the file as it was when the run began") from None
        return torch.from_numpy(pixels).to(self.device)

    def check(self) -> None:
        """Decode every image once; a damaged one is an InputError."""
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            for _ in threads.map(self._read, self.sources):
                pass

    def take(self, rows: Tensor) -> "Images":
        """Return a subset that shares the cache; nothing is decoded."""
        sources = [self.sources[row] for row in rows.tolist()]
        return Images(sources, self.size, self.resize, self.device, self._cache)

    def to(self, device: str | torch.device) -> "Images":
        """Return the same images, which will be decoded to a device."""
        return Images(self.sources, self.size, self.resize, device, self._cache)

    def contents(self) -> Iterator[bytes]:
        """Yield the bytes of each encoded image."""
        for source in self.sources:
            try:
                yield source.read_bytes()
            except OSError as error:
                raise InputError(f"{source} cannot be read: {error.strerror}") from None

    def _read(self, source: EncodedImage) -> Pixels:
        """Return an image from the cache, or decode it."""
        pixels = self._cache.get(source)
        if pixels is None:
            pixels = read_image(source, self.size, self.resize)
            if (len(self._cache) + 1) * pixels.nbytes <= CACHE_BYTES:
                self._cache[source] = pixels
        return pixels


def common_size(sources: Sequence[EncodedImage], image_size: int | None) -> tuple[int, int]:
    """Return height and width of all images: `image_size`, or the size that they all have.

    Every header is read here; Images.check finds damaged pixels when a run starts.
    """
    sizes = [size_of(source) for source in sources]
    if image_size is not None:
        return image_size, image_size
    for source, size in zip(sources, sizes, strict=True):
        if size != sizes[0]:
            name = sources[0].name if isinstance(sources[0], Path) else sources[0]
            raise InputError(
                f"{wrong_size(source, size, sizes[0])} as {name} has; "
                "set image_size=N to resize all images to NxN"
            )
    return sizes[0]


def size_of(source: EncodedImage) -> tuple[int, int]:
    """Read height and width from the header of an image, as it is displayed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow about too many pixels, which are refused here
        with _opened(source) as image:
            size = (image.height, image.width)
            # Pillow itself turns a TIFF image.
            turned = image.format != "TIFF" and _orientation(image) in TURNED
    return size[::-1] if turned else size


def read_image(source: EncodedImage, size: tuple[int, int], resize: bool = False) -> Pixels:
    """Read an image as [3, H, W]; a grey image gets three equal channels.

    It is turned and mirrored as its EXIF orientation says.
    """
    from PIL import Image, ImageOps

    height, width = size
    with _opened(source) as image:
        upright = image if _orientation(image) == 1 else ImageOps.exif_transpose(image)
        rgb = upright.convert("RGB")
        if resize and rgb.size != (width, height):
            rgb = rgb.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(rgb)
    if pixels.shape != (height, width, 3):
        raise wrong_size(source, pixels.shape[:2], size)
    return pixels.transpose(2, 0, 1)


@contextlib.contextmanager
def _opened(source: EncodedImage) -> Iterator["ImageFile.ImageFile"]:
    """Open an image of a known format, by its content, and check size and depth of its pixels.

    Any error while it is read inside the block becomes an InputError.
    """
    from PIL import Image, UnidentifiedImageError

    if isinstance(source, Path):
        check_file(source)
    try:
        with _content(source) as file, Image.open(file, formats=FORMATS) as image:
            _check_pixels(source, image)
            yield image
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError(
            f"{source} is not a readable image: its content has none of the formats "
            f"{', '.join(FORMATS)}"
        ) from None
    except Exception as error:  # a damaged image raises nearly anything
        raise InputError(f"{source} is not a readable image: {first_line(error)}") from None


def _content(source: EncodedImage) -> BinaryIO:
    """Open the content of an image.

    Pillow must not open a TIFF file by its name: it maps the pixels into memory with the height and
    width of the upright image, which scrambles them.
    """
    return open(source, "rb") if isinstance(source, Path) else io.BytesIO(source.read_bytes())


def _check_pixels(source: EncodedImage, image: "ImageFile.ImageFile") -> None:
    """Refuse an image with too many pixels, or with pixels whose values would be clipped."""
    if image.width * image.height > MAX_PIXELS:
        raise InputError(
            f"{source} has {image.width}x{image.height} pixels, more than {MAX_PIXELS:,}; "
            "scale it down"
        )
    if _is_deep(image):
        raise InputError(
            f"{source} has pixels of more than 8 bits per channel; scale them to 0 ... 255, "
            "or use an .npz file"
        )


def _is_deep(image: "ImageFile.ImageFile") -> bool:
    """Return True if a channel has more than 8 bits, which Pillow's mode does not show."""
    from PIL.TiffImagePlugin import BITSPERSAMPLE, TiffImageFile

    if image.mode.startswith(("I", "F")):
        return True
    if isinstance(image, TiffImageFile):
        return bool(max(image.tag_v2.get(BITSPERSAMPLE, (1,))) > 8)
    for tile in image.tile:
        arguments = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if image.format == "PNG" and str(arguments[0]).endswith(";16B"):
            return True
        if image.format == "PPM" and isinstance(arguments[-1], int) and arguments[-1] > 255:
            return True
    return False


def _orientation(image: "Image.Image") -> int:
    """Return the EXIF orientation of an image, 1 if it has none or an invalid one."""
    from PIL import ExifTags

    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return orientation if orientation in range(1, 9) else 1


def wrong_size(
    source: EncodedImage, actual: tuple[int, ...], expected: tuple[int, ...]
) -> InputError:
    """Return the error for an image whose height and width are not the expected ones."""
    return InputError(
        f"{source} has {actual[1]}x{actual[0]} pixels, not {expected[1]}x{expected[0]}"
    )
