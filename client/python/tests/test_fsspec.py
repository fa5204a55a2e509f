"""The file system for fsspec, with the tests that fsspec has for all file systems."""

import asyncio
import gc
import importlib
import os
import pickle
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import fsspec
import fsspec.tests.abstract as abstract
import pytest

import sealstone
from sealstone._loop import run
from sealstone.fsspec import SealstoneFileSystem

fsspec.register_implementation("sealstone", SealstoneFileSystem, clobber=True)


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, files):
        return files

    @pytest.fixture
    def fs_path(self, folder):
        return folder


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


@pytest.fixture(scope="session")
def options(cluster) -> "dict[str, str]":
    return {"cluster": str(cluster.cluster_file), "key_file": str(cluster.admin_secret)}


@pytest.fixture(scope="session")
def files(options) -> SealstoneFileSystem:
    return SealstoneFileSystem(**options)


def test_entry_point_names_the_class():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["fsspec.specs"]["sealstone"].partition(":")
    assert getattr(importlib.import_module(module), name) is SealstoneFileSystem


def test_urls_have_no_host(files):
    assert files._strip_protocol("sealstone:///a/b/") == "/a/b"
    assert files._strip_protocol(["sealstone://", "/a", "a"]) == ["/", "/a", "/a"]
    assert files.unstrip_protocol("/a") == "sealstone:///a"
    with pytest.raises(ValueError, match="storage option"):
        files._strip_protocol("sealstone://a/b")


@pytest.mark.parametrize(("start", "end"), [(None, None), (2, 5), (-3, None), (None, -3), (5, 99), (5, 2)])
def test_cat_has_ranges(files, folder, start, end):
    files.pipe_file(f"{folder}/file", b"0123456789")
    assert files.cat_file(f"{folder}/file", start, end) == b"0123456789"[start:end]
    ranges = files.cat_ranges([f"{folder}/file"] * 2, [0, 3], [1, 5])
    assert ranges == [b"0", b"34"]


def test_listing_has_details(files, client, folder):
    files.pipe({f"{folder}/a/file": b"12", f"{folder}/b": b""})
    found = {one["name"]: one for one in files.ls(folder)}
    assert {name: (one["type"], one["size"]) for name, one in found.items()} == {
        f"{folder}/a": ("directory", 0),
        f"{folder}/b": ("file", 0),
    }
    assert files.ls(f"{folder}/a/file", detail=False) == [f"{folder}/a/file"]
    assert files.find(folder) == [f"{folder}/a/file", f"{folder}/b"]
    assert files.glob(f"{folder}/*/f*") == [f"{folder}/a/file"]
    assert files.du(folder) == 2 and files.isdir(f"{folder}/a") and files.isfile(f"{folder}/b")
    before = files.ukey(f"{folder}/b")
    files.pipe_file(f"{folder}/b", b"new")
    assert files.ukey(f"{folder}/b") != before
    assert files.modified(f"{folder}/b") >= files.created(f"{folder}/a")


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda files, path: files.cat_file(f"{path}/no"), FileNotFoundError),
        (lambda files, path: files.info(f"{path}/no"), FileNotFoundError),
        (lambda files, path: files.ls(f"{path}/no"), FileNotFoundError),
        (lambda files, path: files.open(f"{path}/no"), FileNotFoundError),
        (lambda files, path: files.rm(f"{path}/no"), FileNotFoundError),
        (lambda files, path: files.mv(f"{path}/no", f"{path}/other"), FileNotFoundError),
        (lambda files, path: files.cat_file(path), IsADirectoryError),
        (lambda files, path: files.open(path, "wb"), IsADirectoryError),
        (lambda files, path: files.mkdir(path), FileExistsError),
        (lambda files, path: files.makedirs(path), FileExistsError),
        (lambda files, path: files.rmdir(f"{path}/file"), NotADirectoryError),
        (lambda files, path: files.pipe_file(f"{path}/file/below", b""), NotADirectoryError),
    ],
)
def test_errors_are_those_of_the_system(files, folder, call, kind):
    files.pipe_file(f"{folder}/file", b"")
    with pytest.raises(kind) as raised:
        call(files, folder)
    assert raised.value.errno


def test_directories_move_and_end(files, folder):
    files.pipe_file(f"{folder}/a/b/file", b"x")
    files.mv(f"{folder}/a", f"{folder}/c", recursive=True)
    assert files.cat_file(f"{folder}/c/b/file") == b"x"
    files.mv(f"{folder}/c/b/file", f"{folder}/c/")
    assert files.ls(f"{folder}/c", detail=False) == [f"{folder}/c/b", f"{folder}/c/file"]
    files.mv(f"{folder}/c/file", f"{folder}/new/deep/file")
    files.rmdir(f"{folder}/c/b")
    with pytest.raises(OSError):
        files.rm(f"{folder}/new")
    files.rm([f"{folder}/new", f"{folder}/c"], recursive=True)
    assert files.ls(folder) == []


def test_written_file_appears_when_closed(files, folder):
    path, data = f"{folder}/file", os.urandom(5_000_000)
    with files.open(path, "wb") as file:
        for start in range(0, len(data), 700_000):
            file.write(data[start : start + 700_000])
        assert file.tell() == len(data) and not files.exists(path)
    assert files.cat_file(path) == data
    with files.open(path, "rb") as file:
        assert file.size == len(data)
        file.seek(4_000_000)
        assert file.read(10) == data[4_000_000:4_000_010]


def test_interrupted_write_is_not_stored(files, folder, client):
    """A write is cancelled, as by Ctrl-C, before the pipe has all of its bytes."""
    native, data = client._open_native(), os.urandom(30_000_000)

    async def main():
        for number in range(10):
            path = f"{folder}/{number}"
            upload = native.upload(os.fsencode(path), True, 0o644)
            task = asyncio.ensure_future(run(upload.write(data)))
            await asyncio.sleep(number * 0.002)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            try:
                await run(upload.finish())
            except OSError:
                assert not client.exists(path)
            else:
                assert client.get(path) in (b"", data)

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["ab", "wb", "async"])
def test_open_file_keeps_the_session(options, client, folder, mode):
    async def change_and_close(file):
        await file.write(b"x")
        await file.close()

    files = SealstoneFileSystem(**options, skip_instance_cache=True)
    path = f"{folder}/file"
    file = asyncio.run(files.open_async(path, "wb")) if mode == "async" else files.open(path, mode)
    del files
    gc.collect()
    if mode == "async":
        asyncio.run(change_and_close(file))
    else:
        file.write(b"x")
        file.close()
    assert client.get(path) == b"x"


def test_failed_block_stores_nothing(files, folder):
    with pytest.raises(ZeroDivisionError):
        with files.open(f"{folder}/file", "wb") as file:
            file.write(b"x" * 5_000_000)
            1 / 0
    assert not files.exists(f"{folder}/file")


def test_modes_change_files_in_place(files, folder):
    path = f"{folder}/file"
    with files.open(path, "w") as file:
        file.write("one\n")
    with files.open(path, "a") as file:
        file.write("two\n")
    with files.open(path, "r+b") as file:
        file.seek(1)
        file.write(b"N")
    with files.open(path, "r") as file:
        assert list(file) == ["oNe\n", "two\n"]


def test_transaction_stores_all_or_nothing(files, folder):
    with files.transaction:
        for name in "ab":
            with files.open(f"{folder}/{name}", "wb") as file:
                file.write(b"x")
        assert files.ls(folder) == []
    assert len(files.ls(folder)) == 2
    with pytest.raises(ZeroDivisionError):
        with files.transaction:
            with files.open(f"{folder}/c", "wb") as file:
                file.write(b"x")
            1 / 0
    assert len(files.ls(folder)) == 2
    for mode in ("ab", "r+b", "w+b"):
        with files.transaction, pytest.raises(ValueError, match="in place"):
            files.open(f"{folder}/a", mode)


def test_instances_pickle_with_options(files, client, folder):
    files.pipe_file(f"{folder}/file", b"x")
    assert pickle.loads(pickle.dumps(files)).cat_file(f"{folder}/file") == b"x"
    with pytest.raises(TypeError):
        pickle.dumps(SealstoneFileSystem(client=client))


def test_other_process_opens_a_url(options, client, folder):
    client.put(f"{folder}/file", b"stored")
    program = f"""
import fsspec, sealstone.fsspec
fsspec.register_implementation("sealstone", sealstone.fsspec.SealstoneFileSystem)
with fsspec.open("sealstone://{folder}/file", **{options!r}) as file:
    assert file.read() == b"stored"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_asynchronous_instance_runs_on_callers_loop(client, folder):
    async def main():
        files = SealstoneFileSystem(client=client, asynchronous=True, skip_instance_cache=True)
        await asyncio.gather(*(files._pipe_file(f"{folder}/d/{n}", b"%d" % n) for n in range(100)))
        found = await files._cat(sorted(await files._find(folder)))
        assert sorted(found.values()) == sorted(b"%d" % number for number in range(100))
        async with await files.open_async(f"{folder}/d/0", "rb") as file:
            assert await file.read() == b"0"

    asyncio.run(main())


def test_callbacks_report_sizes(files, folder, tmp_path):
    (tmp_path / "local").write_bytes(b"12345")
    for call, names in [
        (files.put_file, (str(tmp_path / "local"), f"{folder}/file")),
        (files.get_file, (f"{folder}/file", str(tmp_path / "again"))),
    ]:
        callback = fsspec.Callback()
        call(*names, callback=callback)
        assert (callback.size, callback.value) == (5, 5)
    assert (tmp_path / "again").read_bytes() == b"12345"


def test_failed_read_into_a_file_leaves_no_part(options, client, folder, tmp_path):
    """The size of local files is limited, so that the read fails in the middle."""
    client.put(f"{folder}/file", bytes(1) + os.urandom(5_000_000))
    local = tmp_path / "local"
    program = f"""
import resource
from sealstone.fsspec import SealstoneFileSystem
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    SealstoneFileSystem(**{options!r}).get_file("{folder}/file", {str(local)!r})
except OSError as error:
    assert error.filename == {str(local)!r}, error
    raise SystemExit(7)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 7, done.stderr
    assert not local.exists()


def test_exit_does_not_wait_for_a_stopped_cluster():
    """The client does not know that the bytes of its open file are durable."""
    program = """
import sealstone
from sealstone.fsspec import SealstoneFileSystem
with sealstone.Cluster.embedded() as cluster:
    files = SealstoneFileSystem(cluster.cluster_file, key_file=cluster.admin_secret)
    with files.open("/file", "ab") as file:
        file.write(b"x")
"""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
    assert time.monotonic() - begun < 60


def test_parquet_equals_a_local_file(options, client, folder, tmp_path):
    """pandas and pyarrow write the same bytes, and read the same table."""
    pandas = pytest.importorskip("pandas")
    parquet = pytest.importorskip("pyarrow.parquet")
    frame = pandas.DataFrame({"n": range(100_000), "text": [f"row {n % 977}" for n in range(100_000)]})
    url, local = f"sealstone://{folder}/table.parquet", tmp_path / "table.parquet"
    frame.to_parquet(local, engine="pyarrow")
    frame.to_parquet(url, engine="pyarrow", storage_options=options)
    assert client.get(f"{folder}/table.parquet") == local.read_bytes()
    read = pandas.read_parquet(url, columns=["text"], storage_options=options)
    assert read.equals(frame[["text"]])
    files = SealstoneFileSystem(**options)
    table = parquet.read_table(f"{folder}/table.parquet", filesystem=files)
    parquet.write_table(table, tmp_path / "again.parquet")
    parquet.write_table(table, f"{folder}/again.parquet", filesystem=files)
    assert client.get(f"{folder}/again.parquet") == (tmp_path / "again.parquet").read_bytes()
    assert table.to_pandas().equals(frame)
