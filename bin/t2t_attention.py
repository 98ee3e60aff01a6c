"""t2t-attention: visualizes the attention weights of a run for one sentence.

  t2t-attention --output_dir=run "The Law will never be perfect ."
  t2t-attention --output_dir=run --preset=3 --png=figure3.png

Writes one HTML file that works offline, with every layer and head of encoder,
decoder and encoder-decoder attention. --png=FILE draws a figure in the style of
the paper's Figures 3 to 5 instead; give --html=FILE too for both. --view,
--layer, --heads and --word select the first view. Layers and heads are numbered
from 1.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from absl import flags

from t2t_repro.cli import common_flags, launcher
from t2t_repro.run import Run

PAGE = "attention.html"


class Preset(NamedTuple):
    sentence: str
    heads: tuple[int, ...]
    word: str


PRESETS = {  # the sentences of Figure 3 and of Figures 4 and 5, with the heads and the word that these show
    "3": Preset(
        "It is in this spirit that a majority of American governments have passed new laws since 2009 making the "
        "registration or voting process more difficult .",
        (),
        "making",
    ),
    "4": Preset(
        "The Law will never be perfect , but its application should be just - this is what we are missing , "
        "in my opinion .",
        (5, 6),
        "its",
    ),
}

FLAGS = flags.FlagValues()
flags.DEFINE_string("output_dir", None, "run directory of t2t-trainer", flag_values=FLAGS)
flags.DEFINE_string("target", None, "TEXT: translation or tree to show, instead of the model's own", flag_values=FLAGS)
flags.DEFINE_enum(
    "preset", None, list(PRESETS), "sentence, heads and word of the paper's Figure 3 or 4", flag_values=FLAGS
)
flags.DEFINE_string("html", None, f"FILE: HTML file to write (default: {PAGE}; none with --png)", flag_values=FLAGS)
flags.DEFINE_string("png", None, "FILE: PNG file to write, in the style of the paper's figures", flag_values=FLAGS)
flags.DEFINE_enum(
    "view",
    None,
    ["encoder", "memory", "decoder"],
    "attention of the first view (default: memory, the attention of the decoder to the encoder; encoder with --preset)",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "layer", None, "layer of the first view, from 1 (default: the last but one)", lower_bound=1, flag_values=FLAGS
)
flags.DEFINE_list("heads", [], "N,N: heads of the first view, from 1, such as 5,6 (default: all)", flag_values=FLAGS)
flags.DEFINE_string("word", "", "show only the attention of this word (left column)", flag_values=FLAGS)
common_flags.average_flags(FLAGS)
common_flags.precision_flag(FLAGS)


def show(sentence: str | None = None) -> None:
    if (sentence is None) == (FLAGS.preset is None):
        raise launcher.UsageError("give one sentence, in quotes, or --preset")
    heads = _heads()
    run = Run.open(FLAGS.output_dir)
    page = FLAGS.html or (None if FLAGS.png else PAGE)
    paths = {flag: path for flag, path in (("html", page), ("png", FLAGS.png)) if path}
    common_flags.must_differ(paths)
    for flag, path in paths.items():
        common_flags.must_be_writable(flag, path)
    if page and not FLAGS.html and os.path.exists(page):
        raise FileExistsError(f"{PAGE} already exists; choose another file with --html=FILE")
    launcher.load_tensorflow()
    from t2t_repro.evaluation import attention_view
    from t2t_repro.inference.translator import Translator

    preset = PRESETS.get(FLAGS.preset or "", Preset(sentence or "", (), ""))
    launcher.report_average([run], FLAGS.average_checkpoints, FLAGS.average_best)
    how: dict[str, Any] = {name: FLAGS[name].value for name in ("precision", "average_best", "moving_average")}
    translator = Translator.from_run(FLAGS.output_dir, FLAGS.average_checkpoints, **how)
    target = FLAGS.target and run.problem.task.as_target(FLAGS.target)
    shown = attention_view.attend(translator, preset.sentence, target)
    own = tuple(head for head in preset.heads if head <= run.hparams.num_heads)  # a smaller model has fewer heads
    view = FLAGS.view or ("encoder" if FLAGS.preset else "memory")
    word = FLAGS.word or (preset.word if view == "encoder" else "")
    focus = attention_view.Focus(view, FLAGS.layer, heads or own, word)
    if page:
        attention_view.write_page(shown, focus, page, f"{run.problem.name}, {run.hparams.name}")
    if FLAGS.png:
        attention_view.write_figure(shown, focus, FLAGS.png)
    print(shown.target)
    launcher.report(f"wrote {' and '.join(paths.values())}")


def _heads() -> tuple[int, ...]:
    try:
        return tuple(int(head) for head in FLAGS.heads)
    except ValueError:
        raise launcher.UsageError(
            f"--heads takes numbers, such as --heads=5,6, got {','.join(FLAGS.heads)!r}"
        ) from None


def main() -> int:
    return launcher.run("t2t-attention", __doc__ or "", FLAGS, show, ("output_dir",), files=("[SENTENCE]",))


if __name__ == "__main__":
    sys.exit(main())
