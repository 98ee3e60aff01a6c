"""Training on two machines: here two processes, which TensorFlow connects over the loopback interface.

They are started like a user would start them: by the same command, each with another TF_CONFIG. These tests are slow.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from conftest import CHECKOUT
from helpers.subprocesses import free_ports
from helpers.tiny_model import PROBLEM, values

from t2t_repro.config import TrainingOptions
from t2t_repro.run import Run
from t2t_repro.training.checkpointing.checkpoint_list import paths
from t2t_repro.training.distributed import coordination
from t2t_repro.training.distributed.rendezvous import Cluster

MACHINE = CHECKOUT / "tests/helpers/worker_process.py"
PATIENCE = 1200  # seconds for what takes ten: a process that hangs fails the test and does not hang it
OPTIONS = TrainingOptions()
STEPS = 400  # of a run that is interrupted


class Ended(NamedTuple):
    """The outcome of one machine's process."""

    code: int
    out: str
    err: str


def start(data: str, output_dir: str, steps: int, ports: list[int], index: int = 0, *flags: str, **environment: str):
    """Starts the same command on every machine; with one port, on a single machine."""
    addresses = [f"localhost:{port}" for port in ports]
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    command = [sys.executable, str(MACHINE), f"--problem={PROBLEM.name}", "--hparams=smallest", "--precision=float32"]
    command += [f"--data_dir={data}", f"--output_dir={output_dir}", f"--train_steps={steps}", "--checkpoint_steps=20"]
    own = {"TF_CONFIG": json.dumps(config), "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/tests", **environment}
    return subprocess.Popen(
        [*command, "--split=validation", *flags],
        env=os.environ | own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(*machines: subprocess.Popen) -> list[Ended]:
    try:
        texts = [machine.communicate(timeout=PATIENCE) for machine in machines]
    finally:
        for machine in machines:
            machine.kill()
    return [Ended(machine.returncode, *text) for machine, text in zip(machines, texts, strict=True)]


def two(data: str, output_dir: str, steps: int, *flags: str, **environment: str) -> list[subprocess.Popen]:
    ports = free_ports(2)
    return [start(data, output_dir, steps, ports, index, *flags, **environment) for index in (0, 1)]


def last_line(machine: Ended) -> str:
    assert "Traceback" not in machine.err, machine.err
    return machine.err.strip().rpartition("\n")[2]


def weights(output_dir: str, step: int) -> dict[str, np.ndarray]:
    """Returns all variables of a checkpoint except the seconds of training."""
    return {name: value for name, value in values(Run.open(output_dir), step).items() if "spent" not in name}


def assembled(file: Path) -> dict[tuple[int, ...], set[int]]:
    """Returns the pairs that a machine assembled for the steps that are complete, by the position after the step.

    Batches are prefetched, and the process may have ended in the middle of a step, which is left out.
    """
    found: dict[tuple[int, ...], list[int]] = {}
    elements: dict[tuple[int, ...], int] = {}
    for line in file.read_text("utf-8").splitlines():
        position, spans = json.loads(line)
        elements[tuple(position)] = elements.get(tuple(position), 0) + 1
        found.setdefault(tuple(position), []).extend(pair for span in spans for pair in range(*span))
    most = max(elements.values())
    whole = {position: pairs for position, pairs in found.items() if elements[position] == most}
    assert all(len(set(pairs)) == len(pairs) for pairs in whole.values())
    return {position: set(pairs) for position, pairs in whole.items()}


def wait_for_checkpoint(output_dir: str, machines: list[subprocess.Popen], steps: int = 0) -> None:
    """Waits for a checkpoint after more than `steps` steps."""
    patience = time.monotonic() + PATIENCE
    index = Path(output_dir) / "checkpoints" / "checkpoint"
    while time.monotonic() < patience and all(machine.poll() is None for machine in machines):
        if index.exists() and int(re.findall(r"ckpt-(\d+)", index.read_text() + " ckpt-0")[0]) > steps:
            return
        time.sleep(0.05)
    raise AssertionError([ended.err for ended in end(*machines)])


@pytest.mark.slow
def test_two_machines_of_two_devices_equal_a_single_device(data, tmp_path):
    """Takes five steps of the same pairs in four micro-batches, each with the same dropout on any device.

    The order of sums changes rounding. Only the chief writes and scores. Each machine assembles its own pairs, and no
    others.
    """
    alone, together, ports = str(tmp_path / "ALONE"), str(tmp_path / "TOGETHER"), free_ports(2)
    files = [tmp_path / f"assembled-{machine}" for machine in ("chief", "worker", "alone")]
    options = [{"REPLICAS": "2", "PART": "500", "ASSEMBLED": str(file)} for file in files]
    chief, worker = end(*(start(data, together, 5, ports, index, **options[index]) for index in (0, 1)))
    assert (chief.code, worker.code) == (0, 0), chief.err + worker.err
    assert "4 replicas" in chief.err and "BLEU" in chief.out and not worker.out
    (one,) = end(start(data, alone, 5, free_ports(1), PART="500", ASSEMBLED=str(files[2])))
    assert one.code == 0, one.err
    own, others, every = map(assembled, files)
    positions = own.keys() & others.keys() & every.keys()
    assert len(positions) >= 5 and sum(bool(others[position]) for position in positions) >= 3  # a short step has fewer
    for position in positions:
        assert own[position] and not own[position] & others[position]
        assert own[position] | others[position] == every[position]
    assert Run.open(together).training.replicas == 4 and Run.open(alone).training.replicas == 1
    for name, expected in weights(alone, 5).items():
        found = weights(together, 5)[name]
        assert np.linalg.norm(found - expected) <= 1e-3 * np.linalg.norm(expected), name
    spent = [Run.open(directory).training for directory in (alone, together)]
    assert spent[0].target_tokens == spent[1].target_tokens
    assert len(list(Path(together).glob("events.out.*.v2"))) == 1  # the scores have a file of their own


@pytest.mark.slow
def test_two_machines_start_from_a_run_that_only_the_chief_has(data, trained, tmp_path):
    """The worker gets the weights from the chief, before the first step."""
    alone, together, ports = str(tmp_path / "ALONE"), str(tmp_path / "TOGETHER"), free_ports(2)
    chief = start(data, together, 2, ports, 0, f"--init_from={trained.directory}", PART="500")
    worker = start(data, together, 2, ports, 1, "--init_from=missing", PART="500")
    chief, worker = end(chief, worker)
    assert (chief.code, worker.code) == (0, 0), chief.err + worker.err
    assert "checkpoint at step 0: validation ppl" in chief.err
    (one,) = end(start(data, alone, 2, free_ports(1), 0, f"--init_from={trained.directory}", PART="500"))
    assert one.code == 0, one.err
    for name, expected in weights(alone, 2).items():
        found = weights(together, 2)[name]
        assert np.linalg.norm(found - expected) <= 1e-3 * np.linalg.norm(expected), name


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """Returns the variables of the last checkpoint of two machines that were not interrupted."""
    output_dir = str(tmp_path_factory.mktemp("undisturbed") / "RUN")
    assert [machine.code for machine in end(*two(data, output_dir, STEPS))] == [0, 0]
    return weights(output_dir, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("struck", "name", "number"), [(0, "the chief", signal.SIGINT), (1, "worker 1", signal.SIGTERM)]
)
def test_stopped_killed_and_continued_equals_uninterrupted(data, tmp_path, undisturbed, struck, name, number):
    """A signal to one machine stops both after the same update, saved; it is killed in mid-run, and the other stops;
    at the end they have, to the bit, what two that nobody disturbed have.
    """
    output_dir, left = str(tmp_path / "RUN"), 1 - struck
    machines = two(data, output_dir, STEPS)
    wait_for_checkpoint(output_dir, machines)
    machines[struck].send_signal(number)
    stopped = end(*machines)
    assert [machine.code for machine in stopped] == [128 + number] * 2, stopped
    line = f"t2t-trainer: stopped by {number.name}; the same command continues"
    assert [last_line(machine) for machine in stopped] == [line, line]
    reached = Run.open(output_dir).training.step
    assert 20 < reached < STEPS and paths(Run.open(output_dir))[-1].endswith(f"ckpt-{reached}")

    machines = two(data, output_dir, STEPS)
    wait_for_checkpoint(output_dir, machines, reached)
    machines[struck].kill()
    killed = time.monotonic()
    ended = end(*machines)
    assert ended[left].code == 1 and time.monotonic() - killed < 60, ended[left].err
    assert f"continuing {output_dir} at step {reached}" in ended[0].err
    assert re.fullmatch(
        rf"t2t-trainer: ({name} \(localhost:\d+\)|another machine) disconnected; the last checkpoint is intact: "
        "restart all machines with the same command",
        last_line(ended[left]),
    )

    assert [machine.code for machine in end(*two(data, output_dir, STEPS))] == [0, 0]
    found = weights(output_dir, STEPS)
    assert found.keys() == undisturbed.keys()
    for variable, value in undisturbed.items():
        np.testing.assert_array_equal(found[variable], value, err_msg=variable)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--patience=1", "--override=learning_rate_scale=40"], "the score is no better"),
        (["--train_minutes=0.05"], "--train_minutes=0.05 are over"),
        (["--train_epochs=2"], "--train_epochs=2 passes over the data are done"),
    ],
    ids=["patience", "minutes", "epochs"],
)
def test_two_machines_end_after_the_same_step(data, tmp_path, flags, reason):
    """The chief decides, and the worker ends too. The same commands then take no further step."""
    output_dir = str(tmp_path / "RUN")
    for _ in range(2):
        chief, worker = end(*two(data, output_dir, 100_000, *flags))
        assert (chief.code, worker.code) == (0, 0), chief.err + worker.err
        (line,) = [line for line in chief.err.splitlines() if line.startswith("ended at step")]
        assert reason in line and worker.err.strip().endswith("done; the chief holds the run and scores it")
    run = Run.open(output_dir)
    assert 0 < run.last_step == run.training.step < 100_000
    assert chief.err.count(f"continuing {output_dir} at step {run.last_step:,}") == 1 and "|g|" not in chief.err


@pytest.mark.slow
def test_a_missing_worker_process(data, tmp_path):
    output_dir = tmp_path / "RUN"
    (chief,) = end(start(data, str(output_dir), 5, free_ports(2), T2T_REPRO_START_SECONDS="2"))
    assert chief.code == 1 and not output_dir.exists()
    assert re.fullmatch(
        r"t2t-trainer: worker 1 \(localhost:\d+\) did not connect within 2 s; "
        "start the same command there, or correct TF_CONFIG",
        last_line(chief),
    )


@pytest.mark.slow
def test_a_worker_without_the_data(data, tmp_path):
    """The chief prepares; another machine, whose --data_dir is not the chief's, says what to do, and both end."""
    ports = free_ports(2)
    chief = start(data, str(tmp_path / "RUN"), 5, ports, 0)
    worker = start(str(tmp_path / "elsewhere"), str(tmp_path / "OTHER"), 5, ports, 1)
    chief, worker = end(chief, worker)
    message = f"no prepared data in {str(tmp_path / 'elsewhere' / PROBLEM.name)!r}, and only the chief prepares data; "
    assert chief.code == worker.code == 1
    assert last_line(worker).startswith(f"t2t-trainer: {message}give a --data_dir that all machines share")
    assert message in last_line(chief) and "stopped: " in last_line(chief)
    assert not (tmp_path / "elsewhere").exists() and not (tmp_path / "OTHER").exists()


def test_a_disconnected_machine_is_named():
    """The error texts are those of TensorFlow 2.21, which name tasks."""
    cluster = Cluster(("a:1", "b:2", "c:3"), (("chief", 0), ("worker", 0), ("worker", 1)), index=1)
    for text, name in [
        ("tasks are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:1\n", "worker 1 (c:3)"),
        ("Socket closed\n from remote target /job:chief/replica:0/task:0 while calling", "the chief (a:1)"),
        ("Error reported from /job:worker/task:0: /job:chief/task:0", "the chief (a:1)"),
        ("Socket closed", "another machine"),
    ]:
        with pytest.raises(ConnectionError, match=f"^{re.escape(name)} disconnected; the last checkpoint is intact"):
            with coordination.worker_failures_named(cluster):
                raise tf.errors.UnavailableError(None, None, text)


def test_other_errors_are_not_disconnections():
    two = Cluster(("a:1", "b:2"), (("worker", 0), ("worker", 1)))
    for cluster, error in [(two, tf.errors.InvalidArgumentError), (Cluster(), tf.errors.UnavailableError)]:
        with pytest.raises(error, match="shapes differ"), coordination.worker_failures_named(cluster):
            raise error(None, None, "shapes differ")


def test_another_machine_only_reads_the_data(data, tmp_path):
    assert coordination.open_prepared(PROBLEM, data).shards("train")
    with pytest.raises(
        FileNotFoundError, match="no prepared data in '.*/animals', and only the chief prepares data; give"
    ):
        coordination.open_prepared(PROBLEM, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_run_config(trained, data):
    """The hyperparameter set and the text count; paths and storage do not."""
    prepared = coordination.open_prepared(PROBLEM, data)
    facts = coordination.run_config(trained, prepared, OPTIONS)
    assert (facts["problem"], facts["d_model"], facts["seed"], facts["precision"]) == ("animals", 16, 1, "float32")
    assert facts["SHA-256 of the vocabulary"] == trained.vocabulary_sha256
    elsewhere = replace(trained, directory="elsewhere", data_dir="there")
    assert coordination.run_config(elsewhere, prepared, OPTIONS) == facts
    assert coordination.run_config(elsewhere, prepared, replace(OPTIONS, microbatch_tokens=16)) != facts
    assert coordination.run_config(elsewhere, prepared, replace(OPTIONS, jit_compile=True)) != facts
    longer = replace(trained, hparams=replace(trained.hparams, train_steps=9))
    assert coordination.run_config(longer, prepared, OPTIONS) != facts


def test_a_single_machine_stops_immediately():
    caught: list[int] = []
    stop = coordination.CoordinatedStop(Cluster(), tf.distribute.get_strategy(), caught)
    assert not stop() and stop.signal == 0
    caught.append(signal.SIGTERM)
    assert stop() and stop.signal == signal.SIGTERM
