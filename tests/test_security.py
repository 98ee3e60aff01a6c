"""No input file may run code or be extracted over other files. The source code is searched for such calls."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CHECKOUT

SOURCES = [path for part in ("t2t_repro", "problems", "hparams", "bin") for path in (CHECKOUT / part).rglob("*.py")]
# modules that turn input into objects or code
UNSAFE_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
    "jsonpickle",
    "yaml",
}
UNSAFE_NAMES = {"eval", "exec", "compile", "__import__"}
UNSAFE_ATTRIBUTES = {
    "load_model": "a Keras file may hold code",
    "deserialize_keras_object": "likewise",
    "extractall": "an archive may name files elsewhere",
    "unpack_archive": "likewise",
    "system": "a shell takes names for commands",
    "popen": "likewise",
    "mktemp": "another may take the name first",
    "allow_pickle": "an array file may hold code",
    "py_function": "code that an exported model would need",
}
# dynamic imports: of the package itself, of entry points, --t2t_usr_dir and TensorFlow
IMPORTS_BY_NAME = {
    "t2t_repro/selftest/child.py",  # a task of its own package
    "t2t_repro/__init__.py",
    "t2t_repro/registry.py",
    "t2t_repro/task.py",  # a name of its own table
    "bin/t2t_registry.py",
    "t2t_repro/cli/launcher.py",
}


def uses(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, name) of the names that a module calls, imports or passes as keywords."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, f"import {alias.name.partition('.')[0]}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, f"import {(node.module or '').partition('.')[0]}"
            yield from ((node.lineno, f".{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, f".{node.attr}"
        elif isinstance(node, ast.keyword):
            yield node.value.lineno, f".{node.arg}"


def unsafe(path: Path) -> list[str]:
    found = []
    for line, name in uses(path):
        bare = name.removeprefix("import ").removeprefix(".")
        if (name.startswith("import ") and bare in UNSAFE_MODULES) or name in UNSAFE_NAMES:
            found.append(f"{path.name}:{line}: {name}")
        elif name.startswith(".") and bare in UNSAFE_ATTRIBUTES:
            found.append(f"{path.name}:{line}: {bare}: {UNSAFE_ATTRIBUTES[bare]}")
    return found


def test_no_input_is_executed_and_no_archive_is_extracted_unchecked():
    assert len(SOURCES) > 60
    assert not [use for path in SOURCES for use in unsafe(path)]


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import load",
        "x = eval('1')",
        "keras.models.load_model('x')",
        "from keras.models import load_model",
        "tar.extractall('x')",
        "numpy.load('x', allow_pickle=True)",
        "os.system('ls')",
    ],
)
def test_forbidden_calls_are_detected(tmp_path, line):
    (tmp_path / "module.py").write_text(line)
    assert unsafe(tmp_path / "module.py")


def test_no_shell_is_started():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                pytest.fail(f"{path}:{node.value.lineno}: shell=")


def test_dynamic_imports_occur_only_in_known_places():
    """No module name comes from a file: these places import their own names, or the value of a flag."""
    places = {
        str(path.relative_to(CHECKOUT))
        for path in SOURCES
        for _, name in uses(path)
        if name in (".import_module", ".exec_module", ".load_module", ".entry_points")
    }
    assert places == IMPORTS_BY_NAME


def test_user_code_runs_only_for_its_flag():
    """No file of a run, data set or export can set it."""
    callers = {
        str(path.relative_to(CHECKOUT)): [name for _, name in uses(path) if name == "import_user_directory"]
        for path in SOURCES
    }
    assert {place for place, names in callers.items() if names} == {"t2t_repro/cli/problem_flags.py"}


def test_audit_verdict_lists_unchecked_packages():
    spec = importlib.util.spec_from_file_location("audit", CHECKOUT / ".ci/audit.py")
    audit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audit)
    good = {"name": "a", "version": "1", "vulns": []}
    bad = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
    unknown = {"name": "c", "skip_reason": "Dependency not found on PyPI"}
    assert audit.verdict(None) == (0, ["NOT CHECKED for known vulnerabilities: the advisory service did not answer"])
    assert audit.verdict({"dependencies": [good]}) == (0, ["1 of 1 packages checked for known vulnerabilities"])
    code, lines = audit.verdict(json.loads(json.dumps({"dependencies": [good, bad, unknown]})))
    assert code == 1 and lines[0] == "b 2: CVE-1, fixed in 3" and lines[1].startswith("2 of 3 packages")
    assert lines[2].endswith("had no answer: c")
