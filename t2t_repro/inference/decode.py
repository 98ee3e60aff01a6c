"""Text in, text out: a trained run as a `Translator`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from t2t_repro.config import HParams
from t2t_repro.data import batching
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.inference.beam import NEVER, PAD, Hypotheses, beam_search
from t2t_repro.model.transformer import Transformer
from t2t_repro.run import Run
from t2t_repro.training.checkpoints import load_weights
from t2t_repro.training.precision import POLICIES

BATCH_TOKENS = 2_048  # source positions of a batch, padding included


class Translator:
    """A model with its vocabulary. Sentences are batched by length and tokens; results keep the input's order."""

    def __init__(self, model: Transformer, vocabulary: Vocabulary, hparams: HParams):
        self.model, self.vocabulary, self.hparams = model, vocabulary, hparams

    @classmethod
    def from_run(cls, output_dir: str, average_checkpoints: int = 1) -> Translator:
        """The run in `output_dir`, with the mean of its newest `average_checkpoints` checkpoints' weights.

        Raises FileNotFoundError where there is no run or no checkpoint, and ValueError where one is damaged.
        """
        if average_checkpoints < 1:
            raise ValueError(f"average_checkpoints must be at least 1, got {average_checkpoints}")
        run = Run.open(output_dir)
        vocabulary = Vocabulary(run.vocabulary)
        model = Transformer(vocabulary.size, run.hparams, dtype=POLICIES[run.precision])
        load_weights(run, model, average_checkpoints)
        return cls(model, vocabulary, run.hparams)

    def translate(self, texts: Sequence[str], beam_size: int | None = None, alpha: float | None = None) -> list[str]:
        """The best translation of each text; an empty text gives an empty one."""
        return [best[0][0] for best in self.n_best(texts, 1, beam_size, alpha)]

    def n_best(
        self,
        texts: Sequence[str],
        n: int,
        beam_size: int | None = None,
        alpha: float | None = None,
        report: Callable[[str], None] | None = None,
    ) -> list[list[tuple[str, float]]]:
        """The n best translations of each text with their scores (log-probability over length penalty), best first.

        There are fewer where the beam ends with fewer. A text of more tokens than `max_positions` is cut to them, which
        `report` is told.
        """
        width = self.hparams.beam_size if beam_size is None else beam_size
        penalty = self.hparams.alpha if alpha is None else alpha
        if width < 1:
            raise ValueError(f"beam_size must be at least 1, got {width}")
        if not 1 <= n <= width:
            raise ValueError(f"n_best must be at least 1 and at most the beam size {width}, got {n}")
        if not penalty >= 0:
            raise ValueError(f"alpha must be at least 0, got {penalty}")
        results: list[list[tuple[str, float]]] = [[("", 0.0)]] * len(texts)
        sources = self._encode(texts, report)
        for numbers, source_BM in _batches(sources):
            found = self.search(source_BM, width, penalty, self.hparams.extra_length)
            for number, hypotheses in zip(numbers, self._texts(found, n), strict=True):
                results[number] = hypotheses
        return results

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The log-probability of each target given its source, its end included."""
        sources = self.vocabulary.encode([source for source, _ in pairs])
        targets = self.vocabulary.encode([target for _, target in pairs])
        scores = [0.0] * len(pairs)
        lengths = np.array([[len(s), len(t)] for s, t in zip(sources, targets, strict=True)]).reshape(-1, 2)
        for numbers in _by_length(lengths):
            source_BM, target_BL = _padded([sources[i] for i in numbers]), _padded([targets[i] for i in numbers])
            for number, score in zip(
                numbers, self.token_log_probabilities(source_BM, target_BL).numpy().sum(axis=1), strict=True
            ):
                scores[number] = float(score)
        return scores

    def _encode(self, texts: Sequence[str], report: Callable[[str], None] | None) -> dict[int, list[int]]:
        """Ids of each text that is not empty, by its place."""
        places = [place for place, text in enumerate(texts) if text]
        encoded = dict(zip(places, self.vocabulary.encode([texts[place] for place in places]), strict=True))
        limit = self.hparams.max_positions
        for place, ids in encoded.items():
            if len(ids) > limit:
                if report:
                    report(f"line {place + 1} has {len(ids):,} tokens; the first {limit - 1:,} are translated")
                encoded[place] = ids[: limit - 1] + ids[-1:]
        return encoded

    def _texts(self, found: Hypotheses, n: int) -> Iterator[list[tuple[str, float]]]:
        all_ids, all_scores = found.ids.numpy()[:, :n], found.scores.numpy()[:, :n]
        texts = iter(self.vocabulary.decode(all_ids.reshape(-1, all_ids.shape[2]).tolist()))
        for scores in all_scores:
            both = [(next(texts), float(score)) for score in scores]
            yield [(text, score) for text, score in both if score > NEVER / 1e6]

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([], tf.float32),
            tf.TensorSpec([], tf.int32),
        ]
    )
    def search(
        self, source_BM: tf.Tensor, beam_size: tf.Tensor, alpha: tf.Tensor, extra_length: tf.Tensor
    ) -> Hypotheses:
        """`beam_search` with this model, as one graph for every beam size, batch and length."""
        return beam_search(self.model, source_BM, beam_size, alpha, extra_length)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2)
    def token_log_probabilities(self, source_BM: tf.Tensor, target_BL: tf.Tensor) -> tf.Tensor:
        """log p of each target token given those before it and the source: [B, L] float32, 0 at padding."""
        log_p_BLV = tf.nn.log_softmax(self.model({"inputs": source_BM, "targets": target_BL}))
        chosen_BL = tf.gather(log_p_BLV, target_BL, batch_dims=2)
        return tf.where(target_BL != PAD, chosen_BL, 0.0)


def _batches(sources: dict[int, list[int]]) -> Iterator[tuple[list[int], tf.Tensor]]:
    """Places and padded ids [B, M] of batches of similar length."""
    places = list(sources)
    lengths = np.array([[len(sources[place])] * 2 for place in places]).reshape(-1, 2)
    for numbers in _by_length(lengths):
        yield [places[i] for i in numbers], _padded([sources[places[i]] for i in numbers])


def _by_length(lengths: np.ndarray) -> Iterator[list[int]]:
    if not len(lengths):
        return
    cut = batching.plan(lengths, max(BATCH_TOKENS, int(lengths.max())), np.random.default_rng(0))
    for start, end in zip(cut.starts[:-1], cut.starts[1:], strict=True):
        yield cut.order[start:end].tolist()


def _padded(sequences: list[list[int]]) -> tf.Tensor:
    return tf.ragged.constant(sequences, dtype=tf.int32).to_tensor()
