"""t2t-decoder: translates lines of UTF-8 text with a trained run.

  t2t-decoder --output_dir=RUN < source.txt > target.txt
  t2t-decoder --output_dir=RUN --decode_interactive

Line n of the output translates line n of the input; an empty line stays empty.
With --n_best=N each line becomes N lines, the best first: score, tab, text (a
score of -inf where the beam held fewer). --decode_interactive writes these too.
"""

from __future__ import annotations

import sys

from absl import flags

from t2t_repro.run import Run

from . import _lines, _program

FLAGS = flags.FlagValues()
flags.DEFINE_string("output_dir", None, "the run that t2t-trainer wrote", flag_values=FLAGS)
flags.DEFINE_string("decode_from_file", None, "what to translate, if not standard input", flag_values=FLAGS)
flags.DEFINE_string("decode_to_file", None, "where the result goes, if not standard output", flag_values=FLAGS)
flags.DEFINE_boolean("decode_interactive", False, "translates each line as it is typed", flag_values=FLAGS)
flags.DEFINE_integer("n_best", 1, "translations of each line, with scores if above 1", lower_bound=1, flag_values=FLAGS)
_program.decoding_flags(FLAGS)


def decode() -> None:
    if FLAGS.decode_interactive and (FLAGS.decode_from_file or FLAGS.decode_to_file):
        raise _program.UsageError("--decode_interactive reads the keyboard: leave out the files")
    beam_size = _program.check_decoding(Run.open(FLAGS.output_dir).hparams, FLAGS).beam_size
    if FLAGS.n_best > beam_size:
        raise _program.UsageError(f"--n_best={FLAGS.n_best} is more than the beam holds; give --beam_size, or less")
    if FLAGS.decode_to_file:
        _lines.must_be_writable("decode_to_file", FLAGS.decode_to_file)
    lines = None if FLAGS.decode_interactive else _lines.read(FLAGS.decode_from_file)
    _program.load_tensorflow()
    from t2t_repro.inference.decode import Translator

    translator = Translator.from_run(FLAGS.output_dir, average_checkpoints=FLAGS.average_checkpoints)
    options = {"n": FLAGS.n_best, "beam_size": FLAGS.beam_size, "alpha": FLAGS.alpha, "report": _program.report}
    if lines is None:
        _lines.converse(lambda line: _lines.scored(translator.n_best([line], **options), FLAGS.n_best))
    elif FLAGS.n_best == 1:
        _lines.write([best[0][0] for best in translator.n_best(lines, **options)], FLAGS.decode_to_file)
    else:
        _lines.write(_lines.scored(translator.n_best(lines, **options), FLAGS.n_best), FLAGS.decode_to_file)


def main() -> int:
    return _program.run("t2t-decoder", __doc__ or "", FLAGS, decode, required=("output_dir",))


if __name__ == "__main__":
    sys.exit(main())
