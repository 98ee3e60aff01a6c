"""Task: how text becomes source and target, which constraint decoding obeys, how output becomes text, and its score.

A task is the object `TASK` in the module `task` of its package: `t2t_repro/translation/`, `t2t_repro/parsing/`. A
problem selects its task by the metric, and other packages receive it as `problem.task`. The module of a task imports
TensorFlow only inside functions, so that problems can be declared and listed without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from t2t_repro.alignment.head import ChosenHead
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.data.vocabulary import Vocabulary
    from t2t_repro.evaluation.comparison import Compared
    from t2t_repro.inference.search.decoding_loop import Constraint
    from t2t_repro.inference.translator import Translator
    from t2t_repro.run import Run
    from t2t_repro.training.validation import Sample

TASKS = {"bleu": "translation", "f1": "parsing"}  # the package of each task, by `Problem.metric`
DEFAULT_METRIC = "bleu"


class Decoder(Protocol):
    """The result of `load`: a `Translator`, a `Parser` or an `ExportedModel`. Any number of threads may call it."""

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Returns the best output for each text: a translation, or a tree in brackets."""

    def n_best(self, texts: Sequence[str], n: int) -> list[list[tuple[str, float]]]:
        """Returns the n best outputs for each text with their scores, best first."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Returns the log-probability of each output given its text."""


class Task(Protocol):
    """Everything that problems of one kind share.

    `references` have the type of the task: pairs of texts for translation, trees for parsing.
    """

    name: str
    metrics: tuple[str, ...]  # the scores, by their names in `scores`, that can choose a checkpoint
    takes_trees: bool  # its corpora are `Trees`, and prepared data contains the reference trees
    segmented_sides: tuple[str, ...]  # the sides of training pairs, "inputs" and "targets", that BPE-dropout segments
    own_files: str  # the problem of this task for the user's own files
    preview_extra_length: int  # `extra_length` of previews: an untrained model rarely writes EOS
    signature: str  # of an export: returns the best output of each text
    unconstrained_note: str  # for the README of an export to an {engine} that has no constraints
    page_hint: str  # texts on the page of t2t-serve: the label of the input, the button, the label of the output
    page_action: str
    page_result: str

    def linearized(self, linearization: str) -> Task:
        """Returns this task for trees of a linearization, one of `problem.LINEARIZATIONS`; itself without trees."""

    def constraint(self, vocabulary: Vocabulary) -> Constraint | None:
        """Returns the constraint of beam search, or None."""

    def alignment_head(
        self,
        translator: Translator,
        run: Run,
        data_dir: str | None,
        report: Callable[[str], None],
        again: bool = False,
    ) -> ChosenHead:
        """Returns the head of a run that aligns the words of its outputs: see `translation.alignments.chosen_head`.

        Raises ValueError if outputs of this task have no alignment.
        """

    def decoder(self, translator: Any, well_formed: bool = False, min_confidence: float = 0.0) -> Decoder:
        """Returns the decoder of a `Translator` or an `ExportedModel`.

        With `well_formed`, outputs that need no repair rank before those that do. Those with a confidence below
        `min_confidence`, from 0 to 1, are left out. Tasks without repairs take neither.
        """

    def as_target(self, output: str) -> str:
        """Returns an output of `decoder` as the model writes it. Raises ValueError if it cannot be read."""

    def summary(self, decoder: Any) -> str:
        """Returns the report on all outputs of `decoder`; "" for nothing."""

    def served(self, signature: str, inputs: Mapping[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
        """Returns the outputs of an export's signature, which are arrays, in the form for clients of a server."""

    def references(
        self, dataset: Dataset, split: str, vocabulary: Vocabulary, longest: int | None = None
    ) -> Sequence[Any]:
        """Returns the references of a split. `longest` limits the tokens or words of a source."""

    def scores(
        self,
        translator: Translator,
        references: Sequence[Any],
        language: str,
        beam_size: int | None,
        alpha: float | None,
    ) -> dict[str, Any]:
        """Decodes the sources and returns "sentences", the metric under its name, and further results.

        Args:
          translator: of the run.
          references: of this task, from `references`.
          language: of the target, an ISO 639-1 code or "".
          beam_size: None for that of the run.
          alpha: None for that of the run.
        """

    def decode(
        self, translator: Translator, references: Sequence[Any], beam_size: int | None, alpha: float | None
    ) -> list[Any]:
        """Returns the outputs that `scores` scores: translations, or trees."""

    def compared(self, references: Sequence[Any], a: Sequence[Any], b: Sequence[Any]) -> Compared:
        """Returns the outputs a and b of `decode` in the form for `evaluation.comparison.compare`."""

    def compared_files(self, a: str, b: str, reference: str, source: str | None = None) -> Compared:
        """Reads two files of outputs, and their references and sources. Returns them as `compared` does.

        Raises FileNotFoundError, and ValueError for files that cannot be compared.
        """

    def score_rows(self, scores: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Returns the names and values of `scores` as text for a table."""

    def preview(self, translator: Translator, references: Sequence[Any]) -> Sample:
        """Decodes the sources greedily. Returns a score, and each source, reference and output as text."""


def task_of(metric: str = DEFAULT_METRIC, linearization: str = "") -> Task:
    """Returns the task of `metric`, with the default linearization if none is given. Raises KeyError for an unknown
    metric."""
    task = cast(Task, importlib.import_module(f"t2t_repro.{TASKS[metric]}.task").TASK)
    return task.linearized(linearization) if linearization else task
