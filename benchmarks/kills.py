"""Kills training runs at random moments and checks that nothing is lost.

    python -m benchmarks.kills --kills=50 --seed=1706

`t2t_repro.training.trainer.train` prepares and trains a small translator. It saves a checkpoint every third step and
keeps five and the six best, so it writes and removes files most of the time, and it ends when five validation
perplexities in a row are no better. The kills are divided among four kinds of run: `plain`; `fine_tuned`, which starts
from the weights of a run on other text; `weighted`, on two corpora with weights; and `bpe_dropout`, whose training text
is segmented differently in each epoch.

First a run is undisturbed. Then, in another folder, it is started and killed with SIGKILL again and again. A kill comes
after a random number of changes to the folder and up to three more milliseconds, so that it hits preparation, training
and the writing of checkpoints. When a start completes, the next one uses a new folder. In the end the vocabulary,
shards, dataset.json and last checkpoint (weights, moments, step, position) must equal those of the undisturbed run, bit
for bit, and so must the scores, the checkpoints that were kept, the step at which training ended and the recommended
checkpoint.

TensorFlow is imported once: each start is a fork of this process, which never runs an operation itself. If a result
differs, the differences are printed and the exit code is 1.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from typing import Any

KINDS = ("plain", "fine_tuned", "weighted", "bpe_dropout")
STEPS, EVERY, PAIRS = 90, 3, 1_500
PARENT_STEPS, WEIGHTS, BPE_DROPOUT = 12, (1.5, 0.4), 0.1
PATIENCE, BEST = 5, 6
RATE = 5.0  # factor of the learning rate: so high that the perplexity rises and falls
TEXT = ("train.en", "train.de")
RESULT = "result.json"  # written by a completed start: SHA-256 of each file and each variable
POLL = 0.001  # seconds
LATE = 0.003  # maximum seconds between a change and its kill; writing a checkpoint takes little longer


def write_text(folder: str, seed: int) -> None:
    """Writes two files of generated sentences; line n of one is line n of the other, spelled backwards."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 7))) for _ in range(300)]
    lines = [" ".join(rng.choices(words, k=rng.randint(2, 12))) for _ in range(PAIRS)]
    for name, turned in zip(TEXT, (False, True), strict=True):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.writelines(f"{line[::-1] if turned else line}\n" for line in lines)


def train_to_the_end(top: str, folder: str, kind: str) -> None:
    """Prepares, trains to the end and writes the hashes of the results. This is the process that is killed.

    A run of the kind "fine_tuned" starts from `TOP/parent`, of the kind "parent", on the text in the other direction.
    """
    from t2t_repro import get_hparams
    from t2t_repro.config import TrainingOptions
    from t2t_repro.preparation import pipeline
    from t2t_repro.registry import PROBLEMS
    from t2t_repro.training.trainer import train

    pipeline.PAIRS_PER_SHARD, pipeline.CHUNK_PAIRS = 400, 200  # several of each
    text = [os.path.join(top, name) for name in (TEXT[::-1] if kind == "fine_tuned" else TEXT)]
    sources, targets = (text, text[::-1]) if kind == "weighted" else (text[:1], text[1:])
    problem = PROBLEMS["translate_files"].with_files(train_source=sources, train_target=targets)
    weights = WEIGHTS if kind == "weighted" else ()
    problem = dataclasses.replace(problem, vocab_size=400, max_length=100, train_weight=weights)
    small = dataclasses.replace(
        get_hparams("tiny"), num_layers=1, d_model=16, d_ff=32, num_heads=2, d_k=8, d_v=8, batch_tokens=1_000
    )
    steps = PARENT_STEPS if kind == "parent" else STEPS
    small = dataclasses.replace(small, train_steps=steps, warmup_steps=10, average_checkpoints=2)
    small = dataclasses.replace(small, learning_rate_scale=RATE, bpe_dropout=BPE_DROPOUT * (kind == "bpe_dropout"))
    data, output = os.path.join(folder, "data"), os.path.join(folder, "run")
    options = TrainingOptions(precision="float32", checkpoint_steps=EVERY, deterministic=True)
    options = dataclasses.replace(options, patience=PATIENCE, keep_best=BEST)
    parent = os.path.join(top, "parent/run") if kind == "fine_tuned" else None
    how: dict[str, Any] = {"init_from": parent, "prepare": pipeline.prepare, "report": lambda line: None}
    run = train(problem, small, data, output, options, **how)
    result = files(os.path.join(data, problem.name)) | variables(run)
    with open(os.path.join(folder, RESULT + ".new"), "w", encoding="utf-8") as file:
        json.dump(result, file)
    os.replace(file.name, os.path.join(folder, RESULT))


def files(folder: str) -> dict[str, str]:
    """Returns the SHA-256 of each prepared file."""
    from t2t_repro.io import sha256

    return {name: sha256(os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if name != ".lock"}


def variables(run) -> dict[str, str]:  # type: ignore[no-untyped-def]
    """Returns the checkpoints and their scores, and the SHA-256 of each variable of the newest, without its time."""
    import tensorflow as tf

    from t2t_repro.training.checkpointing.checkpoint_list import paths

    reader = tf.train.load_checkpoint(paths(run)[-1])
    names = [name for name in reader.get_variable_to_shape_map() if not name.startswith(("spent", "_CHECK"))]
    found = {name: hashlib.sha256(reader.get_tensor(name).tobytes()).hexdigest() for name in sorted(names)}
    record = run.training
    chosen = {"step": str(record.step), "selection": json.dumps(record.selection.to_json())}
    return found | chosen | {"checkpoints": " ".join(sorted(os.listdir(run.checkpoints)))}


def start(top: str, folder: str, kind: str) -> int:
    """Starts a process that prepares and trains in `folder`. Returns its process id."""
    os.makedirs(folder, exist_ok=True)
    child = os.fork()
    if not child:
        try:
            train_to_the_end(top, folder, kind)
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
    return child


def look(folder: str) -> tuple[tuple[str, int], ...]:
    """Returns the names and sizes of all files below `folder`."""
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                found.append((os.path.join(place, name), os.path.getsize(os.path.join(place, name))))
            except FileNotFoundError:
                found.append((name, -1))
    return tuple(sorted(found))


def watch(child: int, folder: str, changes: float) -> tuple[int, int | None]:
    """Waits for `number` changes to `folder`. Returns their number, and the exit code if the process ended."""
    seen, before = 0, look(folder)
    while seen < changes:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return seen, os.waitstatus_to_exitcode(status)
        time.sleep(POLL)
        now = look(folder)
        seen, before = seen + (now != before), now
    return seen, None


def moment(folder: str) -> str:
    """Returns the activity in `folder` when its process was killed."""
    if not os.path.exists(os.path.join(folder, "data/translate_files/dataset.json")):
        return "preparation"
    names = [name for place, folders, names in os.walk(os.path.join(folder, "run")) for name in (*folders, *names)]
    if any("_temp" in name or "tempstate" in name or ".tmp-" in name for name in names):
        return "writing a checkpoint"
    indices = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    try:
        with open(os.path.join(folder, "run/checkpoints/checkpoint"), encoding="utf-8") as file:
            listed = file.read()
    except FileNotFoundError:
        listed = ""
    return "writing a checkpoint" if any(f'"{name}"' not in listed for name in indices) else "training"


def result(folder: str) -> dict[str, str]:
    with open(os.path.join(folder, RESULT), encoding="utf-8") as file:
        return json.load(file)


def compare(expected: dict[str, str], folder: str) -> None:
    """Exits if the run in `folder` has another result."""
    found = result(folder)
    different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if different:
        sys.exit(f"{folder}: {len(different)} of {len(expected)} differ: {', '.join(different)}")


def undisturbed(top: str, folder: str, kind: str) -> int:
    """Trains without a kill. Returns the number of changes to the folder. Exits if training fails."""
    changes, code = watch(start(top, folder, kind), folder, float("inf"))
    if code:
        sys.exit(f"{folder}: a start ended with exit code {code}")
    return changes


def loop(top: str, kind: str, kills: int, rng: random.Random) -> collections.Counter[str]:
    """Kills `kills` times and returns counts by activity. Exits if a start fails or has another result."""
    if kind == "fine_tuned":
        undisturbed(top, os.path.join(top, "parent"), "parent")
    whole = os.path.join(top, kind)
    changes = undisturbed(top, whole, kind)
    expected, moments, folders = result(whole), collections.Counter[str](), 0
    ended = json.loads(expected["selection"])["reason"] or "not by patience"
    print(f"{kind}, undisturbed: {changes} changes seen, {len(expected)} files and variables", flush=True)
    print(f"{kind}: ended at step {expected['step']} of {STEPS}: {ended}", flush=True)
    while moments.total() < kills:
        folder = os.path.join(top, f"{kind}{folders}")
        child = start(top, folder, kind)
        seen, code = watch(child, folder, rng.randint(1, max(changes // 3, 1)))
        if code is None:
            time.sleep(rng.uniform(0, LATE))
            os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == -signal.SIGKILL:
            moments[what := moment(folder)] += 1
            print(f"kill {moments.total()} of {kills}: after {seen} changes, {what}", flush=True)
        elif code:
            sys.exit(f"{folder}: a start ended with exit code {code}")
        else:
            compare(expected, folder)
            folders += 1
    last = os.path.join(top, f"{kind}{folders}")
    undisturbed(top, last, kind)
    compare(expected, last)
    print(f"{kind}: {folders + 1} training runs were completed, each identical to the undisturbed one", flush=True)
    return moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1706, help="of the text and of the moments")
    parser.add_argument("--kind", default=",".join(KINDS), help="of run (default: %(default)s)")
    arguments = parser.parse_args()
    kinds = arguments.kind.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"unknown kind {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a process with a GPU cannot be forked
    import tensorflow  # noqa: F401  (once, for every start)

    with tempfile.TemporaryDirectory() as top:
        write_text(top, arguments.seed)
        rng, moments = random.Random(arguments.seed), collections.Counter[str]()
        for number, kind in enumerate(kinds):
            moments += loop(top, kind, len(range(number, arguments.kills, len(kinds))), rng)
    print(f"{arguments.kills} kills: " + ", ".join(f"{number} in {what}" for what, number in sorted(moments.items())))


if __name__ == "__main__":
    main()
