"""Texts in batches through the graphs: encoded, grouped by length, within the memory, decoded or scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from t2t_repro.alignment.words import Links
from t2t_repro.config import HParams, must_be_integer
from t2t_repro.data.shortlist import Shortlist
from t2t_repro.data.vocabulary import Vocabulary, as_pairs, must_be_list
from t2t_repro.documents.document import Advance, ReportText
from t2t_repro.inference import memory
from t2t_repro.inference.batches import batches_by_length, padded, run_batches
from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.inference.graphs import Graphs
from t2t_repro.inference.hypothesis_texts import aligned_hypotheses, hypothesis_texts
from t2t_repro.inference.search.decoding_loop import Constraint, Hypotheses
from t2t_repro.inference.text_to_text import Found
from t2t_repro.text.translations import AlignedText
from t2t_repro.training import parallel

BATCH_TOKENS = 2_048  # source positions of a batch, padding included, for a beam of at most `BATCH_WIDTH`
BATCH_WIDTH = 4


class BatchDecoder(Graphs):
    """The models with their vocabulary and the limits of what they decode and score."""

    def __init__(
        self,
        ensemble: Ensemble,
        vocabulary: Vocabulary,
        hparams: HParams,
        constraint: Constraint | None = None,
        shortlist: Shortlist | None = None,
    ):
        super().__init__(ensemble, vocabulary, constraint)
        self.hparams, self.shortlist = hparams, shortlist
        self._links: Callable[..., Links] | None = None  # of `Words`, if translations are `AlignedText`

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Returns log p of each target given its source, EOS included; -inf for a pair that is too long."""
        scores = self.score_tokens(pairs)
        return [sum(log_p for _, log_p in tokens) if tokens else -math.inf for tokens in scores]

    def score_tokens(
        self, pairs: Sequence[tuple[str, str]], report: ReportText | None = None, advance: Advance | None = None
    ) -> list[Found]:
        """Returns each target's tokens, EOS last, with their log-probabilities given the previous tokens and the
        source.

        Tokens are spelled as sentencepiece spells them: U+2581 for a space, `</s>` for EOS. A pair with more than
        `max_positions` tokens per side is not scored: it has no tokens, and `report` is called with it. `advance` is
        called after each batch.
        """
        pairs = as_pairs(pairs)
        sources, targets = (self.vocabulary.encode([pair[side] for pair in pairs]) for side in (0, 1))
        subwords, limit = self.vocabulary.subwords, self._max_positions()
        lengths = {}
        for number, both in enumerate(zip(sources, targets, strict=True)):
            longest = max(map(len, both))
            if longest <= limit:
                lengths[number] = [len(ids) for ids in both]
            elif report:
                report(number, f"has {longest:,} tokens per side; at most {limit:,} are scored")

        def scored(numbers: list[int]) -> list[Found]:
            sides = (padded([side[number] for number in numbers]) for side in (sources, targets))
            log_p_BL = self.token_log_probabilities(*sides).numpy().tolist()
            return [
                [(subwords[id], log_p_L[place]) for place, id in enumerate(targets[number])]
                for number, log_p_L in zip(numbers, log_p_BL, strict=True)
            ]

        scores: list[Found] = [[] for _ in pairs]
        most = memory.batches_in_memory(BATCH_TOKENS, self.model.vocab_size)
        run_batches(scored, batches_by_length(lengths, BATCH_TOKENS), scores, advance, most)
        return scores

    def _decode(
        self,
        decode: Callable[[list[int], list[list[int]], tf.Tensor, tf.Tensor], Hypotheses],
        texts: Sequence[str],
        n: int,
        width: int,
        report: ReportText | None,
        prefixes: Sequence[str] | None,
        min_length: int,
        advance: Advance | None,
    ) -> list[Found]:
        """Returns the first n hypotheses of each text. `decode` gets numbers and ids of texts, sources [B, M] and
        prefixes [B, P]."""
        must_be_list(() if prefixes is None else prefixes, "prefixes")
        must_be_integer("min_length", min_length, 0, self._max_positions())
        memory.must_fit(self.ensemble, self.model.vocab_size, width, 1 + self.hparams.extra_length)
        if prefixes is not None and len(prefixes) != len(texts):
            raise ValueError(f"there must be a prefix for each text: {len(prefixes)} for {len(texts)}")
        sources = self._encode(texts, report)
        prefix_ids = [ids[:-1] for ids in self.vocabulary.encode(["" for _ in texts] if prefixes is None else prefixes)]

        def best(places: list[int]) -> list[Found]:
            batch = [sources[place] for place in places]
            source_BM = padded(batch)
            found = decode(places, batch, source_BM, padded([prefix_ids[place] for place in places]))
            if self._links is None:
                return list(hypothesis_texts(self.vocabulary, found, n))
            sides = source_BM, [texts[place] for place in places]
            return list(aligned_hypotheses(self.vocabulary, self._links, found, n, *sides))

        tokens = BATCH_TOKENS * BATCH_WIDTH // max(width, BATCH_WIDTH)
        batches = batches_by_length({place: [len(ids)] * 2 for place, ids in sources.items()}, tokens)
        lengths = {i: max(len(ids), len(prefix_ids[i]) + 1, min_length + 1) for i, ids in sources.items()}
        batches = [part for places in batches for part in self._in_memory(places, lengths, width)]
        nothing = AlignedText.of("", 0.0, "", [], [], []) if self._links else ("", 0.0)
        results: list[Found] = [[nothing]] * len(texts)
        run_batches(best, batches, results, advance)
        return results

    def _shortlisted(self, sources: list[list[int]], prefix_BP: tf.Tensor) -> np.ndarray | None:
        """Returns the ids to which the decoding of a batch is limited, or None."""
        return None if self.shortlist is None else self.shortlist.ids(sources, prefix_BP.numpy())

    def _in_memory(self, places: list[int], lengths: Mapping[int, int], width: int) -> list[list[int]]:
        """Splits a batch evenly if its beams and their logits exceed the memory for one batch."""
        positions = max(lengths[place] for place in places) + self.hparams.extra_length
        each = memory.search_bytes(self.ensemble, self.model.vocab_size, width, positions)
        most = max(1, memory.batch_bytes(parallel.num_parallel_batches()) // each)
        return [part.tolist() for part in np.array_split(places, math.ceil(len(places) / most))]

    def _encode(self, texts: Sequence[str], report: ReportText | None) -> dict[int, list[int]]:
        """Returns the ids of each text that has more than white space, by its position."""
        places = [place for place, text in enumerate(texts) if text.strip()]
        encoded = dict(zip(places, self.vocabulary.encode([texts[place] for place in places]), strict=True))
        limit = self._max_positions()
        for place, ids in encoded.items():
            if len(ids) > limit:
                if report:
                    report(place, f"has {len(ids):,} tokens; the first {limit - 1:,} are translated")
                encoded[place] = ids[: limit - 1] + ids[-1:]
        return encoded

    def _max_positions(self) -> int:
        """Returns the maximum number of tokens of a text. Attention takes memory quadratic in it."""
        return min(model.hparams.max_positions for model in self.ensemble.models)
