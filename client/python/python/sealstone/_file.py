"""Open files: their modes and buffers, and a file as ``io.RawIOBase``."""

import io
import os
from dataclasses import dataclass
from typing import Any

from . import _native


def content_of(data: Any) -> bytes:
    """Return the bytes of an object; a copy unless they cannot change during the call."""
    return data if type(data) is bytes else memoryview(data).tobytes()


def writable_view(buffer: Any) -> "memoryview[int]":
    """Return the bytes of a buffer that a call fills."""
    view = memoryview(buffer).cast("B")
    if view.readonly:
        raise TypeError("the buffer is read-only")
    return view


def seek_position(offset: int, whence: int, base: int) -> int:
    """Return the position of a seek; ``base`` is the size for ``SEEK_END``, else the old position."""
    if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
        raise ValueError(f"invalid whence: {whence}")
    position = offset if whence == os.SEEK_SET else base + offset
    if position < 0:
        raise ValueError("negative position")
    return position


@dataclass(frozen=True)
class OpenMode:
    """What a mode of ``open`` means."""

    kind: str
    readable: bool
    writable: bool
    binary: bool

    @property
    def append(self) -> bool:
        """Whether writes go to the end of the file."""
        return self.kind == "a"

    @classmethod
    def parse(cls, mode: str) -> "OpenMode":
        """Return the meaning of a mode."""
        letters = set(mode)
        kinds = letters & set("rwxa")
        if len(letters) != len(mode) or letters - set("rwxabt+") or len(kinds) != 1:
            raise ValueError(f"invalid mode: {mode!r}")
        if {"b", "t"} <= letters:
            raise ValueError("a mode is binary or text, not both")
        kind, update = kinds.pop(), "+" in letters
        return cls(kind, kind == "r" or update, kind != "r" or update, "b" in letters)

    def flags(self) -> tuple[bool, bool, bool, bool, bool]:
        """Return the arguments of ``NativeClient.open``."""
        create, kind = self.kind != "r", self.kind
        return self.writable, create, kind == "x", kind == "w", kind == "a"


class RawFile(io.RawIOBase):
    """An open file without a buffer of its own. Closing it sends written bytes and reports errors."""

    def __init__(self, native: "_native.NativeFile", name: str, mode: str, how: OpenMode) -> None:
        self._native = native
        self._readable = how.readable
        self._writable = how.writable
        self._position = native.size().wait() if how.append else 0
        self.name = name
        self.mode = mode

    def readable(self) -> bool:
        """Whether the file can be read."""
        self._check_open()
        return self._readable

    def writable(self) -> bool:
        """Whether the file can be written."""
        self._check_open()
        return self._writable

    def seekable(self) -> bool:
        """Return true."""
        self._check_open()
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes, 0 at the end."""
        count = self.pread_into(buffer, self._position)
        self._position += count
        return count

    def pread_into(self, buffer: Any, offset: int) -> int:
        """Read into a buffer at an offset, without a change of the position."""
        self._check_readable()
        if offset < 0:
            raise ValueError("negative offset")
        view = writable_view(buffer)
        data = self._native.read(offset, len(view)).wait()
        view[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        """Write bytes at the position, or at the end of a file that is open for appending."""
        self._check_writable()
        content = content_of(data)
        if content:
            self._position = self._native.write(content, self._position).wait() + len(content)
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Change the position and return it."""
        self._check_open()
        base = self._native.size().wait() if whence == os.SEEK_END else self._position
        self._position = seek_position(offset, whence, base)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        self._check_open()
        return self._position

    def truncate(self, size: "int | None" = None) -> int:
        """Change the size of the file, by default to the position."""
        self._check_writable()
        wanted = self._position if size is None else size
        if wanted < 0:
            raise ValueError("negative size")
        self._native.truncate(wanted).wait()
        return wanted

    def flush(self) -> None:
        """Send written bytes, so that other clients see them."""
        super().flush()
        if self._writable:
            self._native.flush().wait()

    def sync(self) -> None:
        """Make written bytes durable."""
        self._check_open()
        self._native.sync().wait()

    def close(self) -> None:
        """Send written bytes and close the file."""
        if self.closed:
            return
        try:
            self._native.close().wait()
        finally:
            # The base class flushes, which the native file has done.
            self._writable = False
            super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _check_readable(self) -> None:
        self._check_open()
        if not self._readable:
            raise io.UnsupportedOperation("not readable")

    def _check_writable(self) -> None:
        self._check_open()
        if not self._writable:
            raise io.UnsupportedOperation("not writable")
