"""The loop that decodes a batch one token at a time, in the graph. Beam search and sampling share it.

Shapes: B sentences, M source length, W beam width, T steps done, P length of the longest prefix, V vocabulary, C
candidates, N entries of a cache, H heads, K d_k, E d_v.

The beams of a sentence share one cache of keys and values, into which each step writes an entry per beam. Each beam
attends to the entries of its own tokens, which are *visible* to it, so that reordering the beams copies nothing. A
full cache is copied into a larger one, without the entries that no beam sees any more: the beams of a sentence mostly
start alike, so these are many. Finished sentences are removed from the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.inference.search.top_k import top_k
from t2t_repro.model.attention import mask_bias
from t2t_repro.model.incremental import capacity, with_room
from t2t_repro.model.kernels.onednn import softmax
from t2t_repro.text.token_ids import EOS, PAD

NEG_INF = -1e30  # log-probability of an impossible token; finite, so that a difference of two is never NaN
ROWS = 4  # the rows of a batch become a multiple of it: oneDNN compiles each product for its shapes
COLUMNS = 8  # the same for the length of the source
COMPACTION_THRESHOLD = 0.75  # finished sentences are removed once no more than this share of the batch is open


class Hypotheses(NamedTuple):
    """The W best translations of each sentence."""

    ids: tf.Tensor  # [B, W, L] int32, each ending in EOS, padded with PAD
    scores: tf.Tensor  # [B, W] float32; below -1e20 for rows beyond the translations found
    # with an alignment head, two [B, W, L], padded with 0: the place in the source that it attends to most at each
    # step, int32, and the log-probability of the tokens before the step, float32
    traces: tuple[tf.Tensor, ...] = ()


class Sentences(NamedTuple):
    """Inputs of a batch that stay constant while it is decoded."""

    source: tf.Tensor  # [B, M] int32 ids, ending in EOS, padded with PAD
    shortest: tf.Tensor  # [B] int32: minimum number of tokens before EOS
    longest: tf.Tensor  # [B] int32: maximum number of tokens, EOS included
    prefix: tf.Tensor  # [B, P + 1] int32: tokens that the translation starts with, padded with PAD
    required: tf.Tensor  # [B, G + 1] int32: words that the output must contain, padded with PAD: see `Constraint`
    draws: tf.Tensor  # [B, W, >= longest] float32 in [0, 1): random numbers for sampling
    memories: tuple[Any, ...]  # per model and layer: [B, H, M, K] and [B, H, M, E]
    terms: Any = ()  # of a search with terms, [B, ...]: see `inference.terms.progress`


class Beams(NamedTuple):
    """The state of a batch while it is decoded."""

    tokens: tf.Tensor  # [B, W] int32: the newest token of each open beam
    log_p: tf.Tensor  # [B, W] float32
    ids: tf.Tensor  # [B, W, T] int32
    visible: tf.Tensor  # [B, W, N] boolean: true for the entries of the caches that belong to those tokens
    written: tf.Tensor  # [B, W] int32: number of required ids written so far
    in_opening: tf.Tensor  # [B, W] boolean: true if the newest token belongs to an opening bracket
    finished_ids: tf.Tensor  # [B, W, T] int32
    finished_scores: tf.Tensor  # [B, W] float32
    caches: tuple[Any, ...]  # per model and layer: [B, H, N, K] and [B, H, N, E], zeros where nothing is written yet
    traces: tuple[tf.Tensor, ...] = ()  # with an alignment head [B, W, T] int64, whose halves are those of `Hypotheses`
    finished_traces: tuple[tf.Tensor, ...] = ()
    state: Any = ()  # of a search with terms, [B, W, ...]: see `inference.terms.progress`


class DecodingStrategy(Protocol):
    """A decoding strategy: selects the beams of the next step."""

    def can_improve(self, beams: Beams, sentences: Sentences) -> tf.Tensor:
        """Returns [B] boolean: true while the finished hypotheses of a sentence may still change."""

    def choose(self, step: tf.Tensor, beams: Beams, logits_BWV: tf.Tensor, sentences: Sentences) -> Beams:
        """Returns `beams`, each extended by one token. Traces, caches and visible entries already contain this step."""


class Constraint(Protocol):
    """A restriction on decoding: the output must contain the words of its source, with other tokens between them."""

    def required_words(self, texts: Sequence[str]) -> tuple[list[str], list[str]]:
        """Returns the texts as the model reads them, and the words of each output as the output spells them."""

    def required_words_tensor(self, texts_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the same as `required_words`, in a graph."""

    def candidates(
        self, step: tf.Tensor, beams: Beams, logits_BWV: tf.Tensor, sentences: Sentences, k: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the k most likely allowed tokens of each beam: log-probabilities and tokens, [B, W, C]."""

    def advanced(self, beams: Beams, parents_BW: tf.Tensor) -> Beams:
        """Returns `beams` with the state after the newest tokens. They came from the slots `parents_BW`."""


class _Done(NamedTuple):
    """The sentences that were removed from the batch."""

    numbers: tf.Tensor  # [B] their positions in the original batch
    ids: tf.Tensor
    scores: tf.Tensor
    traces: tuple[tf.Tensor, ...]


def sentences_of(
    ensemble: Ensemble,
    source_BM: tf.Tensor,
    extra_length: tf.Tensor | int,
    prefix_BP: tf.Tensor | None = None,
    min_length: tf.Tensor | int = 0,
    draws_BWL: tf.Tensor | None = None,
    required_BG: tf.Tensor | None = None,
) -> Sentences:
    """Returns a batch before its first step, with empty sentences (`longest` is 0) up to a number of `grid`.

    The maximum length of a translation is that of its source plus `extra_length`, EOS included. It is raised if the
    prefix, the required words or `min_length` tokens, with EOS, need more.
    """
    source_BM = tf.convert_to_tensor(source_BM)
    batch, length = tf.unstack(tf.shape(source_BM))
    if prefix_BP is None:
        prefix_BP = tf.zeros([batch, 0], tf.int32)
    if required_BG is None:
        required_BG = tf.zeros([batch, 0], tf.int32)
    written_B = tf.math.count_nonzero(tf.concat([prefix_BP, required_BG], axis=1), axis=1, dtype=tf.int32)
    needed_B = tf.maximum(written_B, min_length) + 1
    longest_B = tf.math.count_nonzero(source_BM != PAD, axis=1, dtype=tf.int32) + extra_length
    rows = [0, grid(batch) - batch]
    source_BM = tf.pad(source_BM, [rows, [0, -length % COLUMNS]], constant_values=PAD)
    return Sentences(
        source=source_BM,
        shortest=tf.pad(tf.fill([batch], min_length), [rows]),
        longest=tf.pad(tf.where(needed_B > 1, tf.maximum(longest_B, needed_B), longest_B), [rows]),
        prefix=tf.pad(prefix_BP, [rows, [0, 1]], constant_values=PAD),
        required=tf.pad(required_BG, [rows, [0, 1]], constant_values=PAD),
        draws=tf.pad(tf.zeros([batch, 0, 0]) if draws_BWL is None else draws_BWL, [rows, [0, 0], [0, 0]]),
        memories=ensemble.memories(source_BM),
    )


def search(ensemble: Ensemble, sentences: Sentences, beams: Beams, strategy: DecodingStrategy) -> Hypotheses:
    """Decodes every sentence until `strategy` reports that it cannot improve, or until it has its maximum length.

    The result has no rows for empty sentences, which are the last ones.
    """
    batch, width = tf.unstack(tf.shape(beams.tokens))
    steps = ensemble.steps()

    def until_some_are_done(
        step: tf.Tensor, numbers: tf.Tensor, sentences: Sentences, beams: Beams, done: _Done
    ) -> tuple[Any, ...]:
        model_step = ensemble.stepper(steps, sentences.memories, sentences.source)
        kept_BN, filled = _entries_to_keep(beams.visible)
        room = capacity(filled)
        caches = tuple(with_room(past, kept_BN, room * width) for past in beams.caches)
        visible = tf.gather(beams.visible, kept_BN, axis=2, batch_dims=1)
        visible = tf.pad(visible, [[0, 0], [0, 0], [0, room * width - tf.shape(kept_BN)[1]]])
        beams, offset = beams._replace(caches=caches, visible=visible), filled - step

        def is_open(step: tf.Tensor, beams: Beams) -> tf.Tensor:
            return strategy.can_improve(beams, sentences) & (step < sentences.longest)

        def goes_on(step: tf.Tensor, beams: Beams) -> tf.Tensor:
            rows = _rows_for(is_open(step, beams))
            most_are_open = tf.cast(rows, tf.float32) > COMPACTION_THRESHOLD * tf.cast(tf.size(numbers), tf.float32)
            return most_are_open & (offset + step < room)

        def advance(step: tf.Tensor, beams: Beams) -> tuple[tf.Tensor, Beams]:
            place = offset + step
            own_W1 = place * width + tf.range(width)[:, None]
            visible = beams.visible | (tf.range(room * width) == own_W1)
            found: Any = model_step(beams.tokens, step, beams.caches, place, mask_bias(visible[:, None]))
            logits_BWV, caches = found[:2]
            traces = [
                tf.concat([trace, _in_one(places_BW, beams.log_p)[:, :, None]], axis=2)
                for trace, places_BW in zip(beams.traces, found[2:], strict=True)
            ]
            beams = beams._replace(visible=visible, caches=caches, traces=tuple(traces))
            return step + 1, strategy.choose(step, beams, logits_BWV, sentences)

        step, beams = _while(goes_on, advance, (step, beams))
        open_B = is_open(step, beams)
        places, number = tf.argsort(tf.cast(~open_B, tf.int32), stable=True), _rows_for(open_B)
        staying, leaving = places[:number], places[number:]
        finished = _Done(numbers, beams.finished_ids, beams.finished_scores, beams.finished_traces)
        done = _joined(done, _rows(finished, leaving), step)
        rows = only_if(tf.size(leaving) > 0, lambda *rows: _rows(rows, staying), (numbers, sentences, beams))
        return step, *rows, done

    no_traces = tuple(trace[:0] for trace in beams.traces)
    nobody = _Done(tf.zeros([0], tf.int32), beams.finished_ids[:0], beams.finished_scores[:0], no_traces)
    start = (tf.constant(0), tf.range(batch), sentences, beams, nobody)
    *_, done = _while(lambda _, numbers, *__: tf.size(numbers) > 0, until_some_are_done, start)
    back = tf.argsort(done.numbers)[: tf.math.count_nonzero(sentences.longest)]
    ids, scores, traces = _rows((done.ids, done.scores, done.traces), back)
    return Hypotheses(ids, scores, tuple(half for trace in traces for half in _apart(trace)))


def _in_one(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns int32 `x` and float32 `y` as the halves of int64: beams then move one tensor instead of two."""
    return tf.bitcast(tf.stack([x, tf.bitcast(y, tf.int32)], axis=-1), tf.int64)


def _apart(both: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the two tensors of `_in_one`."""
    x, y = tf.unstack(tf.bitcast(both, tf.int32), axis=-1)
    return x, tf.bitcast(y, tf.float32)


def first_beams(ensemble: Ensemble, log_p_BW: tf.Tensor) -> Beams:
    """Returns the beams before their first token, with these log-probabilities."""
    shape = tf.shape(log_p_BW)
    nothing = tf.zeros([shape[0], shape[1], 0], tf.int32)
    traces = (tf.cast(nothing, tf.int64),) if ensemble.head else ()
    return Beams(
        tokens=tf.fill(shape, PAD),  # the decoder's input starts with padding (section 3.1)
        log_p=log_p_BW,
        ids=nothing,
        visible=tf.cast(nothing, tf.bool),
        written=tf.zeros(shape, tf.int32),
        in_opening=tf.zeros(shape, tf.bool),
        finished_ids=nothing,
        finished_scores=tf.fill(shape, NEG_INF),
        caches=ensemble.empty_caches(shape[0]),
        traces=traces,
        finished_traces=traces,
    )


def one_open_beam(ensemble: Ensemble, sentences: Sentences, width: tf.Tensor | int) -> Beams:
    """Returns the first beams of a search, `width` per sentence: one is open, the others can never win."""
    log_p_W = tf.where(tf.range(width) == 0, 0.0, NEG_INF)
    return first_beams(ensemble, tf.tile(log_p_W[None], [tf.shape(sentences.source)[0], 1]))


def candidates(
    step: tf.Tensor,
    logits_BWV: tf.Tensor,
    sentences: Sentences,
    k: tf.Tensor | int,
    offered_BWO: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the k most likely allowed tokens of each beam: log-probabilities and tokens, [B, W, C].

    C is k + 3, or V + 1 if that is less. Candidates that are not allowed have the log-probability `NEG_INF`. The tokens
    `offered_BWO` follow them, which may repeat them.
    """
    width, vocab_size = tf.shape(logits_BWV)[1], vocabulary_size(logits_BWV)
    logits_NV = tf.reshape(logits_BWV, [-1, vocab_size])
    # two more, as PAD and EOS may be among them and forbidden: then no row of V logits needs a mask
    values_NC, tokens_NC = top_k(logits_NV, tf.minimum(k, vocab_size - 2) + 2)  # k may be the largest integer
    values, tokens = (tf.reshape(x, [-1, width, tf.shape(x)[1]]) for x in (values_NC, tokens_NC))
    forced_B = _forced(step, sentences)
    values = tf.where(may_follow(step, tokens, sentences), values, NEG_INF)
    forced_BW1 = tf.gather(logits_BWV, tf.maximum(forced_B, PAD), axis=2, batch_dims=1)[:, :, None]
    is_forced_B11 = (forced_B >= 0)[:, None, None]
    values = tf.concat([tf.where(is_forced_B11, NEG_INF, values), tf.where(is_forced_B11, forced_BW1, NEG_INF)], axis=2)
    tokens = tf.concat([tokens, tf.zeros_like(tokens[:, :, :1]) + tf.maximum(forced_B, PAD)[:, None, None]], axis=2)
    reads_of_logits = [values_NC, forced_BW1]
    if offered_BWO is not None:
        offered = tf.gather(logits_BWV, offered_BWO, axis=2, batch_dims=2)
        reads_of_logits.append(offered)
        offered = tf.where(may_follow(step, offered_BWO, sentences), offered, NEG_INF)
        values, tokens = tf.concat([values, offered], axis=2), tf.concat([tokens, offered_BWO], axis=2)
    with tf.control_dependencies(reads_of_logits):  # softmax, the last one, may then overwrite them
        totals_BW1 = tf.reshape(_log_sum_exp(logits_NV, values_NC[:, :1], tokens_NC[:, :1]), [-1, width, 1])
    return values - totals_BW1, tokens


def vocabulary_size(logits_BWV: tf.Tensor) -> tf.Tensor | int:
    """Returns V, or the size of the shortlist."""
    return tf.shape(logits_BWV)[2] if logits_BWV.shape[2] is None else logits_BWV.shape[2]


def _log_sum_exp(logits_NV: tf.Tensor, likeliest_N1: tf.Tensor, tokens_N1: tf.Tensor) -> tf.Tensor:
    """Returns [N, 1] float32, as logit - log p of the likeliest token: softmax is one operation, logsumexp is six."""
    return likeliest_N1 - tf.math.log(tf.gather(softmax(logits_NV), tokens_N1, batch_dims=1))


def may_follow(step: tf.Tensor, tokens: tf.Tensor, sentences: Sentences) -> tf.Tensor:
    """Returns booleans of the shape of `tokens` [B, W, C]: true for allowed tokens.

    PAD is never allowed, and EOS is not allowed before the minimum length. If a token is forced, only that one is
    allowed.
    """
    forced_B11 = _forced(step, sentences)[:, None, None]
    too_soon_B11 = (step < sentences.shortest)[:, None, None]
    free = (tokens != PAD) & ~((tokens == EOS) & too_soon_B11)
    return tf.where(forced_B11 >= 0, tokens == forced_B11, free)


def _forced(step: tf.Tensor, sentences: Sentences) -> tf.Tensor:
    """Returns [B] int32: the only allowed token, of the prefix, or EOS at the maximum length; -1 if any is."""
    prefix_B = sentences.prefix[:, tf.minimum(step, tf.shape(sentences.prefix)[1] - 1)]
    end_B = tf.where(step + 1 >= sentences.longest, EOS, -1)
    return tf.where(prefix_B != PAD, prefix_B, end_B)


def _joined(done: _Done, leaving: _Done, step: tf.Tensor) -> _Done:
    def rows(before: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        longer = tf.pad(before, [[0, 0], [0, 0], [0, step - tf.shape(before)[2]]], constant_values=PAD)
        return tf.concat([longer, new], axis=0)

    return _Done(
        tf.concat([done.numbers, leaving.numbers], axis=0),
        rows(done.ids, leaving.ids),
        tf.concat([done.scores, leaving.scores], axis=0),
        tuple(map(rows, done.traces, leaving.traces)),
    )


def grid(rows: tf.Tensor) -> tf.Tensor:
    """Returns the number of rows of a batch that has at least `rows`: below `ROWS` any, above it a multiple."""
    return tf.where(rows < ROWS, rows, -(-rows // ROWS) * ROWS)


def _rows_for(open_B: tf.Tensor) -> tf.Tensor:
    """Returns the number of rows that stay in the batch: open sentences first, then finished ones."""
    return grid(tf.math.count_nonzero(open_B, dtype=tf.int32))


def _rows(tensors: Any, places: tf.Tensor) -> Any:
    """Returns the rows at `places` of every tensor."""
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, places), tensors)


def _while(condition: Callable[..., Any], body: Callable[..., Any], variables: Any) -> Any:
    """Runs `tf.while_loop` over variables of variable size; only the number of heads and their depth are fixed."""

    def invariant(value: tf.Tensor) -> tf.TensorShape:
        shape = value.shape.as_list()
        return tf.TensorShape([None] * len(shape) if len(shape) < 4 else [None, shape[1], None, shape[3]])

    return tf.while_loop(condition, body, variables, tf.nest.map_structure(invariant, variables))


def only_if(condition: tf.Tensor, change: Callable[..., Sequence[Any]], values: Sequence[Any]) -> Sequence[Any]:
    """Returns change(*values) if the condition holds, or else the values.

    It is a loop of one turn or none, as one thread cannot execute a `tf.cond`: see `inference.search.search_graph`.
    """
    _, *found = _while(lambda holds, *_: holds, lambda _, *values: (False, *change(*values)), (condition, *values))
    return found


def _entries_to_keep(visible_BWN: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the entries of the caches that some beam sees, [B, N] int32, in their order, and N over W, rounded up.

    N is that of the sentence with the most; the others keep some that no beam sees.
    """
    is_seen_BN = tf.reduce_any(visible_BWN, axis=1)
    most = tf.reduce_max(tf.math.count_nonzero(is_seen_BN, axis=1, dtype=tf.int32))
    kept_BN = tf.argsort(tf.cast(~is_seen_BN, tf.int32), stable=True)[:, :most]
    return kept_BN, -(-most // tf.shape(visible_BWN)[1])
