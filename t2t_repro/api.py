"""The functions behind `t2t_repro.prepare`, `train`, `evaluate`, `export`, `learn_shortlist`,
`choose_alignment_head` and `load`.

TensorFlow is imported by the first call that needs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.problem import Problem
from t2t_repro.run import Run
from t2t_repro.system.log import report as log
from t2t_repro.task import Decoder

if TYPE_CHECKING:
    from t2t_repro.data.dataset import Dataset

Report = Callable[[str], None]
Path = str | os.PathLike[str]


def prepare(
    problem: Problem, data_dir: Path, *, report: Report = log, verify: bool = False, vocabulary_from: Path | None = None
) -> Dataset:
    """Prepares the data of a problem in `data_dir`, or opens it if it already exists.

    Args:
      problem: from `get_problem`, or your own.
      data_dir: a folder for the data of one or more problems.
      report: called with each line of progress.
      verify: whether to compare the SHA-256 of every file.
      vocabulary_from: a run directory whose vocabulary encodes the text, instead of one that is learned from it.

    Raises ValueError, FileNotFoundError or OSError for unreadable text and for a folder with other data.
    """
    from t2t_repro.preparation import pipeline

    _must_be("problem", problem, Problem)
    run = _text(vocabulary_from)
    return pipeline.prepare(problem, os.fspath(data_dir), report, verify, vocabulary_from=run)


def train(
    problem: Problem,
    hparams: HParams,
    data_dir: Path,
    output_dir: Path,
    options: TrainingOptions = TrainingOptions(),  # noqa: B008 (frozen)
    *,
    init_from: Path | None = None,
    report: Report = log,
) -> Run:
    """Prepares the data if needed and trains on all devices. The same call continues a stopped run.

    Args:
      problem: from `get_problem`, or your own.
      hparams: from `get_hparams`, or your own.
      data_dir: the folder of `prepare`.
      output_dir: the run directory.
      options: seed, precision, checkpoints, validation, an early end, micro-batches and XLA.
      init_from: a run, or its checkpoint `RUN/checkpoints/ckpt-STEP`. A new run starts at step 0 from these weights,
        with a new optimizer. The data is prepared with the vocabulary of that run.
      report: called with each line of progress.

    Returns the run. Raises ValueError if `output_dir` holds another run, if `init_from` does not fit, if training
    diverges, or if memory runs out; FileNotFoundError if `init_from` is not a run with a checkpoint; ConnectionError if
    another machine does not answer; and `t2t_repro.system.signals.Interrupted` after Ctrl-C or SIGTERM, once the steps
    are saved.
    """
    from t2t_repro.evaluation.validation_preview import ValidationPreview
    from t2t_repro.preparation import pipeline
    from t2t_repro.training import trainer

    _must_be("problem", problem, Problem)
    _must_be("hparams", hparams, HParams)
    _must_be("options", options, TrainingOptions)
    arguments = problem, hparams, os.fspath(data_dir), os.fspath(output_dir), options
    how: dict[str, Any] = {"prepare": pipeline.prepare, "preview": ValidationPreview, "report": report}
    return trainer.train(*arguments, init_from=_text(init_from), **how)


def evaluate(output_dir: Path, split: str = "test", **options: Any) -> dict[str, Any]:
    """Scores a run on a split of its data: BLEU and chrF, or bracket F1, and the perplexity.

    Args:
      output_dir: the run directory.
      split: "train", "validation" or "test".
      options: see `t2t_repro.evaluation.evaluator.evaluate`: average_checkpoints, average_best, moving_average,
        beam_size, alpha, precision, int8, shortlist and data_dir.

    Raises FileNotFoundError if the run or its data is missing, and ValueError if the problem has no such split.
    """
    from t2t_repro.evaluation import evaluator

    options |= {name: _text(path) for name, path in options.items() if name in ("data_dir", "shortlist")}
    return evaluator.evaluate(os.fspath(output_dir), split, **options)


def export(output_dir: Path, export_dir: Path, **options: Any) -> str:
    """Exports a run to the next version folder of `export_dir`, in one of five formats.

    Returns the path of the new folder.

    Args:
      output_dir: the run directory.
      export_dir: a folder for one or more exports.
      options: see `t2t_repro.exporting.exporter.export`: average_checkpoints, average_best, moving_average,
        format, quantization, precision, shortlist, alignments, data_dir and glossaries.

    Raises FileNotFoundError or ValueError if the run cannot be read, or for an unknown option.
    """
    from t2t_repro.exporting import exporter

    return exporter.export(os.fspath(output_dir), os.fspath(export_dir), **options)


def learn_shortlist(
    output_dir: Path,
    path: Path | None = None,
    *,
    data_dir: Path | None = None,
    first: int = 1_000,
    best: int = 20,
    pairs: int = 100_000,
    report: Report = log,
) -> str:
    """Learns the likely target subwords of each source subword from the training data of a run. Returns the file.

    Reports how many tokens of the validation text it covers, if there is any.

    Args:
      output_dir: the run directory.
      path: the file to write; None is `shortlist.txt` in the run directory.
      data_dir: the folder of the prepared data, if it has moved since training.
      first: number of most frequent target subwords, candidates of every text.
      best: number of candidates of each source subword.
      pairs: maximum number of training pairs to learn from.
      report: called with each line of progress.

    Raises FileNotFoundError if the run or its data is missing, and ValueError for a parsing run, whose output repeats
    the words of its input.
    """
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.preparation.learning import shortlist

    run = Run.open(os.fspath(output_dir))
    dataset = Dataset.of_run(run, _text(data_dir))
    path = run.shortlist if path is None else os.fspath(path)
    return shortlist.learn_for(run, dataset, path, first, best, pairs, report)


def choose_alignment_head(
    output_dir: Path,
    *,
    data_dir: Path | None = None,
    report: Report = log,
    **weights: Any,
) -> str:
    """Chooses the attention head that aligns words, by the validation text of a run. Returns the file.

    It is `alignment.json` in the run directory; one that exists is replaced. `load` chooses a head too, if the run has
    none.

    Args:
      output_dir: the run directory.
      data_dir: the folder of the prepared data, if it has moved since training.
      report: called with each line of progress.
      weights: average_checkpoints, average_best, moving_average and precision of `load`.

    Raises FileNotFoundError if the run or its data is missing, and ValueError for a parsing run and for data without
    validation text.
    """
    from t2t_repro.inference.translator import Translator

    directory = os.fspath(output_dir)
    run, translator = Run.open(directory), Translator.from_run(directory, **weights)
    run.problem.task.alignment_head(translator, run, _text(data_dir), report, again=True)
    return run.alignment


def _text(path: Path | None) -> str | None:
    return None if path is None else os.fspath(path)


def _must_be(name: str, value: Any, kind: type) -> None:
    """Raises TypeError if the argument `name` is not of that kind, such as the name of a problem."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}: expected {_EXAMPLES[kind]}. Received: {value!r}")


_EXAMPLES = {
    Problem: "a Problem, such as get_problem('translate_ende_wmt14')",
    HParams: "HParams, such as get_hparams('base')",
    TrainingOptions: "TrainingOptions, such as TrainingOptions(seed=2)",
}


def load(
    path: Path | Sequence[Path],
    average_checkpoints: int = 1,
    int8: bool = False,
    precision: str = "auto",
    average_best: bool = False,
    moving_average: bool = False,
    shortlist: Path | None = None,
    alignments: bool = False,
    search_only: bool = False,
) -> Decoder:
    """Loads a trained model: a `Translator` or a `Parser` from a run, an `ExportedModel` from an export.

    Args:
      path: a run directory or an export; a list of runs is an ensemble.
      average_checkpoints: number of last checkpoints of a run to average.
      int8: whether the linear layers of a run use int8 matrix products (faster for large models on a CPU).
      precision: of all other matrix products, such as "float32" or "bfloat16"; "auto" is the run's.
      average_best: whether the averaged checkpoints are those with the best validation scores. With
        `average_checkpoints` 1 they are those that training recommends.
      moving_average: whether the moving averages in the checkpoints are taken, instead of the weights (`ema_decay`).
      shortlist: a file of `learn_shortlist`. Translations use its subwords alone, which is faster on a CPU.
      alignments: whether the translations of `n_best` and `sample` are `AlignedText`, with the links of their words to
        those of the source. The head that aligns is that of the first run; if it has none, one is chosen from its data.
        An export must have been written with alignments.
      search_only: whether weights that translation does not read are freed, which takes less memory. Scores of
        given translations are then not available.

    Raises FileNotFoundError if there is neither a run nor a SavedModel. Raises ValueError if it is damaged, if several
    runs do not share a vocabulary, or if this machine does not support `precision`.
    """
    from t2t_repro.exporting.exported_model import ExportedModel, holds_export
    from t2t_repro.inference.translator import Translator

    paths = [os.fspath(each) for each in ([path] if isinstance(path, str | os.PathLike) else path)]
    if not paths:
        raise ValueError("path: no run is given; give a run directory, an export, or a list of runs")
    if len(paths) == 1 and holds_export(paths[0]) and not Run.exists(paths[0]):  # of both, it is the run
        (path,) = paths
        if average_checkpoints != 1 or average_best or moving_average:
            raise ValueError(f"{path!r} is an export, which has no checkpoints to average; load the run instead")
        if int8 or precision != "auto":
            raise ValueError(f"{path!r} is an export, whose precision is fixed; load the run instead")
        if shortlist is not None:
            raise ValueError(f"{path!r} is an export, which decodes with all subwords; load the run instead")
        if search_only:
            raise ValueError(f"{path!r} is an export, which keeps all weights; load the run instead")
        model = ExportedModel(path, alignments)
        return model.task.decoder(model)
    if alignments and search_only:
        raise ValueError("alignments choose a head by its attention, which needs all weights; load without search_only")
    translator = Translator.from_run(
        paths,
        average_checkpoints,
        int8=int8,
        precision=precision,
        average_best=average_best,
        moving_average=moving_average,
        shortlist=_text(shortlist),
        search_only=search_only,
    )
    run = Run.open(paths[0])
    if alignments:
        translator = translator.with_alignments(run.problem.task.alignment_head(translator, run, None, log).head)
    return run.problem.task.decoder(translator)
