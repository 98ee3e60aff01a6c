"""A trained run as a `Translator`, from text to text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from t2t_repro.alignment.head import AlignmentHead
from t2t_repro.alignment.words import Words
from t2t_repro.config import HParams, must_be_integer, must_be_number
from t2t_repro.data.shortlist import Shortlist
from t2t_repro.data.vocabulary import Vocabulary, as_texts
from t2t_repro.documents.document import Advance, ReportText
from t2t_repro.documents.splitter import Splitter
from t2t_repro.inference.batch_decoder import BatchDecoder
from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.inference.graphs import IDS
from t2t_repro.inference.loading import load_ensemble, open_runs
from t2t_repro.inference.search.beam_search import n_best_options
from t2t_repro.inference.search.decoding_loop import Constraint, Hypotheses
from t2t_repro.inference.search.sampling import draws
from t2t_repro.inference.search.search_graph import packs_by_rows
from t2t_repro.inference.terms.term_search import own_width
from t2t_repro.inference.text_to_text import Found, TextToText, translate_again, with_markup
from t2t_repro.model.transformer import Transformer
from t2t_repro.system.heap import return_freed_memory
from t2t_repro.system.log import warn
from t2t_repro.text.glossary import MOST_TERMS, AnyGlossary, Glossary, Required
from t2t_repro.text.token_ids import EOS
from t2t_repro.text.translations import distinct
from t2t_repro.training.checkpointing.checkpoint_list import Averaging


class Translator(TextToText, BatchDecoder):
    """One or several models that decode as one, with their vocabulary.

    Sentences are batched by length and number of tokens. Results are in the order of the input. Instances are
    thread-safe. `checkpoints` are the paths of the checkpoints of each run whose mean was loaded, and
    `checkpoints_sha256` the SHA-256 of all their indices.
    """

    def __init__(
        self,
        model: Transformer | Sequence[Transformer] | Ensemble,
        vocabulary: Vocabulary,
        hparams: HParams,
        constraint: Constraint | None = None,
        shortlist: Shortlist | None = None,
        language: str = "",
    ):
        """Uses the beam size, alpha and maximum length of `hparams` as defaults. `language` is that of the sources.

        Beam search obeys `constraint`; sampling and scoring do not. Beam search and sampling use the subwords of
        `shortlist` alone, and their log-probabilities are normalized over them; scoring uses all. With a shortlist, a
        translation may depend on the other texts of its batch. Raises ValueError for both, a constraint and a
        shortlist.
        """
        if constraint is not None and shortlist is not None:
            raise ValueError(
                "decoding is constrained to the words of the text, which a shortlist may lack: leave out the shortlist"
            )
        super().__init__(Ensemble.of(model), vocabulary, hparams, constraint, shortlist)
        self.language, self.has_links = language, False
        self.checkpoints: list[list[str]] = []
        self.checkpoints_sha256: list[str] = []

    @classmethod
    def from_run(
        cls,
        output_dir: str | Sequence[str],
        average_checkpoints: int = 1,
        int8: bool = False,
        precision: str = "auto",
        average_best: bool = False,
        moving_average: bool = False,
        shortlist: str | None = None,
        search_only: bool = False,
    ) -> Translator:
        """Loads the run in `output_dir` with the mean of the weights of its last `average_checkpoints` checkpoints.

        Several runs are an ensemble, which decodes by the mean of their probabilities. The first run's hyperparameters
        apply. With `average_best`, the checkpoints are those with the best validation scores: see
        `training.checkpointing.checkpoint_list.to_average`. With `moving_average`, the weights of each are the moving
        average that it holds (`ema_decay`). The model computes in `precision`, of `t2t_repro.training.precision`;
        "auto" is that of the run. With `int8` linear layers multiply 8-bit integers, which is faster for large models
        on a CPU; the rest is in `precision`. `shortlist` is a file of `t2t_repro.data.shortlist`.

        With `search_only`, the weights that beam search and sampling do not read are freed, so that decoding takes
        less memory; scores of given translations and attention are then ValueErrors.

        Raises FileNotFoundError if there is no run or no checkpoint. Raises ValueError if one is damaged or holds no
        moving average, if the runs have different vocabularies or linearizations, if `precision` is not supported here,
        or if 8-bit products are missing or wrong here (`t2t_repro.model.int8`).
        """
        must_be_integer("average_checkpoints", average_checkpoints, 1)
        runs = open_runs([output_dir] if isinstance(output_dir, str) else output_dir)
        vocabulary = Vocabulary(runs[0].vocabulary)
        limited_to = None if shortlist is None else Shortlist.load(shortlist, vocabulary)
        averaging = Averaging(average_checkpoints, average_best, moving_average)
        loaded = load_ensemble(runs, vocabulary.size, averaging, int8, precision, search_only)
        constraint, language = runs[0].problem.task.constraint(vocabulary), runs[0].problem.source_language
        found = cls(loaded.ensemble, vocabulary, runs[0].hparams, constraint, limited_to, language)
        found.checkpoints, found.checkpoints_sha256 = loaded.checkpoints, loaded.sha256
        if search_only and constraint is None and limited_to is None and not packs_by_rows(loaded.ensemble):
            # packs the matrices of `search` before its first batch, whose tensors would fragment the memory: 10% less
            found.search(tf.constant([[EOS]]), found.hparams.beam_size, found.hparams.alpha, 0)
        return_freed_memory()
        return found

    def with_alignments(self, head: AlignmentHead) -> Translator:
        """Returns the same translator, whose translations with scores are `AlignedText`, aligned by `head`.

        The head is one of the first model. Translations and scores are the same. Raises ValueError for a head that the
        model lacks, and with a constraint.
        """
        if self.constraint is not None:
            raise ValueError("constrained output repeats the words of its text: it has no alignment; leave it out")
        h = self.model.hparams
        if head.layer > h.decoder_depth or head.head > h.num_heads:
            raise ValueError(
                f"expected one of {h.decoder_depth} layers of {h.num_heads} heads. Received: {head}; choose a head of "
                "this model"
            )
        kept: dict[str, Any] = {"shortlist": self.shortlist, "language": self.language}
        found = Translator(self.ensemble.aligned(head), self.vocabulary, self.hparams, **kept)
        found.checkpoints, found.checkpoints_sha256 = self.checkpoints, self.checkpoints_sha256
        found.has_links = True
        words, traces = Words(self.vocabulary), tf.TensorSpec([None, None, None], tf.int32)
        found._links = tf.function(
            functools.partial(words.links, head=head), autograph=False, input_signature=[IDS, traces, traces]
        )
        return found

    def translate(
        self,
        texts: Sequence[str],
        beam_size: int | None = None,
        alpha: float | None = None,
        prefixes: Sequence[str] | None = None,
        min_length: int = 0,
        glossary: AnyGlossary | None = None,
        markup: bool = False,
    ) -> list[str]:
        """Returns the best translation of each text, and "" for white space. The arguments are those of `n_best`."""
        options: dict[str, Any] = {"prefixes": prefixes, "min_length": min_length, "glossary": glossary}
        found = self.n_best(texts, 1, beam_size, alpha, markup=markup, **options)
        return [best[0][0] for best in found]

    def splitter(self, language: str | None = None) -> Splitter:
        """Returns the splitter of texts into sentences of at most `max_positions` tokens: see `translate_documents`."""

        def count(texts: Sequence[str]) -> list[int]:
            return [len(ids) for ids in self.vocabulary.encode(texts)]

        return Splitter(self.language if language is None else language, self._max_positions(), count)

    def n_best(
        self,
        texts: Sequence[str],
        n: int,
        beam_size: int | None = None,
        alpha: float | None = None,
        report: ReportText | None = None,
        prefixes: Sequence[str] | None = None,
        min_length: int = 0,
        advance: Advance | None = None,
        glossary: AnyGlossary | None = None,
        markup: bool = False,
    ) -> list[Found]:
        """Returns the n best translations of each text with their scores, best first.

        A score is a log-probability divided by the length penalty. There are fewer than n if the beam holds fewer that
        differ in more than leading and trailing space. Texts of more than `max_positions` tokens are truncated:
        `translate_documents` splits them instead.

        Args:
          texts: the sources.
          n: number of translations per text.
          beam_size: None means that of the run, or n if that is larger.
          alpha: exponent of the length penalty; None means that of the run.
          report: called with the number of each truncated text and a message; None logs a warning.
          prefixes: text that each translation starts with. Its tokens count in the score. Not with a constraint.
          min_length: number of tokens before the end-of-sentence token, at most `max_positions`. Not with a constraint.
          advance: called after each batch with the number of its texts.
          glossary: terms that translations must contain, or the name of a file (`t2t_repro.text.glossary`). Not with a
            constraint. Texts are translated without it first; only those with a translation that lacks a term are
            translated again, by `term_search` among all subwords. `report` is called with each text of more than
            `MOST_TERMS` terms, of which the first are required.
          markup: whether the texts have tags, placeholders, addresses and entities, which the translations then have
            too (`t2t_repro.text.markup`). Only of a translator with alignments. Prefixes and terms have none.
        """
        texts = as_texts(texts)
        if markup:
            how: dict[str, Any] = {"prefixes": prefixes, "min_length": min_length, "glossary": glossary}
            search = functools.partial(self.n_best, n=n, beam_size=beam_size, alpha=alpha, **how)
            found = self._marked(texts, functools.partial(search, report=report, advance=advance))
            return [distinct(some, n) for some in found]
        width, penalty = n_best_options(self.hparams, n, beam_size, alpha)
        report = report or functools.partial(warn, texts)
        if self.constraint is not None:
            if prefixes is not None or min_length:
                raise ValueError("decoding is constrained to the words of the text: leave out prefixes and min_length")
            if glossary is not None:
                raise ValueError("decoding is constrained to the words of the text: leave out the glossary")
            texts, prefixes = self.constraint.required_words(texts)
        required = None if glossary is None else self._required(Glossary.of(glossary), texts, report)
        search = functools.partial(self._n_best, n, width, penalty, min_length)
        results = search(texts, prefixes, report, advance)
        if required is None:
            return results

        def with_terms(chosen: list[int], terms: list[str]) -> list[Found]:
            starts = None if prefixes is None else [prefixes[number] for number in chosen]
            return search([texts[number] for number in chosen], starts, None, None, terms)

        for number in translate_again(results, required, with_terms):
            report(number, "lacks a term of the glossary, for which there was no room")
        return results

    def _n_best(
        self,
        n: int,
        width: int,
        penalty: float,
        min_length: int,
        texts: Sequence[str],
        prefixes: Sequence[str] | None,
        report: ReportText | None,
        advance: Advance | None,
        terms: Sequence[str] | None = None,
    ) -> list[Found]:
        """Returns the n best translations of each text, which contain its `terms` (`text.glossary.spelled`)."""
        extra = self.hparams.extra_length

        def best(
            numbers: list[int], sources: list[list[int]], source_BM: tf.Tensor, prefix_BP: tf.Tensor
        ) -> Hypotheses:
            if self.constraint is not None:
                return self.constrained_search(source_BM, width, penalty, extra, prefix_BP)
            if terms is not None:
                terms_B = tf.constant([terms[number] for number in numbers], tf.string)
                return self.search_with_terms(source_BM, width, penalty, extra, prefix_BP, min_length, terms_B)
            ids_S = self._shortlisted(sources, prefix_BP)
            return self.search(source_BM, width, penalty, extra, prefix_BP, min_length, ids_S)

        kept, beams = width if n > 1 else 1, width
        if terms:
            beams = int(tf.reduce_max(own_width(self.term_vocabulary.terms(tf.constant(terms, tf.string)), width)))
        found = self._decode(best, texts, kept, beams, report, prefixes, min_length, advance)
        return [distinct(hypotheses, n) for hypotheses in found]

    def _marked(self, texts: Sequence[str], decode: Callable[[list[str]], list[Found]]) -> list[Found]:
        """Returns the translations that `decode` finds for texts without markup, with the markup of `texts`."""
        if self._links is None:
            raise ValueError("markup is put back by word alignments, which are not loaded: load with alignments")
        return with_markup(texts, decode)

    def _required(self, glossary: Glossary, texts: Sequence[str], report: ReportText) -> list[tuple[Required, ...]]:
        """Returns the first `MOST_TERMS` terms of each text, as far as it is translated."""
        every = [glossary.required(self._as_translated(text)) for text in texts]
        for number, found in enumerate(every):
            if len(found) > MOST_TERMS:
                report(number, f"has {len(found):,} terms of the glossary; the first {MOST_TERMS} are required")
        return [found[:MOST_TERMS] for found in every]

    def _as_translated(self, text: str) -> str:
        """Returns the text without what is truncated."""
        limit = self._max_positions()
        if 4 * len(text) + 2 <= limit:  # a token is at least a byte, except for EOS and a first space
            return text
        (ids,) = self.vocabulary.encode([text])
        return text if len(ids) <= limit else self.vocabulary.decode([ids[: limit - 1]])[0]

    def sample(
        self,
        texts: Sequence[str],
        n: int = 1,
        temperature: float = 1.0,
        top_k: int = 0,
        seed: int = 1,
        report: ReportText | None = None,
        prefixes: Sequence[str] | None = None,
        min_length: int = 0,
        advance: Advance | None = None,
        markup: bool = False,
    ) -> list[Found]:
        """Returns n samples of the translation of each text, with their log-probabilities under the model.

        A text's samples depend only on the text, the seed and their number: not on the other texts, and the first of
        three samples is the same as a single one. The other arguments are those of `n_best`.

        Args:
          texts: the sources.
          n: number of samples per text.
          temperature: tokens are drawn with probability proportional to p^(1 / temperature).
          top_k: number of likeliest tokens to draw from; 0 means all.
          seed: at least 0.
        """
        texts = as_texts(texts)
        if markup:
            how: dict[str, Any] = {"top_k": top_k, "seed": seed, "prefixes": prefixes, "min_length": min_length}
            draw = functools.partial(self.sample, n=n, temperature=temperature, report=report, advance=advance, **how)
            return self._marked(texts, draw)
        report = report or functools.partial(warn, texts)
        must_be_integer("n", n, 1)
        must_be_integer("top_k", top_k, 0)
        must_be_integer("seed", seed, 0, most=float("inf"))
        must_be_number("temperature", temperature)
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be above 0 and finite, got {temperature}")
        extra = self.hparams.extra_length

        def drawn(_: list[int], sources: list[list[int]], source_BM: tf.Tensor, prefix_BP: tf.Tensor) -> Hypotheses:
            longest = source_BM.shape[1] + extra + prefix_BP.shape[1] + min_length + 1
            draws_BWL = draws(sources, n, longest, seed)
            arguments = source_BM, draws_BWL, temperature, top_k, extra, prefix_BP, min_length
            return self.draw(*arguments, ids_S=self._shortlisted(sources, prefix_BP))

        return self._decode(drawn, texts, n, n, report, prefixes, min_length, advance)
