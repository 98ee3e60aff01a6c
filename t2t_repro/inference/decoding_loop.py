"""The loop that decodes a batch a token at a time, in the graph: what beam search and sampling share.

Shapes: B sentences, M source length, W beam width, T steps done, P length of the longest prefix, V vocabulary,
C candidates, H heads, K d_k, E d_v.

The beams of a sentence share one set of keys and values, to which each step adds W: nothing is copied when beams change
places. What a beam may see is told by its *path*: the slot it sat in at each step. Sentences that are done leave the
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.inference.top_k import top_k
from t2t_repro.model.attention import mask_bias
from t2t_repro.token_ids import END, PAD

NEVER = -1e30  # the log-probability of what cannot be; finite, so that no difference of two is NaN
KEEP = 0.75  # a batch goes on as it is while more than this share of its sentences is not done


class Hypotheses(NamedTuple):
    """The W translations found of each sentence."""

    ids: tf.Tensor  # [B, W, L] int32, each ending in END, padded with PAD
    scores: tf.Tensor  # [B, W] float32; below -1e20 where there are fewer than W


class Sentences(NamedTuple):
    """What stays as it is while a batch is decoded."""

    source: tf.Tensor  # [B, M] int32 ids, ending in END, padded with PAD
    shortest: tf.Tensor  # [B] int32: so many tokens come before END
    longest: tf.Tensor  # [B] int32: tokens of a translation at most, END included
    prefix: tf.Tensor  # [B, P + 1] int32: what a translation begins with, padded with PAD
    given: tf.Tensor  # [B, G + 1] int32: the words that it must hold, padded with PAD: see `Constraint`
    draws: tf.Tensor  # [B, W, >= longest] float32 in [0, 1): what samples are drawn by, if any are
    memories: tuple[Any, ...]  # of each model and layer [B, H, M, K] and [B, H, M, E]


class Beams(NamedTuple):
    """Where the decoding of a batch stands."""

    tokens: tf.Tensor  # [B, W] int32: the newest token of each open beam
    log_p: tf.Tensor  # [B, W] float32
    ids: tf.Tensor  # [B, W, T] int32
    path: tf.Tensor  # [B, W, T] int32: the slot of each of those tokens' keys
    written: tf.Tensor  # [B, W] int32: how many of the given ids are among them
    in_opening: tf.Tensor  # [B, W] boolean: whether the newest token is of an opening bracket
    finished_ids: tf.Tensor  # [B, W, T] int32
    finished_scores: tf.Tensor  # [B, W] float32
    caches: tuple[Any, ...]  # of each model and layer [B, H, T W, K] and [B, H, T W, E]


class Rule(Protocol):
    """How beams go on."""

    def can_improve(self, beams: Beams, sentences: Sentences) -> tf.Tensor:
        """[B] boolean: whether what is finished of a sentence may yet change."""

    def choose(self, step: tf.Tensor, beams: Beams, logits_BWV: tf.Tensor, sentences: Sentences) -> Beams:
        """`beams`, whose path and caches have this step's token already, each longer by a token."""


class Constraint(Protocol):
    """What a beam may write, where that is not any text: words that are given, with other tokens between them."""

    def given(self, texts: Sequence[str]) -> tuple[list[str], list[str]]:
        """Returns the texts as the model reads them, and the words that each output must hold, as it spells them."""

    def given_tensor(self, texts_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The same in a graph."""

    def candidates(
        self, step: tf.Tensor, beams: Beams, logits_BWV: tf.Tensor, sentences: Sentences, k: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The k likeliest tokens of each beam among those that may follow: log-probabilities and tokens, [B, W, C]."""

    def advanced(self, beams: Beams, parents_BW: tf.Tensor) -> Beams:
        """`beams`, whose tokens are new, with how far they have come, `parents_BW` being the slots they came from."""


class _Done(NamedTuple):
    """The sentences that have left the batch."""

    numbers: tf.Tensor  # [B] their places in the batch as it was given
    ids: tf.Tensor
    scores: tf.Tensor


def sentences_of(
    ensemble: Ensemble,
    source_BM: tf.Tensor,
    extra_length: tf.Tensor | int,
    prefix_BP: tf.Tensor | None = None,
    min_length: tf.Tensor | int = 0,
    draws_BWL: tf.Tensor | None = None,
    given_BG: tf.Tensor | None = None,
) -> Sentences:
    """A batch before its first step. A translation is at most as long as its source plus `extra_length`, ends
    included, but never too short for its prefix, for the words given, or for `min_length` tokens, and the end."""
    source_BM = tf.convert_to_tensor(source_BM)
    batch = tf.shape(source_BM)[0]
    if prefix_BP is None:
        prefix_BP = tf.zeros([batch, 0], tf.int32)
    if given_BG is None:
        given_BG = tf.zeros([batch, 0], tf.int32)
    written_B = tf.math.count_nonzero(tf.concat([prefix_BP, given_BG], axis=1), axis=1, dtype=tf.int32)
    needed_B = tf.maximum(written_B, min_length) + 1
    longest_B = tf.math.count_nonzero(source_BM != PAD, axis=1, dtype=tf.int32) + extra_length
    return Sentences(
        source=source_BM,
        shortest=tf.fill([batch], min_length),
        longest=tf.where(needed_B > 1, tf.maximum(longest_B, needed_B), longest_B),
        prefix=tf.pad(prefix_BP, [[0, 0], [0, 1]], constant_values=PAD),
        given=tf.pad(given_BG, [[0, 0], [0, 1]], constant_values=PAD),
        draws=tf.zeros([batch, 0, 0]) if draws_BWL is None else draws_BWL,
        memories=ensemble.memories(source_BM),
    )


def search(ensemble: Ensemble, sentences: Sentences, beams: Beams, rule: Rule) -> Hypotheses:
    """Lets every sentence go on until `rule` says that it cannot improve, or it has its greatest length."""
    width, batch = tf.shape(beams.tokens)[1], tf.shape(beams.tokens)[0]
    steps = ensemble.steps()

    def until_some_are_done(
        step: tf.Tensor, numbers: tf.Tensor, sentences: Sentences, beams: Beams, done: _Done
    ) -> tuple[Any, ...]:
        model_step = ensemble.stepper(steps, sentences.memories, sentences.source)

        def is_open(step: tf.Tensor, beams: Beams) -> tf.Tensor:
            return rule.can_improve(beams, sentences) & (step < sentences.longest)

        def most_are_open(step: tf.Tensor, beams: Beams) -> tf.Tensor:
            open_now = tf.math.count_nonzero(is_open(step, beams), dtype=tf.int32)
            return tf.cast(open_now, tf.float32) > KEEP * tf.cast(tf.size(numbers), tf.float32)

        def advance(step: tf.Tensor, beams: Beams) -> tuple[tf.Tensor, Beams]:
            path = tf.concat([beams.path, _own_slots(beams.tokens)[:, :, None]], axis=2)
            logits_BWV, caches = model_step(beams.tokens, step, beams.caches, _path_bias(path, width))
            beams = beams._replace(path=path, caches=caches)
            return step + 1, rule.choose(step, beams, logits_BWV, sentences)

        step, beams = _while(most_are_open, advance, (step, beams))
        open_B = is_open(step, beams)
        (leaving,), (staying,) = (tf.unstack(tf.where(mask), axis=1) for mask in (~open_B, open_B))
        done = _joined(done, _rows(_Done(numbers, beams.finished_ids, beams.finished_scores), leaving), step)
        return step, *_rows((numbers, sentences, beams), staying), done

    nobody = _Done(tf.zeros([0], tf.int32), beams.finished_ids[:0], beams.finished_scores[:0])
    start = (tf.constant(0), tf.range(batch), sentences, beams, nobody)
    *_, done = _while(lambda _, numbers, *__: tf.size(numbers) > 0, until_some_are_done, start)
    back = tf.argsort(done.numbers)
    return Hypotheses(tf.gather(done.ids, back), tf.gather(done.scores, back))


def first_beams(ensemble: Ensemble, log_p_BW: tf.Tensor) -> Beams:
    """Beams before their first token, which have these log-probabilities."""
    shape = tf.shape(log_p_BW)
    nothing = tf.zeros([shape[0], shape[1], 0], tf.int32)
    return Beams(
        tokens=tf.fill(shape, PAD),  # the decoder's input starts with padding (section 3.1)
        log_p=log_p_BW,
        ids=nothing,
        path=nothing,
        written=tf.zeros(shape, tf.int32),
        in_opening=tf.zeros(shape, tf.bool),
        finished_ids=nothing,
        finished_scores=tf.fill(shape, NEVER),
        caches=ensemble.empty_caches(shape[0]),
    )


def candidates(
    step: tf.Tensor, logits_BWV: tf.Tensor, sentences: Sentences, k: tf.Tensor | int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The k likeliest tokens of each beam among those that may follow: log-probabilities and tokens, [B, W, C].

    C is k + 3, or V + 1 if that is less: some of them may not follow, and have the log-probability `NEVER`.
    """
    width, vocab_size = tf.shape(logits_BWV)[1], logits_BWV.shape[2]
    logits_NV = tf.reshape(logits_BWV, [-1, vocab_size])
    # two more, for padding and END may be among them and forbidden: so no row of the vocabulary's length is masked
    values_NC, tokens_NC = top_k(logits_NV, tf.minimum(k + 2, vocab_size))
    totals_BW1 = tf.reshape(_log_sum_exp(logits_NV, tokens_NC[:, :1]), [-1, width, 1])
    values, tokens = (tf.reshape(x, [-1, width, tf.shape(x)[1]]) for x in (values_NC, tokens_NC))
    forced_B = _forced(step, sentences)
    values = tf.where(may_follow(step, tokens, sentences), values, NEVER)
    forced_BW1 = tf.gather(logits_BWV, tf.maximum(forced_B, PAD), axis=2, batch_dims=1)[:, :, None]
    is_forced_B11 = (forced_B >= 0)[:, None, None]
    values = tf.concat([tf.where(is_forced_B11, NEVER, values), tf.where(is_forced_B11, forced_BW1, NEVER)], axis=2)
    tokens = tf.concat([tokens, tf.zeros_like(tokens[:, :, :1]) + tf.maximum(forced_B, PAD)[:, None, None]], axis=2)
    return values - totals_BW1, tokens


def _log_sum_exp(logits_NV: tf.Tensor, likeliest_N1: tf.Tensor) -> tf.Tensor:
    """[N, 1] float32, as logit - log p of the likeliest token: softmax is one operation where logsumexp is six."""
    p_N1, logit_N1 = (tf.gather(x, likeliest_N1, batch_dims=1) for x in (tf.nn.softmax(logits_NV), logits_NV))
    return logit_N1 - tf.math.log(p_N1)


def may_follow(step: tf.Tensor, tokens: tf.Tensor, sentences: Sentences) -> tf.Tensor:
    """Boolean, for `tokens` [B, W, C] or what is broadcast to that: never padding, no END before the least length, no
    token but the forced one where there is one."""
    forced_B11 = _forced(step, sentences)[:, None, None]
    too_soon_B11 = (step < sentences.shortest)[:, None, None]
    free = (tokens != PAD) & ~((tokens == END) & too_soon_B11)
    return tf.where(forced_B11 >= 0, tokens == forced_B11, free)


def _forced(step: tf.Tensor, sentences: Sentences) -> tf.Tensor:
    """[B] int32: the one token that may follow, of the prefix, or END at the greatest length; elsewhere -1."""
    prefix_B = sentences.prefix[:, tf.minimum(step, tf.shape(sentences.prefix)[1] - 1)]
    end_B = tf.where(step + 1 >= sentences.longest, END, -1)
    return tf.where(prefix_B != PAD, prefix_B, end_B)


def _joined(done: _Done, leaving: _Done, step: tf.Tensor) -> _Done:
    longer = tf.pad(done.ids, [[0, 0], [0, 0], [0, step - tf.shape(done.ids)[2]]], constant_values=PAD)
    return _Done(
        tf.concat([done.numbers, leaving.numbers], axis=0),
        tf.concat([longer, leaving.ids], axis=0),
        tf.concat([done.scores, leaving.scores], axis=0),
    )


def _rows(tensors: Any, places: tf.Tensor) -> Any:
    """Those sentences of every tensor."""
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, places), tensors)


def _while(condition: Callable[..., Any], body: Callable[..., Any], variables: Any) -> Any:
    """`tf.while_loop` over variables of which no size is fixed, but for heads and their depth."""

    def invariant(value: tf.Tensor) -> tf.TensorShape:
        shape = value.shape.as_list()
        return tf.TensorShape([None] * len(shape) if len(shape) < 4 else [None, shape[1], None, shape[3]])

    return tf.while_loop(condition, body, variables, tf.nest.map_structure(invariant, variables))


def _own_slots(tokens_BW: tf.Tensor) -> tf.Tensor:
    return tf.zeros_like(tokens_BW) + tf.range(tf.shape(tokens_BW)[1])


def _path_bias(path_BWT: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Lets each beam see the keys on its own path alone: [B, 1, W, T W]."""
    on_path = tf.one_hot(path_BWT, width, on_value=True, off_value=False)
    flat = tf.concat([tf.shape(path_BWT)[:2], [tf.shape(path_BWT)[2] * width]], axis=0)
    return mask_bias(tf.reshape(on_path, flat))[:, None]
