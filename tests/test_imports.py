"""Checks every import against the design: which part may import which, and which parts load no TensorFlow."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import CHECKOUT

# Where each part of the package lies in the checkout. A part is a folder, or one module of the package's root.
FOLDERS = {"problems": "problems", "hparams": "hparams", "bin": "bin"}
FOLDERS |= {
    part: f"t2t_repro/{part}"
    for part in (
        "system",
        "text",
        "cli",
        "alignment",
        "charts",
        "model",
        "data",
        "documents",
        "preparation",
        "parsing",
        "translation",
        "training",
        "inference",
        "exporting",
        "evaluation",
        "selftest",
        "serving",
    )
}
# Standard library alone, also inside functions.
CORE_PARTS = (
    "system",
    "text",
    "config",
    "filters",
    "io",
    "problem",
    "registry",
    "run",
    "selection",
    "flops",
    "scale",
    "task",
)

CORE = {"config", "filters", "io", "problem", "registry", "run", "selection", "system", "task", "text"}
MODEL = CORE | {"data", "model"}
MAY_IMPORT = {
    "config": set(),
    "io": set(),
    "system": set(),
    "text": {"problem"},
    "filters": {"config", "text"},
    "problem": {"config", "filters", "task"},
    "task": {"alignment", "data", "evaluation", "inference", "run", "training"},  # for types alone, see below
    "registry": {"config", "problem", "scale"},
    "run": {"config", "io", "problem", "registry", "selection"},
    "selection": {"config", "io"},
    "flops": {"config"},
    "scale": {"config", "registry"},
    "problems": {"problem", "registry"},
    "hparams": {"config", "registry"},
    "data": CORE,
    "preparation": CORE | {"data", "parsing"},
    "model": CORE,
    "charts": {"io", "run"},
    "training": MODEL | {"flops", "charts"},
    "alignment": CORE | {"data"},
    "documents": {"text"},
    "inference": MODEL | {"training", "alignment", "documents"},
    "parsing": MODEL | {"training", "inference", "evaluation"},
    "saved_model": {"documents", "io", "system", "task"},
    "exporting": MODEL | {"training", "inference", "alignment", "documents", "saved_model"},
    "evaluation": MODEL | {"training", "inference", "charts"},
    "translation": MODEL | {"preparation", "training", "inference", "alignment", "evaluation"},
    "selftest": MODEL | {"flops", "preparation", "training", "inference", "exporting"},
    "serving": {"documents", "saved_model", "system", "text"},  # an export stands on its own
    "cli": CORE | {"scale", "training"},
    "bin": MODEL
    | {"cli", "flops", "scale"}
    | {"preparation", "parsing", "training", "inference", "saved_model", "exporting", "evaluation", "selftest"}
    | {"serving", "charts", "documents", "alignment"},
    "api": MODEL | {"preparation", "training", "inference", "exporting", "evaluation"},
    "__init__": {"api", "config", "problem", "registry", "task"},
}
# Parts whose import brings nothing but the standard library (and absl, for the programs).
LIGHT = {part: set() for part in (*CORE_PARTS, "__init__", "problems", "hparams")}
LIGHT |= {"bin": {"absl"}, "cli": {"absl"}, "documents": set(), "saved_model": set()}
LIGHT |= {"exporting.engines": set()}  # one module of a folder

# What is installed under another name than it is imported by.
INSTALLED_AS = {
    "absl": "absl-py",
    "apache_beam": "apache-beam",
    "google": "protobuf",
    "prometheus_client": "prometheus-client",
    "tensorflow_text": "tensorflow-text",
    "tensorflow_datasets": "tensorflow-datasets",
}


class Import(NamedTuple):
    place: str  # "bin/t2t_eval.py:12"
    name: str  # dotted, absolute: "t2t_repro.run.Run" for `from t2t_repro.run import Run`
    top: bool  # whether it runs when the module is imported


def files(part: str) -> list[Path]:
    if part in FOLDERS:
        return sorted((CHECKOUT / FOLDERS[part]).rglob("*.py"))
    return [CHECKOUT / "t2t_repro" / f"{part.replace('.', '/')}.py"]


def imports(part: str) -> list[Import]:
    package = f"t2t_repro.{part}" if part in FOLDERS else "t2t_repro"
    found = []
    for file in files(part):
        tree = ast.parse(file.read_text("utf-8"), str(file))
        found += [
            Import(f"{file.relative_to(CHECKOUT)}:{node.lineno}", name, top)
            for node, top in statements(tree.body, True)
            for name in imported(node, package)
        ]
    return found


def statements(body: list[ast.stmt], top: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement, and whether it runs at import: not inside a function, nor under `if TYPE_CHECKING`."""
    for node in body:
        yield node, top
        inner_top = top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from statements(node.body, False)
            yield from statements(node.orelse, inner_top)
            continue
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from statements([child], inner_top)
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                yield from statements(child.body, inner_top)


def imported(node: ast.stmt, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        if node.level:
            parent = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            module = f"{parent}.{module}".rstrip(".")
        return [f"{module}.{alias.name}" for alias in node.names]
    return []


def part_of(name: str) -> str | None:
    """The part that an imported name belongs to; None outside the package and for the package's own attributes."""
    root, _, rest = name.partition(".")
    part = rest.partition(".")[0]
    return part if root == "t2t_repro" and part in MAY_IMPORT else None


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_follow_the_design(part):
    wrong = [
        f"{each.place} imports {each.name}"
        for each in imports(part)
        if part_of(each.name) not in MAY_IMPORT[part] | {part, None} or each.name.split(".")[0] == "tests"
    ]
    assert not wrong


def test_nothing_imports_the_programs_or_the_tests():
    """Follows from the allowed imports; tested separately because it keeps the library free of flags."""
    assert not any("bin" in allowed for allowed in MAY_IMPORT.values())
    everything = [each for part in MAY_IMPORT if part not in {"bin", "cli"} for each in imports(part)]
    assert not [each for each in everything if re.match(r"t2t_repro\.bin\b|bin\b|tests\b|conftest\b|absl\b", each.name)]


def test_every_module_belongs_to_a_part():
    known = {file for part in MAY_IMPORT for file in files(part)}
    there = {
        file for folder in ("t2t_repro", "problems", "hparams", "bin") for file in (CHECKOUT / folder).rglob("*.py")
    }
    assert there == known


@pytest.mark.parametrize("part", LIGHT)
def test_light_parts_import_only_the_standard_library(part):
    allowed = {"t2t_repro", *sys.stdlib_module_names, *LIGHT[part]}
    wrong = [f"{each.place} imports {each.name}" for each in imports(part) if each.top and root(each) not in allowed]
    assert not wrong


@pytest.mark.parametrize("part", CORE_PARTS)
def test_core_needs_nothing_else_even_inside_functions(part):
    assert not [each for each in imports(part) if root(each) not in {"t2t_repro", *sys.stdlib_module_names}]


def test_task_imports_other_parts_for_types_alone():
    (file,) = files("task")
    functions = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
    assert functions and not [node for each in functions for node in ast.walk(each) if imported(node, "t2t_repro")]


@pytest.mark.parametrize("part", LIGHT)
def test_light_parts_import_heavy_ones_only_inside_functions(part):
    light = tuple(f"t2t_repro.{each}." for each in LIGHT)
    mine = [each for each in imports(part) if each.top and part_of(each.name)]
    assert not [each for each in mine if not f"{each.name}.".startswith(light)]


def test_every_dependency_is_declared():
    used = {root(each) for part in MAY_IMPORT for each in imports(part)} - {"t2t_repro", *sys.stdlib_module_names}
    call = next(node for node in ast.walk(ast.parse((CHECKOUT / "setup.py").read_text())) if _is_setup(node))
    words = {word.arg: word.value for word in call.keywords}
    extras = ast.literal_eval(words["extras_require"])
    requires = [*ast.literal_eval(words["install_requires"])]
    some = ("beam", "argos", "ctranslate2", "documents", "huggingface", "onnx", "serve")
    requires += [each for name in some for each in extras[name]]
    declared = {re.match(r"[\w-]+", requirement)[0] for requirement in requires}
    at_once = {root(each) for part in MAY_IMPORT for each in imports(part) if each.top}
    # those that may be missing
    assert not {"matplotlib", "ctranslate2", "onnx", "safetensors", "sentencex"} & at_once
    assert {INSTALLED_AS.get(name, name) for name in used} <= declared


def test_every_folder_of_code_is_a_package():
    folders = {file.parent for part in FOLDERS for file in files(part)}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def root(each: Import) -> str:
    return each.name.partition(".")[0]


def _is_setup(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setup"


def test_no_folder_holds_more_than_a_dozen_modules():
    """Beside `__init__`."""
    modules = {"t2t_repro": [file.name for file in (CHECKOUT / "t2t_repro").glob("*.py")]}
    for part in FOLDERS:
        for file in files(part):
            modules.setdefault(str(file.parent.relative_to(CHECKOUT)), []).append(file.name)
    crowded = {folder: len(names) - 1 for folder, names in modules.items() if len(names) - 1 > 12}
    assert crowded == {"bin": 16}  # one per program
