"""Downloads, verifies and unpacks WMT data sets.

The builder of tensorflow-datasets knows the archives, their contents, URLs and SHA-256. Its download manager fetches
them or finds them in `raw_dir`. Only unpacking is done here: that manager holds complete files in memory, up to four of
the size of giga-fren, and does not verify files that it unpacked earlier.

    DATA/downloads/wmt14_translate/...                                        archives, if they are not in raw_dir
    DATA/downloads/unpacked/wmt14_translate-de-en/dev.tgz/dev/newstest2013.de
    DATA/downloads/unpacked/wmt14_translate-de-en/dev.tgz/unpacked.json       sizes and SHA-256; written last
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from t2t_repro.data.lock import locked
from t2t_repro.io import atomic_write, read_json, sha256, write_json
from t2t_repro.preparation.corpora import CorpusFiles
from t2t_repro.problem import TextFiles, Wmt

_RECORD = "unpacked.json"
_COPY_BYTES = 1 << 20
PAIR_BYTES = 300  # of a line pair
GZIP_RATIO = 3  # size of text relative to its gzip file


class WmtDownloader:
    """Downloads WMT data sets to `folder`, and unpacks them. Checks each archive once."""

    def __init__(self, folder: str, report: Callable[[str], None]):
        self._folder, self._report = folder, report
        self._known: dict[tuple[str, str | None], dict[str, Any]] = {}

    def fetch(self, corpus: Wmt) -> list[CorpusFiles]:
        """Returns the corpora of one split, in the order of tensorflow-datasets.

        Archives are read from `corpus.raw_dir` or an earlier download; missing and damaged ones are downloaded. Raises
        ValueError for a data set that does not exist or is not of this form, and for an archive of another SHA-256;
        OSError if a download fails.
        """
        builder = _builder(corpus, self._folder)
        known = [str(split) for split in builder.subsets]
        if corpus.split not in known:
            raise ValueError(f"{corpus.dataset} has no split {corpus.split!r}; it has {', '.join(known)}")
        key = corpus.dataset, corpus.raw_dir
        if key not in self._known:
            with locked(self._folder, self._report), _errors_in_one_line(corpus):
                archives = _Archives(builder, corpus, self._folder, self._report)
                self._known[key] = {str(each.name): each.gen_kwargs for each in builder._split_generators(archives)}
        split = self._known[key][corpus.split]
        names, folders = split["split_subsets"], split["extraction_map"]
        lines = dict(corpus.lines)
        return [
            CorpusFiles(name, _in_order(corpus, builder, folders[name][0], name), lines.get(name, 0)) for name in names
        ]


class DiskSpace(NamedTuple):
    """Estimated bytes of a WMT data set: archives still to be downloaded, text still to be unpacked, and the text of
    one split."""

    archives: int
    unpacked: int
    text: int


def wmt_disk_space(corpus: Wmt, folder: str) -> DiskSpace:
    """Estimates what `corpus` takes, with archives in `corpus.raw_dir` or `folder`. Raises ValueError as `fetch`."""
    builder = _builder(corpus, folder)
    infos, lines, source = _sums(builder), dict(corpus.lines), builder.builder_config.language_pair[0]
    archives = dict.fromkeys(_members(builder), 0)
    unpacked = text = 0
    for split, names in builder.subsets.items():
        for name in names:
            (url,) = _subset(name).get_url(source)
            size = infos[url].size if url in infos else 0
            subset = lines[name] * PAIR_BYTES if name in lines else size
            text += subset * (str(split) == corpus.split)
            if not os.path.exists(os.path.join(_unpacked(corpus, folder, url), _RECORD)):
                archives[url] = 0 if _is_there(corpus, builder, folder, url, size) else size
                unpacked += subset // GZIP_RATIO if _subset(name).get_path(source)[0].endswith(".gz") else subset
    return DiskSpace(sum(archives.values()), unpacked, text)


def archive_sums(dataset: str) -> dict[str, str]:
    """Returns {URL: SHA-256} of the archives of a data set, "" if tensorflow-datasets has no hash."""
    import tensorflow_datasets as tfds

    builder = tfds.builder(dataset, data_dir=os.devnull)
    sums = _sums(builder)
    return {url: sums[url].checksum if url in sums else "" for url in sorted(_members(builder))}


def _builder(corpus: Wmt, folder: str) -> Any:
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(corpus.dataset, data_dir=folder)
        pair = builder.builder_config.language_pair
    except (tfds.core.DatasetNotFoundError, AttributeError, ValueError):
        raise ValueError(f"tensorflow-datasets has no WMT data set {corpus.dataset!r}") from None
    if {corpus.source_language, corpus.target_language} != set(pair):
        wanted = f"{corpus.source_language} and {corpus.target_language}"
        raise ValueError(f"{corpus.dataset} has the languages {' and '.join(pair)}, not {wanted}")
    return builder


def _subset(name: str) -> Any:
    from tensorflow_datasets.translate import wmt

    return wmt.DATASET_MAP[name]


def _sums(builder: Any) -> dict[str, Any]:
    from tensorflow_datasets.core.download import checksums

    return checksums.get_all_url_infos() | (builder.url_infos or {})


def _members(builder: Any) -> dict[str, list[str]]:
    """Returns {URL of an archive: its files that belong to the data set}."""
    source = builder.builder_config.language_pair[0]
    members: dict[str, list[str]] = {}
    for name in [name for names in builder.subsets.values() for name in names]:
        urls, paths = _subset(name).get_url(source), _subset(name).get_path(source)
        if len(urls) != 1 or len(paths) != 2 or not all(paths) or _subset(name).get_manual_dl_files(source):
            raise ValueError(
                f"{builder.name}: the corpus {name} is not two files of one archive, the only supported form"
            )
        members.setdefault(urls[0], []).extend(paths)
    return members


def _in_order(corpus: Wmt, builder: Any, folder: str, name: str) -> TextFiles:
    """Returns the two files of the corpus `name`, the source language first."""
    first, second = builder.builder_config.language_pair
    files = dict(zip((first, second), _subset(name).get_path(first), strict=True))
    source, target = (os.path.join(folder, files[each]) for each in (corpus.source_language, corpus.target_language))
    return TextFiles(source, target, drop_long_lines=True)


def _unpacked(corpus: Wmt, folder: str, url: str) -> str:
    """Returns the folder for the files of the archive at a URL."""
    return os.path.join(folder, "unpacked", corpus.dataset.replace("/", "-"), os.path.basename(url))


def _is_there(corpus: Wmt, builder: Any, folder: str, url: str, size: int) -> bool:
    """Returns whether the archive at a URL is in `raw_dir`, or was downloaded: then a file has its size."""
    if corpus.raw_dir and os.path.exists(os.path.join(corpus.raw_dir, os.path.basename(url))):
        return True
    downloaded = glob.glob(os.path.join(glob.escape(folder), builder.name, "*"))
    return any(os.path.getsize(path) == size for path in downloaded)


class _Archives:
    """Replaces tensorflow-datasets' download manager: downloads through that one, checks every time, and
    unpacks the files that are needed, one by one."""

    def __init__(self, builder: Any, corpus: Wmt, folder: str, report: Callable[[str], None]):
        self.manual_dir = corpus.raw_dir or folder
        self._builder, self._corpus, self._folder, self._report = builder, corpus, folder, report
        self._members, self._sums = _members(builder), _sums(builder)
        self._done: dict[str, str] = {}

    def download_and_extract(self, urls: Any) -> Any:
        """Returns the folder of the unpacked archive at a URL; for a list or dictionary of URLs, one of folders."""
        if isinstance(urls, dict):
            return {name: self.download_and_extract(part) for name, part in urls.items()}
        if not isinstance(urls, str):
            return [self.download_and_extract(url) for url in urls]
        if urls not in self._done:
            self._done[urls] = self._folder_of(urls)
        return self._done[urls]

    def extract(self, paths: dict[str, Any]) -> dict[str, Any]:
        """Unpacks archives that the user must fetch: none of these data sets has any."""
        return paths

    def _folder_of(self, url: str) -> str:
        folder, members = _unpacked(self._corpus, self._folder, url), self._members[url]
        expected = self._sums[url].checksum if url in self._sums else ""
        if not _is_unpacked(folder, members, expected):
            archive = self._archive(url, expected)
            self._report(f"unpacking {archive}")
            shutil.rmtree(folder, ignore_errors=True)
            files = _unpack(archive, folder, members)
            record = {"url": url, "sha256": expected or sha256(archive), "files": files}
            write_json(os.path.join(folder, _RECORD), record)
        return folder

    def _archive(self, url: str, expected: str) -> str:
        """Returns the path of an archive with the right SHA-256. Removes a damaged one that was downloaded earlier."""
        for leftover in glob.glob(os.path.join(glob.escape(self._folder), "*", "*.tmp.*")):  # left by a killed download
            shutil.rmtree(leftover, ignore_errors=True)
        self._report(f"looking for {url}, downloading it if it is missing")
        archive = self._fetch(url)
        if expected and sha256(archive) != expected:  # tensorflow-datasets does not check it again
            os.remove(archive)
            archive = self._fetch(url)
        return archive

    def _fetch(self, url: str) -> str:
        import tensorflow_datasets as tfds

        if not sys.stderr.isatty():
            tfds.disable_progress_bar()
        manager = tfds.download.DownloadManager(
            download_dir=self._folder,
            manual_dir=self._corpus.raw_dir,
            url_infos=self._sums,
            dataset_name=self._builder.name,
        )
        return os.fspath(manager.download(url))


def _is_unpacked(folder: str, members: list[str], expected: str) -> bool:
    """Returns whether the files have the bytes that were unpacked from the right archive. Reads them all."""
    try:
        record = read_json(os.path.join(folder, _RECORD))
        if expected and record["sha256"] != expected:
            return False
        known = {member: record["files"][member] for member in members}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return all(
        os.path.isfile(path := os.path.join(folder, member))
        and os.path.getsize(path) == file["bytes"]
        and sha256(path) == file["sha256"]
        for member, file in known.items()
    )


def _unpack(archive: str, folder: str, members: list[str]) -> dict[str, Any]:
    """Writes `members` below `folder`, each atomically. Returns {member: bytes and SHA-256}."""
    missing, files = set(members), {}
    with tarfile.open(archive) as tar:
        for entry in tar:
            name = os.path.normpath(entry.name)
            if name not in missing or not entry.isfile():
                continue
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            content = tar.extractfile(entry)
            with atomic_write(path) as temporary, open(temporary, "wb") as file:
                shutil.copyfileobj(content, file, _COPY_BYTES)  # type: ignore[arg-type]
            files[name] = {"bytes": os.path.getsize(path), "sha256": sha256(path)}
            missing.remove(name)
            if not missing:
                return files
    raise ValueError(f"{archive} does not contain {', '.join(sorted(missing))}; download it again")


@contextmanager
def _errors_in_one_line(corpus: Wmt) -> Iterator[None]:
    """Raises the errors of tensorflow-datasets as this project's."""
    from tensorflow_datasets.core.download import download_manager, util

    try:
        yield
    except download_manager.NonMatchingChecksumError as error:
        first = str(error).partition("\n")[0].rstrip(":")
        raise ValueError(
            f"{first}: WMT has other archives of the same name; remove the file, or download it from exactly this URL"
        ) from None
    except (util.DownloadError, OSError) as error:
        if isinstance(error, OSError) and error.filename:  # an error of our own file, such as a full disk
            raise
        raise OSError(
            f"{corpus.dataset} cannot be downloaded ({' '.join(str(error).split())}); run this again, or download the "
            f"archives yourself and give their folder as `raw_dir`: {', '.join(archive_sums(corpus.dataset))}"
        ) from None
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"an archive of {corpus.dataset} is damaged ({error}); download it again") from None
