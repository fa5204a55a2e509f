"""Open files, beside local ones: the same calls give the same results."""

import io
import os
import random
import time

import pytest

import sealstone
from sealstone._client import BUFFER_BYTES


def test_modes_are_those_of_open(client, folder):
    path = f"{folder}/file"
    with pytest.raises(FileNotFoundError):
        client.open(path)
    with client.open(path, "x") as file:
        file.write("first\n")
    with pytest.raises(FileExistsError):
        client.open(path, "x")
    with client.open(path, "a") as file:
        file.write("sécond\n")
    with client.open(path, encoding="utf-8") as file:
        assert list(file) == ["first\n", "sécond\n"]
    with client.open(path, "r+b") as file:
        file.seek(2)
        file.write(b"__")
    assert client.get(path).startswith(b"fi__t\n")
    with client.open(path, "wb") as file:
        assert file.tell() == 0
    assert client.stat(path).size == 0


@pytest.mark.parametrize("mode", ["", "rw", "b", "rbt", "q", "rr"])
def test_wrong_modes_are_refused(client, folder, mode):
    with pytest.raises(ValueError):
        client.open(f"{folder}/file", mode)


def test_raw_file_is_a_raw_stream(client, folder):
    with client.open(f"{folder}/file", "w+b", buffering=0) as raw:
        assert isinstance(raw, io.RawIOBase) and isinstance(raw, sealstone.RawFile)
        assert raw.readable() and raw.writable() and raw.seekable()
        assert raw.write(b"0123456789") == 10
        assert raw.seek(-3, os.SEEK_END) == 7
        assert raw.read() == b"789" and raw.read() == b""
        buffer = bytearray(4)
        assert raw.pread_into(buffer, 8) == 2 and buffer == b"89\0\0"
        assert raw.truncate(4) == 4 and raw.tell() == 10
        raw.seek(6)
        raw.write(b"x")
        raw.sync()
    assert client.get(f"{folder}/file") == b"0123\0\0x"


def test_reads_and_writes_need_their_mode(client, folder):
    client.put(f"{folder}/file", b"x")
    with client.open(f"{folder}/file", "rb", buffering=0) as raw:
        with pytest.raises(io.UnsupportedOperation):
            raw.write(b"y")
        with pytest.raises(io.UnsupportedOperation):
            raw.truncate(0)
    with client.open(f"{folder}/file", "ab", buffering=0) as raw:
        with pytest.raises(io.UnsupportedOperation):
            raw.read(1)
    with pytest.raises(ValueError):
        raw.write(b"y")
    assert client.get(f"{folder}/file") == b"x"


def test_readinto_takes_wide_and_readonly_buffers(client, folder):
    import array

    client.put(f"{folder}/file", bytes(range(16)))
    with client.open(f"{folder}/file", "rb") as file:
        numbers = array.array("I", [0] * 4)
        assert file.readinto(numbers) == 16
        assert numbers.tobytes() == bytes(range(16))
    with client.open(f"{folder}/file", "rb", buffering=0) as raw:
        with pytest.raises((TypeError, ValueError, BufferError)):
            raw.readinto(b"constant")


def test_appends_of_two_clients_keep_all_bytes(cluster, client, folder):
    with cluster.client() as other:
        with client.open(f"{folder}/log", "ab", buffering=0) as one:
            with other.open(f"{folder}/log", "ab", buffering=0) as two:
                for _ in range(5):
                    one.write(b"a")
                    two.write(b"b")
        content = client.get(f"{folder}/log")
        assert sorted(content) == sorted(b"ab" * 5)


def test_close_makes_bytes_visible_to_others(cluster, client, folder):
    with cluster.client() as other:
        with client.open(f"{folder}/file", "wb") as file:
            file.write(b"one")
        with other.open(f"{folder}/file", "rb") as file:
            assert file.read() == b"one"
        other.put(f"{folder}/file", b"three")
        with client.open(f"{folder}/file", "rb") as file:
            assert file.read() == b"three"


def test_closed_client_returns_its_leases(cluster, client, folder):
    """Otherwise an open would wait until the leases expire, and the server would penalize the user."""
    with cluster.client() as other:
        with other.open(f"{folder}/file", "wb") as file:
            file.write(b"one")
    begun = time.monotonic()
    with client.open(f"{folder}/file", "r+b") as file:
        assert file.read() == b"one"
    assert time.monotonic() - begun < 10


def test_file_of_closed_client_reports_lost_bytes(cluster, client, folder):
    other = cluster.client()
    file = other.open(f"{folder}/file", "wb")
    file.write(b"one")
    file.flush()
    file.write(b"two")
    other.close()
    with pytest.raises(OSError):
        file.close()
    assert client.get(f"{folder}/file") == b"one"


def test_random_calls_match_a_local_file(client, folder, tmp_path):
    """Random calls of reads, writes, seeks and truncates on both; every result is compared."""
    seed = int(os.environ.get("SEALSTONE_SEED", random.randrange(2**32)))
    choose = random.Random(seed)
    local_path = tmp_path / "local"
    for round_number in range(10):
        mode = choose.choice(["w+b", "r+b", "a+b"])
        buffering = choose.choice([0, -1, 16])
        local_path.touch()
        with client.open(f"{folder}/file", "ab"):
            pass
        # In append mode, positions depend on when the buffer of CPython is flushed, so on its size.
        with open(local_path, mode, BUFFER_BYTES if buffering == -1 else buffering) as local:
            with client.open(f"{folder}/file", mode, buffering) as stored:
                for _ in range(60):
                    call = choose.choice(["read", "write", "seek", "tell", "truncate", "flush", "readinto"])
                    if call == "read":
                        argument = choose.choice([-1, 0, 1, 100, 5000])
                        results = [file.read(argument) for file in (local, stored)]
                    elif call == "write":
                        data = choose.randbytes(choose.choice([0, 1, 17, 5000]))
                        results = [file.write(data) for file in (local, stored)]
                    elif call == "seek":
                        offset, whence = choose.randrange(20_000), choose.choice([0, 0, 2])
                        results = [file.seek(offset, whence) for file in (local, stored)]
                    elif call == "truncate":
                        size = choose.choice([None, choose.randrange(20_000)])
                        results = [file.truncate(size) for file in (local, stored)]
                    elif call == "readinto":
                        buffers = [bytearray(50), bytearray(50)]
                        counts = [f.readinto(b) for f, b in zip((local, stored), buffers)]
                        results = list(zip(counts, buffers))
                    else:
                        results = [getattr(file, call)() for file in (local, stored)]
                    assert results[0] == results[1], f"{call}, {mode}, {buffering}: SEALSTONE_SEED={seed}"
        assert local_path.read_bytes() == client.get(f"{folder}/file"), f"SEALSTONE_SEED={seed}"
