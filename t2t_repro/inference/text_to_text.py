"""The calls on texts that a trained run and an export share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import cast

from t2t_repro.data.vocabulary import as_texts
from t2t_repro.documents.aligned import aligned_document
from t2t_repro.documents.document import joined, translated
from t2t_repro.documents.splitter import Splitter
from t2t_repro.text.glossary import AnyGlossary, Required, lacking, spelled
from t2t_repro.text.markup import MarkedText
from t2t_repro.text.translations import AlignedText

Found = list[tuple[str, float]]  # the translations of a text with their scores; `AlignedText` with an alignment head


def translate_again(
    found: list[Found],
    required: Sequence[Sequence[Required]],
    translate: Callable[[list[int], list[str]], list[Found]],
) -> list[int]:
    """Replaces the translations that lack a required term, and returns the numbers of the texts that still lack one.

    `translate` gets the numbers of the texts and the terms of each, as `text.glossary.spelled` spells them.
    """
    chosen = _lacking(found, required)
    for number, again in zip(chosen, translate(chosen, [spelled(required[i]) for i in chosen]), strict=True):
        found[number] = again
    return _lacking(found, required)


def with_markup(texts: Sequence[str], translate: Callable[[list[str]], list[Found]]) -> list[Found]:
    """Returns the translations that `translate` finds, with alignments, for texts without markup, with the markup."""
    lines = [MarkedText(text) for text in texts]
    found = cast(list[list[AlignedText]], translate([line.text for line in lines]))
    return [[line.translation(each) for each in some] for line, some in zip(lines, found, strict=True)]


def _lacking(found: list[Found], required: Sequence[Sequence[Required]]) -> list[int]:
    return lacking(required, [[text for text, _ in some] for some in found])


class TextToText:
    """The calls that a `Translator` and an `ExportedModel` share, in terms of their own."""

    translate: Callable[..., list[str]]
    n_best: Callable[..., list[Found]]
    splitter: Callable[[str | None], Splitter]
    has_links: bool  # whether translations are `AlignedText`

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Returns the best translation of each text: `translate` with the run's beam size."""
        return self.translate(texts)

    def translate_documents(
        self,
        texts: Sequence[str],
        language: str | None = None,
        beam_size: int | None = None,
        alpha: float | None = None,
        glossary: AnyGlossary | None = None,
        markup: bool = False,
    ) -> list[str]:
        """Returns the best translation of each text of any number of sentences and paragraphs, sentence by sentence.

        Line ends and other white space stay: see `documents.document`. Nothing is truncated: sentences of more than
        `max_positions` tokens are split; an export splits those of more than about as many bytes. The other arguments
        are those of `n_best`. Raises ValueError if sentencex is not installed.

        Args:
          texts: the sources.
          language: a code such as "en", whose rules find the sentences; None means the source language of the run.
          markup: as in `n_best`. The sentences are those of the text without markup (`documents.marked`).
        """
        found = self.n_best_documents(texts, 1, language, beam_size, alpha, glossary, markup)
        return [best[0][0] for best in found]

    def n_best_documents(
        self,
        texts: Sequence[str],
        n: int,
        language: str | None = None,
        beam_size: int | None = None,
        alpha: float | None = None,
        glossary: AnyGlossary | None = None,
        markup: bool = False,
    ) -> list[Found]:
        """Returns the n best translations of each text of any number of sentences with their scores, best first.

        Number i has the i-th best translation of each sentence, or the last one of a sentence with fewer; there are
        fewer than n if all sentences have fewer. A score is the mean of those of the sentences. With alignments, each
        is an `AlignedText` with the words and the sentences of the entire text. The arguments are those of
        `translate_documents`.
        """
        texts = as_texts(texts)
        search = functools.partial(self.n_best, n=n, beam_size=beam_size, alpha=alpha, glossary=glossary, markup=markup)
        splitter = self.splitter(language)
        split = splitter.marked if markup else splitter
        join = aligned_document if self.has_links else joined
        return translated(texts, split, search, join=join)
