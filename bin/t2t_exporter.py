"""t2t-exporter: exports a run as a SavedModel that maps strings to strings.

  t2t-exporter --output_dir=run --export_dir=exported
  t2t-exporter --output_dir=run --export_dir=fast --format=ctranslate2
  t2t-exporter --output_dir=run --export_dir=package --format=argos
  t2t-exporter --output_dir=run --export_dir=shared --format=huggingface
  t2t-exporter --output_dir=run --export_dir=small --format=onnx

Each export is the next numbered version in --export_dir (exported/1,
exported/2, ...), as TF Serving expects, with a model_card.json that describes
it. To load a SavedModel, import tensorflow and tensorflow_text and call
tf.saved_model.load, or run t2t-serve --export_dir=exported. A CTranslate2
export has a README.txt that shows how to use it. --format=argos writes a
package for Argos Translate and LibreTranslate. A Hugging Face export is a
MarianMTModel of transformers, with a model card, README.md. An ONNX export
contains translate.py, which needs onnxruntime, sentencepiece and numpy alone.

--quantization=int8 makes large models faster on a CPU, and a CTranslate2 or
ONNX export four times smaller. The rest of a SavedModel computes in --precision
on every machine that serves it. --shortlist=FILE of t2t-shortlist becomes the
vocabulary map of a CTranslate2 export; the other formats have none.

--alignments adds the signature translate_with_alignments to a SavedModel, and
the head that aligns words to a CTranslate2 export. The first time, the head is
chosen by the validation text of the run. With --glossaries, requests to a
SavedModel may require terms in translations; it takes longer to load.
"""

from __future__ import annotations

import sys
from typing import Any

from absl import flags

from t2t_repro.cli import common_flags, launcher
from t2t_repro.exporting import engines
from t2t_repro.run import Run

FLAGS = flags.FlagValues()
flags.DEFINE_string("output_dir", None, "run directory of t2t-trainer", flag_values=FLAGS)
flags.DEFINE_string(
    "export_dir", None, "directory to write the numbered version to; created if missing", flag_values=FLAGS
)
common_flags.average_flags(FLAGS)
flags.DEFINE_enum("format", "saved_model", list(engines.FORMATS), "format to write", flag_values=FLAGS)
flags.DEFINE_enum(
    "quantization",
    "none",
    list(engines.QUANTIZATIONS),
    "quantization of the weight matrices of encoder and decoder",
    flag_values=FLAGS,
)
common_flags.precision_flag(FLAGS)
common_flags.shortlist_flag(FLAGS)
flags.DEFINE_boolean("alignments", False, f"export word alignments ({engines.having('alignments')})", flag_values=FLAGS)
common_flags.moved_data_flag(FLAGS, ", to choose the head that aligns")
flags.DEFINE_boolean(
    "glossaries", False, f"requests may require terms ({engines.having('glossaries')})", flag_values=FLAGS
)


def write() -> None:
    run = Run.open(FLAGS.output_dir)
    common_flags.must_be_directory("export_dir", FLAGS.export_dir)
    common_flags.check_shortlist(FLAGS)
    if FLAGS.data_dir and not FLAGS.alignments:
        raise launcher.UsageError("--data_dir is only to choose the head that aligns; give --alignments too")
    common_flags.check_moved_data(FLAGS)
    format = engines.FORMATS[FLAGS.format]
    format.must_be_installed()
    launcher.load_tensorflow()
    from t2t_repro.exporting.exporter import export

    launcher.report_average([run], FLAGS.average_checkpoints, FLAGS.average_best)
    if not format.constraint and run.problem.task.unconstrained_note:
        launcher.report(
            f"{format.engine} has no constrained decoding, which this run uses: see {format.readme} in the export"
        )
    options: dict[str, Any] = {
        name: FLAGS[name].value
        for name in (
            *("average_checkpoints", "average_best", "moving_average"),
            *("format", "quantization", "precision", "shortlist", "alignments", "data_dir", "glossaries"),
        )
    }
    with launcher.stopped_by_signals():
        print(export(FLAGS.output_dir, FLAGS.export_dir, **options))


def main() -> int:
    return launcher.run("t2t-exporter", __doc__ or "", FLAGS, write, required=("output_dir", "export_dir"))


if __name__ == "__main__":
    sys.exit(main())
