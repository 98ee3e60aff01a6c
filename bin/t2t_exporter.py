"""t2t-exporter: writes a trained run as a SavedModel: strings in, strings out.

  t2t-exporter --output_dir=RUN --export_dir=E
  t2t-exporter --output_dir=RUN --export_dir=E2 --format=ctranslate2

It goes to the next numbered folder of E, as TF Serving reads them, with a
model_card.json that says what it is. To load it: import tensorflow and
tensorflow_text, then tf.saved_model.load; or t2t-serve --export_dir=E. The
second line writes the same weights for CTranslate2, with a README.txt that
says how to use them. With --quantization=int8 either decodes by products of
8-bit integers: large models faster on a CPU, CTranslate2's in a quarter of
the space. --precision is what all else of a SavedModel computes in, wherever
it is served.
"""

from __future__ import annotations

import sys
from typing import Any

from absl import flags

from t2t_repro.cli import common_flags, launcher
from t2t_repro.run import Run

FLAGS = flags.FlagValues()
flags.DEFINE_string("output_dir", None, "the run that t2t-trainer wrote", flag_values=FLAGS)
flags.DEFINE_string("export_dir", None, "where the numbered folders go", flag_values=FLAGS)
flags.DEFINE_integer("average_checkpoints", 1, "the last so many, averaged", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_enum("format", "saved_model", ["saved_model", "ctranslate2"], "what to write", flag_values=FLAGS)
flags.DEFINE_enum("quantization", "none", ["none", "int8"], "of the decoder's matrices", flag_values=FLAGS)
common_flags.precision_flag(FLAGS)


def write() -> None:
    run = Run.open(FLAGS.output_dir)
    common_flags.must_be_directory("export_dir", FLAGS.export_dir)
    if FLAGS.format == "ctranslate2":
        from t2t_repro.exporting.ctranslate2 import must_be_installed

        must_be_installed()
    launcher.load_tensorflow()
    from t2t_repro.exporting.exporter import export

    launcher.report_average([run], FLAGS.average_checkpoints)
    if FLAGS.format == "ctranslate2" and run.problem.task.ctranslate2_note:
        launcher.report("CTranslate2 does not have the constraint of the run's own decoding: see README.txt there")
    options: dict[str, Any] = {
        name: FLAGS[name].value for name in ("average_checkpoints", "format", "quantization", "precision")
    }
    print(export(FLAGS.output_dir, FLAGS.export_dir, **options))


def main() -> int:
    return launcher.run("t2t-exporter", __doc__ or "", FLAGS, write, required=("output_dir", "export_dir"))


if __name__ == "__main__":
    sys.exit(main())
