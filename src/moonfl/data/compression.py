"""Decompression with a limit, so that a small file cannot fill the memory."""

import zlib

MAX_BYTES = 600 * 2**20  # after decompression; the largest file of a published dataset has 550 MB
GZIP_FORMAT = 16 + zlib.MAX_WBITS  # of zlib.decompressobj


def gunzip(content: bytes) -> bytes:
    """Return the content of a gzip file; a damaged or too large one is a ValueError."""
    return _decompress(content, GZIP_FORMAT)


def inflate(content: bytes) -> bytes:
    """Return the content of a zlib stream; a damaged or too large one is a ValueError."""
    return _decompress(content, zlib.MAX_WBITS)


def _decompress(content: bytes, wbits: int) -> bytes:
    stream = zlib.decompressobj(wbits)
    try:
        data = stream.decompress(content, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if stream.unconsumed_tail:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes after decompression")
    if not stream.eof:
        raise ValueError("it ends before the end of its compressed data")
    if stream.unused_data:
        raise ValueError("it has bytes after the end of its compressed data")
    return data
