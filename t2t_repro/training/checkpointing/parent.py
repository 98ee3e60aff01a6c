"""The parent of a run: the run whose weights and vocabulary it starts from. Found and checked without TensorFlow."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from t2t_repro.config import HParams
from t2t_repro.problem import Problem
from t2t_repro.run import Parent, Run
from t2t_repro.training.checkpointing.checkpoint_list import averaged, paths, step_of

_CHECKPOINT = re.compile(r"(.*?)/*checkpoints/ckpt-(\d+)(?:\.index)?")  # one checkpoint of a run


class Origin(NamedTuple):
    """Everything that a run takes over."""

    parent: Parent
    problem: Problem  # the run's own, with the vocabulary of the parent
    vocabulary_of: Run  # the parent or, if it is gone, the run that continues


def find_origin(init_from: str, problem: Problem, hparams: HParams, output_dir: str) -> Origin:
    """Returns the origin of a run of `problem` and `hparams` in `output_dir` that starts, or started, from `init_from`.

    `init_from` is a run directory, whose newest checkpoint is taken, or one checkpoint: `RUN/checkpoints/ckpt-1500`. If
    the run has already started from that parent, its checkpoint remains the one that run.json records, although the
    parent may have newer ones. Once the run has a checkpoint itself, the parent may be gone.

    Raises FileNotFoundError if there is no such run or checkpoint, and ValueError if its weights do not fit `hparams`
    or its task is another.
    """
    match = _CHECKPOINT.fullmatch(init_from)
    directory, step = (match[1] or ".", int(match[2])) if match else (init_from, None)
    continued = Run.open(output_dir) if Run.exists(output_dir) else None
    known = continued.parent if continued else None
    is_independent = continued is not None and os.path.exists(continued.checkpoint_list)
    if continued and known and is_independent:
        if known.directory == os.path.abspath(directory) and step in (None, known.step):
            return Origin(known, continued.share_vocabulary(problem), continued)
    run = Run.open(directory, "init_from")
    _check_task(run, problem)
    _check_sizes(run, hparams)
    parent = _parent(run, step, known, is_independent)
    return Origin(parent, run.share_vocabulary(problem), run)


def checkpoint_of(parent: Parent) -> str:
    """Returns the path of the checkpoint that is loaded."""
    return os.path.join(parent.directory, "checkpoints", f"ckpt-{parent.step}")


def _parent(run: Run, step: int | None, known: Parent | None, is_independent: bool) -> Parent:
    """Returns the record of `run` as a parent. `step` is None for the known one, or else the newest."""
    fingerprint, mean = f"{run.fingerprint:016x}", averaged(run)
    steps = [step_of(path) for path in paths(run)]
    if not steps:
        raise FileNotFoundError(f"init_from: {run.directory!r} has no checkpoint yet; train it first (t2t-trainer)")
    if step is None and known and known.fingerprint == fingerprint and len(known.checkpoints) == 1 and not mean:
        step = known.step if is_independent or known.step in steps else None
    step = steps[-1] if step is None else step
    if step not in steps and not is_independent:
        raise FileNotFoundError(
            f"init_from: {run.directory!r} has no checkpoint ckpt-{step}; give one of "
            f"{', '.join(f'ckpt-{each}' for each in steps)}"
        )
    return Parent(
        problem=run.problem.name,
        fingerprint=fingerprint,
        step=step,
        checkpoints=tuple(mean or [f"ckpt-{step}"]),
        directory=os.path.abspath(run.directory),
        data=run.training.data,
        parent=run.parent,
    )


def _check_task(run: Run, problem: Problem) -> None:
    """Raises ValueError if the run has another task than the problem."""
    if run.problem.metric != problem.metric:
        raise ValueError(
            f"init_from: {run.directory!r} is a {run.problem.task.name} run, and problem {problem.name!r} is "
            f"{problem.task.name}; give a run of the same task"
        )


def _check_sizes(run: Run, hparams: HParams) -> None:
    """Raises ValueError, naming the fields and both values, if the weights of the run do not fit `hparams`."""
    theirs, ours = run.hparams, hparams
    uneven = any(h.encoder_depth != h.decoder_depth for h in (theirs, ours))
    names = ["d_model", "d_ff", "num_heads", "d_k", "d_v", "positions"]
    names += ["max_positions"] if "learned" == theirs.positions == ours.positions else []
    sizes: list[dict[str, Any]] = []
    for h in (theirs, ours):
        depths = {"num_encoder_layers": h.encoder_depth, "num_decoder_layers": h.decoder_depth}
        sizes.append(depths if uneven else {"num_layers": h.encoder_depth})
        sizes[-1] |= {name: getattr(h, name) for name in names}
    differing = [name for name in sizes[0] if sizes[0][name] != sizes[1][name]]
    if differing:
        expected, received = (", ".join(f"{name}={of[name]}" for name in differing) for of in sizes)
        raise ValueError(
            f"init_from: the weights in {run.directory!r} have {expected}. Received: {received}; take those of the run"
        )
