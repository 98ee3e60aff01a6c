"""Compares our translations with those of an independent engine, CTranslate2, greedy and by beam search.

    t2t-exporter --output_dir=RUN --export_dir=E --format=ctranslate2
    python -m benchmarks.compare_ctranslate2 --output_dir=RUN --exported=E/1 --source=test_2016_flickr.en

Ours are computed in float32 without length penalty (alpha 0, because the two penalties are defined differently). Our
model scores both versions of every line that differs, which shows the reason:

- "cut off": one of the two has the maximum length, where ours takes the likeliest translation that ends there, and
  CTranslate2 the likeliest of any kind. Only a model that does not know when to stop has these
- "alike": the two log-probabilities are within 0.001 of each other, so rounding decided
- "ours": ours has the higher one. CTranslate2's beam ends at the first of its translations that comes out on top, and
  takes an end only from the best W of 2 W candidates, where we take all of them (its src/decoding.cc)
- "theirs": theirs has the higher one, by a way that our beam gave up
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ALIKE = 1e-3  # nats; float32 in another order of summation differs by less, in a sentence of 100 tokens


def compare(translator: Any, exported: str, sources: Sequence[str], beam_size: int) -> dict[str, Any]:
    """Compares both translations of `sources`, none of them empty. Returns counts by reason, and the texts that differ.

    `translator` is a `Translator` in float32; `exported` a folder that `t2t_repro.exporting.ctranslate2` wrote.
    """
    ours = translator.translate(sources, beam_size=beam_size, alpha=0.0)
    theirs, cut_off = _by_ctranslate2(exported, sources, beam_size, translator.hparams.extra_length)
    different = [place for place, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other]
    our_scores = translator.score([(sources[place], ours[place]) for place in different])
    their_scores = translator.score([(sources[place], theirs[place]) for place in different])
    lines = []
    for place, one, other in zip(different, our_scores, their_scores, strict=True):
        why = "cut off" if cut_off(place, ours[place]) or cut_off(place, theirs[place]) else _likelier(one, other)
        texts = {"ours": ours[place], "theirs": theirs[place], "our_score": one, "their_score": other}
        lines.append({"line": place + 1, "why": why, **texts})
    counts = Counter(line["why"] for line in lines)
    totals = {"beam_size": beam_size, "sentences": len(sources), "different": len(different)}
    return totals | {"why": counts, "lines": lines}


def _by_ctranslate2(
    exported: str, sources: Sequence[str], beam_size: int, extra_length: int
) -> tuple[list[str], Callable[[int, str], bool]]:
    """Returns CTranslate2's translations, and a function that tells if a translation has the maximum length."""
    import ctranslate2
    import sentencepiece

    engine = ctranslate2.Translator(exported, intra_threads=1)  # several wait busily for each other on a busy machine
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=os.path.join(exported, "vocabulary.model"))
    pieces = tokenizer.encode(list(sources), out_type=str)
    greatest = [len(each) + extra_length for each in pieces]  # without the end, which ours counts
    found = [""] * len(sources)
    for length in sorted(set(greatest)):
        places = [place for place, each in enumerate(greatest) if each == length]
        options = {"beam_size": beam_size, "length_penalty": 0, "max_decoding_length": length, "max_batch_size": 64}
        results = engine.translate_batch([pieces[place] for place in places], **options)
        for place, result in zip(places, results, strict=True):
            found[place] = tokenizer.decode(result.hypotheses[0])
    return found, lambda place, text: len(tokenizer.encode(text)) >= greatest[place] - 1


def in_float32(output_dir: str, average_checkpoints: int = 1) -> Any:
    """Returns a run's `Translator` in float32, whatever its training precision."""
    from t2t_repro.data.vocabulary import Vocabulary
    from t2t_repro.inference.translator import Translator
    from t2t_repro.model.transformer import Transformer
    from t2t_repro.run import Run
    from t2t_repro.training.checkpointing.checkpoint_list import Averaging
    from t2t_repro.training.checkpointing.weights import load_weights

    run = Run.open(output_dir)
    vocabulary = Vocabulary(run.vocabulary)
    model = Transformer(vocabulary.size, run.hparams, dtype="float32")
    load_weights(run, model, Averaging(average_checkpoints))
    return Translator(model, vocabulary, run.hparams)


def lines_of(path: str) -> list[str]:
    """Returns the lines of a UTF-8 file, .gz read too, without the end of each."""
    data = Path(path).read_bytes()
    text = (gzip.decompress(data) if path.endswith(".gz") else data).decode("utf-8")
    return text.removesuffix("\n").split("\n")


def _likelier(ours: float, theirs: float) -> str:
    return "alike" if abs(ours - theirs) <= ALIKE else "ours" if ours > theirs else "theirs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="the run")
    parser.add_argument("--exported", required=True, help="the numbered folder of its CTranslate2 export")
    parser.add_argument("--source", required=True, help="UTF-8 text, .gz read too; empty lines are left out")
    parser.add_argument("--beams", default="1,4", help="default: %(default)s")
    parser.add_argument("--average_checkpoints", type=int, default=1, help="as the export was made")
    parser.add_argument("--json", help="a file for all lines that differ")
    arguments = parser.parse_args()
    sources = [line for line in lines_of(arguments.source) if line]

    translator = in_float32(arguments.output_dir, arguments.average_checkpoints)
    print(
        "| beam | sentences | equal | different | cut off | alike | ours likelier | theirs likelier |",
        "|---" * 8 + "|",
        sep="\n",
    )
    results = []
    for beam_size in map(int, arguments.beams.split(",")):
        found = compare(translator, arguments.exported, sources, beam_size)
        results.append(found)
        counts = [found["sentences"] - found["different"], found["different"]]
        counts += [found["why"][why] for why in ("cut off", "alike", "ours", "theirs")]
        print(f"| {beam_size} | {found['sentences']:,} | {' | '.join(map(str, counts))} |", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
