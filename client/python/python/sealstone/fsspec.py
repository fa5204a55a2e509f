"""A file system for fsspec, and so for pandas, pyarrow, dask and zarr.

URLs are ``sealstone:///path``; the storage options have the cluster file and the credential:

    pandas.read_parquet("sealstone:///table.parquet", storage_options={
        "cluster": "cluster.toml", "key_file": "backup.key"})

Files that are opened for writing are stored as a whole when they are closed. Modes ``ab``, ``r+b`` and
``w+b`` change files in place.
"""

import asyncio
import contextlib
import errno
import io
import os
import threading
import weakref
from datetime import datetime, timezone
from typing import Any, Optional, Union

from fsspec.asyn import AsyncFileSystem, sync  # type: ignore[import-untyped]
from fsspec.callbacks import DEFAULT_CALLBACK  # type: ignore[import-untyped]
from fsspec.utils import stringify_path  # type: ignore[import-untyped]

from . import _native
from ._client import BUFFER_BYTES, Client, PathLike, Stat, login_of
from ._file import OpenMode, RawFile, content_of
from ._loop import run
from .aio import AsyncClient, AsyncFile

__all__ = ["AtomicFile", "SealstoneFileSystem"]

FILE_MODE = 0o644


class _UploadStream(io.RawIOBase):
    """Bytes of a file that is stored at the commit."""

    def __init__(self, native: "_native.NativeUpload", autocommit: bool) -> None:
        self._native = native
        self._autocommit = autocommit
        self._ended = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        content = content_of(data)
        self._native.write(content).wait()
        return len(content)

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._autocommit:
                self.commit()
        finally:
            super().close()

    def commit(self) -> None:
        if not self._ended:
            self._ended = True
            self._native.finish().wait()

    def discard(self) -> None:
        if not self._ended:
            self._ended = True
            self._native.abort()


class AtomicFile(io.BufferedWriter):
    """A file that is stored as a whole when it is closed, or by :meth:`commit` in a transaction.

    An exception in its ``with`` block discards it. Text mode and ``fsspec.open`` close it instead,
    which stores what was written before; a transaction discards that too.
    """

    def __init__(self, native: "_native.NativeUpload", path: str, autocommit: bool, buffer: int) -> None:
        self._upload = _UploadStream(native, autocommit)
        self._offset = 0
        self.path = path
        super().__init__(self._upload, buffer)

    def write(self, data: Any) -> int:
        """Write bytes; return their number."""
        count = super().write(data)
        self._offset += count
        return count

    def tell(self) -> int:
        """Return the number of written bytes."""
        return self._offset

    def seekable(self) -> bool:
        """Return false."""
        return False

    def commit(self) -> None:
        """Store the file. It is closed before."""
        self._upload.commit()

    def discard(self) -> None:
        """Store nothing."""
        self._upload.discard()

    def __exit__(self, kind: Optional[type[BaseException]], *_: object) -> None:
        if kind is None:
            self.close()
            return
        self.discard()
        # Fails for the rest of the buffer; the exception of the block is the cause.
        with contextlib.suppress(OSError):
            self.close()


class _InPlaceReader(io.BufferedReader):
    """A file that is open for reading, with its size for readers that need it."""

    def __init__(self, raw: RawFile, path: str, buffer: int) -> None:
        super().__init__(raw, buffer)
        self.path = path
        self._raw_file = raw

    @property
    def size(self) -> int:
        """Size of the file."""
        return self._raw_file._native.size().wait()


def _log_out(native: "_native.NativeClient") -> None:
    # The session ends by its time as well.
    with contextlib.suppress(OSError, RuntimeError):
        # Without the server, a logout would try for minutes to store written bytes of files.
        native.user().wait()
        native.logout().wait()


def _detail(path: str, stat: Stat, is_link: bool) -> "dict[str, Any]":
    kinds = {"file": "file", "directory": "directory"}
    return {
        "name": path,
        "size": stat.size if stat.is_file else 0,
        "type": kinds.get(stat.kind, "other"),
        "created": stat.birth_ns / 1e9,
        "mtime": stat.mtime_ns / 1e9,
        "mode": stat.mode,
        "owner": stat.owner,
        "group": stat.group,
        "ino": stat.inode,
        "nlink": stat.links,
        "version": stat.version,
        "islink": is_link,
    }


class SealstoneFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """Files of a cluster.

    ``cluster`` is a cluster file, with ``user`` and ``password``, or with the ``key_file`` of a
    service. ``client`` is a client that is logged in already; such a file system cannot be pickled.
    With ``auto_mkdir``, writing a file creates missing directories.
    """

    protocol = "sealstone"
    root_marker = "/"
    async_impl = True

    def __init__(
        self,
        cluster: Optional[PathLike] = None,
        *,
        user: Optional[str] = None,
        password: Optional[Union[str, bytes]] = None,
        key_file: Optional[PathLike] = None,
        client: Optional[Union[Client, AsyncClient]] = None,
        auto_mkdir: bool = True,
        asynchronous: bool = False,
        loop: Optional[asyncio.AbstractEventLoop] = None,
        batch_size: Optional[int] = None,
        **options: Any,
    ) -> None:
        super().__init__(asynchronous=asynchronous, loop=loop, batch_size=batch_size, **options)
        if (cluster is None) == (client is None):
            raise ValueError("give a cluster file or a client")
        self._login = (cluster, user, password, key_file)
        self._native_client = None if client is None else client._open_native()
        self._has_own_client = client is None
        self._connecting = threading.Lock()
        self.auto_mkdir = auto_mkdir

    def __reduce__(self) -> Any:
        if not self._has_own_client:
            raise TypeError("a file system with a client cannot be pickled: give a cluster file")
        return super().__reduce__()

    # --- the connection ---

    def _native(self) -> "_native.NativeClient":
        """Return the client; log in first if necessary."""
        with self._connecting:
            if self._native_client is None:
                cluster, user, password, key_file = self._login
                assert cluster is not None
                self._native_client = login_of(cluster, user, password, key_file).wait()
                weakref.finalize(self, _log_out, self._native_client)
            return self._native_client

    async def _async_client(self) -> AsyncClient:
        native = self._native_client
        if native is None:
            native = await asyncio.get_running_loop().run_in_executor(None, self._native)
        return AsyncClient(native)

    # --- names ---

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        prefix = f"{cls.protocol}://"
        if path.startswith(prefix):
            path = path[len(prefix) :]
            if path and not path.startswith("/"):
                raise ValueError(f"write {prefix}/{path}: the cluster is a storage option, not a part of the URL")
        return "/" + path.strip("/")

    async def _info(self, path: str, **_: Any) -> "dict[str, Any]":
        client, path = await self._async_client(), self._strip_protocol(path)
        return _detail(path, await client.stat(path), False)

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> "list[Any]":
        client, path = await self._async_client(), self._strip_protocol(path)
        try:
            entries = await client.list(path)
        except NotADirectoryError:
            return [await self._info(path)] if detail else [path]
        parent = path.rstrip("/")
        if not detail:
            return [f"{parent}/{entry.name}" for entry in entries]
        details = []
        for entry in entries:
            name, stat, is_link = f"{parent}/{entry.name}", entry.stat, entry.kind == "symlink"
            if is_link:
                try:
                    stat = await client.stat(name)
                except OSError:
                    # A link without a target, which has attributes of its own.
                    pass
            if stat is None:
                kind = entry.kind if entry.kind in ("file", "directory") else "other"
                details.append({"name": name, "size": None, "type": kind, "islink": is_link})
            else:
                details.append(_detail(name, stat, is_link))
        return details

    def created(self, path: str) -> datetime:
        """Return when a file was created."""
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path: str) -> datetime:
        """Return when a file was last written."""
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def ukey(self, path: str) -> str:
        """Return a text that differs when the content of a file differs."""
        info = self.info(path)
        return f"{info['ino']}-{info['version']}"

    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        client, path = await self._async_client(), self._strip_protocol(path)
        if create_parents:
            await self._create_parent(client, path)
        await client.mkdir(path)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        client, path = await self._async_client(), self._strip_protocol(path)
        if exist_ok:
            await client.mkdir(path, parents=True)
        else:
            await self._mkdir(path)

    async def _rmdir(self, path: str) -> None:
        client, path = await self._async_client(), self._strip_protocol(path)
        if not (await client.stat(path, follow_symlinks=False)).is_dir:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        await client.remove(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        sync(self.loop, self._rmdir, path)

    async def _rm_file(self, path: str, **_: Any) -> None:
        client = await self._async_client()
        await client.remove(self._strip_protocol(path))

    async def _rm(self, path: Any, recursive: bool = False, batch_size: Optional[int] = None, **options: Any) -> None:
        if options.get("maxdepth") is not None:
            await super()._rm(path, recursive=recursive, batch_size=batch_size, **options)
            return
        client, removed = await self._async_client(), ""
        for one in sorted(await self._expand_path(path)):
            # A tree is removed by the server, with what the pattern found below it.
            if not (removed and one.startswith(removed)):
                await client.remove(one, recursive=recursive)
                removed = f"{one}/" if recursive else ""

    async def _mv(self, source: str, target: str) -> None:
        client, source = await self._async_client(), self._strip_protocol(source)
        into = target.endswith("/")
        target = self._strip_protocol(target)
        if into or (source != target and await self._isdir(target)):
            target = f"{target.rstrip('/')}/{source.rsplit('/', 1)[1]}"
        if source == target:
            return
        await client.stat(source, follow_symlinks=False)
        try:
            await self._with_parent(target, lambda: client.rename(source, target))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # Trees with different quotas.
            await self._copy(source, target, recursive=True)
            await client.remove(source, recursive=True)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: Optional[int] = None, **kwargs: Any) -> None:
        """Rename a file or directory. Patterns and lists are copied and removed."""
        if isinstance(path1, str) and isinstance(path2, str) and maxdepth is None and not set(path1) & set("*?["):
            sync(self.loop, self._mv, path1, path2)
        else:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    # --- contents ---

    async def _cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **_: Any) -> bytes:
        client = await self._async_client()
        return await client.read(self._strip_protocol(path), start=start or 0, end=end)

    async def _pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        client, path, content = await self._async_client(), self._strip_protocol(path), content_of(value)
        replace = mode != "create"
        await self._with_parent(path, lambda: client.put(path, content, replace=replace))

    async def _put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **_: Any
    ) -> None:
        client, path = await self._async_client(), self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            await client.mkdir(path, parents=True)
            return
        size, replace = os.path.getsize(lpath), mode != "create"
        callback.set_size(size)
        await self._with_parent(path, lambda: client.put_file(path, lpath, replace=replace))
        callback.relative_update(size)

    async def _get_file(self, rpath: str, lpath: str, callback: Any = DEFAULT_CALLBACK, **_: Any) -> None:
        native, path = (await self._async_client())._open_native(), self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            if await self._isdir(path):
                return
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), lpath)
        try:
            stat = Stat(*await run(native.get_file(os.fsencode(path), os.fsdecode(lpath))))
        except IsADirectoryError:
            os.makedirs(lpath, exist_ok=True)
            return
        callback.set_size(stat.size)
        callback.relative_update(stat.size)

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        client, source, target = await self._async_client(), self._strip_protocol(path1), self._strip_protocol(path2)
        native, names = client._open_native(), (os.fsencode(source), os.fsencode(target))
        if (await client.stat(source)).is_dir:
            await client.mkdir(target, parents=True)
        else:
            await self._with_parent(target, lambda: run(native.copy(*names, True)))

    async def _create_parent(self, client: AsyncClient, path: str) -> None:
        parent = self._parent(path)
        if parent != "/":
            await client.mkdir(parent, parents=True)

    async def _with_parent(self, path: str, operation: Any) -> None:
        """Run an operation, and again after the creation of missing directories above ``path``.

        The caller has found the source, so that only the directory can be missing.
        """
        try:
            await operation()
        except FileNotFoundError:
            if not self.auto_mkdir or self._parent(path) == "/":
                raise
            # Parallel operations create the same directory.
            await self._create_parent(await self._async_client(), path)
            await operation()

    # --- open files ---

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Optional[int] = None,
        autocommit: bool = True,
        cache_options: Optional["dict[str, Any]"] = None,
        **_: Any,
    ) -> Any:
        how, path, native = OpenMode.parse(mode), self._strip_protocol(path), self._native()
        name, buffer = os.fsencode(path), block_size or BUFFER_BYTES
        client = Client(native)
        if how.kind != "r" and self.auto_mkdir and (parent := self._parent(path)) != "/":
            if not client.exists(parent):
                client.mkdir(parent, parents=True)
        file: Any
        if how.kind in "wx" and not how.readable:
            # Refused before the bytes are sent, and not only when they are stored.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                existing = client.stat(path)
                if how.kind == "x":
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
                if existing.is_dir:
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            file = AtomicFile(native.upload(name, how.kind == "w", FILE_MODE), path, autocommit, buffer)
        elif how.writable and not autocommit:
            raise ValueError(f"a transaction stores whole files: mode {mode!r} changes them in place")
        else:
            raw = RawFile(native.open(name, *how.flags()).wait(), path, mode, how)
            if how.readable and how.writable:
                file = io.BufferedRandom(raw, buffer)
            elif how.writable:
                file = io.BufferedWriter(raw, buffer)
            else:
                file = _InPlaceReader(raw, path, buffer)
        # A file system that is freed ends the session of its open files.
        file.fs = self
        return file

    async def open_async(self, path: str, mode: str = "rb", **_: Any) -> AsyncFile:
        """Open a file in place, for asyncio."""
        client = await self._async_client()
        file = await client.open(self._strip_protocol(path), mode)
        file.fs = self  # type: ignore[attr-defined]
        return file
