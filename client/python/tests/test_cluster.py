"""Embedded clusters."""

import doctest
import errno
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

import sealstone
from sealstone import _cluster


def test_example_of_the_package_runs():
    assert doctest.testmod(sealstone).failed == 0


def test_folder_keeps_data(tmp_path):
    path = tmp_path / "cluster"
    with sealstone.Cluster.embedded(path, devices=2) as cluster:
        assert cluster.folder == path and len(cluster.devices) == 2
        with cluster.client() as client:
            client.put("/file", b"kept")
    assert not cluster.is_running
    with sealstone.Cluster.embedded(path) as cluster:
        with cluster.client() as client:
            assert client.get("/file") == b"kept"


def test_stopped_cluster_frees_port_and_memory():
    cluster = sealstone.Cluster.embedded()
    host, _, port = cluster.address.rpartition(":")
    folder = cluster.folder
    client = cluster.client()
    assert folder.exists()
    cluster.stop()
    cluster.stop()
    assert not folder.parent.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=60)
    with pytest.raises(sealstone.ClusterError):
        cluster.client()
    del client


def test_wrong_parameters_are_refused(tmp_path):
    for devices in (0, 65, 10_000):
        with pytest.raises(sealstone.ClusterError, match="1 to 64 devices"):
            sealstone.Cluster.embedded(devices=devices)
    with pytest.raises(ValueError):
        sealstone.Cluster.embedded(devices=-1)
    (tmp_path / "letter").write_text("mine")
    with pytest.raises(sealstone.ClusterError, match="not a folder of a cluster"):
        sealstone.Cluster.embedded(tmp_path)
    with pytest.raises(PermissionError):
        sealstone.Cluster.embedded("/sys/sealstone")
    path = tmp_path / "cluster"
    with sealstone.Cluster.embedded(path):
        with pytest.raises(sealstone.ClusterError, match="another cluster runs"):
            sealstone.Cluster.embedded(path)


def run(program: str, **options) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def test_exit_removes_folder_in_memory():
    program = "import sealstone; c = sealstone.Cluster.embedded(); k = c.client(); print(c.folder.parent)"
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert not os.path.exists(done.stdout.strip())


def test_exit_stops_clusters_after_a_failure(monkeypatch):
    clusters = [sealstone.Cluster.embedded() for _ in range(2)]
    stop = sealstone.Cluster.stop

    def stop_and_fail(self):
        stop(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(_cluster, "_running", set(clusters))
    monkeypatch.setattr(sealstone.Cluster, "stop", stop_and_fail)
    with pytest.raises(KeyboardInterrupt):
        _cluster._stop_all()
    assert not any(cluster.is_running for cluster in clusters)


def test_throttled_login_has_its_class(cluster):
    with sealstone.Cluster.embedded() as other:
        other.admin_secret.write_text(cluster.admin_secret.read_text())
        with pytest.raises(sealstone.LoginThrottledError, match="try again in") as raised:
            for _ in range(20):
                with pytest.raises(sealstone.LoginError):
                    other.client()
        assert raised.value.errno == errno.EAGAIN


def test_child_of_fork_gets_an_error_and_ends():
    program = """
import os, sealstone
cluster = sealstone.Cluster.embedded()
client = cluster.client()
client.put("/file", b"parent")
child = os.fork()
if child == 0:
    try:
        client.get("/file")
    except RuntimeError as error:
        assert "fork" in str(error)
        again = sealstone.connect(cluster.cluster_file, key_file=cluster.admin_secret)
        assert again.get("/file") == b"parent"
        again.close()
        raise SystemExit(7)
    raise SystemExit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert client.get("/file") == b"parent"
cluster.stop()
"""
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_signal_ends_a_waiting_call():
    """The server accepts connections and never answers, so that the login waits for it."""
    program = """
import os, signal, socket, sys, tempfile, sealstone
# Ignored in a job in the background, whose children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
listener = socket.create_server(("127.0.0.1", 0))
with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
    port = listener.getsockname()[1]
    file.write(f'mds = "127.0.0.1:{port}"\\npin = "sha256:{"ab" * 32}"\\n')
    file.flush()
    print("waiting", flush=True)
    sealstone.connect(file.name, user="alice", password="guess")
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "waiting\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors
