"""`export`: writes a trained run as a self-contained model to numbered folders, each written atomically.

"saved_model" is loaded without this package: `import tensorflow, tensorflow_text`, then `tf.saved_model.load`, or TF
Serving. "ctranslate2" is for CTranslate2, "argos" for Argos Translate, which runs it, "huggingface" for transformers,
and "onnx" for ONNX Runtime: see the modules `ctranslate2`, `huggingface` and `onnx`. `model_card.json` documents the
model.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from t2t_repro.alignment.head import AlignmentHead
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.exporting import ctranslate2, huggingface, onnx
from t2t_repro.exporting.engines import FORMATS, QUANTIZATIONS
from t2t_repro.exporting.signatures import ExportedTranslator
from t2t_repro.inference.translator import Translator
from t2t_repro.io import read_json_lines, sync, sync_all, write_json
from t2t_repro.model.transformer import Transformer
from t2t_repro.problem import Problem
from t2t_repro.run import Run, versions
from t2t_repro.system.log import report as log
from t2t_repro.system.log import short_reason
from t2t_repro.training.checkpointing.checkpoint_list import averaged
from t2t_repro.training.precision import resolve

LICENSE = {
    "code": "Apache-2.0",
    "weights": "chosen by whoever trained them, subject to the license of the training data",
}


def export(
    output_dir: str,
    export_dir: str,
    average_checkpoints: int = 1,
    format: str = "saved_model",
    quantization: str = "none",
    precision: str = "auto",
    average_best: bool = False,
    moving_average: bool = False,
    shortlist: str | None = None,
    alignments: bool = False,
    data_dir: str | None = None,
    glossaries: bool = False,
) -> str:
    """Writes the run in `output_dir` atomically to the next numbered folder of `export_dir`, and returns its path.

    Args:
      average_checkpoints: number of last checkpoints whose mean is written.
      format: one of `engines.FORMATS`.
      quantization: "none", or "int8" for linear layers that multiply 8-bit integers.
      precision: of the rest of a SavedModel; "auto" is that of the run. The other formats have float32 weights, and
        their users choose the type of computation.
      average_best: whether these are the checkpoints with the best validation scores instead of the last ones.
      moving_average: whether the moving averages in these checkpoints are taken, instead of the weights.
      shortlist: a file of `t2t_repro.data.shortlist`, CTranslate2's vocabulary map. A SavedModel has none.
      alignments: whether the export aligns words: a SavedModel has the signature `translate_with_alignments`, and
        CTranslate2 returns the attention of the head that aligns. It is chosen first if the run has none.
      data_dir: the folder of the prepared data, to choose that head, if it has moved since training.
      glossaries: whether a SavedModel of a translation run can require terms of its translations. It is a third larger
        then, without its weights, and takes twice as long to load.

    Raises FileNotFoundError or ValueError if the run cannot be read. Raises ValueError for an unknown format or
    quantization, for a precision or quantization that the format or this machine does not support, and for a model that
    the format cannot express.
    """
    if format not in FORMATS:
        raise ValueError(f"the format must be one of {', '.join(FORMATS)}, got {format!r}")
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization must be one of {', '.join(QUANTIZATIONS)}, got {quantization!r}")
    chosen = FORMATS[format]
    chosen.must_take(precision, quantization, shortlist=shortlist, alignments=alignments, glossaries=glossaries)
    run = Run.open(output_dir)
    if glossaries and run.problem.task.name != "translation":
        raise ValueError(f"{output_dir!r} is a {run.problem.task.name} run, which has no glossaries; leave them out")
    if format == "argos":
        ctranslate2.must_fit_argos(run.problem)
    chosen.must_be_installed()
    if chosen.dtype_elsewhere:
        precision = "float32"
    computed_in = resolve(precision, run.precision)
    int8 = format == "saved_model" and quantization == "int8"
    translator = Translator.from_run(
        output_dir,
        average_checkpoints,
        int8=int8,
        precision=precision,
        average_best=average_best,
        moving_average=moving_average,
        shortlist=shortlist,
    )
    if format in _CHECKS:
        _CHECKS[format](translator.model)
    task = run.problem.task
    head = None
    if alignments:
        heads = task.alignment_head(translator, run, data_dir, log)
        head = heads.writing_head if format == "ctranslate2" else heads.head
    card: dict[str, Any] = {"format": format, "precision": computed_in, "quantization": quantization}
    if translator.constraint is not None:
        card["constrained"] = chosen.constraint
    if head is not None:
        card["alignment"] = head.to_json()
    card |= _model_card(run, translator, moving_average)
    note = task.unconstrained_note.format(engine=chosen.engine)
    with _temporary_folder(export_dir) as temporary:
        _WRITERS[format](_Contents(translator, run.problem, quantization, head, glossaries, card, note), temporary)
        write_json(os.path.join(temporary, "model_card.json"), card)
        sync_all(temporary)  # otherwise, a power cut could leave incomplete files under the final name
        path = _as_next_version(temporary, export_dir)
        sync(export_dir)
        return path


class _Contents(NamedTuple):
    """The inputs of a writer."""

    translator: Translator
    problem: Problem
    quantization: str
    head: AlignmentHead | None
    glossaries: bool
    card: dict[str, Any]
    note: str

    @property
    def model(self) -> tuple[Transformer, Vocabulary]:
        return self.translator.model, self.translator.vocabulary


def _saved_model(each: _Contents, directory: str) -> None:
    module = ExportedTranslator(each.translator, each.problem.task.signature, each.head, each.glossaries)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)  # nobody trains an export
    tf.saved_model.save(module, directory, signatures=module.signatures(), options=options)


def _ctranslate2(each: _Contents, directory: str) -> None:
    how: dict[str, Any] = {"shortlist": each.translator.shortlist, "head": each.head}
    ctranslate2.write(*each.model, directory, each.quantization, each.note, **how)


_WRITERS: dict[str, Callable[[_Contents, str], None]] = {  # to a folder
    "saved_model": _saved_model,
    "ctranslate2": _ctranslate2,
    "argos": lambda each, directory: ctranslate2.write_argos(*each.model, each.problem, directory, each.quantization),
    "huggingface": lambda each, directory: huggingface.write(*each.model, directory, each.card, each.note),
    "onnx": lambda each, directory: onnx.write(*each.model, directory, each.quantization, each.note),
}
_CHECKS: dict[str, Callable[[Transformer], None]] = {
    "ctranslate2": ctranslate2.must_fit,
    "argos": ctranslate2.must_fit,
    "huggingface": huggingface.must_fit,
    "onnx": onnx.must_fit,
}


@contextlib.contextmanager
def _temporary_folder(export_dir: str) -> Iterator[str]:
    """Yields a new folder in `export_dir`. If it is still there at the end, it is removed."""
    if os.path.exists(export_dir) and not os.path.isdir(export_dir):
        raise ValueError(f"export_dir: {export_dir!r} is a file; give a directory")
    os.makedirs(export_dir, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=".writing-", dir=export_dir)
    try:
        yield temporary
    except tf.errors.OpError as error:
        raise OSError(f"cannot write to {export_dir!r}: {short_reason(error)}") from None
    except OSError as error:
        if error.filename is None and error.errno:  # Python does not name the file if the disk is full
            raise OSError(error.errno, error.strerror, export_dir) from None
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _as_next_version(folder: str, export_dir: str) -> str:
    """Gives a folder the next number in `export_dir`, and returns its path. Several exports may do so in parallel."""
    os.chmod(folder, 0o755)
    while True:
        numbers = [int(name) for name in os.listdir(export_dir) if re.fullmatch(r"\d+", name)]
        path = os.path.join(export_dir, str(max(numbers, default=0) + 1))
        try:
            os.rename(folder, path)
            return path
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another one has this number now
                raise


def _model_card(run: Run, translator: Translator, moving_average: bool) -> dict[str, Any]:
    """Returns the problem, hyperparameters, training, scores and versions of the model."""
    checkpoints = [os.path.basename(path) for path in translator.checkpoints[0]]
    scores = [each for each in _scores(run) if run.is_of_own_text(each)]
    own = [
        each.get("checkpoints") == checkpoints and each.get("moving_average", False) == moving_average
        for each in scores
    ]
    return {
        "problem": run.problem.to_dict(),
        "hparams": run.hparams.to_dict(),
        "parameters": run.hparams.num_parameters(translator.vocabulary.size),
        "vocabulary": {
            "kind": translator.vocabulary.kind,
            "size": translator.vocabulary.size,
            "sha256": translator.vocabulary.sha256,
        },
        "trained_in": run.precision,
        "seed": run.seed,
        "checkpoints": checkpoints,
        "average_of": averaged(run) or checkpoints,
        **({"moving_average": True} if moving_average else {}),
        "training": run.training.to_json(),
        "parent": _without_folders(run.parent.to_json()) if run.parent else None,
        "scores": [each for each, is_own in zip(scores, own, strict=True) if is_own],
        "scores_of_other_checkpoints": [each for each, is_own in zip(scores, own, strict=True) if not is_own],
        "licence": LICENSE,
        "versions": versions(),
    }


def _without_folders(parent: dict[str, Any]) -> dict[str, Any]:
    """Returns the record of a parent without its folder, and so with its own parents: a card may be published."""
    own = {name: value for name, value in parent.items() if name != "directory"}
    return own | ({"parent": _without_folders(parent["parent"])} if parent.get("parent") else {})


def _scores(run: Run) -> list[dict[str, Any]]:
    """Returns every line of scores.jsonl. Raises ValueError, with the number of the line, if one is damaged."""
    if not os.path.exists(run.scores):
        return []
    return list(read_json_lines(run.scores, constants=lambda _: None))  # JSON has no infinite perplexity
