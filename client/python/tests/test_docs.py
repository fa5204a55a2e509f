"""The examples of the documents, as readers type them."""

import re
from pathlib import Path

import fsspec
import pytest

import sealstone
from sealstone.fsspec import SealstoneFileSystem

PACKAGE = Path(__file__).parents[1]
DOCUMENTS = [PACKAGE / "README.md", PACKAGE.parents[1] / "docs/how-to/python.md"]

fsspec.register_implementation("sealstone", SealstoneFileSystem, clobber=True)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_of_documents_run(document, tmp_path, monkeypatch):
    """In the order of the document, in a folder with the cluster file and the key file that they name."""
    pandas = pytest.importorskip("pandas")
    examples = re.findall(r"^```python\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) >= 3
    monkeypatch.chdir(tmp_path)
    with sealstone.Cluster.embedded() as cluster:
        for name, file in [("cluster.toml", cluster.cluster_file), ("backup.key", cluster.admin_secret)]:
            Path(name).write_bytes(file.read_bytes())
            Path(name).chmod(0o600)
        with cluster.client() as client:
            pandas.DataFrame({"n": range(10)}).to_parquet("table.parquet")
            client.mkdir("/lake")
            for path in ("/table.parquet", "/lake/table.parquet"):
                client.put_file(path, "table.parquet")
            client.mkdir("/logs")
            for day in range(30):
                client.put(f"/logs/{day}", b"log")
        names = {"__name__": "__main__"}
        for example in examples:
            exec(compile(example, document.name, "exec"), names)
        # The next document has another cluster under the same relative name.
        SealstoneFileSystem.clear_instance_cache()
