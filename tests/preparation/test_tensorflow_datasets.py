"""The names of tensorflow-datasets that are used here and that its documentation does not promise: each is still there.

They are why setup.py has an upper bound for its version. Raise that bound when these tests pass with the new version.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
from typing import Any

import pytest
from conftest import CHECKOUT

# Module, what is used of it, and where.
NAMES = {
    "tensorflow_datasets": ("builder", "core.DatasetNotFoundError", "disable_progress_bar", "download.DownloadManager"),
    "tensorflow_datasets.core.download.checksums": ("get_all_url_infos", "UrlInfo"),
    "tensorflow_datasets.core.download.download_manager": ("NonMatchingChecksumError",),
    "tensorflow_datasets.core.download.util": ("DownloadError",),
    "tensorflow_datasets.proto.tf_example_generated_pb2": ("Example",),
    "tensorflow_datasets.translate.wmt": ("DATASET_MAP",),
}
USED_IN = ("t2t_repro/preparation/downloads.py", "t2t_repro/data/shards.py")


def used(owner: Any, name: str) -> Any:
    """The attribute `name`, which may be dotted, of `owner`; the test fails, with what to do, if it is gone."""
    value = owner
    for part in name.split("."):
        if not hasattr(value, part):
            version = importlib.metadata.version("tensorflow-datasets")
            pytest.fail(
                f"tensorflow-datasets {version} has no {name!r} in {owner!r:.80}, which {' or '.join(USED_IN)} uses; "
                "keep its upper bound in setup.py below this version, or find what took its place"
            )
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in NAMES.items() for name in names])
def test_every_used_name_exists(module: str, name: str):
    try:
        owner = importlib.import_module(module)
    except ImportError as error:
        pytest.fail(f"{error}; {' or '.join(USED_IN)} uses it: keep tensorflow-datasets below this version in setup.py")
    assert used(owner, name) is not None


def test_missing_name_fails_with_a_remedy():
    with pytest.raises(pytest.fail.Exception, match=r"has no 'DATASET_MAPP' in .*keep its upper bound in setup\.py"):
        used(importlib.import_module("tensorflow_datasets.translate.wmt"), "DATASET_MAPP")


def test_every_module_of_it_that_is_imported_is_known():
    found = set()
    for file in (CHECKOUT / "t2t_repro").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorflow_datasets"):
                known = [name for name in names if name in NAMES.get(node.module or "", ())]
                found |= {f"{node.module}.{name}" for name in names if name not in known}
                found |= {str(node.module)} if known else set()
            elif isinstance(node, ast.Import):
                found |= {name for name in names if name.startswith("tensorflow_datasets")}
    assert found == set(NAMES)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import tensorflow_datasets as tfds

    return tfds.builder("wmt14_translate/de-en", data_dir=tmp_path_factory.mktemp("tfds"))


def test_the_builder_has_what_is_read_of_it(builder: Any):
    assert set(used(builder, "builder_config.language_pair")) == {"de", "en"}
    assert used(builder, "name") == "wmt14_translate"
    assert set(map(str, used(builder, "subsets"))) == {"train", "validation", "test"}
    info = next(iter(used(builder, "url_infos").values()))
    assert used(info, "size") > 0 and len(used(info, "checksum")) == 64 and used(info, "filename")
    for name in (name for names in builder.subsets.values() for name in names):
        subset = used(importlib.import_module("tensorflow_datasets.translate.wmt"), "DATASET_MAP")[name]
        assert len(used(subset, "get_url")("de")) == 1 and len(used(subset, "get_path")("de")) == 2
        assert used(subset, "get_manual_dl_files")("de") == []


def test_its_split_generators_name_what_they_would_read(builder: Any):
    """They are given a stand-in for the download manager: a folder for every URL."""

    class Folders:
        manual_dir = "nowhere"

        def download_and_extract(self, urls: Any) -> Any:
            if isinstance(urls, dict):
                return {name: self.download_and_extract(each) for name, each in urls.items()}
            return "folder" if isinstance(urls, str) else [self.download_and_extract(each) for each in urls]

        def extract(self, paths: dict[str, list[str]]) -> dict[str, list[str]]:
            return paths

    for generator in used(builder, "_split_generators")(Folders()):
        names = used(generator, "gen_kwargs")["split_subsets"]
        assert list(names) == list(builder.subsets[used(generator, "name")])
        assert all(generator.gen_kwargs["extraction_map"][name][0] == "folder" for name in names)


def test_the_download_manager_takes_what_it_is_given():
    import tensorflow_datasets as tfds

    taken = inspect.signature(used(tfds, "download.DownloadManager")).parameters
    assert {"download_dir", "manual_dir", "url_infos", "dataset_name"} <= set(taken)
    used(tfds, "download.DownloadManager.download")
