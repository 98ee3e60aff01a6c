"""Compares a model with its export to Hugging Face: tokens, logits and greedy search, in float32.

    pip install 't2t_repro[transformers]'
    python -m benchmarks.compare_huggingface --output_dir=RUN --source=newstest2014.en --target=newstest2014.de
    python -m benchmarks.compare_huggingface --hparams=base,b_dk16 --vocabulary=RUN/vocabulary.model --source=FILE

The model is that of a run, or has random weights. It is exported to a temporary folder. transformers loads it, saves
it, and loads what it saved, which is compared:

- "tokens": texts whose ids differ, and texts that decoding does not restore
- "logits": the largest difference over all positions of the targets, the largest logit, and the positions with
  another likeliest token. "our rounding" and "their rounding" are the differences from the exported weights in
  float64. Without --target, the targets are the model's own greedy translations
- "greedy": sentences with another greedy translation, each with its own maximum length. If they are "alike", the logits
  of the two tokens at the first difference are within 0.0001 of each other, so rounding decided
- "saved": the largest difference of logits between the model before and after it was saved
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.compare_ctranslate2 import in_float32, lines_of

BATCH = 16  # sentences
ALIKE = 1e-4  # logits; twice the difference that is allowed


class Compared(NamedTuple):
    """The result of `compare`. Differences are absolute."""

    sentences: int
    different_tokens: int  # texts, sources and targets
    different_texts: int
    positions: int
    largest: float  # logit
    difference: float  # of logits
    our_rounding: float  # difference of our logits to those of the export in float64
    their_rounding: float
    different_argmax: int  # positions
    different_greedy: int  # sentences
    alike: int  # of these, because of rounding
    resaved: float  # difference of logits


def load(folder: str) -> tuple[Any, Any]:
    """Returns the model and the tokenizer of transformers in `folder`."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    return AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def compare(translator: Any, exported: str, sources: Sequence[str], targets: Sequence[str] | None = None) -> Compared:
    """Compares a `Translator` in float32 with its export in the folder `exported`, on sources that are not empty."""
    original, tokenizer = load(exported)
    with tempfile.TemporaryDirectory() as folder:
        original.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        model, tokenizer = load(folder)
        exact = load(folder)[0].double()
    vocabulary = translator.vocabulary
    texts = [*sources, *(targets or ())]
    ids = tokenizer(texts)["input_ids"]
    expected = vocabulary.encode(texts)
    restored = tokenizer.batch_decode(ids, skip_special_tokens=True)
    source_ids = expected[: len(sources)]
    ours = _greedy(translator, source_ids)
    target_ids = expected[len(sources) :] if targets else ours
    positions, largest, difference, other, resaved = 0, 0.0, 0.0, 0, 0.0
    our_rounding, their_rounding = 0.0, 0.0
    for batch in _batches(source_ids):
        both = [source_ids[place] for place in batch], [target_ids[place] for place in batch]
        mine = _our_logits(translator, *both)
        theirs, before, in_float64 = (_their_logits(each, *both) for each in (model, original, exact))
        positions += len(mine)
        largest = max(largest, float(abs(mine).max()))
        difference = max(difference, float(abs(mine - theirs).max()))
        our_rounding = max(our_rounding, float(abs(mine - in_float64).max()))
        their_rounding = max(their_rounding, float(abs(theirs - in_float64).max()))
        resaved = max(resaved, float(abs(before - theirs).max()))
        other += int((mine.argmax(axis=1) != theirs.argmax(axis=1)).sum())
    wrong = [
        (source_ids[place], ours[place], found)
        for place, found in _their_greedy(model, source_ids, translator.hparams.extra_length)
        if found != ours[place]
    ]
    return Compared(
        sentences=len(sources),
        different_tokens=sum(one != two for one, two in zip(ids, expected, strict=True)),
        different_texts=sum(one != two for one, two in zip(restored, texts, strict=True)),
        positions=positions,
        largest=largest,
        difference=difference,
        our_rounding=our_rounding,
        their_rounding=their_rounding,
        different_argmax=other,
        different_greedy=len(wrong),
        alike=sum(_are_alike(translator, *each) for each in wrong),
        resaved=resaved,
    )


def _batches(sources: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yields the positions of sources with the same length, because the maximum length depends on it."""
    for length in sorted(set(map(len, sources))):
        places = [place for place, ids in enumerate(sources) if len(ids) == length]
        for start in range(0, len(places), BATCH):
            yield places[start : start + BATCH]


def _greedy(translator: Any, sources: Sequence[list[int]]) -> list[list[int]]:
    """Returns the tokens of our greedy translations, EOS last."""
    import numpy as np
    import tensorflow as tf

    found: list[list[int]] = [[] for _ in sources]
    for batch in _batches(sources):
        source_BM = tf.constant([sources[place] for place in batch], tf.int32)
        ids_BWL = translator.search(source_BM, 1, 0.0, translator.hparams.extra_length).ids.numpy()
        for place, ids in zip(batch, ids_BWL[:, 0], strict=True):
            found[place] = np.trim_zeros(ids, "b").tolist()
    return found


def _their_greedy(model: Any, sources: Sequence[list[int]], extra_length: int) -> Iterator[tuple[int, list[int]]]:
    """Yields the position of each source and the tokens of its greedy translation in transformers, EOS last."""
    import numpy as np
    import torch

    options = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False}
    for batch in _batches(sources):
        source = torch.tensor([sources[place] for place in batch])
        found = model.generate(source, max_length=source.shape[1] + extra_length + 1, **options).numpy()
        for place, ids in zip(batch, found[:, 1:], strict=True):  # the first token is the decoder's start
            yield place, np.trim_zeros(ids, "b").tolist()


def _our_logits(translator: Any, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> Any:
    """Returns the logits of all tokens of the targets: [T, V]."""
    import tensorflow as tf

    from t2t_repro.inference.batches import padded

    target_BL = padded(list(targets))
    logits_BLV = translator.model({"inputs": padded(list(sources)), "targets": target_BL})
    return tf.boolean_mask(logits_BLV, target_BL != 0).numpy()


def _their_logits(model: Any, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> Any:
    import torch

    def padded(rows: Sequence[list[int]]) -> Any:
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)

    source_BM, target_BL = padded(sources), padded(targets)
    with torch.inference_mode():
        logits_BLV = model(source_BM, attention_mask=source_BM != 0, labels=target_BL).logits
    return logits_BLV[target_BL != 0].numpy()


def _are_alike(translator: Any, source: list[int], ours: list[int], theirs: list[int]) -> bool:
    """Returns true if the two tokens at the first difference have nearly the same logit."""
    place = next(number for number, both in enumerate(zip(ours, theirs, strict=False)) if both[0] != both[1])
    logits_LV = _our_logits(translator, [source], [ours])
    return bool(abs(logits_LV[place, ours[place]] - logits_LV[place, theirs[place]]) < ALIKE)


def _random(name: str, vocabulary_path: str) -> Any:
    """Returns a `Translator` with the initial weights of a hyperparameter set."""
    import keras

    from t2t_repro.data.vocabulary import Vocabulary
    from t2t_repro.inference.translator import Translator
    from t2t_repro.model.transformer import Transformer
    from t2t_repro.scale import scaled

    keras.utils.set_random_seed(1)
    hparams, vocabulary = scaled(name), Vocabulary(vocabulary_path)
    return Translator(Transformer(vocabulary.size, hparams, dtype="float32"), vocabulary, hparams)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--output_dir", help="a run")
    model.add_argument("--hparams", help="hyperparameter sets, for random weights: base,b_dk16")
    parser.add_argument("--vocabulary", help="vocabulary.model for --hparams")
    parser.add_argument("--source", required=True, help="UTF-8 text, .gz read too; empty lines are left out")
    parser.add_argument("--target", help="as many lines")
    parser.add_argument("--lines", type=int, default=1_000, help="lines to compare; default: %(default)s")
    parser.add_argument("--average_checkpoints", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.hparams and not arguments.vocabulary:
        parser.error("--hparams needs --vocabulary")
    sources = lines_of(arguments.source)
    targets = lines_of(arguments.target) if arguments.target else sources
    if len(targets) != len(sources):
        parser.error(f"--source has {len(sources):,} lines and --target {len(targets):,}")
    pairs = [pair for pair in zip(sources, targets, strict=True) if all(pair)][: arguments.lines]
    sides = [list(side) for side in zip(*pairs, strict=True)][: 2 if arguments.target else 1]

    from t2t_repro.exporting import huggingface

    columns = [
        *("model", "sentences", "other tokens", "other texts", "positions", "largest logit", "largest difference"),
        *("our rounding", "their rounding", "other argmax", "other greedy", "of them alike", "saved"),
    ]
    print(f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", sep="\n", flush=True)
    for name in [None] if arguments.output_dir else arguments.hparams.split(","):
        if name is None:
            translator = in_float32(arguments.output_dir, arguments.average_checkpoints)
        else:
            translator = _random(name, arguments.vocabulary)
        with tempfile.TemporaryDirectory() as folder:
            exported = str(Path(folder, "exported"))
            huggingface.write(translator.model, translator.vocabulary, exported)
            found = compare(translator, exported, *sides)
        cells = [
            f"{value:.1e}" if isinstance(value, float) and name != "largest" else f"{value:,}"
            for name, value in _rounded(found)
        ]
        print(f"| {name or translator.hparams.name} | {' | '.join(cells)} |", flush=True)


def _rounded(found: Compared) -> Iterator[tuple[str, Any]]:
    for name, value in found._asdict().items():
        yield name, round(value, 1) if name == "largest" else value


if __name__ == "__main__":
    main()
