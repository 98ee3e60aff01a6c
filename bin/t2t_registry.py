"""t2t-registry: lists problems and sets of hyperparameters, or describes one.

  t2t-registry                 every name
  t2t-registry --problem=P     one problem: its fields, its text
  t2t-registry --hparams=H     one set: its fields, their source, its exact size
  t2t-registry --diff=H1,H2    the fields in which two sets differ
  t2t-registry --new_problem=NAME DIR
                               makes DIR with a problem to start yours from
  eval "$(t2t-registry --completion=bash)"
                               lets Tab complete flags and names in bash

The exact size is for --vocab_size, else the problem's, else the paper's 37,000.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import pkgutil
import sys

from absl import flags

from t2t_repro.cli import common_flags, completion, describe, launcher
from t2t_repro.cli.scaffold import new_problem
from t2t_repro.registry import HPARAMS, PROBLEMS, get_hparams

FLAGS = flags.FlagValues()
common_flags.problem_flags(FLAGS, files=False)
common_flags.hparams_flags(FLAGS)
flags.DEFINE_list("diff", None, "two sets, as H1,H2: shows the fields in which they differ", flag_values=FLAGS)
flags.DEFINE_string("new_problem", None, "name of a new problem, to be made in DIR", flag_values=FLAGS)
flags.DEFINE_enum("completion", None, ["bash"], "prints the completion of this shell", flag_values=FLAGS)

PAPER_VOCAB_SIZE = 37_000  # English-German, section 5.1


def show(directory: str | None = None) -> None:
    if directory is not None and not FLAGS.new_problem:
        raise launcher.UsageError(f"unexpected argument {directory!r}; flags are written --name=value")
    if FLAGS.new_problem and directory is None:
        raise launcher.UsageError("--new_problem needs a directory: --new_problem=NAME DIR")
    if FLAGS.override and not FLAGS.hparams:
        raise launcher.UsageError("--override needs --hparams: it replaces fields of that set")
    if FLAGS.diff is not None and (len(FLAGS.diff) != 2 or FLAGS.problem or FLAGS.hparams):
        raise launcher.UsageError("--diff takes two sets, as --diff=base,big, and stands alone")
    common_flags.import_users_code(FLAGS)
    if directory is not None:
        print("\n".join(new_problem(FLAGS.new_problem, directory)))
        return
    if FLAGS.completion:
        print(completion.bash(every_programs_flags()), end="")
        return
    texts = []
    vocab_size = FLAGS.vocab_size or PAPER_VOCAB_SIZE
    if FLAGS.problem:
        problem = PROBLEMS[FLAGS.problem]
        vocab_size = FLAGS.vocab_size or problem.vocab_size
        texts.append(describe.describe_problem(dataclasses.replace(problem, vocab_size=vocab_size)))
    if FLAGS.hparams:
        texts.append(describe.describe_hparams(common_flags.chosen_hparams(FLAGS), vocab_size))
    if FLAGS.diff:
        first, second = (get_hparams(name.strip()) for name in FLAGS.diff)
        texts.append(describe.describe_difference(first, second, vocab_size))
    print("\n\n".join(texts or [describe.list_names(PROBLEMS, HPARAMS)]))


def every_programs_flags() -> dict[str, flags.FlagValues]:
    """Returns the flags of each program of this folder, by its name."""
    names = [module.name for module in pkgutil.iter_modules([os.path.dirname(__file__)])]
    modules = {name: importlib.import_module(f"t2t_repro.bin.{name}") for name in names}
    return {name.replace("_", "-"): module.FLAGS for name, module in modules.items()}


def main() -> int:
    return launcher.run("t2t-registry", __doc__ or "", FLAGS, show, files=("[DIR]",))


if __name__ == "__main__":
    sys.exit(main())
