"""One cluster in memory for all tests, and a directory for each test."""

import itertools
from collections.abc import Iterator

import pytest

import sealstone

_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[sealstone.Cluster]:
    with sealstone.Cluster.embedded(devices=2) as running:
        yield running


@pytest.fixture(scope="session")
def client(cluster: sealstone.Cluster) -> Iterator[sealstone.Client]:
    with cluster.client() as logged_in:
        yield logged_in


@pytest.fixture
def folder(client: sealstone.Client) -> str:
    path = f"/test{next(_numbers)}"
    client.mkdir(path)
    return path
