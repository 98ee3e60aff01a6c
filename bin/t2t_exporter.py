"""t2t-exporter: writes a trained run as a SavedModel: strings in, strings out.

  t2t-exporter --output_dir=RUN --export_dir=E

It goes to the next numbered folder of E, as TF Serving reads them, with a
model_card.json that says what it is. To load it: import tensorflow and
tensorflow_text, then tf.saved_model.load.
"""

from __future__ import annotations

import sys

from absl import flags

from t2t_repro.run import Run

from . import _program

FLAGS = flags.FlagValues()
flags.DEFINE_string("output_dir", None, "the run that t2t-trainer wrote", flag_values=FLAGS)
flags.DEFINE_string("export_dir", None, "where the numbered folders go", flag_values=FLAGS)
flags.DEFINE_integer("average_checkpoints", 1, "the last so many, averaged", lower_bound=1, flag_values=FLAGS)


def write() -> None:
    Run.open(FLAGS.output_dir)
    _program.must_be_directory("export_dir", FLAGS.export_dir)
    _program.load_tensorflow()
    from t2t_repro.inference.export import export

    print(export(FLAGS.output_dir, FLAGS.export_dir, average_checkpoints=FLAGS.average_checkpoints))


def main() -> int:
    return _program.run("t2t-exporter", __doc__ or "", FLAGS, write, required=("output_dir", "export_dir"))


if __name__ == "__main__":
    sys.exit(main())
