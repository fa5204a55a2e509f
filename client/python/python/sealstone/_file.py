"""An open file as ``io.RawIOBase``."""

import io
import os
from typing import Any

from . import _native


class RawFile(io.RawIOBase):
    """An open file without a buffer of its own. Closing it sends written bytes and reports errors."""

    def __init__(
        self,
        native: "_native.NativeFile",
        name: str,
        mode: str,
        readable: bool,
        writable: bool,
        append: bool,
    ) -> None:
        self._native = native
        self._readable = readable
        self._writable = writable
        self._position = native.size().wait() if append else 0
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
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise TypeError("the buffer is read-only")
        data = self._native.read(offset, len(view)).wait()
        view[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        """Write bytes at the position, or at the end of a file that is open for appending."""
        self._check_writable()
        content = data if type(data) is bytes else memoryview(data).tobytes()
        if content:
            self._position = self._native.write(content, self._position).wait() + len(content)
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Change the position and return it."""
        self._check_open()
        if whence == os.SEEK_SET:
            base = 0
        elif whence == os.SEEK_CUR:
            base = self._position
        elif whence == os.SEEK_END:
            base = self._native.size().wait()
        else:
            raise ValueError(f"invalid whence: {whence}")
        if base + offset < 0:
            raise ValueError("negative position")
        self._position = base + offset
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
