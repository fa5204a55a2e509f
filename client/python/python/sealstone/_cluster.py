"""A whole cluster in this process."""

import atexit
import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

from . import _native
from ._client import Client
from ._errors import ClusterError

if TYPE_CHECKING:
    from .aio import AsyncClient

# Clusters that run at the exit of the interpreter are stopped, so that folders in memory are removed.
_running: "weakref.WeakSet[Cluster]" = weakref.WeakSet()


@dataclass(frozen=True)
class Device:
    """A device of a cluster."""

    name: str
    url: str


class Cluster:
    """A running cluster: a metadata server and devices, on loopback, in threads of this process."""

    def __init__(self, native: "_native.NativeCluster") -> None:
        self._native = native
        _running.add(self)

    @classmethod
    def embedded(
        cls,
        path: Optional[Union[str, "os.PathLike[str]"]] = None,
        *,
        devices: Optional[int] = None,
        capacity: Optional[int] = None,
    ) -> "Cluster":
        """Start a cluster in a folder, or in memory without ``path``.

        A folder keeps the cluster for the next start. ``devices`` (default 1, at most 64) and
        ``capacity`` (bytes of each device) are decided at the first start.
        """
        for name, value in (("devices", devices), ("capacity", capacity)):
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative")
        folder = None if path is None else os.fspath(path)
        return cls(_native.NativeCluster.start(folder, devices, capacity))

    def client(self) -> Client:
        """Return a client that is logged in as the administrator."""
        return Client(self._login().wait())

    async def async_client(self) -> "AsyncClient":
        """Return an asynchronous client that is logged in as the administrator."""
        from ._loop import run
        from .aio import AsyncClient

        return AsyncClient(await run(self._login()))

    def _login(self) -> "_native.NativeOperation[_native.NativeClient]":
        if not self._native.is_running:
            raise ClusterError("the cluster has stopped; start another one")
        return self._native.client()

    def stop(self) -> None:
        """Stop the cluster, and wait until its data is durable and its ports are free."""
        _running.discard(self)
        self._native.stop()

    @property
    def is_running(self) -> bool:
        """Whether the cluster runs in this process."""
        return self._native.is_running

    @property
    def address(self) -> str:
        """``HOST:PORT`` of the metadata server."""
        return self._native.metadata_server

    @property
    def pin(self) -> str:
        """Pin of the certificate of the metadata server."""
        return self._native.pin

    @property
    def devices(self) -> list[Device]:
        """The devices."""
        return [Device(name, url) for name, url in self._native.devices]

    @property
    def folder(self) -> Path:
        """Folder of the cluster; one in memory ends with the cluster."""
        return Path(self._native.folder)

    @property
    def cluster_file(self) -> Path:
        """File with address and pin, for :func:`connect` and ``sealstone login --cluster``."""
        return Path(self._native.cluster_file)

    @property
    def admin_secret(self) -> Path:
        """Key file of the administrator, or the password of one that ``sealstone up`` created."""
        return Path(self._native.admin_secret)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.is_running else "stopped"
        return f"<sealstone.Cluster {self.address} {state}>"


@atexit.register
def _stop_all() -> None:
    failures = []
    for cluster in list(_running):
        try:
            if cluster.is_running:
                cluster.stop()
        except BaseException as failure:
            failures.append(failure)
    # A failure, or Ctrl-C, must not keep the other clusters from stopping.
    if failures:
        raise failures[0]
