"""The client for asyncio: the same operations, awaited.

>>> import asyncio, sealstone
>>> async def main():
...     with sealstone.Cluster.embedded() as cluster:
...         async with await cluster.async_client() as client:
...             _ = await client.put("/notes.txt", b"hello")
...             return await client.get("/notes.txt")
>>> asyncio.run(main())
b'hello'

A cancelled task cancels its operation, whose outcome is then unknown. A cancelled :meth:`AsyncClient.put`
has stored the whole file or nothing. A cancelled write of an open file has changed all bytes of its
range, some, or none, and may still do so shortly afterwards: read them back, or write them again.

Of one client, 128 operations run at once and others wait in order. More than 16384 are an error
(``EAGAIN``). The same limits apply to the logins of a process.
"""

import asyncio
import io
import os
from typing import Any, Optional, Union

from . import _native
from ._client import Client, DirEntry, PathLike, Stat, entries_of, login_of, range_of
from ._file import OpenMode, content_of, seek_position, writable_view
from ._loop import run

__all__ = ["AsyncClient", "AsyncFile", "connect"]

READ_BYTES = 4 << 20
"""Bytes of one request when a file is read to its end."""


class AsyncFile:
    """A file that is open in place, without a buffer of its own.

    Calls that use the position run one after the other; ``pread`` and ``pwrite`` run in parallel.
    """

    def __init__(self, native: "_native.NativeFile", name: str, mode: str, how: OpenMode) -> None:
        self._native = native
        self._how = how
        self._position = 0
        self._closed = False
        # Held while the position is used.
        self._turn = asyncio.Lock()
        self.name = name
        self.mode = mode

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._closed

    def readable(self) -> bool:
        """Whether the file can be read."""
        return self._how.readable

    def writable(self) -> bool:
        """Whether the file can be written."""
        return self._how.writable

    def tell(self) -> int:
        """Return the position."""
        self._check(True, "")
        return self._position

    async def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes at the position; without ``size``, up to the end of the file."""
        self._check(self._how.readable, "not readable")
        async with self._turn:
            if size >= 0:
                data = await run(self._native.read(self._position, size))
                self._position += len(data)
                return data
            start, pieces = self._position, []
            while piece := await run(self._native.read(start, READ_BYTES)):
                pieces.append(piece)
                start += len(piece)
            self._position = start
            return b"".join(pieces)

    async def readinto(self, buffer: Any) -> int:
        """Read into a buffer at the position; return the number of bytes, 0 at the end."""
        view = writable_view(buffer)
        data = await self.read(len(view))
        view[: len(data)] = data
        return len(data)

    async def pread(self, size: int, offset: int) -> bytes:
        """Read up to ``size`` bytes at an offset, without a change of the position."""
        self._check(self._how.readable, "not readable")
        if size < 0 or offset < 0:
            raise ValueError("size and offset must not be negative")
        return await run(self._native.read(offset, size))

    async def write(self, data: Any) -> int:
        """Write bytes at the position, or at the end of a file that is open for appending."""
        self._check(self._how.writable, "not writable")
        content = content_of(data)
        async with self._turn:
            if content:
                self._position = await run(self._native.write(content, self._position)) + len(content)
        return len(content)

    async def pwrite(self, data: Any, offset: int) -> int:
        """Write bytes at an offset, without a change of the position. Refused for appending."""
        self._check(self._how.writable and not self._how.append, "not writable at an offset")
        if offset < 0:
            raise ValueError("negative offset")
        content = content_of(data)
        if content:
            await run(self._native.write(content, offset))
        return len(content)

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Change the position and return it."""
        self._check(True, "")
        async with self._turn:
            base = await run(self._native.size()) if whence == os.SEEK_END else self._position
            self._position = seek_position(offset, whence, base)
            return self._position

    async def size(self) -> int:
        """Return the size."""
        self._check(True, "")
        return await run(self._native.size())

    async def truncate(self, size: Optional[int] = None) -> int:
        """Change the size of the file, by default to the position."""
        self._check(self._how.writable, "not writable")
        async with self._turn:
            wanted = self._position if size is None else size
            if wanted < 0:
                raise ValueError("negative size")
            await run(self._native.truncate(wanted))
            return wanted

    async def flush(self) -> None:
        """Send written bytes, so that other clients see them."""
        self._check(True, "")
        await run(self._native.flush())

    async def sync(self) -> None:
        """Make written bytes durable."""
        self._check(True, "")
        await run(self._native.sync())

    async def close(self) -> None:
        """Send written bytes and close the file; errors of earlier writes are raised here."""
        if not self._closed:
            self._closed = True
            await run(self._native.close())

    async def __aenter__(self) -> "AsyncFile":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check(self, permitted: bool, reason: str) -> None:
        if self._closed:
            raise ValueError("I/O operation on closed file")
        if not permitted:
            raise io.UnsupportedOperation(reason)


class AsyncClient:
    """A user's connection to a cluster. Tasks, event loops and threads may share it."""

    def __init__(self, native: "_native.NativeClient") -> None:
        self._native: Optional[_native.NativeClient] = native

    @classmethod
    def of(cls, client: Client) -> "AsyncClient":
        """Return an asynchronous client with the session of ``client``; a close of one ends both."""
        return cls(client._open_native())

    def _open_native(self) -> "_native.NativeClient":
        if self._native is None:
            raise ValueError("the client is closed")
        return self._native

    async def put(self, path: PathLike, data: Any, *, replace: bool = True, mode: int = 0o644) -> Stat:
        """Store bytes as one file: other clients see all of them or none.

        With ``replace=False``, an existing file is an error.
        """
        native = self._open_native()
        return Stat(*await run(native.put(os.fsencode(path), content_of(data), replace, mode)))

    async def put_file(
        self, path: PathLike, local: PathLike, *, replace: bool = True, mode: int = 0o644
    ) -> Stat:
        """Store a local file with its modification time and holes."""
        native = self._open_native()
        return Stat(*await run(native.put_file(os.fsencode(path), os.fsdecode(local), replace, mode)))

    async def get(self, path: PathLike, *, start: int = 0, end: Optional[int] = None) -> bytes:
        """Return the bytes of a file, or those from ``start`` up to ``end``.

        A whole file is compared with the checksum that its writer recorded.
        """
        return await run(self._open_native().get(os.fsencode(path), range_of(start, end)))

    async def read(self, path: PathLike, *, start: int = 0, end: Optional[int] = None) -> bytes:
        """Return the bytes of a file, or of a range; negative offsets count from the end.

        Leases keep the file open here, so that the next reads of it send no request to the metadata
        server. The checksum of the writer is not compared.
        """
        return await run(self._open_native().read(os.fsencode(path), start, end))

    async def list(self, path: PathLike = "/") -> list[DirEntry]:
        """Return the entries of a directory, in byte order of their names."""
        return entries_of(await run(self._open_native().list(os.fsencode(path))))

    async def stat(self, path: PathLike, *, follow_symlinks: bool = True) -> Stat:
        """Return the attributes of a file or directory."""
        return Stat(*await run(self._open_native().stat(os.fsencode(path), follow_symlinks)))

    async def exists(self, path: PathLike) -> bool:
        """Whether a path exists. Errors other than a missing name are raised."""
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def remove(self, path: PathLike, *, recursive: bool = False) -> int:
        """Remove a file or an empty directory, or a tree; return the number of removed nodes."""
        return await run(self._open_native().remove(os.fsencode(path), recursive))

    async def mkdir(self, path: PathLike, *, parents: bool = False, mode: int = 0o755) -> None:
        """Create a directory. With ``parents``, missing parents too, and it may exist."""
        await run(self._open_native().mkdir(os.fsencode(path), parents, mode))

    async def rename(self, source: PathLike, target: PathLike, *, replace: bool = True) -> None:
        """Rename a file or directory."""
        await run(self._open_native().rename(os.fsencode(source), os.fsencode(target), replace))

    async def open(self, path: PathLike, mode: str = "rb") -> AsyncFile:
        """Open a file in place, with the binary modes of the built-in ``open``."""
        how = OpenMode.parse(mode)
        if not how.binary:
            raise ValueError(f"an asynchronous file is binary: use mode {mode.replace('t', '') + 'b'!r}")
        native = await run(self._open_native().open(os.fsencode(path), *how.flags()))
        file = AsyncFile(native, os.fsdecode(path), mode, how)
        if how.append:
            await file.seek(0, os.SEEK_END)
        return file

    async def user(self) -> str:
        """Return the name of the user."""
        return await run(self._open_native().user())

    async def close(self) -> None:
        """Make written bytes of open files durable and end the session.

        Files that are still open cannot be read or written any more: close them first.
        """
        native, self._native = self._native, None
        if native is not None:
            await run(native.logout())

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return self._native is None

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], *_: object) -> None:
        try:
            await self.close()
        except OSError:
            # The exception of the block is the cause, and a session ends by its time as well.
            if kind is None:
                raise


async def connect(
    cluster: PathLike,
    *,
    user: Optional[str] = None,
    password: Optional[Union[str, bytes]] = None,
    key_file: Optional[PathLike] = None,
) -> AsyncClient:
    """Log in to the cluster of a cluster file, with a password or with a service's key file."""
    return AsyncClient(await run(login_of(cluster, user, password, key_file)))
