"""Commands in README and docs: every flag and name exists, and the tutorial runs as written."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import CHECKOUT

from t2t_repro import __version__
from t2t_repro.cli import launcher
from t2t_repro.registry import HPARAMS, PROBLEMS
from t2t_repro.training import divergence

PAGES = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
FLAGS = {
    file.stem.replace("_", "-"): importlib.import_module(f"t2t_repro.bin.{file.stem}").FLAGS
    for file in (CHECKOUT / "bin").glob("t2t_*.py")
}
# Flags of every program, and of tensorboard, Beam, mkdocs and pytest-xdist.
OTHERS = {"--dist", "--help", "--version", "--logdir", "--runner", "--strict"}
# Declared by a page itself, or not by this project alone.
ELSEWHERE = {"translate_numbers", "translate_sagas"}


class Block(NamedTuple):
    page: str
    test: str  # of `<!-- test: ... -->` before it
    language: str
    text: str


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for match in re.finditer(r"(?:<!-- test: ([\w .]+) -->\n)?^```(\w+)\n(.*?)^```$", text, re.M | re.S):
            found.append(Block(str(page.relative_to(CHECKOUT)), match[1] or "", match[2], match[3]))
    return found


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yields the place and the words of every call of our programs in an `sh` block."""
    for block in blocks():
        if block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|\||;|\$\(", line):
                    words = shlex.split(part.partition(" > ")[0].replace('"', " "), comments=True)
                    if words and Path(words[0]).name in FLAGS:
                        yield block.page, [Path(words[0]).name, *words[1:]]


EVERY_COMMAND = list(commands())


@pytest.mark.parametrize(("page", "words"), EVERY_COMMAND, ids=lambda value: " ".join(value[:3]) if value else "")
def test_every_command_exists(page, words):
    values = FLAGS[words[0]]
    given = [word.removeprefix("--").partition("=") for word in words[1:] if word.startswith("--")]
    unknown = [name for name, _, _ in given if name not in values]
    assert not unknown, page
    for name, equals, text in given:
        assert bool(equals) != values[name].boolean, f"{page}: --{name}"
        values[name].parser.parse(text or "true")
        if name == "problem":
            assert text in {*PROBLEMS, *ELSEWHERE}, page
        for set_name in {"hparams": [text], "diff": text.split(",")}.get(name, []):
            assert set_name in HPARAMS, page
    HPARAMS["base"].override([text for name, _, text in given if name == "override"])


def test_pages_have_commands():
    assert len(EVERY_COMMAND) > 25 and {words[0] for _, words in EVERY_COMMAND} >= {"t2t-trainer", "t2t-eval"}


def test_flags_in_prose_are_real():
    known = {f"--{name}" for flags in FLAGS.values() for name in flags} | OTHERS
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
        if page.name == "migration.md":  # the first column has the flags of other toolkits
            text = re.sub(r"^\|[^|]*\|", "|", text, flags=re.M)
        spans = [span for span in re.findall(r"`([^`]+)`", text) if not span.startswith((".", "pip", "git", "python"))]
        assert set(re.findall(r"(?<![\w-])--[a-z]\w*", " ".join(spans))) <= known, page


def test_number_of_gradients_that_stop_training():
    words = {10: "ten", 20: "twenty"}
    text = " ".join((CHECKOUT / "docs" / "reliability.md").read_text("utf-8").split())
    assert f"{words[divergence.MAX_SKIPPED]} gradients in a row are not" in text


def test_links_have_a_target():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page}: {target}"


def test_every_program_is_listed_and_every_page_is_in_the_readme():
    programs = (CHECKOUT / "docs/programs.md").read_text("utf-8")
    assert not [name for name in FLAGS if f"| `{name}` |" not in programs]
    readme = PAGES[0].read_text("utf-8")
    assert not [page.name for page in PAGES[2:] if f"(docs/{page.name})" not in readme]
    assert 120 <= readme.count("\n") <= 180


def test_citation_has_the_version():
    assert f"\nversion: {__version__}\n" in (CHECKOUT / "CITATION.cff").read_text("utf-8")
    assert f"\n## [{__version__}] - " in (CHECKOUT / "CHANGELOG.md").read_text("utf-8")


@pytest.mark.parametrize("name", FLAGS)
def test_help_fits_the_terminal(name):
    module = importlib.import_module(f"t2t_repro.bin.{name.replace('-', '_')}")
    text = launcher._help(name, module.__doc__ or "", module.FLAGS, ())
    assert max(map(len, text.splitlines())) <= 80


def test_installed_package_follows_the_page(tmp_path):
    """The entry points and the module that docs/adding_a_problem.md gives, installed as pip would."""
    toml, module = (block.text for block in blocks() if block.test == "entry point")
    points = re.sub(r'"', "", toml.replace('project.entry-points."', "").replace('"]', "]"))
    information = tmp_path / "sagas-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: sagas\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(points)
    (tmp_path / "sagas").mkdir()
    (tmp_path / "sagas" / "__init__.py").write_text("")
    (tmp_path / "sagas" / "problem.py").write_text(module)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{CHECKOUT}"}
    command = [sys.executable, "-m", "t2t_repro.bin.t2t_registry", "--problem=translate_enis_sagas", "--hparams=sagas"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "text/train.en.gz and text/train.is.gz" in done.stdout and "Changes of base: P_drop 0.3." in done.stdout


def test_model_changes_follow_the_page(tmp_path, capsys):
    """Each change fits one place of a copy of the package; the changed model decodes as it scores."""
    for folder in ("t2t_repro", "problems", "hparams", "bin"):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    page = [block for block in blocks() if block.page == "docs/changing_the_model.md"]
    (check,) = (block.text for block in page if block.test == "check")
    source = f"import keras; keras.utils.set_random_seed(1)\n{check}"

    def scores(shown: str) -> tuple[float, float]:
        step_by_step, whole = re.fullmatch(r"step by step (\S+), whole (\S+)\n", shown).groups()
        return float(step_by_step), float(whole)

    exec(source, {})
    before = scores(capsys.readouterr().out)
    for block in page:
        kind, _, name = block.test.partition(" ")
        if kind == "change":
            old, new = (
                "".join(f"{line[1:]}\n" for line in block.text.splitlines() if line[0] in signs)
                for signs in (" -", " +")
            )
            file = tmp_path / "t2t_repro" / "model" / name
            text = file.read_text("utf-8")
            assert text.count(old) == 1, f"{name}: {old}"
            file.write_text(text.replace(old, new), "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    after = scores(done.stdout)
    assert before[0] == pytest.approx(before[1], abs=2e-3) and after[0] == pytest.approx(after[1], abs=2e-3)
    assert abs(after[0] - before[0]) > 0.1


# Pages that run as written.


@pytest.fixture
def shell(tmp_path):
    """Returns `shell(block)`, which runs a block in an empty folder, with the programs on PATH, for its output."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in FLAGS:
        module = f"t2t_repro.bin.{name.replace('-', '_')}"
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        (programs / name).chmod(0o755)
    folder = tmp_path / "folder"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PATH": f"{programs}:{os.environ['PATH']}"}

    def run(block: Block) -> str:
        command = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}[block.language]
        done = subprocess.run(
            [*command, block.text], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    run.folder = folder
    return run


def test_names_in_architecture_exist():
    """Every dotted name of docs/architecture.md can be imported."""
    names = re.findall(r"`([a-z_]+(?:\.\w+)+)`", (CHECKOUT / "docs/architecture.md").read_text("utf-8"))
    names = [name for name in names if not name.endswith((".py", ".json"))]
    assert len(names) > 20
    for name in names:
        parts = name.split(".")
        modules = range(len(parts) - 1, 0, -1)
        found = next(n for n in modules if (CHECKOUT / "t2t_repro" / Path(*parts[:n])).with_suffix(".py").is_file())
        value = importlib.import_module("t2t_repro." + ".".join(parts[:found]))
        for part in parts[found:]:
            value = getattr(value, part)


def must_be_a_notebook(shown: str, folder: Path) -> None:
    """Asserts that the block of docs/python.md has printed its results and drawn the loss."""
    *_, translations, bleu, exported = shown.splitlines()
    assert translations.startswith("['") and float(bleu) >= 0 and exported == "export/1"
    assert (folder / "loss.png").stat().st_size > 1_000


@pytest.mark.slow
def test_notebook_runs_on_a_small_problem(tmp_path, monkeypatch, registered, one_replica, capsys):
    from helpers.tiny_model import PROBLEM

    registered(PROBLEM)
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in blocks() if block.test == "notebook")
    assert block.text.count("translate_ende_cldr") == 1
    exec(block.text.replace("translate_ende_cldr", PROBLEM.name), {})
    must_be_a_notebook(capsys.readouterr().out, tmp_path)


@pytest.mark.slow
def test_notebook_runs_as_written(shell):
    (block,) = (block for block in blocks() if block.test == "notebook")
    must_be_a_notebook(shell(block), shell.folder)


@pytest.mark.slow
def test_tutorial_runs_as_written(shell):
    (corpus,) = PROBLEMS["translate_ende_cldr"].train
    pairs = list(itertools.islice(corpus.function(), 3_000))
    for side, language in enumerate(("en", "de")):
        (shell.folder / f"train.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    outputs = [shell(block) for block in blocks() if block.test == "tutorial"]
    assert len(outputs) == 9
    assert "dropout" in outputs[2] and "memory  " in outputs[3] and "BLEU" in outputs[4]
    assert (shell.folder / "out.de").read_text("utf-8").count("\n") == 3_000
    assert (shell.folder / "attention.html").stat().st_size > 20_000
    assert outputs[-1].startswith("[")


@pytest.mark.slow
def test_fine_tuning_runs_as_written(shell):
    problem = PROBLEMS["translate_ende_cldr"]
    for name, corpora, number in (("mine", problem.train, 1_500), ("dev", problem.validation, 20)):
        pairs = list(itertools.islice(corpora[0].function(), number))
        for side, language in enumerate(("en", "de")):
            (shell.folder / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    given = "--train_source=mine.en --train_target=mine.de --vocab_size=1000 --train_steps=200 --checkpoint_steps=100"
    shell(
        Block(
            "",
            "",
            "sh",
            f"t2t-trainer --problem=translate_files --hparams=tiny --data_dir=data --output_dir=run {given}",
        )
    )
    outputs = [shell(block) for block in blocks() if block.test == "fine_tuning"]
    assert "BLEU" in outputs[0] and "starts from translate_files, mean of ckpt-100 + ckpt-200" in " ".join(
        outputs[1].split()
    )
    assert "BLEU" in outputs[3]


@pytest.mark.slow
def test_adding_a_problem_runs_as_written(shell):
    outputs = [shell(block) for block in blocks() if block.test == "adding"]
    assert "Problem translate_numbers" in outputs[1]


@pytest.mark.slow
def test_frequent_questions_run_as_written(shell):
    outputs = [shell(block) for block in blocks() if block.test == "faq"]
    assert len(outputs) == 10
    assert (shell.folder / "output.de").read_text("utf-8").split("\n")[1::2] == ["", ""]
    assert outputs[6].count("\n") == 4 * 3 + 1
