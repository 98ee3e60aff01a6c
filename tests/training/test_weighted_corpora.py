"""Training on weighted corpora: resumed runs are bitwise equal, and each corpus has its validation perplexity."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.continued_runs import must_continue_bitwise
from helpers.tiny_model import FLOAT32, PROBLEM, TINY, on_cpus, silent, train_pairs, validation_pairs, values

from t2t_repro.config import TrainingOptions
from t2t_repro.data.corpus_weights import corpus_weights, pairs_per_epoch
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.input_pipeline import TrainingText
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.problem import Generated, Pair, Problem, TsvFile
from t2t_repro.run import Run
from t2t_repro.training.distributed.coordination import run_config
from t2t_repro.training.divergence import LossMonitor
from t2t_repro.training.dry_run.profiler import Profiler
from t2t_repro.training.trainer import train

STEPS = 8
WEIGHTS = (1.0, 2.5)
SHORT = replace(TINY, train_steps=2)


def write(path: Path, pairs: list[Pair]) -> str:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def problem(tmp_path_factory) -> Problem:
    """300 generated pairs and a TSV file of 60, which are copies: their weights differ."""
    folder = tmp_path_factory.mktemp("text")
    copies = write(folder / "copies.tsv", [(source, source) for source, _ in [*train_pairs()][:60]])
    validation = write(folder / "copied.tsv", [(source, source) for source, _ in validation_pairs()])
    return replace(
        PROBLEM,
        name="several",
        train=(*PROBLEM.train, TsvFile(copies)),
        validation=(TsvFile(validation), Generated(validation_pairs)),
        train_weight=WEIGHTS,
    )


@pytest.fixture(scope="module")
def prepared(problem, tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("data"))
    prepare(problem, folder, silent)
    return folder


@pytest.fixture(scope="module")
def short(problem, prepared, tmp_path_factory) -> tuple[Run, list[str]]:
    """A run of two steps with `WEIGHTS`, and its lines. Do not change it."""
    said: list[str] = []
    with on_cpus(1):
        directory = str(tmp_path_factory.mktemp("short") / "RUN")
        return train(problem, SHORT, prepared, directory, FLOAT32, report=said.append), said


def metrics(run: Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(run.metrics).read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("replicas", "stops"),
    [(1, (7,)), pytest.param(2, (2, 7), marks=pytest.mark.slow)],
    ids=["one device", "two devices"],
)
def test_continued_run_equals_uninterrupted(problem, prepared, tmp_path, on_replicas, replicas, stops):
    """Steps 2 and 7 lie in the first and the second epoch, which has a new draw and, by BPE-dropout, other subwords."""
    on_replicas(replicas)
    hparams = replace(TINY, bpe_dropout=0.3, train_steps=STEPS, average_checkpoints=STEPS)
    options = TrainingOptions(precision="float32", checkpoint_steps=1)
    must_continue_bitwise(
        lambda directory, report: train(problem, hparams, prepared, directory, options, report=report),
        tmp_path / "whole",
        STEPS,
        stops,
    )


def test_weights_change_what_is_trained_and_need_another_run(problem, prepared, short, tmp_path, on_replicas):
    on_replicas(1)
    equal = replace(problem, train_weight=(1.0, 1.0))
    run = train(equal, SHORT, prepared, str(tmp_path / "EQUAL"), FLOAT32, report=silent)
    runs = short[0], run
    assert [Run.open(each.directory).problem.train_weight for each in runs] == [WEIGHTS, (1.0, 1.0)]
    ours, theirs = ({name: v for name, v in values(each, 2).items() if name.startswith("model/")} for each in runs)
    assert any(not np.array_equal(ours[name], other) for name, other in theirs.items())
    other = replace(problem, train_weight=(3, 1))
    with pytest.raises(ValueError, match=r"holds another run: its problem train_weight is \[1.0, 2.5\], not \[3.0, 1"):
        train(other, SHORT, prepared, short[0].directory, FLOAT32, report=silent)


def test_weights_that_do_not_fit_the_data_leave_no_run(problem, prepared, tmp_path, on_replicas):
    on_replicas(1)
    missing = replace(problem, train=(), validation=(), train_weight=(1, 2, 3))  # the data is prepared already
    with pytest.raises(ValueError, match=r"one weight per training corpus, 2 \(.*train_pairs, copies.tsv\), got 3"):
        train(missing, TINY, prepared, str(tmp_path / "RUN"), FLOAT32, report=silent)
    assert not (tmp_path / "RUN").exists()


def test_validation_perplexity_of_each_corpus(prepared, short):
    run, said = short
    (line,) = [line for line in metrics(run) if "validation_loss" in line]
    shares = Dataset.open(f"{prepared}/several").record.splits["validation"].corpora
    assert shares and [share.name for share in shares] == ["copied.tsv", "helpers.tiny_model.validation_pairs"]
    logs = {share.name: math.log(line[f"validation_perplexity/{share.name}"]) for share in shares}
    tokens = {share.name: share.tokens["targets"] for share in shares}
    mean = sum(tokens[name] * logs[name] for name in logs) / sum(tokens.values())
    assert math.exp(mean) == pytest.approx(line["validation_perplexity"], rel=1e-6)
    assert len(set(logs.values())) == 2
    copied, other = (line[f"validation_perplexity/{share.name}"] for share in shares)
    parts = f"(copied.tsv {copied:.2f}, helpers.tiny_model.validation_pairs {other:.2f}), acc "
    assert [each for each in said if parts in each and "validation ppl" in each]


def test_one_corpus_has_no_perplexity_of_its_own(trained):
    assert not [name for line in metrics(trained) for name in line if "/" in name]


def test_other_machines_must_have_the_same_weights(problem, prepared, trained):
    run = replace(trained, problem=problem)
    found = run_config(run, Dataset.open(f"{prepared}/several"), FLOAT32)
    assert found["train_weight"] == WEIGHTS and found["train_temperature"] == 0


def test_estimates_count_repeated_pairs(problem, prepared, tmp_path, on_replicas):
    """An epoch of the dry run is one of training: here one window."""
    on_replicas(1)
    dataset = Dataset.open(f"{prepared}/several")
    run = Run(str(tmp_path / "RUN"), problem, TINY, prepared, 1, "float32", "")
    profiler = Profiler(run, dataset, 330)
    expected = pairs_per_epoch(dataset, corpus_weights(problem, dataset))
    assert expected == 300 + 2.5 * 60
    assert profiler.share == pytest.approx(1, abs=0.1) and len(profiler.window.rows) == profiler.share * expected
    assert Profiler(replace(run, problem=replace(problem, train_weight=())), dataset, 330).share == 1


def test_entropy_is_that_of_the_weighted_text(problem, prepared, trained):
    """The copies have English targets, so the entropy depends on their weight."""
    dataset = Dataset.open(f"{prepared}/several")

    def entropy(weights: tuple[float, ...]) -> float:
        run = replace(trained, problem=replace(problem, train_weight=weights))
        return LossMonitor(run, TrainingText.of(run, dataset), silent).entropy

    first, both, second = entropy((100, 0.01)), entropy(()), entropy((0.01, 100))
    assert abs(first - second) > 0.05 and len({first, both, second}) == 3
