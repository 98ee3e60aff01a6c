"""The learning rate (section 5.3, eq. 3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from t2t_repro.config import HParams
from t2t_repro.training.optimizer import learning_rate

BASE = HParams(name="base", description="")


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.99e-4), (1024, 4.94e-4)])
def test_the_papers_peak(d_model, peak):
    """PAPER.md gives three digits: (4000 d_model)^-0.5 at step 4,000."""
    hparams = replace(BASE, d_model=d_model)
    assert learning_rate(4_000, hparams) == pytest.approx(peak, rel=1e-3)
    assert learning_rate(4_000, hparams) == pytest.approx((4_000 * d_model) ** -0.5, rel=1e-12)
    assert max(range(3_990, 4_010), key=lambda step: learning_rate(step, hparams)) == 4_000


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (1, 1 / 8000),  # d_model 64 and warmup 100: 1/8 * min(step^-0.5, step / 1000)
        (10, 10 / 8000),
        (100, 1 / 80),
        (400, 1 / 160),
        (10_000, 1 / 800),
    ],
)
def test_hand_worked_rates(step, rate):
    assert learning_rate(step, replace(BASE, d_model=64, warmup_steps=100)) == pytest.approx(rate, rel=1e-12)


def test_linear_warm_up_then_inverse_square_root():
    assert learning_rate(3_000, BASE) == pytest.approx(3 * learning_rate(1_000, BASE))
    assert learning_rate(100_000, BASE) == pytest.approx(learning_rate(4_000, BASE) / 5)


def test_a_scale():
    assert learning_rate(7, replace(BASE, learning_rate_scale=2.5)) == pytest.approx(2.5 * learning_rate(7, BASE))


def test_decay_to_zero():
    """The last 4 of 10 steps have 4/4, 3/4, 2/4 and 1/4 of the rate of eq. 3; the others are as before."""
    decays = replace(BASE, train_steps=10, decay_steps=4)
    shares = [learning_rate(step, decays) / learning_rate(step, BASE) for step in range(1, 12)]
    assert shares == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0])
    assert learning_rate(10, replace(decays, decay_steps=1)) == learning_rate(10, BASE)


@pytest.mark.parametrize("step", [0, -1])
def test_steps_start_at_one(step):
    with pytest.raises(ValueError, match=f"steps count from 1, got {step}"):
        learning_rate(step, BASE)
