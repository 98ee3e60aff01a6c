"""Precision: what "auto" stands for on each kind of device, and when GPUs may round to TF32."""

from __future__ import annotations

import shutil

import pytest
import tensorflow as tf
from helpers.tiny_model import PROBLEM, TINY

from t2t_repro.config import TrainingOptions
from t2t_repro.training import hardware, precision, trainer
from t2t_repro.training.trainer import train


@pytest.fixture
def gpus(monkeypatch):
    """`gpus((8, 0), (7, 5))`: TensorFlow reports GPUs of these compute capabilities."""

    def present(*capabilities: tuple[int, int]) -> None:
        found = dict(enumerate(capabilities))
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: list(found))
        details = lambda gpu: {"compute_capability": found[gpu]}  # noqa: E731
        monkeypatch.setattr(tf.config.experimental, "get_device_details", details)

    return present


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [([(9, 0)], "bfloat16"), ([(8, 0), (7, 5)], "float16"), ([(7, 0)], "float16"), ([(6, 1), (9, 0)], "float32")],
)
def test_auto_is_what_the_oldest_gpu_computes_fast(gpus, capabilities, expected):
    gpus(*capabilities)
    assert precision.resolve("auto") == expected


def test_tf32_is_for_gpus_that_have_it(gpus):
    gpus((8, 0))
    assert precision.resolve("tf32") == "tf32"
    gpus((7, 5))
    with pytest.raises(ValueError, match=r"compute capability 8.0 or later. Received: \(7, 5\); take 'float32'"):
        precision.resolve("tf32")


def test_auto_continues_a_run_in_its_own_precision(trained, data, tmp_path, monkeypatch):
    """Whatever the machine at hand computes fastest."""
    run = shutil.copytree(trained.directory, str(tmp_path / "RUN"))
    for other in ("bfloat16", "float16"):
        monkeypatch.setattr(trainer.precisions, "resolve", lambda name, other=other: other if name == "auto" else name)
        assert trainer.chosen_precision("auto", run) == trained.precision == "float32"
        assert trainer.chosen_precision("auto", str(tmp_path / "NEW")) == other
    with pytest.raises(ValueError, match="its precision is 'float32', not 'float16'"):
        train(PROBLEM, TINY, data, run, TrainingOptions(precision="float16"))


def test_float32_is_not_tf32(trained):
    """TensorFlow multiplies float32 in TF32 on GPUs from 8.0 on unless it is told not to."""
    import t2t_repro

    tf.config.experimental.enable_tensor_float_32_execution(True)
    t2t_repro.load(trained.directory)
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
    precision.allow_tf32(True)
    assert tf.config.experimental.tensor_float_32_execution_enabled()
    precision.allow_tf32(False)


def test_a_gpu_that_tensorflow_does_not_see_is_reported(gpus, monkeypatch, tmp_path):
    monkeypatch.setattr(hardware, "NVIDIA", str(tmp_path / "nvidia0"))
    assert hardware.unused_gpu() == ""
    (tmp_path / "nvidia0").touch()
    assert hardware.unused_gpu().startswith(f"warning: there is an NVIDIA GPU ({tmp_path / 'nvidia0'}), but TensorFlow")
    gpus((8, 0))
    assert hardware.unused_gpu() == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "half"}, "precision must be one of auto, float32, tf32, bfloat16, float16, got 'half'"),
        ({"seed": 2**18}, "seed must be at least 0 and below 262144, got 262144"),
        ({"microbatch_tokens": -1}, "microbatch_tokens must be at least 0, got -1"),
        ({"checkpoint_minutes": float("nan")}, "checkpoint_minutes must be at least 0, got nan"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        TrainingOptions(**options)
