"""t2t-decoder: translates lines of UTF-8 text with a trained run.

  t2t-decoder --output_dir=RUN < source.txt > target.txt
  t2t-decoder --output_dir=RUN --decode_interactive
  t2t-decoder --output_dir=RUN --score_file=pairs.tsv > scores.tsv

Lines are decoded in windows of up to 10,000, each written when it is done, and
from a pipe as they come. --decode_to_file=FILE collects them in FILE.partial,
and the same command continues it after a stop.

Line n of the output translates line n of the input; an empty line stays empty.
Lines are read as training reads them: UTF-8, .gz and .sgm too, without a byte
order mark and without the carriage returns of Windows.
With --n_best=N each line becomes N lines, the best first: score, tab, text (a
score of -inf if the beam held fewer that differ). The beam holds at least N.
--decode_interactive writes these too.

--output_dir may be repeated: such runs decode together, by the mean of their
probabilities; they must share their vocabulary.

--sampling_temperature=1 draws translations instead of searching for the best,
--n_best=N of them for each line; what a line is given depends on it and on
--seed alone. --sampling_top_k=K draws among the K likeliest tokens.

--score_file holds a source, a tab and a target in each line, of which it writes
the log-probability, a tab, and those of the target's tokens, the last that of
its end, a space between them. A pair that is too long for the run has -inf.

A parsing run takes tokens, a space between them, and writes a bracketed tree
over exactly these; how many trees needed repairs is said at the end. It tags
punctuation that its sign tells, and all other words XX: t2t-evalb deletes
punctuation by gold's tags, so the score of a run is t2t-eval's.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags

from t2t_repro import __version__
from t2t_repro.cli import common_flags, launcher, text_lines
from t2t_repro.io import sha256
from t2t_repro.run import Run

FLAGS = flags.FlagValues()
flags.DEFINE_multi_string("output_dir", [], "the run that t2t-trainer wrote; repeated, an ensemble", flag_values=FLAGS)
flags.DEFINE_string("decode_from_file", None, "what to translate, if not standard input", flag_values=FLAGS)
flags.DEFINE_string("decode_to_file", None, "where the result goes, if not standard output", flag_values=FLAGS)
flags.DEFINE_boolean("decode_interactive", False, "translates each line as it is typed", flag_values=FLAGS)
flags.DEFINE_integer("n_best", 1, "translations of each line, with scores if above 1", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_boolean(
    "well_formed", False, "parsing: the best of the beam that needs no repair, if any", flag_values=FLAGS
)
common_flags.decoding_flags(FLAGS)
flags.DEFINE_string("prefix_file", None, "what each line's translation begins with, a line each", flag_values=FLAGS)
flags.DEFINE_integer("min_length", 0, "tokens before the end, at least", lower_bound=0, flag_values=FLAGS)
flags.DEFINE_float("sampling_temperature", None, "samples by p^(1/X), in place of beam search", flag_values=FLAGS)
flags.DEFINE_integer(
    "sampling_top_k", 0, "samples among the N likeliest tokens; 0: all", lower_bound=0, flag_values=FLAGS
)
flags.DEFINE_integer("seed", 1, "of the samples", lower_bound=0, flag_values=FLAGS)
flags.DEFINE_string("score_file", None, "pairs to score in place of translating", flag_values=FLAGS)

NOT_WITH = {  # flags that mean nothing beside one, and why
    "score_file": (
        ("decode_from_file", "decode_interactive", "n_best", "beam_size", "alpha", "prefix_file", "min_length")
        + ("sampling_temperature", "sampling_top_k", "seed", "well_formed", "int8"),
        "scores what is given",
    ),
    "sampling_temperature": (("beam_size", "alpha"), "searches for nothing"),
    "decode_interactive": (("decode_from_file", "decode_to_file", "prefix_file"), "reads the keyboard"),
}
ONLY_FOR = {  # flags that other tasks do not have
    "translation": ("prefix_file", "min_length", "sampling_temperature", "score_file"),
    "parsing": ("well_formed",),
}

INPUT = ("decode_from_file", "prefix_file", "score_file")

Answer = Callable[..., list[list[tuple[str, float]]]]


def decode() -> None:
    runs = [Run.open(output_dir) for output_dir in FLAGS.output_dir]
    task = runs[0].problem.task
    _check(runs[0])
    if FLAGS.decode_to_file:
        common_flags.must_be_writable("decode_to_file", FLAGS.decode_to_file)
    items, total = (iter(()), 0) if FLAGS.decode_interactive else _input()
    launcher.load_tensorflow()
    from t2t_repro.inference.line_windows import decode_to_file, decode_to_stream
    from t2t_repro.inference.parallel import set_threads
    from t2t_repro.inference.translator import Translator

    set_threads(FLAGS.threads_per_batch)
    launcher.report_average(runs, FLAGS.average_checkpoints)
    translator = Translator.from_runs(FLAGS.output_dir, FLAGS.average_checkpoints, FLAGS.int8, FLAGS.precision)
    decoder = task.decoder(translator, FLAGS.well_formed)
    if FLAGS.decode_interactive:
        answer = _answer(decoder)
        text_lines.converse(lambda line: text_lines.scored(answer([line], report=_report), FLAGS.n_best))
    elif FLAGS.decode_to_file:
        how = _window(decoder), FLAGS.decode_to_file, _made_by(runs)
        decode_to_file(items, *how, launcher.report, total)
    else:
        decode_to_stream(items, _window(decoder), text_lines.write, launcher.report, total)
    if summary := task.summary(decoder):
        launcher.report(summary)


def _input() -> tuple[Iterator[tuple[str, ...]], int | None]:
    """Returns what to decode, and how much it is. A wrong file, or first line of a pipe, is refused here."""
    path = FLAGS.score_file or FLAGS.decode_from_file

    def items() -> Iterator[tuple[str, ...]]:
        if FLAGS.score_file:
            return text_lines.pairs(path)
        return text_lines.with_prefixes(path, FLAGS.prefix_file) if FLAGS.prefix_file else text_lines.texts(path)

    files = [path, FLAGS.prefix_file] if FLAGS.prefix_file else [path]
    total, found = text_lines.count(items, *files), items()
    first = list(itertools.islice(found, 1)) if total is None else []
    return itertools.chain(first, found), total


def _made_by(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns what the lines depend on apart from those they are made from."""
    from t2t_repro.training.checkpoints import to_average

    values = {flag: FLAGS[flag].value for flag in FLAGS if flag not in ("output_dir", "decode_to_file")}
    values |= {flag: bool(values[flag]) for flag in INPUT}
    weights = [sha256(f"{path}.index") for run in runs for path in to_average(run, FLAGS.average_checkpoints)]
    return values | {"weights": weights, "version": __version__}


def _window(translator: Any) -> Callable[..., list[str]]:
    """Returns what makes lines of a window's items; `report` and `advance` are of `inference.line_windows`."""
    if FLAGS.score_file:
        return lambda pairs, report, advance: text_lines.token_scores(translator.score_tokens(pairs, report, advance))
    answer = _answer(translator)

    def lines(items: list[tuple[str, ...]], report: Any, advance: Any) -> list[str]:
        texts, *prefixes = (list(side) for side in zip(*items, strict=True))
        options = {"prefixes": prefixes[0]} if prefixes else {}
        found = answer(texts, report=report, advance=advance, **options)
        return text_lines.best(found) if FLAGS.n_best == 1 else text_lines.scored(found, FLAGS.n_best)

    return lines


def _answer(translator: Any) -> Answer:
    """Returns what to ask of `translator`, a Translator or a Parser, for texts."""
    options: dict[str, Any] = {"n": FLAGS.n_best}
    if FLAGS.min_length:
        options["min_length"] = FLAGS.min_length
    if FLAGS.sampling_temperature is None:
        return functools.partial(translator.n_best, beam_size=FLAGS.beam_size, alpha=FLAGS.alpha, **options)
    draw = {"temperature": FLAGS.sampling_temperature, "top_k": FLAGS.sampling_top_k, "seed": FLAGS.seed}
    return functools.partial(translator.sample, **draw, **options)


def _report(number: int, what: str) -> None:
    launcher.report(f"the line {what}")


def _check(run: Run) -> None:
    """Raises UsageError where flags do not go together, and ValueError for an impossible beam."""
    for flag, (others, why) in NOT_WITH.items():
        given = [other for other in others if FLAGS[other].present]
        if FLAGS[flag].value not in (None, False) and given:
            raise launcher.UsageError(f"--{flag} {why}: leave out --{given[0]}")
    if FLAGS.sampling_temperature is None:
        common_flags.check_decoding(run.hparams, FLAGS)
        if FLAGS.beam_size and FLAGS.n_best > FLAGS.beam_size:
            raise launcher.UsageError(f"--n_best={FLAGS.n_best} is more than --beam_size={FLAGS.beam_size}; raise that")
        for flag in ("sampling_top_k", "seed"):
            if FLAGS[flag].present:
                raise launcher.UsageError(f"--{flag} is for sampling; give --sampling_temperature too")
    elif not 0 < FLAGS.sampling_temperature < float("inf"):
        raise ValueError(f"--sampling_temperature must be above 0 and finite, got {FLAGS.sampling_temperature}")
    for task, only_its_own in ONLY_FOR.items():
        given = [flag for flag in only_its_own if FLAGS[flag].present]
        if given and task != run.problem.task.name:
            what = f"{run.directory!r} is a run of {run.problem.task.name}"
            raise launcher.UsageError(f"--{given[0]} is for {task}, and {what}")


def main() -> int:
    return launcher.run("t2t-decoder", __doc__ or "", FLAGS, decode, required=("output_dir",))


if __name__ == "__main__":
    sys.exit(main())
