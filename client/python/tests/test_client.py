"""Operations by path."""

import errno
import os
import stat
import threading
import time

import pytest

import sealstone


def test_put_and_get_return_same_bytes(client, folder):
    for size in (0, 1, 4096, 3_000_000):
        data = os.urandom(size)
        stored = client.put(f"{folder}/file", data)
        assert (stored.size, stored.kind, stored.owner) == (size, "file", "admin")
        assert client.get(f"{folder}/file") == data
    assert client.get(f"{folder}/file", start=10, end=20) == data[10:20]
    assert client.get(f"{folder}/file", start=2_999_990) == data[-10:]


def test_put_takes_buffers_but_no_text(client, folder):
    for data in (bytearray(b"abc"), memoryview(b"abc"), memoryview(b"aXbXcX")[::2]):
        client.put(f"{folder}/file", data)
        assert client.get(f"{folder}/file") == b"abc"
    with pytest.raises(TypeError):
        client.put(f"{folder}/file", "abc")


def test_put_without_replace_keeps_old_file(client, folder):
    client.put(f"{folder}/file", b"old")
    with pytest.raises(FileExistsError) as raised:
        client.put(f"{folder}/file", b"new", replace=False)
    assert isinstance(raised.value, sealstone.ExistsError)
    assert client.get(f"{folder}/file") == b"old"


def test_list_has_names_and_attributes(client, folder):
    client.put(f"{folder}/b", b"12")
    client.mkdir(f"{folder}/a")
    client.put(os.fsencode(folder) + b"/\xff", b"")
    entries = client.list(folder)
    assert [entry.name for entry in entries] == ["a", "b", os.fsdecode(b"\xff")]
    assert [entry.kind for entry in entries] == ["directory", "file", "file"]
    assert entries[1].stat.size == 2
    assert client.get(f"{folder}/{entries[2].name}") == b""


def test_stat_resembles_os_stat(client, folder):
    before = time.time_ns()
    client.put(f"{folder}/file", b"x", mode=0o640)
    found = client.stat(f"{folder}/file")
    assert stat.S_ISREG(found.mode) and stat.S_IMODE(found.mode) == 0o640
    assert found.is_file and not found.is_dir and client.stat(folder).is_dir
    assert abs(found.mtime_ns - before) < 600 * 10**9
    assert client.exists(f"{folder}/file") and not client.exists(f"{folder}/file/below")


def test_remove_and_rename(client, folder):
    client.mkdir(f"{folder}/a/b", parents=True)
    client.put(f"{folder}/a/b/c", b"x")
    with pytest.raises(OSError) as raised:
        client.remove(f"{folder}/a")
    assert raised.value.errno == errno.ENOTEMPTY
    client.rename(f"{folder}/a", f"{folder}/d")
    assert client.get(f"{folder}/d/b/c") == b"x"
    assert client.remove(f"{folder}/d", recursive=True) == 3
    assert client.list(folder) == []


@pytest.mark.parametrize(
    ("call", "kind", "number"),
    [
        (lambda client, path: client.get(f"{path}/no"), FileNotFoundError, errno.ENOENT),
        (lambda client, path: client.list(f"{path}/file"), NotADirectoryError, errno.ENOTDIR),
        (lambda client, path: client.get(path), IsADirectoryError, errno.EISDIR),
        (lambda client, path: client.mkdir(path), FileExistsError, errno.EEXIST),
        (lambda client, path: client.put("relative", b""), OSError, errno.EINVAL),
        (lambda client, path: client.put(f"{path}/{'x' * 300}", b""), OSError, None),
    ],
)
def test_errors_have_class_and_number(client, folder, call, kind, number):
    client.put(f"{folder}/file", b"")
    with pytest.raises(kind) as raised:
        call(client, folder)
    assert isinstance(raised.value, sealstone.Error)
    assert number is None or raised.value.errno == number


def test_local_files_are_stored(client, folder, tmp_path):
    local = tmp_path / "local"
    local.write_bytes(b"content")
    os.utime(local, ns=(1_600_000_000_123_456_789, 1_600_000_000_123_456_789))
    assert client.put_file(f"{folder}/file", local).mtime_ns == 1_600_000_000_123_456_789
    assert client.get(f"{folder}/file") == b"content"
    with pytest.raises(FileNotFoundError) as raised:
        client.put_file(f"{folder}/file", tmp_path / "missing")
    assert raised.value.filename == str(tmp_path / "missing")


def test_threads_share_a_client(client, folder):
    failures = []

    def work(number):
        try:
            for index in range(5):
                path = f"{folder}/{number}-{index}"
                client.put(path, path.encode() * 100)
                assert client.get(path) == path.encode() * 100
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(client.list(folder)) == 20


def test_waits_release_the_interpreter_lock(cluster):
    """A login runs Argon2id for a wrong password; another thread runs meanwhile."""
    counted = []
    done = threading.Event()

    def count():
        while not done.is_set():
            counted.append(None)
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    with pytest.raises(PermissionError):
        sealstone.connect(cluster.cluster_file, user="admin", password="guess")
    done.set()
    thread.join()
    assert len(counted) > 5


def test_connect_needs_the_right_secret(cluster, tmp_path):
    with pytest.raises(sealstone.LoginError):
        sealstone.connect(cluster.cluster_file, user="admin", password="guess")
    with sealstone.connect(cluster.cluster_file, key_file=cluster.admin_secret) as client:
        assert client.user == "admin"
    with pytest.raises(ValueError):
        sealstone.connect(cluster.cluster_file)
    with pytest.raises(FileNotFoundError):
        sealstone.connect(tmp_path / "missing.toml", user="a", password="b")


def test_closed_client_is_refused(cluster):
    client = cluster.client()
    client.close()
    client.close()
    assert client.closed
    with pytest.raises(ValueError):
        client.get("/")
