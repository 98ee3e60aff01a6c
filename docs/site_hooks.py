"""MkDocs hooks: the pages of the documentation site that are generated from the code when the site is built.

README, CHANGELOG and CONTRIBUTING become pages; `programs.md` receives every program's help; `api.md` lists the public
names of `t2t_repro`. No page may load anything from the network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import t2t_repro  # noqa: E402

PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
REMOTE = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*\bhref=\"(?:https?:)?//")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, target in PAGES.items():
        head = "---\nhide: [navigation]\n---\n" if target == "index.md" else ""
        files.append(File.generated(config, target, content=head + _moved((ROOT / source).read_text("utf-8"))))
    files.append(File.generated(config, "CITATION.cff", abs_src_path=str(ROOT / "CITATION.cff")))
    files.append(File.generated(config, "api.md", content="\n".join(api())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri == "programs.md":
        markdown += "\n" + "\n".join(flags(sorted((ROOT / "bin").glob("t2t_*.py"))))
    # GitHub wants \\| in the code of a table; Python-Markdown would print the backslash
    return re.sub(r"^\|.*", lambda row: re.sub(r"`[^`]*`", _without_escapes, row[0]), markdown, flags=re.M)


def _without_escapes(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    found = REMOTE.search(re.sub(r'<link rel="canonical"[^>]*>', "", output))
    if found:
        raise PluginError(f"{page.file.src_uri} loads from the network: {found[0]}")
    return output


def _moved(text: str) -> str:
    """Returns a page of the repository's root with links as they are on the site."""
    text = text.replace("](docs/", "](").replace('src="docs/', 'src="')
    for source, target in PAGES.items():
        text = text.replace(f"]({source}", f"]({target}")
    return text


def flags(programs: list[Path]) -> Iterator[str]:
    """Yields a section per program: its description and a table of its flags, both from its `--help`."""
    yield "## Flags\n"
    for program in programs:
        module = importlib.import_module(f"t2t_repro.bin.{program.stem}")
        description, _, rest = help_text(module).partition("\nFlags:\n")
        name, _, purpose = description.partition("\n")[0].partition(": ")
        yield f"### {name}\n\n{purpose[:1].upper()}{purpose[1:]}\n"
        for paragraph in description.split("\n\n")[1:]:
            yield usage(paragraph)
        rows = re.findall(r"^  (--\S+(?:, --\S+)?)\s+((?:.+\n?)(?: {28}.+\n?)*)", rest, re.M)
        if len(rows) != len(list(module.FLAGS)) + 1:  # the last row is --help, --version
            raise PluginError(f"{name} --help must have a line for each of its flags, found {len(rows)}")
        yield "| flag | meaning |\n|---|---|"
        for form, meaning in rows:
            yield f"| `{_escaped(form)}` | {_escaped(' '.join(meaning.split()))} |"
        yield ""


def usage(paragraph: str) -> str:
    """Returns a paragraph of a help text as Markdown. Indented lines are commands; elsewhere, flags become code."""
    if paragraph.startswith("  "):
        return f"```text\n{textwrap.dedent(paragraph)}\n```\n"
    return re.sub(r"(?<!\S)\(?--[\w=|]+", lambda flag: f"`{flag[0]}`", paragraph).replace("`(", "(`") + "\n"


def help_text(program: Any) -> str:
    output = io.StringIO()
    with mock.patch.object(sys, "argv", ["", "--help"]), contextlib.redirect_stdout(output):
        program.main()
    return output.getvalue()


def api() -> Iterator[str]:
    """Yields the Python reference: a directive of mkdocstrings for each public name, and the fields of dataclasses."""
    yield "# Python reference\n\nEvery public name of `t2t_repro`. [Python](python.md) shows how they work together.\n"
    for name in sorted(set(t2t_repro.__all__) - {"__version__"}, key=str.lower):
        value = getattr(t2t_repro, name)
        yield f"::: {value.__module__}.{name}"
        if dataclasses.is_dataclass(value):
            yield "    options:\n      show_signature: false\n      members: false\n"
            yield from fields(value)
        yield ""


def fields(cls: Any) -> Iterator[str]:
    """Yields a table of a dataclass' fields; what they mean is in their metadata or in the comment beside them."""
    comments = dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(cls), re.M))
    yield "| field | type | default | meaning |\n|---|---|---|---|"
    for field in dataclasses.fields(cls):
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        meaning = field.metadata.get("meaning", comments.get(field.name, ""))
        if "section" in field.metadata:
            meaning += f"; section {field.metadata['section']}"
        yield f"| `{field.name}` | `{_escaped(str(field.type))}` | {_escaped(default)} | {_escaped(meaning)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
