"""`in_flags`: argument names in messages of the library become flags."""

from __future__ import annotations

import logging

import pytest

import t2t_repro
from t2t_repro.cli.messages import in_flags, logged_in_flags
from t2t_repro.run import Run

NAMES = ("output_dir", "data_dir", "precision", "seed", "override")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("output_dir: no directory 'nope'", "--output_dir: no directory 'nope'"),
        ("seed: expected a number", "--seed: expected a number"),
        ("take precision=float32, or lift it", "take --precision=float32, or lift it"),
        ("give another output_dir, or a data_dir", "give another --output_dir, or a --data_dir"),
        ("use batch_tokens=2048", "use --override=batch_tokens=2048"),
        ("precision must be one of auto, float32", "--precision must be one of auto, float32"),
        ("unknown field 'x'; known: d_k, data_dir", "unknown field 'x'; known: d_k, data_dir"),
        ("the precision: float32", "the precision: float32"),
        ("its output_dir is 1, not 2", "its output_dir is 1, not 2"),
        ("give --output_dir and --override=alpha=1", "give --output_dir and --override=alpha=1"),
        (
            "must be even. Received: d_model=3, seed=1; set seed=2",
            "must be even. Received: d_model=3, seed=1; set --seed=2",
        ),
        ("the run's 'seed=3' in /a/output_dir/b", "the run's 'seed=3' in /a/output_dir/b"),
        ("export_dir: no directory", "export_dir: no directory"),
        ("its train text was data_dir.pairs, not data_dir.", "its train text was data_dir.pairs, not --data_dir."),
        ("give `data_dir` and `seed`", "give --data_dir and --seed"),
        ("give `texts`", "give `texts`"),
        ("`prepare(verify=True)` names it", "t2t-datagen --verify names it"),
    ],
)
def test_in_flags(message, expected):
    assert in_flags(message, NAMES) == expected


def test_in_flags_leaves_hyperparameters_of_a_program_without_override():
    assert in_flags("use batch_tokens=2048", ["output_dir"]) == "use batch_tokens=2048"


def test_logged_in_flags(capsys):
    with logged_in_flags(NAMES):
        logging.getLogger("t2t_repro").warning("try precision=%s", "float32")
    logging.getLogger("t2t_repro").warning("try precision=float32")
    assert capsys.readouterr().err == "try --precision=float32\ntry precision=float32\n"


@pytest.mark.parametrize("open_run", [Run.open, t2t_repro.load])
def test_library_names_its_argument(open_run):
    with pytest.raises(
        FileNotFoundError, match="^output_dir: no directory 'nope'; give the one that t2t-trainer wrote$"
    ):
        open_run("nope")


@pytest.mark.parametrize("name", ["t2t-decoder", "t2t-eval"])
def test_program_names_its_flag(program, name):
    message = f"{name}: --output_dir: no directory 'nope'; give the one that t2t-trainer wrote\n"
    assert program(name, "--output_dir=nope") == (1, "", message)
