"""t2t_repro.inference.given_words: beam search that writes given words, against everything that it may write."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from reference import batch, compiled_log_p, hypotheses, penalty
from small import shared_model

from t2t_repro.inference.beam import beam_search
from t2t_repro.inference.given_words import GivenWords
from t2t_repro.inference.search import END

PIECES = ["<pad>", "</s>", "<unk>", "ǀS", "▁ǀS", "▁ǁS", "▁a", "b", "▁c"]
FIRST, OPEN, CLOSE, A, B, C = range(3, 9)
GIVEN = [A, B, C]  # "ab c"
SOURCE = [A, B, C, END]


def model():
    return shared_model(len(PIECES), seed=8, num_layers=1)


@tf.function
def search(source_BM, given_BG, beam_size, extra_length):
    words = GivenWords.of(PIECES)
    return beam_search(model(), source_BM, beam_size, 0.6, extra_length, given_BG=given_BG, given_words=words)


def found(given: list[list[int]], beam_size: int, extra_length: int):
    """For each sentence its hypotheses, best first: (ids up to END, score)."""
    source_BM = batch([SOURCE] * len(given))
    return hypotheses(search(tf.constant(source_BM), tf.constant(batch(given)), beam_size, extra_length))


def may_follow(ids: tuple[int, ...], given: list[int], longest: int) -> tuple[set[int], int]:
    """The pieces of brackets that may follow `ids`, and the one piece else."""
    written, in_bracket = 0, False
    for id in ids:
        in_bracket = id in (FIRST, OPEN, CLOSE) or (in_bracket and id in (B, 2))
        written += not in_bracket
    left = given[written:]
    if left[:1] == [B] or longest - len(ids) - 1 < len(left) + 1:
        return set(), left[0] if left else END
    brackets = {FIRST} if not ids else {OPEN, CLOSE}
    return brackets | ({B, 2} if in_bracket else set()), left[0] if left else END


def everything(given: list[int], longest: int) -> dict[tuple[int, ...], float]:
    """Whatever may be written of at most `longest` pieces, with its score."""
    scores: dict[tuple[int, ...], float] = {}
    open_now: dict[tuple[int, ...], float] = {(): 0.0}
    while open_now:
        rows = sorted(open_now)
        targets = batch([[*ids, END] for ids in rows])
        log_p_RLV = compiled_log_p(model())(batch([SOURCE] * len(rows)), targets).numpy()
        grown = {}
        for ids, log_p_LV in zip(rows, log_p_RLV, strict=True):
            log_p_V = log_p_LV[len(ids)].astype(np.float64)
            free, other = may_follow(ids, given, longest)
            for id in free:
                grown[(*ids, id)] = open_now[ids] + log_p_V[id]
            none = sum(math.exp(log_p_V[id]) for id in range(len(PIECES)) if id not in free)
            log_p = open_now[ids] + math.log(none)
            if other == END:
                scores[(*ids, END)] = log_p / penalty(len(ids) + 1, 0.6)
            else:
                grown[(*ids, other)] = log_p
        open_now = grown
    return scores


@pytest.mark.parametrize(("given", "longest"), [(GIVEN, 6), ([A], 5), ([C, C], 5)])
def test_a_wide_beam_finds_everything_that_may_be_written(given, longest):
    expected = everything(given, longest)
    best = dict(found([given], 500, longest - len(SOURCE))[0])
    real = {ids: score for ids, score in best.items() if score > -1e20}
    assert real.keys() == expected.keys() and len(expected) > 5
    for ids, score in real.items():
        assert score == pytest.approx(expected[ids], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("extra_length", [0, 1, 30])
def test_the_words_are_there_whatever_the_room(beam_size, extra_length):
    """Sentences of other words, and other numbers of them, beside each other."""
    many = [GIVEN, [A], [C] * 9, [A, B, B, B]]
    for given, best in zip(many, found(many, beam_size, extra_length), strict=True):
        ids, score = best[0]
        assert score > -1e20 and len(ids) <= max(len(SOURCE) + extra_length, len(given) + 1)
        written, in_bracket = [], False
        for id in ids[:-1]:
            in_bracket = id in (FIRST, OPEN, CLOSE) or (in_bracket and id in (B, 2))
            written += [] if in_bracket else [id]
        assert written == given and ids[-1] == END
