"""t2t_repro.parsing.constrained_decoding: constrained beam search against an enumeration of all allowed outputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from helpers.reference_decoder import batch, compiled_log_p, hypotheses, penalty
from helpers.tiny_model import shared_model

from t2t_repro.inference.beam_search import beam_search
from t2t_repro.parsing.constrained_decoding import ParseConstraint
from t2t_repro.text.token_ids import EOS

PIECES = ["<pad>", "</s>", "<unk>", "ǀS", "▁ǀS", "▁ǁS", "▁ǀN", "▁ǁN", "▁a", "b", "▁c"]
FIRST, OPEN, CLOSE, OPEN_N, CLOSE_N, A, B, C = range(3, 11)
OPENINGS, INSIDE = {FIRST: CLOSE, OPEN: CLOSE, OPEN_N: CLOSE_N}, {2, B}
GIVEN = [A, B, C]  # "ab c"
SOURCE = [A, B, C, EOS]


def model():
    return shared_model(len(PIECES), seed=8, num_layers=1)


@tf.function
def search(source_BM, required_BG, beam_size, extra_length):
    constraint = ParseConstraint(PIECES)
    return beam_search(model(), source_BM, beam_size, 0.6, extra_length, required_BG=required_BG, constraint=constraint)


def found(required: list[list[int]], beam_size: int, extra_length: int):
    """Returns the hypotheses of each sentence, best first: (ids up to EOS, score)."""
    source_BM = batch([SOURCE] * len(required))
    return hypotheses(search(tf.constant(source_BM), tf.constant(batch(required)), beam_size, extra_length))


def read(ids: tuple[int, ...]) -> tuple[list[int], list[int], bool]:
    """Returns the required ids among `ids`, the closing ids of open brackets, and true if the newest id is of an
    opening."""
    words, closings, in_opening = [], [], False
    for place, id in enumerate(ids):
        opens = id in OPENINGS and (id != FIRST or place == 0)
        in_opening = opens or (in_opening and id in INSIDE)
        if opens:
            closings.append(OPENINGS[id])
        elif id in (CLOSE, CLOSE_N):
            assert closings.pop() == id
        elif not in_opening:
            words.append(id)
    return words, closings, in_opening


def may_follow(ids: tuple[int, ...], required: list[int], longest: int) -> tuple[set[int], int | None]:
    """Returns the bracket tokens that may follow `ids`, and the only other token that may."""
    words, closings, in_opening = read(ids)
    left, places = required[len(words) :], longest - len(ids) - 1
    if left[:1] in ([B], [FIRST]):
        return set(), left[0]
    free = INSIDE if in_opening and places > len(left) + len(closings) else set()
    if left and (closings or not ids) and places > len(left) + len(closings) + 1:
        free = free | ({FIRST} if not ids else {OPEN, OPEN_N})
    closes = closings and not in_opening and (len(closings) > 1 or not left)
    if closes:
        free = free | {closings[-1]}
    if free and not ids:
        return free, None
    return free, left[0] if left else None if closes and places else EOS


def everything(required: list[int], longest: int) -> dict[tuple[int, ...], float]:
    """Returns every allowed output of at most `longest` tokens with its score."""
    scores: dict[tuple[int, ...], float] = {}
    open_now: dict[tuple[int, ...], float] = {(): 0.0}
    while open_now:
        rows = sorted(open_now)
        targets = batch([[*ids, EOS] for ids in rows])
        log_p_RLV = compiled_log_p(model())(batch([SOURCE] * len(rows)), targets).numpy()
        grown = {}
        for ids, log_p_LV in zip(rows, log_p_RLV, strict=True):
            log_p_V = log_p_LV[len(ids)].astype(np.float64)
            free, other = may_follow(ids, required, longest)
            is_word = {0, 1, A, C} | (INSIDE - free) | ({FIRST} if ids else set())
            word = sum(math.exp(log_p_V[id]) for id in is_word) if other else 0.0
            for id in free:
                grown[(*ids, id)] = open_now[ids] + log_p_V[id]
            if other is not None:
                log_p = open_now[ids] + math.log(word)
                if other == EOS:
                    scores[(*ids, EOS)] = log_p / penalty(len(ids) + 1, 0.6)
                else:
                    grown[(*ids, other)] = log_p
        open_now = grown
    return scores


@pytest.mark.parametrize(
    ("required", "longest"), [(GIVEN, 9), ([A], 7), ([C, C], 8), ([A, FIRST], 8), ([C, FIRST, B, A], 9)]
)
def test_wide_beam_finds_every_allowed_output(required, longest):
    expected = everything(required, longest)
    best = dict(found([required], 500, longest - len(SOURCE))[0])
    real = {ids: score for ids, score in best.items() if score > -1e20}
    assert real.keys() == expected.keys() and len(expected) > 5
    for ids, score in real.items():
        assert score == pytest.approx(expected[ids], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("extra_length", [0, 1, 30])
def test_words_are_complete_at_any_length_limit(beam_size, extra_length):
    """Batches sentences with other words and other numbers of words."""
    many = [GIVEN, [A], [C] * 9, [A, B, B, B], [A, FIRST, FIRST, B, C, FIRST]]
    for required, best in zip(many, found(many, beam_size, extra_length), strict=True):
        ids, score = best[0]
        assert score > -1e20 and len(ids) <= max(len(SOURCE) + extra_length, len(required) + 1)
        written, closings, _ = read(ids[:-1])
        assert (written, closings, ids[-1]) == (required, [], EOS)


@pytest.mark.parametrize("beam_size", [1, 4, 50])
def test_output_is_one_tree_if_the_length_permits(beam_size):
    """Holds however unlikely the brackets are."""
    for best in found([GIVEN, [A], [C] * 9, [A, FIRST, C]], beam_size, 30):
        for ids, score in best:
            assert score < -1e20 or (ids[0] == FIRST and ids[-2] == CLOSE and read(ids[:-2])[1] == [CLOSE])


def test_words_are_the_same_in_a_graph():
    texts = ["We  agree .", " f ( x )\t", "", " ", "a\x0bb\u00a0c", "\0", "a \0 b\0", "ǀo ǁ Nǀuu ǁ\n"]
    constraint = ParseConstraint(PIECES)
    sources, words = constraint.required_words(texts)
    assert sources[1] == "f -LRB- x -RRB-" and words[-1] == " XX XX Nǀuu XX"
    in_graph = constraint.required_words_tensor(tf.constant(texts))
    assert [[text.decode() for text in side.numpy()] for side in in_graph] == [sources, words]
