"""t2t-decoder: translates lines of UTF-8 text with a trained run.

  t2t-decoder --output_dir=run < source.txt > target.txt
  t2t-decoder --output_dir=run --decode_interactive
  t2t-decoder --output_dir=run --score_file=pairs.tsv > scores.tsv

Line n of the output translates line n of the input. An empty line stays empty,
and a line of white space becomes empty. The input is UTF-8; .gz and .sgm files
are read too. A byte order mark and Windows line ends are removed, as in
training.

Lines are decoded in windows of up to 10,000, or as they arrive from a pipe, and
each window is written when it is done. --decode_to_file=FILE writes to
FILE.partial first. Run the same command again to continue after a stop.

--n_best=N writes N lines per input line, the best first: score, tab, text. The
score is -inf if the beam has fewer different translations. The beam width is at
least N. --decode_interactive writes this format too.

--shortlist=FILE of t2t-shortlist translates with likely subwords alone, which
is faster on a CPU. Scores are then probabilities among these.

--alignments=pharaoh appends a tab and the word alignment of each translation:
0-0 1-2 links the first words, and word 1 of the source to word 2. Words are
separated by spaces and count from 0. --alignments=json writes an object per
translation instead, with its words and their probabilities. The first time, the
attention head that aligns is chosen by the validation text of the run.

--glossary=FILE requires terms: each line is a source term, a tab and its forms,
of which one must appear in the translation; no form keeps the term as it is.
Lines without terms are translated as without a glossary.

--documents translates lines of any number of sentences: each line is split into
sentences, and line n of the output has their translations with the same space
between them. No line is truncated. --language=CODE is the language whose rules
find the sentences, if the run does not know it.

--markup reads tags, placeholders ({0}, %s, {{name}}), addresses and entities:
the text is translated without them, and they are put back by word alignment.
With --documents, each sentence has the tags that stand in it.

Repeat --output_dir to decode with an ensemble, which averages probabilities.
All its runs must share one vocabulary.

--sampling_temperature=1 samples translations instead of searching for the best
one: --n_best=N of them per line. A sample depends only on the line and --seed.
--sampling_top_k=K samples from the K most probable tokens.

--score_file=FILE scores given translations. Each line of FILE is a source, a
tab and a target. Each output line is the log-probability of the target, a tab,
and the log-probabilities of its tokens, the last one of the end-of-sentence
token, separated by spaces. A pair that is too long for the run scores -inf.

A parsing run takes tokens separated by spaces and writes a bracketed tree over
exactly these tokens. At the end it prints how many trees needed a repair.
Punctuation is tagged by its character and every other word as XX. t2t-evalb
deletes punctuation by the gold tags, so use t2t-eval to score a parsing run.
--min_confidence=P keeps trees whose tokens have a probability of at least P in
the geometric mean, for self-training. The others are empty lines.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from absl import flags

from t2t_repro import __version__
from t2t_repro.cli import common_flags, launcher, text_lines
from t2t_repro.config import LARGEST_INT, must_be_integer
from t2t_repro.documents.aligned import aligned_document
from t2t_repro.documents.document import joined, translated
from t2t_repro.documents.splitter import Splitter
from t2t_repro.io import sha256
from t2t_repro.run import Run
from t2t_repro.text.glossary import Glossary

FLAGS = flags.FlagValues()
flags.DEFINE_multi_string(
    "output_dir", [], "run directory of t2t-trainer; repeat it for an ensemble", flag_values=FLAGS
)
flags.DEFINE_string("decode_from_file", None, "file to translate (default: standard input)", flag_values=FLAGS)
flags.DEFINE_string("decode_to_file", None, "output file (default: standard output)", flag_values=FLAGS)
flags.DEFINE_boolean("decode_interactive", False, "translate each line as you type it", flag_values=FLAGS)
flags.DEFINE_integer(
    "n_best",
    1,
    "translations per line; with scores if above 1",
    lower_bound=1,
    upper_bound=LARGEST_INT,
    flag_values=FLAGS,
)
flags.DEFINE_boolean(
    "well_formed", False, "parsing: write the best tree of the beam that needs no repair, if any", flag_values=FLAGS
)
flags.DEFINE_float(
    "min_confidence",
    0.0,
    "P: parsing: write an empty line instead of a tree whose tokens have a mean probability below P",
    lower_bound=0,
    upper_bound=1,
    flag_values=FLAGS,
)
flags.register_validator("min_confidence", math.isfinite, "expected a number from 0 to 1", flag_values=FLAGS)
common_flags.decoding_flags(FLAGS)
common_flags.shortlist_flag(FLAGS)
flags.DEFINE_enum(
    "alignments", None, ["pharaoh", "json"], "write the word alignment of each translation", flag_values=FLAGS
)
common_flags.moved_data_flag(FLAGS, ", to choose the head that aligns")
flags.DEFINE_string("prefix_file", None, "file of prefixes: line n starts the translation of line n", flag_values=FLAGS)
flags.DEFINE_integer(
    "min_length",
    0,
    "minimum number of tokens before the end-of-sentence token",
    lower_bound=0,
    upper_bound=LARGEST_INT,
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "glossary", None, "FILE: terms, each with the forms that its translation may have", flag_values=FLAGS
)
flags.DEFINE_boolean(
    "documents", False, "split each line into sentences, and join their translations", flag_values=FLAGS
)
flags.DEFINE_string(
    "language", None, "CODE: source language, such as en, for --documents (default: the run's)", flag_values=FLAGS
)
flags.DEFINE_boolean(
    "markup", False, "put tags, placeholders and entities of each line into its translation", flag_values=FLAGS
)
flags.DEFINE_float("sampling_temperature", None, "sample with temperature X, instead of beam search", flag_values=FLAGS)
flags.DEFINE_integer(
    "sampling_top_k",
    0,
    "sample from the N most probable tokens; 0: from all",
    lower_bound=0,
    upper_bound=LARGEST_INT,
    flag_values=FLAGS,
)
flags.DEFINE_integer("seed", 1, "random seed of sampling", lower_bound=0, flag_values=FLAGS)
flags.DEFINE_string("score_file", None, "file of pairs to score instead of translating", flag_values=FLAGS)

NOT_WITH = {  # flags without effect beside another one, and why
    "score_file": (
        ("decode_from_file", "decode_interactive", "n_best", "beam_size", "alpha", "prefix_file", "min_length")
        + ("sampling_temperature", "sampling_top_k", "seed", "well_formed", "min_confidence", "int8", "shortlist")
        + ("alignments", "glossary", "documents", "language", "markup"),
        "scores given translations",
    ),
    "documents": (("prefix_file", "min_length"), "translates sentences that it finds"),
    "sampling_temperature": (("beam_size", "alpha", "glossary"), "replaces beam search"),
    "decode_interactive": (("decode_from_file", "decode_to_file", "prefix_file"), "reads from the keyboard"),
}
ONLY_FOR = {  # flags that other tasks do not have
    "translation": ("prefix_file", "min_length", "sampling_temperature", "score_file", "shortlist")
    + ("alignments", "glossary", "documents", "markup"),
    "parsing": ("well_formed", "min_confidence"),
}

INPUT = ("decode_from_file", "prefix_file", "score_file")

Answer = Callable[..., list[list[tuple[str, float]]]]


def decode() -> None:
    runs = [Run.open(output_dir) for output_dir in FLAGS.output_dir]
    task = runs[0].problem.task
    _check(runs[0])
    common_flags.check_shortlist(FLAGS)
    glossary = Glossary.load(FLAGS.glossary) if FLAGS.glossary else None
    if FLAGS.documents:
        Splitter(FLAGS.language or "", runs[0].hparams.max_positions)  # a missing package is an error now
    if FLAGS.decode_to_file:
        from t2t_repro.inference.line_windows import PARTIAL

        common_flags.must_be_writable("decode_to_file", FLAGS.decode_to_file)
        read = {f"the file of --{flag}": FLAGS[flag].value for flag in (*INPUT, "glossary", "shortlist")}
        common_flags.must_replace_nothing("decode_to_file", FLAGS.decode_to_file, read, ("", *PARTIAL))
    if FLAGS.decode_interactive and sys.stdin is None:
        raise ValueError("standard input is closed; give --decode_from_file instead of --decode_interactive")
    items, total = (iter(()), 0) if FLAGS.decode_interactive else _input()
    launcher.load_tensorflow()
    from t2t_repro.inference import graph_cache
    from t2t_repro.inference.graph_options import optimize_once
    from t2t_repro.inference.line_windows import decode_to_file, decode_to_stream
    from t2t_repro.inference.translator import Translator
    from t2t_repro.training.parallel import set_threads
    from t2t_repro.training.precision import resolve

    graph_cache.allowed = True
    set_threads(FLAGS.threads_per_batch)
    optimize_once(fuse={resolve(FLAGS.precision, run.precision) for run in runs} != {"bfloat16"})
    launcher.report_average(runs, FLAGS.average_checkpoints, FLAGS.average_best)
    translator = Translator.from_run(
        FLAGS.output_dir,
        FLAGS.average_checkpoints,
        int8=FLAGS.int8,
        precision=FLAGS.precision,
        average_best=FLAGS.average_best,
        moving_average=FLAGS.moving_average,
        shortlist=FLAGS.shortlist,
        search_only=not (FLAGS.score_file or FLAGS.alignments or FLAGS.markup),
    )
    if FLAGS.alignments or FLAGS.markup:
        head = task.alignment_head(translator, runs[0], FLAGS.data_dir, launcher.report).head
        translator = translator.with_alignments(head)
    decoder = task.decoder(translator, FLAGS.well_formed, FLAGS.min_confidence)
    done = 0
    if FLAGS.decode_interactive:
        answer = _answer(decoder, glossary)
        with_scores = FLAGS.n_best > 1 or not FLAGS.documents
        text_lines.converse(lambda line: _written(answer([line], report=_report), with_scores))
    elif FLAGS.decode_to_file:
        how = _window(decoder, glossary), FLAGS.decode_to_file, _made_by(translator)
        done = decode_to_file(items, *how, launcher.report, total)
    else:
        decode_to_stream(items, _window(decoder, glossary), text_lines.write, launcher.report, total)
    if summary := task.summary(decoder):
        launcher.report(f"since line {done + 1:,}: {summary}" if done else summary)


def _input() -> tuple[Iterator[tuple[str, ...]], int | None]:
    """Returns the items to decode and their number. Errors in files, or in the first line of a pipe, raise here."""
    path = FLAGS.score_file or FLAGS.decode_from_file

    def items() -> Iterator[tuple[str, ...]]:
        if FLAGS.score_file:
            return text_lines.pairs(path)
        return text_lines.with_prefixes(path, FLAGS.prefix_file) if FLAGS.prefix_file else text_lines.texts(path)

    files = [path, FLAGS.prefix_file] if FLAGS.prefix_file else [path]
    total, found = text_lines.count(items, *files), items()
    first = list(itertools.islice(found, 1)) if total is None else []
    return itertools.chain(first, found), total


def _made_by(translator: Any) -> dict[str, Any]:
    """Returns everything that the output depends on, except the input lines."""
    values = {flag: FLAGS[flag].value for flag in FLAGS if flag not in ("output_dir", "decode_to_file")}
    values |= {flag: bool(values[flag]) for flag in INPUT}
    values |= {"shortlist": FLAGS.shortlist and sha256(FLAGS.shortlist)}
    values |= {"glossary": FLAGS.glossary and sha256(FLAGS.glossary)}
    head = translator.ensemble.head
    values |= {"data_dir": None, "alignment": head and head.to_json()}
    return values | {"weights": translator.checkpoints_sha256, "version": __version__}


def _window(translator: Any, glossary: Glossary | None) -> Callable[..., list[str]]:
    """Returns the function from the items of a window to output lines, for `inference.line_windows`."""
    if FLAGS.score_file:
        return lambda pairs, report, advance: text_lines.token_scores(translator.score_tokens(pairs, report, advance))
    answer = _answer(translator, glossary)

    def lines(items: list[tuple[str, ...]], report: Any, advance: Any) -> list[str]:
        texts, *prefixes = (list(side) for side in zip(*items, strict=True))
        options = {"prefixes": prefixes[0]} if prefixes else {}
        found = answer(texts, report=report, advance=advance, **options)
        return _written(found, with_scores=FLAGS.n_best > 1)

    return lines


def _written(found: list[list[tuple[str, float]]], with_scores: bool) -> list[str]:
    """Returns the output lines for the translations of each text."""
    if FLAGS.alignments == "json":
        return text_lines.objects(found, FLAGS.n_best)
    columns = text_lines.scored(found, FLAGS.n_best) if with_scores else text_lines.best(found)
    return text_lines.with_links(columns, found, FLAGS.n_best) if FLAGS.alignments else columns


def _answer(translator: Any, glossary: Glossary | None) -> Answer:
    """Returns the method of `translator`, a Translator or a Parser, with the options of the command line."""
    options: dict[str, Any] = {"n": FLAGS.n_best}
    if FLAGS.min_length:
        options["min_length"] = FLAGS.min_length
    if glossary is not None:
        options["glossary"] = glossary
    if FLAGS.markup:
        options["markup"] = True
    if FLAGS.sampling_temperature is None:
        answer = functools.partial(translator.n_best, beam_size=FLAGS.beam_size, alpha=FLAGS.alpha, **options)
    else:
        draw = {"temperature": FLAGS.sampling_temperature, "top_k": FLAGS.sampling_top_k, "seed": FLAGS.seed}
        answer = functools.partial(translator.sample, **draw, **options)
    return _of_documents(translator.splitter(FLAGS.language), answer) if FLAGS.documents else answer


def _of_documents(splitter: Splitter, answer: Answer) -> Answer:
    """Returns the function from documents to their translations, by that of sentences."""
    split = splitter.marked if FLAGS.markup else splitter
    join = aligned_document if FLAGS.alignments else joined
    return functools.partial(translated, split=split, answer=answer, join=join)


def _report(number: int, what: str) -> None:
    launcher.report(f"the line {what}")


def _check(run: Run) -> None:
    """Raises UsageError for flags that exclude each other, and ValueError for an impossible beam or length."""
    if FLAGS.data_dir and not (FLAGS.alignments or FLAGS.markup):
        raise launcher.UsageError("--data_dir is only to choose the head that aligns; give --alignments or --markup")
    common_flags.check_moved_data(FLAGS)
    if FLAGS.language and not FLAGS.documents:
        raise launcher.UsageError("--language is only to split lines into sentences; give --documents too")
    if FLAGS.markup and FLAGS.alignments == "pharaoh":
        raise launcher.UsageError(
            "--alignments=pharaoh numbers words that spaces separate, and tags have spaces; with --markup, give "
            "--alignments=json, which has the words"
        )
    for flag, (others, why) in NOT_WITH.items():
        given = [other for other in others if FLAGS[other].present]
        if FLAGS[flag].value not in (None, False) and given:
            raise launcher.UsageError(f"--{flag} {why}; remove --{given[0]}")
    must_be_integer("min_length", FLAGS.min_length, 0, run.hparams.max_positions)
    if FLAGS.sampling_temperature is None:
        common_flags.check_decoding(run.hparams, FLAGS)
        if FLAGS.beam_size and FLAGS.n_best > FLAGS.beam_size:
            raise launcher.UsageError(
                f"--n_best={FLAGS.n_best} is more than --beam_size={FLAGS.beam_size}; raise --beam_size"
            )
        for flag in ("sampling_top_k", "seed"):
            if FLAGS[flag].present:
                raise launcher.UsageError(f"--{flag} is only for sampling; give --sampling_temperature too")
    elif not 0 < FLAGS.sampling_temperature < float("inf"):
        raise ValueError(f"--sampling_temperature must be above 0 and finite, got {FLAGS.sampling_temperature}")
    for task, only_its_own in ONLY_FOR.items():
        given = [flag for flag in only_its_own if FLAGS[flag].present]
        if given and task != run.problem.task.name:
            what = f"{run.directory!r} is a {run.problem.task.name} run"
            raise launcher.UsageError(f"--{given[0]} is only for {task}, and {what}")


def main() -> int:
    return launcher.run("t2t-decoder", __doc__ or "", FLAGS, decode, required=("output_dir",))


if __name__ == "__main__":
    sys.exit(main())
