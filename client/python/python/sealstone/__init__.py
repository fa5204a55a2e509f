"""Secure object-based storage: an embedded cluster, and a client of files.

>>> import sealstone
>>> with sealstone.Cluster.embedded() as cluster:
...     with cluster.client() as client:
...         _ = client.put("/notes.txt", b"hello")
...         client.get("/notes.txt")
b'hello'
"""

from ._client import Client, DirEntry, Stat, connect
from ._cluster import Cluster, Device
from ._errors import (
    ClusterError,
    ConnectionLostError,
    DamagedError,
    DeniedError,
    Error,
    ExistsError,
    IsDirectoryError,
    LoginError,
    LoginThrottledError,
    NotDirectoryError,
    NotFoundError,
    QuotaError,
    TimedOutError,
)
from ._file import RawFile

__all__ = [
    "Client",
    "Cluster",
    "ClusterError",
    "ConnectionLostError",
    "DamagedError",
    "DeniedError",
    "Device",
    "DirEntry",
    "Error",
    "ExistsError",
    "IsDirectoryError",
    "LoginError",
    "LoginThrottledError",
    "NotDirectoryError",
    "NotFoundError",
    "QuotaError",
    "RawFile",
    "Stat",
    "TimedOutError",
    "connect",
]
