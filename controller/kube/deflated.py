"""Texts kept compressed, each told by what it has in common with another of its kind.

Thousands of objects, or of pages, differ in a few numbers. By itself such a text of some kB compresses to a
third; with another one of its kind as dictionary (zlib's ``zdict``) to a tenth.
"""

from __future__ import annotations

import zlib

_LEVEL, _WINDOW, _MEMORY = 6, -14, 7  # of zlib: raw deflate, 16 kB, by measurement (docs/operate/operator.md)


class Deflated:
    """A compressed text."""

    __slots__ = ("_bytes", "_dictionary")

    def __init__(self, deflated: bytes, dictionary: bytes) -> None:
        self._bytes, self._dictionary = deflated, dictionary

    def inflated(self) -> bytes:
        """Return the text."""
        return zlib.decompressobj(_WINDOW, zdict=self._dictionary).decompress(self._bytes)


class Deflater:
    """Compresses texts of one kind, with one of them as dictionary.

    The first text is the dictionary. A longer one that it hardly helps to compress, for instance the first
    object that has a status, becomes the dictionary of those that come later.
    """

    def __init__(self) -> None:
        self._dictionary = b""

    def __call__(self, text: bytes) -> tuple[bytes, bytes]:
        """Return what a `Deflated` of the text is made of."""
        dictionary = self._dictionary
        deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zdict=dictionary)
        deflated = deflate.compress(text) + deflate.flush()
        if len(text) > 1.1 * len(dictionary) and 4 * len(deflated) > len(text):
            self._dictionary = text
        return deflated, dictionary
