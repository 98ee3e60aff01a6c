"""t2t-registry: lists or describes problems and hyperparameter sets.

  t2t-registry                     list all names
  t2t-registry --problem=translate_ende_wmt14
                                   fields and text of a problem
  t2t-registry --hparams=base      fields of a hyperparameter set, and its
                                   number of parameters
  t2t-registry --diff=base,big     fields in which two sets differ
  t2t-registry --new_problem=translate_mine mine
                                   create mine/ with a template of a problem
  eval "$(t2t-registry --completion=bash)"
                                   complete flags and names with Tab in bash

The number of parameters depends on the vocabulary size: that of --vocab_size if
given, otherwise that of --problem, otherwise the paper's 37,000.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import pkgutil
import sys

from absl import flags

from t2t_repro.cli import common_flags, completion, describe, launcher, problem_flags
from t2t_repro.cli.scaffold import new_problem
from t2t_repro.registry import HPARAMS, PROBLEMS, get_hparams

FLAGS = flags.FlagValues()
problem_flags.define(FLAGS, files=False)
common_flags.hparams_flags(FLAGS)
flags.DEFINE_list("diff", None, "H1,H2: show the fields in which two hyperparameter sets differ", flag_values=FLAGS)
flags.DEFINE_string(
    "new_problem",
    None,
    "NAME: name of a new problem; the argument after it is the directory for its template",
    flag_values=FLAGS,
)
flags.DEFINE_enum("completion", None, ["bash"], "print the completion script for this shell", flag_values=FLAGS)

PAPER_VOCAB_SIZE = 37_000  # English-German, section 5.1


def show(directory: str | None = None) -> None:
    if directory is not None and not FLAGS.new_problem:
        raise launcher.UsageError(f"unexpected argument {directory!r}; flags are written --name=value")
    if FLAGS.new_problem and not directory:
        raise launcher.UsageError("--new_problem needs a directory: --new_problem=NAME DIR")
    if FLAGS.override and not FLAGS.hparams:
        raise launcher.UsageError("--override needs --hparams: it changes fields of that set")
    if FLAGS.diff is not None and (len(FLAGS.diff) != 2 or FLAGS.problem or FLAGS.hparams):
        raise launcher.UsageError("--diff expects two sets alone, such as --diff=base,big")
    given = [flag for flag in ("new_problem", "completion", "diff", "problem", "hparams") if FLAGS[flag].value]
    if len(given) > 1 and given != ["problem", "hparams"]:
        raise launcher.UsageError(f"--{given[0]} has no use for --{given[1]}; leave one of them out")
    if FLAGS.vocab_size and not (FLAGS.problem or FLAGS.hparams or FLAGS.diff):
        raise launcher.UsageError("--vocab_size needs --problem, --hparams or --diff: it is for counts of parameters")
    problem_flags.import_users_code(FLAGS)
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
