"""t2t-decoder: translates lines of UTF-8 text with a trained run.

  t2t-decoder --output_dir=RUN < source.txt > target.txt
  t2t-decoder --output_dir=RUN --decode_interactive
  t2t-decoder --output_dir=RUN --score_file=pairs.tsv > scores.tsv

Line n of the output translates line n of the input; an empty line stays empty.
Lines are read as training reads them: UTF-8, .gz and .sgm too, without a byte
order mark and without the carriage returns of Windows.
With --n_best=N each line becomes N lines, the best first: score, tab, text (a
score of -inf where the beam held fewer). --decode_interactive writes these too.

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

import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from t2t_repro.run import Run

from . import _flags, _lines, _program

FLAGS = flags.FlagValues()
flags.DEFINE_multi_string("output_dir", [], "the run that t2t-trainer wrote; repeated, an ensemble", flag_values=FLAGS)
flags.DEFINE_string("decode_from_file", None, "what to translate, if not standard input", flag_values=FLAGS)
flags.DEFINE_string("decode_to_file", None, "where the result goes, if not standard output", flag_values=FLAGS)
flags.DEFINE_boolean("decode_interactive", False, "translates each line as it is typed", flag_values=FLAGS)
flags.DEFINE_integer("n_best", 1, "translations of each line, with scores if above 1", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_boolean(
    "well_formed", False, "parsing: the best of the beam that needs no repair, if any", flag_values=FLAGS
)
_flags.decoding_flags(FLAGS)
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
NOT_FOR_PARSING = ("prefix_file", "min_length", "sampling_temperature", "score_file")

Answer = Callable[[Sequence[str]], list[list[tuple[str, float]]]]


def decode() -> None:
    runs = [Run.open(output_dir) for output_dir in FLAGS.output_dir]
    parses = runs[0].problem.metric == "f1"
    _check(runs[0], parses)
    if FLAGS.decode_to_file:
        _flags.must_be_writable("decode_to_file", FLAGS.decode_to_file)
    pairs = _lines.pairs(FLAGS.score_file) if FLAGS.score_file else None
    lines = None if FLAGS.decode_interactive or FLAGS.score_file else _lines.read(FLAGS.decode_from_file)
    options: dict[str, Any] = {"n": FLAGS.n_best, "report": _report}
    if FLAGS.prefix_file:
        options["prefixes"] = _lines.read_beside(FLAGS.prefix_file, lines or [])
    _program.load_tensorflow()
    from t2t_repro.inference.cores import set_threads
    from t2t_repro.inference.decode import Translator
    from t2t_repro.inference.parse import Parser

    set_threads(FLAGS.threads_per_batch)
    translator = Translator.from_runs(FLAGS.output_dir, FLAGS.average_checkpoints, FLAGS.int8)
    if pairs is not None:
        _lines.write(_lines.token_scores(translator.score_tokens(pairs, report=_report)), FLAGS.decode_to_file)
        return
    parser = Parser(translator, well_formed=FLAGS.well_formed) if parses else None
    answer = _answer(parser or translator, options)
    if lines is None:
        _lines.converse(lambda line: _lines.scored(answer([line]), FLAGS.n_best))
    elif FLAGS.n_best == 1:
        _lines.write([best[0][0] for best in answer(lines)], FLAGS.decode_to_file)
    else:
        _lines.write(_lines.scored(answer(lines), FLAGS.n_best), FLAGS.decode_to_file)
    if parser:
        _program.report(parser.summary())


def _report(number: int, what: str) -> None:
    _program.report(f"line {number + 1:,} {what}")


def _check(run: Run, parses: bool) -> None:
    """Raises UsageError where flags do not go together, and ValueError for an impossible beam."""
    for flag, (others, why) in NOT_WITH.items():
        given = [other for other in others if FLAGS[other].present]
        if FLAGS[flag].value not in (None, False) and given:
            raise _program.UsageError(f"--{flag} {why}: leave out --{given[0]}")
    if FLAGS.sampling_temperature is None:
        beam_size = _flags.check_decoding(run.hparams, FLAGS).beam_size
        if FLAGS.n_best > beam_size:
            raise _program.UsageError(f"--n_best={FLAGS.n_best} is more than the beam holds; give --beam_size, or less")
        for flag in ("sampling_top_k", "seed"):
            if FLAGS[flag].present:
                raise _program.UsageError(f"--{flag} is for sampling; give --sampling_temperature too")
    elif not 0 < FLAGS.sampling_temperature < float("inf"):
        raise ValueError(f"--sampling_temperature must be above 0 and finite, got {FLAGS.sampling_temperature}")
    if FLAGS.well_formed and not parses:
        raise _program.UsageError(f"--well_formed is for parsing, and {run.directory!r} is no run of that")
    for flag in NOT_FOR_PARSING:
        if parses and FLAGS[flag].present:
            raise _program.UsageError(f"--{flag} is for translation, and {run.directory!r} is a run of parsing")


def _answer(translator: Any, options: dict[str, Any]) -> Answer:
    """What to ask of `translator`, a Translator or a Parser, for texts."""
    if FLAGS.min_length:
        options["min_length"] = FLAGS.min_length
    if FLAGS.sampling_temperature is None:
        return lambda texts: translator.n_best(texts, beam_size=FLAGS.beam_size, alpha=FLAGS.alpha, **options)
    draw = {"temperature": FLAGS.sampling_temperature, "top_k": FLAGS.sampling_top_k, "seed": FLAGS.seed}
    return lambda texts: translator.sample(texts, **draw, **options)


def main() -> int:
    return _program.run("t2t-decoder", __doc__ or "", FLAGS, decode, required=("output_dir",))


if __name__ == "__main__":
    sys.exit(main())
