"""The client for asyncio."""

import asyncio
import doctest
import errno
import gc
import io
import os
import socket
import subprocess
import sys
import time
import weakref

import pytest

import sealstone
import sealstone.aio
from sealstone.aio import AsyncClient

WAIT_S_MAX = 300


@pytest.fixture
def shared(client) -> AsyncClient:
    return AsyncClient.of(client)


def silent_server(tmp_path) -> "tuple[socket.socket, str]":
    """Return a server that accepts connections and never answers, and its cluster file."""
    listener = socket.create_server(("127.0.0.1", 0))
    path = tmp_path / "cluster.toml"
    path.write_text(f'mds = "127.0.0.1:{listener.getsockname()[1]}"\npin = "sha256:{"ab" * 32}"\n')
    return listener, str(path)


def test_example_of_the_module_runs():
    assert doctest.testmod(sealstone.aio).failed == 0


def test_operations_by_path(shared, folder, tmp_path):
    async def main():
        await shared.mkdir(f"{folder}/a/b", parents=True)
        stored = await shared.put(f"{folder}/a/b/file", bytearray(b"0123456789"))
        assert (stored.size, stored.kind) == (10, "file")
        assert await shared.get(f"{folder}/a/b/file") == b"0123456789"
        assert await shared.get(f"{folder}/a/b/file", start=2, end=4) == b"23"
        (tmp_path / "local").write_bytes(b"local")
        await shared.put_file(f"{folder}/a/local", tmp_path / "local")
        assert [entry.name for entry in await shared.list(f"{folder}/a")] == ["b", "local"]
        await shared.rename(f"{folder}/a/local", f"{folder}/a/moved")
        assert (await shared.stat(f"{folder}/a/moved")).size == 5
        assert not await shared.exists(f"{folder}/a/local")
        assert await shared.remove(f"{folder}/a", recursive=True) == 4
        assert await shared.user() == "admin"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (3, None), (3, 7), (-3, None), (0, -3), (-5, -2), (7, 3), (8, 99), (99, None)]
)
def test_read_has_offsets_of_slices(shared, folder, start, end):
    async def main():
        await shared.put(f"{folder}/file", b"0123456789")
        assert await shared.read(f"{folder}/file", start=start, end=end) == b"0123456789"[start:end]

    asyncio.run(main())


def test_read_sees_what_others_stored(shared, cluster, folder):
    """The lease of the first read is recalled by the second put."""

    async def main():
        async with await cluster.async_client() as other:
            for size in (4096, 0, 10, 20_000_000, 4096):
                data = os.urandom(size)
                await other.put(f"{folder}/file", data)
                for _ in range(2):
                    assert await shared.read(f"{folder}/file") == data

    asyncio.run(main())


def test_errors_are_those_of_the_client(shared, folder):
    async def main():
        for operation, kind in [
            (shared.get(f"{folder}/no"), FileNotFoundError),
            (shared.read(f"{folder}/no"), FileNotFoundError),
            (shared.read(folder), IsADirectoryError),
            (shared.mkdir(folder), FileExistsError),
            (shared.open(f"{folder}/no", "rb"), FileNotFoundError),
            (shared.open(f"{folder}/no", "r"), ValueError),
            (shared.get("/", start=-1), ValueError),
            (shared.put(f"{folder}/file", "text"), TypeError),
        ]:
            with pytest.raises(kind):
                await operation

    asyncio.run(main())


def test_files_read_write_and_append(shared, folder):
    async def main():
        async with await shared.open(f"{folder}/file", "x+b") as file:
            assert await file.write(b"0123456789") == 10
            assert await file.seek(-3, os.SEEK_END) == 7 and await file.read() == b"789"
            assert await file.pwrite(b"__", 2) == 2 and await file.pread(4, 1) == b"1__4"
            buffer = bytearray(4)
            await file.seek(8)
            assert await file.readinto(buffer) == 2 and file.tell() == 10
            assert await file.truncate(4) == 4 and await file.size() == 4
            await file.sync()
        async with await shared.open(f"{folder}/file", "ab") as file:
            assert file.tell() == 4
            await file.write(b"end")
            with pytest.raises(io.UnsupportedOperation):
                await file.pwrite(b"x", 0)
            with pytest.raises(io.UnsupportedOperation):
                await file.read(1)
        with pytest.raises(ValueError):
            await file.write(b"x")
        assert await shared.get(f"{folder}/file") == b"01__end"

    asyncio.run(main())


def test_calls_with_position_keep_their_order(shared, folder):
    async def main():
        async with await shared.open(f"{folder}/file", "wb") as file:
            await asyncio.gather(*(file.write(b"%04d" % number) for number in range(200)))
        assert await shared.get(f"{folder}/file") == b"".join(b"%04d" % number for number in range(200))

    asyncio.run(main())


def test_many_operations_run_in_parallel(shared, folder):
    async def main():
        names = [f"{folder}/{number}" for number in range(500)]
        await asyncio.gather(*(shared.put(name, name.encode()) for name in names))
        assert await asyncio.gather(*map(shared.read, names)) == [name.encode() for name in names]

    asyncio.run(main())


def test_too_many_operations_are_refused(tmp_path):
    listener, path = silent_server(tmp_path)

    def login():
        return asyncio.ensure_future(sealstone.aio.connect(path, user="alice", password="guess"))

    async def main():
        tasks = [login() for _ in range((1 << 14) + 1)]
        done, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        assert [task.exception().errno for task in done] == [errno.EAGAIN]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        async with asyncio.timeout(WAIT_S_MAX):
            # Cancelled operations end shortly afterwards, and others may start.
            while (last := login()) and (await asyncio.wait([last], timeout=0.1))[0]:
                assert last.exception().errno == errno.EAGAIN
            last.cancel()

    with listener:
        asyncio.run(main())


def test_event_loop_runs_while_an_operation_waits(tmp_path):
    listener, path = silent_server(tmp_path)

    async def main():
        login = asyncio.ensure_future(sealstone.aio.connect(path, user="alice", password="guess"))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not login.done()
        login.cancel()
        with pytest.raises(asyncio.CancelledError):
            await login

    with listener:
        asyncio.run(main())


def test_cancelled_operation_closes_its_connection(tmp_path):
    listener, path = silent_server(tmp_path)

    async def main():
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await sealstone.aio.connect(path, user="alice", password="guess")
        return time.monotonic() - begun

    with listener:
        elapsed = asyncio.run(main())
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(WAIT_S_MAX)
            while connection.recv(4096):
                pass
    # Less than the time limit of a login.
    assert elapsed < 10


def test_cancelled_put_stores_all_or_nothing(shared, folder):
    data = os.urandom(4_000_000)

    async def main():
        outcomes = set()
        for number in range(40):
            name = f"{folder}/{number}"
            task = asyncio.ensure_future(shared.put(name, data))
            await asyncio.sleep(number * 0.002)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            found = await shared.exists(name)
            outcomes.add(found)
            assert not found or await shared.get(name) == data
        return outcomes

    assert False in asyncio.run(main())


def test_cancelled_write_leaves_a_usable_file(shared, folder):
    async def main():
        async with await shared.open(f"{folder}/file", "w+b") as file:
            for number in range(20):
                task = asyncio.ensure_future(file.pwrite(b"x" * 3_000_000, 0))
                await asyncio.sleep(number * 0.0005)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await file.pwrite(b"y" * 3_000_000, 0)
            await file.sync()
            assert await file.pread(3_000_000, 0) == b"y" * 3_000_000

    asyncio.run(main())


def test_event_loops_share_a_client(shared, folder):
    async def main(number):
        await shared.put(f"{folder}/file", b"%d" % number)
        return await shared.read(f"{folder}/file")

    for number in range(3):
        assert asyncio.run(main(number)) == b"%d" % number


def test_closed_event_loop_leaves_client_usable(shared, client, folder):
    """The loop is closed with operations in flight, without their cancellation."""
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(shared.put(f"{folder}/{number}", b"x" * 100_000)) for number in range(20)]
    loop.run_until_complete(asyncio.sleep(0.002))
    for task in tasks:
        # No message about tasks that were destroyed while they were pending.
        task._log_destroy_pending = False
    loop.close()
    closed = weakref.ref(loop)
    del loop, tasks, task
    gc.collect()
    assert closed() is None
    client.put(f"{folder}/after", b"usable")
    assert asyncio.run(shared.read(f"{folder}/after")) == b"usable"


def test_closed_client_is_refused(cluster):
    async def main():
        client = await cluster.async_client()
        await client.close()
        await client.close()
        assert client.closed
        with pytest.raises(ValueError):
            await client.get("/")

    asyncio.run(main())


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "os._exit(3)", "sys.exit(3)"])
def test_interpreter_ends_during_operations(end):
    """Other threads run the loop and the operations when the main thread ends."""
    program = f"""
import asyncio, os, sys, threading, time, sealstone
cluster = sealstone.Cluster.embedded()
client = cluster.client()
started = threading.Event()
async def main():
    shared = sealstone.aio.AsyncClient.of(client)
    async def work(number):
        for _ in range(10_000):
            await shared.put(f"/{{number}}", b"x" * 200_000)
            started.set()
    await asyncio.gather(*map(work, range(16)), return_exceptions=True)
import sealstone.aio
threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
assert started.wait({WAIT_S_MAX})
{end}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert done.returncode == 3, done.stderr
    assert "panicked" not in done.stderr and "Fatal" not in done.stderr


def test_child_of_fork_gets_an_error():
    program = """
import asyncio, os, sealstone, sealstone.aio
with sealstone.Cluster.embedded() as cluster:
    shared = sealstone.aio.AsyncClient.of(cluster.client())
    asyncio.run(shared.put("/file", b"parent"))
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(shared.get("/file"))
        except RuntimeError as error:
            assert "fork" in str(error)
            async def again():
                connect = sealstone.aio.connect(cluster.cluster_file, key_file=cluster.admin_secret)
                async with await connect as client:
                    return await client.get("/file")
            assert asyncio.run(again()) == b"parent"
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert asyncio.run(shared.get("/file")) == b"parent"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert done.returncode == 0, done.stderr


def test_import_of_the_package_needs_no_asyncio():
    program = "import sys, sealstone; assert 'asyncio' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=WAIT_S_MAX)
