"""The choice of the attention head that aligns the words of a run's translations.

There is no text with known alignments in a run, so the heads are compared with a statistical aligner, learned from the
training text (`preparation.learning.links`): while the model reads the reference translations of validation text, each
target token is linked to the source token that a head attends to most, and the head with the highest F1 is chosen.
Every head of every decoder layer and the mean of a layer's heads is a candidate, at the position that writes the token
and at the one that reads it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from t2t_repro.alignment.head import READING, WRITING, AlignmentHead, ChosenHead
from t2t_repro.data import input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.inference.batches import batches_by_length, padded
from t2t_repro.inference.ensemble import attended_most
from t2t_repro.inference.translator import Translator
from t2t_repro.preparation.learning import links
from t2t_repro.preparation.learning.shortlist import sample
from t2t_repro.run import Run

VALIDATION_PAIRS = 500
TRAINING_PAIRS = 30_000
LONGEST = 100  # tokens per side of a validation pair
_BATCH_TOKENS = 1_024
CRITERION = "F1 with symmetrized IBM Model 1 links of subwords"

Report = Callable[[str], None]


class _Pair(NamedTuple):
    source: np.ndarray  # ids, EOS last
    target: np.ndarray
    links: np.ndarray  # the expected source place of each target token but EOS, -1 for none


def chosen_head(
    translator: Translator,
    run: Run,
    data_dir: str | None,
    report: Report,
    again: bool = False,
) -> ChosenHead:
    """Returns the head in the run directory. If there is none, or `again`, chooses it, and writes it there.

    If it cannot be written, as in a read-only directory, it is used without that; with `again`, OSError is raised.

    Args:
      translator: of the run.
      run: the run.
      data_dir: the folder of the prepared data, if it has moved since training.
      report: called with each line of progress.

    Raises FileNotFoundError if the data is missing. Raises ValueError if the data has no validation text, and if the
    file in the run directory is damaged.
    """
    h = translator.model.hparams
    if os.path.exists(run.alignment) and not again:
        return ChosenHead.load(run.alignment, h.decoder_depth, h.num_heads)
    try:
        dataset = Dataset.of_run(run, data_dir)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"choosing the head that aligns needs the data of the run: {error}") from None
    report("choosing the attention head that aligns, by the validation text")
    found = choose(translator, dataset, [os.path.basename(path) for path in translator.checkpoints[0]])
    chosen = f"chose {found.head}: F1 {found.f1[str(found.head)]:.3f}"
    try:
        found.save(run.alignment)
        report(f"{chosen}, see {run.alignment}")
    except OSError as error:
        if again:
            raise
        report(f"{chosen}; it cannot be saved, so the next start chooses again: {error}")
    return found


def choose(translator: Translator, dataset: Dataset, checkpoints: Sequence[str] = ()) -> ChosenHead:
    """Returns the head of the translator's first model that agrees best with statistical alignment.

    Args:
      translator: of the run.
      dataset: its prepared data.
      checkpoints: names of the checkpoints of its weights, for the record.

    Raises ValueError without validation text.
    """
    if not dataset.has("validation"):
        raise ValueError(
            f"{dataset.directory!r} has no validation text, by which the head that aligns is chosen; give other data"
        )
    learned = sample(input_pipeline.pairs(dataset.shards("train")), translator.vocabulary.size, TRAINING_PAIRS)
    aligner = links.learn(learned)
    pairs = list(_validation_pairs(dataset, aligner))
    if not any((pair.links >= 0).any() for pair in pairs):
        raise ValueError(
            f"the validation text in {dataset.directory!r} has no pair of 1 to {LONGEST} tokens per side with words of "
            "the training text; the head that aligns cannot be chosen"
        )
    f1 = {head: agreement.f1 for head, agreement in _agreements(translator, pairs).items()}
    ranked = sorted(f1, key=lambda head: -f1[head])  # a stable sort: of equal ones the first
    return ChosenHead(
        head=ranked[0],
        writing_head=next(head for head in ranked if head.position == WRITING),
        criterion=CRITERION,
        validation_pairs=len(pairs),
        learned_from=len(learned.pairs),
        checkpoints=tuple(checkpoints),
        f1={str(head): round(f1[head], 4) for head in ranked},
    )


def _validation_pairs(dataset: Dataset, aligner: links.Aligner) -> Iterator[_Pair]:
    pairs = input_pipeline.pairs(dataset.shards("validation"))
    short = (pair for pair in pairs if 1 < min(map(len, pair)) and max(map(len, pair)) <= LONGEST)
    for source, target in itertools.islice(short, VALIDATION_PAIRS):
        yield _Pair(source, target, aligner.links(source[:-1], target[:-1]))


def _agreements(translator: Translator, pairs: list[_Pair]) -> dict[AlignmentHead, links.Agreement]:
    """Returns the agreement of every candidate with the links of the pairs."""
    h = translator.model.hparams
    heads = [
        AlignmentHead(layer, head, position)
        for layer in range(1, h.decoder_depth + 1)
        for head in range(h.num_heads + 1)
        for position in (WRITING, READING)
    ]
    found = dict.fromkeys(heads, links.Agreement(0, 0, 0))
    lengths = {number: [len(pair.source), len(pair.target)] for number, pair in enumerate(pairs)}
    for numbers in batches_by_length(lengths, _BATCH_TOKENS):
        batch = [pairs[number] for number in numbers]
        source_BM, target_BL = (padded([pair[side].tolist() for pair in batch]) for side in (0, 1))
        weights = translator.memory_attention(source_BM, target_BL)
        for head in heads:
            places_BL = attended_most(weights, head).numpy()
            first = 1 if head.position == READING else 0
            for pair, places_L in zip(batch, places_BL, strict=True):
                places = places_L[first : first + len(pair.links)]
                places = np.where(places < len(pair.source) - 1, places, -1)  # EOS is no word
                found[head] = found[head].plus(links.Agreement.of(places, pair.links))
    return found
