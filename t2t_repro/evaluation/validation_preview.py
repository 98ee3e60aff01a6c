"""What a model in training makes of a few sentences of the validation text, always the same ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import sacrebleu

from t2t_repro.data import input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.vocabulary import PAD, Vocabulary
from t2t_repro.inference.translator import BATCH_TOKENS, Translator
from t2t_repro.model.transformer import Transformer
from t2t_repro.parsing.evalb import evalb
from t2t_repro.parsing.parser import Parser
from t2t_repro.parsing.trees import Tree, read_trees
from t2t_repro.run import Run
from t2t_repro.training.trainer import Sample

SENTENCES = 64  # of which the score is
SHOWN = 3
LONGEST = 50  # tokens of the source, or words of a tree: the longest sentence decides how long all of them take
EXTRA_LENGTH = 20  # a model that has learnt little does not end; of trees: times as many as words, LINEARISED
LINEARISED = 4

Item = TypeVar("Item")


class Sampler:
    """Decodes greedily, with the weights that the model has at the moment, when called. BLEU is sacreBLEU's 13a of the
    SENTENCES, F1 that of `evalb`: not that of the whole text, nor of beam search, but a curve of the same form."""

    def __init__(self, model: Transformer, run: Run, dataset: Dataset):
        self._f1 = run.problem.metric == "f1"
        extra = LINEARISED * LONGEST if self._f1 else EXTRA_LENGTH
        hparams = dataclasses.replace(run.hparams, extra_length=min(run.hparams.extra_length, extra))
        self._translator = Translator(model, Vocabulary(dataset.vocabulary), hparams)
        if self._f1:
            self._golds = _chosen([gold for gold in read_trees(dataset.trees("validation")) if _short(gold)])
        else:
            self._pairs = self._texts(dataset)

    def __call__(self) -> Sample:
        return self._trees() if self._f1 else self._translations()

    def _translations(self) -> Sample:
        sources, references = zip(*self._pairs, strict=True) if self._pairs else ((), ())
        found = self._translator.translate(sources, beam_size=1)
        shown = list(zip(sources, references, found, strict=True))[:SHOWN]
        return Sample({"sample_BLEU": sacrebleu.corpus_bleu(found, [references]).score} if found else {}, shown)

    def _trees(self) -> Sample:
        golds = self._golds
        parser = Parser(self._translator)
        found = parser.parse([gold.words() for gold in golds], beam_size=1, tags=[gold.tags() for gold in golds])
        shown = [
            (" ".join(gold.words()), str(gold), str(tree)) for gold, tree in zip(golds[:SHOWN], found, strict=False)
        ]
        return Sample({"sample_F1": evalb(golds, found).all.f1} if golds else {}, shown)

    def _texts(self, dataset: Dataset) -> list[tuple[str, str]]:
        """(source, target) of the sentences: the vocabulary is reversible, so the shards hold them."""
        pairs = []
        for batch in input_pipeline.evaluation_batches(dataset.shards("validation"), BATCH_TOKENS):
            if batch["inputs"].shape[1] <= LONGEST:
                pairs += list(zip(batch["inputs"].numpy(), batch["targets"].numpy(), strict=True))
        chosen = _chosen(pairs)
        decode = self._translator.vocabulary.decode
        sides = (decode([pair[side][pair[side] != PAD].tolist() for pair in chosen]) for side in (0, 1))
        return [both for both in zip(*sides, strict=True) if all(both)]


def _short(gold: Tree) -> bool:
    return len(gold.words()) <= LONGEST


def _chosen(items: Sequence[Item]) -> list[Item]:
    """Returns SENTENCES of the items, evenly spread."""
    number = min(len(items), SENTENCES)
    return [items[(which + 1) * len(items) // number - 1] for which in range(number)]
