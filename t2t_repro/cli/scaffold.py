"""Creates a template for a new problem: a problem that trains, its test, and three lines of explanation."""

from __future__ import annotations

import os
import shutil

from t2t_repro.problem import Problem
from t2t_repro.registry import PROBLEMS

_PROBLEM = '''"""{name}: numbers in digits to numbers in words. Replace `pairs` with your own text."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

from t2t_repro import Generated, Problem, register_problem
from t2t_repro.problem import Pair

WORDS = "zero one two three four five six seven eight nine".split()
SIZES = {{"train": 20_000, "validation": 500, "test": 500}}


def pairs(split: str) -> Iterator[Pair]:
    """Yields the pairs of a split, such as ("407", "four zero seven"). Every call must give the same pairs."""
    numbers = iter(random.Random(1).sample(range(100_000), sum(SIZES.values())))
    mine = {{name: [str(next(numbers)) for _ in range(size)] for name, size in SIZES.items()}}[split]
    for digits in mine:
        yield digits, " ".join(WORDS[int(digit)] for digit in digits)


# For text files in this folder, one sentence per line, import TextFiles from t2t_repro and write
# train=(TextFiles("train.en", "train.de"),).
register_problem(
    Problem(
        name="{name}",
        description="numbers in digits to numbers in English words",
        target_language="en",
        train=(Generated(functools.partial(pairs, "train")),),
        validation=(Generated(functools.partial(pairs, "validation")),),
        test=(Generated(functools.partial(pairs, "test")),),
        vocab_size=320,
    )
)
'''

_TEST = '''"""Tests the pairs of {name}, and its preparation. Run: pytest"""

from __future__ import annotations

from pathlib import Path

import pytest

import t2t_repro
from t2t_repro.problem import SPLITS
from t2t_repro.registry import import_user_directory


@pytest.fixture(scope="session")
def problem():
    import_user_directory(str(Path(__file__).parent.parent))
    return t2t_repro.get_problem("{name}")


def pairs(problem, split):
    return [pair for corpus in problem.corpora(split) for pair in corpus.function()]


def test_pairs(problem):
    names = dict(zip("zero one two three four five six seven eight nine".split(), "0123456789", strict=True))
    for split in SPLITS:
        for digits, words in pairs(problem, split):
            assert "".join(names[word] for word in words.split(" ")) == digits


def test_no_pair_is_in_two_splits(problem):
    everything = [source for split in SPLITS for source, _ in pairs(problem, split)]
    assert len(set(everything)) == len(everything)


def test_it_can_be_prepared(problem, tmp_path):
    from t2t_repro.preparation.pipeline import prepare

    prepare(problem, str(tmp_path), print)
    assert (tmp_path / problem.name / "dataset.json").exists()
'''

_README = """`{name}.py` is the problem: change `pairs`, its description and languages. `pytest` here runs its test.
`t2t-trainer --t2t_usr_dir=. --problem={name} --hparams=tiny --data_dir=data --output_dir=run` trains it.
`echo 407 | t2t-decoder --output_dir=run` uses it; a finished run no longer needs this folder.
"""


def new_problem(name: str, directory: str) -> list[str]:
    """Creates `directory` with a working problem `name`, and returns its files. A new directory appears complete.

    Raises ValueError for an invalid or taken name, and for a directory that is not empty.
    """
    Problem(name=name, description="")
    if name in PROBLEMS:
        raise ValueError(f"problem {name!r} already exists; choose another name")
    target = os.path.abspath(directory)
    if os.path.exists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise ValueError(f"{directory!r} already exists and is not an empty directory; give a new one")
    files = {f"{name}.py": _PROBLEM, os.path.join("tests", f"test_{name}.py"): _TEST, "README.md": _README}
    os.makedirs(os.path.dirname(target), exist_ok=True)
    exists = os.path.isdir(target)  # as a mount, or the working directory of a shell, it must stay
    temporary = os.path.join(target, f".tmp-{os.getpid()}") if exists else f"{target}.tmp-{os.getpid()}"
    os.mkdir(temporary)
    try:
        os.mkdir(os.path.join(temporary, "tests"))  # a separate folder: --t2t_usr_dir imports the modules beside it
        for file, text in files.items():
            with open(os.path.join(temporary, file), "w", encoding="utf-8") as out:
                out.write(text.format(name=name))
        if exists:
            for file in os.listdir(temporary):
                os.replace(os.path.join(temporary, file), os.path.join(target, file))
            os.rmdir(temporary)
        else:
            os.replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return [os.path.join(directory, file) for file in files]
