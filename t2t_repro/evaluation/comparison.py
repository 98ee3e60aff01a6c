"""`compare`: whether one of two systems is better than the other, and the sentences in which they differ most.

Both systems have outputs for the same sentences. Paired bootstrap resampling (Koehn, 2004) and approximate
randomization (Riezler and Maxwell, 2005) are those of sacreBLEU, with the samples that it draws from a seed. Samples
with exactly the difference of the systems count here, as a test by randomization requires (Phipson and Smyth, 2010).
In sacreBLEU they do not, so that with few trees, where many samples are equal, its p is too small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from t2t_repro.run import Run

SEED, RESAMPLES, TRIALS = 12345, 1_000, 10_000  # sacreBLEU's defaults
SIGNIFICANT = 0.05
SHOWN = 5  # sentences in favor of each system
_ROUNDING = 1e-9  # scores in percent that differ by less are equal


@dataclass(frozen=True)
class Compared:
    """The outputs of two systems, A and B, for the same sentences. All sequences are equally long.

    `sources` and `references` are texts; a source that is not known is "". `outputs` are the texts of A and of B, and
    `measured` what the metrics take as their hypotheses. `metrics` are sacreBLEU's or have the methods of its `Metric`
    that `parsing.paired.BracketF1` has; the last one also ranks single sentences. `notes` are remarks for the reader.
    """

    sources: Sequence[str]
    references: Sequence[str]
    outputs: tuple[Sequence[str], Sequence[str]]
    measured: tuple[Sequence[Any], Sequence[Any]]
    metrics: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """The scores of A and B by one metric, in percent, and the tests of their difference."""

    metric: str
    a: float
    b: float
    difference: float  # b - a
    low: float  # 95% interval of the difference, from the resamples of the bootstrap
    high: float
    bootstrap_p: float
    randomization_p: float
    signature: str

    @property
    def is_significant(self) -> bool:
        """True if both tests have p < SIGNIFICANT."""
        return max(self.bootstrap_p, self.randomization_p) < SIGNIFICANT

    @property
    def verdict(self) -> str:
        if not self.is_significant:
            return "not significant"
        return "B is better" if self.difference > 0 else "A is better"


@dataclass(frozen=True)
class Sentence:
    """One sentence with the scores of its outputs; `number` counts from 1."""

    number: int
    a: float
    b: float
    source: str
    reference: str
    output_a: str
    output_b: str


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    `better_a` and `better_b` are the sentences with the largest differences by `ranked_by`, largest first. `gains` are
    the differences b - a of all sentences by it, in their order; 0 if the metric does not count one of the outputs.
    """

    name_a: str
    name_b: str
    sentences: int
    differing: int  # sentences with unequal outputs
    differences: tuple[Difference, ...]
    ranked_by: str
    better_a: tuple[Sentence, ...]
    better_b: tuple[Sentence, ...]
    gains: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values, without `gains`."""
        return {name: value for name, value in asdict(self).items() if name != "gains"}


def compare(
    names: tuple[str, str],
    compared: Compared,
    seed: int = SEED,
    shown: int = SHOWN,
    resamples: int = RESAMPLES,
    trials: int = TRIALS,
) -> Comparison:
    """Tests the difference between two systems by every metric.

    Args:
      names: of A and B.
      compared: their outputs, with at least one sentence.
      seed: of both tests, at least 1: the same seed gives the same result, and sacreBLEU's own 12345 its result.
      shown: the number of sentences to return in favor of each system.
      resamples: of the bootstrap.
      trials: of approximate randomization.
    """
    if seed < 1:
        raise ValueError(f"seed must be at least 1. Received: seed={seed}")
    statistics = {name: _statistics(metric, compared) for name, metric in compared.metrics.items()}
    found = tuple(
        _difference(name, metric, statistics[name], seed, resamples, trials)
        for name, metric in compared.metrics.items()
    )
    *_, (ranked_by, metric) = compared.metrics.items()
    a, b = ([float(metric._compute_score_from_stats(row).score) for row in side] for side in statistics[ranked_by])
    counted = np.all([side.any(axis=1) for side in statistics[ranked_by]], axis=0)
    gains = [other - one if both else 0.0 for one, other, both in zip(a, b, counted, strict=True)]
    return Comparison(
        *names,
        sentences=len(compared.references),
        differing=sum(one != other for one, other in zip(*compared.outputs, strict=True)),
        differences=found,
        ranked_by=ranked_by,
        better_a=_most(compared, a, b, [-gain for gain in gains], shown),
        better_b=_most(compared, a, b, gains, shown),
        gains=tuple(gains),
    )


def _statistics(metric: Any, compared: Compared) -> tuple[np.ndarray, np.ndarray]:
    """Returns the counts of each sentence that the metric adds up, [sentences, counts], of A and of B."""
    a, b = (np.asarray(metric._extract_corpus_statistics(side, [compared.references])) for side in compared.measured)
    return a, b


def _difference(
    name: str,
    metric: Any,
    statistics: tuple[np.ndarray, np.ndarray],
    seed: int,
    resamples: int,
    trials: int,
) -> Difference:
    def scores(sums: Any) -> np.ndarray:
        return np.array([metric._compute_score_from_stats(row).score for row in sums])

    sentences = len(statistics[0])
    a, b = scores([side.sum(axis=0) for side in statistics])

    drawn = np.random.default_rng(seed).choice(sentences, size=(resamples, sentences), replace=True)
    resampled_a, resampled_b = (scores(side[rows].sum(axis=0) for rows in drawn) for side in statistics)
    resampled = np.abs(resampled_b - resampled_a)
    low, high = np.percentile(resampled_b - resampled_a, [2.5, 97.5])

    swaps = np.random.default_rng(seed).integers(2, size=(trials, sentences), dtype=bool)
    exchanged = swaps @ (statistics[0] - statistics[1])
    swapped = scores(statistics[0].sum(axis=0) - exchanged) - scores(statistics[1].sum(axis=0) + exchanged)

    signature = metric.get_signature()
    for key, value in (("bs", resamples), ("ar", trials), ("seed", seed)):
        signature.update(key, value)
    p_values = _p_value(resampled - resampled.mean(), abs(b - a)), _p_value(np.abs(swapped), abs(b - a))
    return Difference(name, float(a), float(b), float(b - a), float(low), float(high), *p_values, str(signature))


def _p_value(samples: np.ndarray, difference: float) -> float:
    """Returns the share of the samples that are at least as large as the difference, which counts as one of them."""
    return float(np.sum(samples >= difference - _ROUNDING) + 1) / (len(samples) + 1)


def _most(
    compared: Compared, a: Sequence[float], b: Sequence[float], gains: Sequence[float], shown: int
) -> tuple[Sentence, ...]:
    """Returns the sentences with the largest positive gains. Of equal gains, that of a longer reference is first."""
    order = sorted(range(len(gains)), key=lambda n: (-gains[n], -len(compared.references[n]), n))
    return tuple(
        Sentence(
            n + 1, a[n], b[n], compared.sources[n], compared.references[n], *(side[n] for side in compared.outputs)
        )
        for n in order[:shown]
        if gains[n] > 0
    )


def compared_runs(
    directories: tuple[str, str],
    split: str = "test",
    data_dir: str | None = None,
    average_checkpoints: int = 1,
    beam_size: int | None = None,
    alpha: float | None = None,
    int8: bool = False,
    precision: str = "auto",
    average_best: bool = False,
    moving_average: bool = False,
) -> Compared:
    """Decodes a split with two runs. The text is that of the first run's prepared data, as are the references.

    The other arguments are those of `evaluate`. Raises ValueError if the runs have different tasks or languages, and
    otherwise as `evaluate`.
    """
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.inference.translator import Translator

    runs = Run.open(directories[0]), Run.open(directories[1])
    for name, found in _kinds(runs).items():
        if all(found) and found[0] != found[1]:
            raise ValueError(
                f"expected two runs with the same {name}. Received: {directories[0]!r} with {found[0]!r} and "
                f"{directories[1]!r} with {found[1]!r}; compare runs for the same text"
            )
    dataset, task = Dataset.of_run(runs[0], data_dir), runs[0].problem.task
    references: list[Any] = []
    outputs: list[list[Any]] = []
    for run in runs:
        translator = Translator.from_run(
            run.directory, average_checkpoints, int8, precision, average_best, moving_average, search_only=True
        )
        references = references or list(task.references(dataset, split, translator.vocabulary))
        outputs.append(run.problem.task.decode(translator, references, beam_size, alpha))  # its linearization
    return task.compared(references, outputs[0], outputs[1])


def _kinds(runs: tuple[Run, Run]) -> dict[str, tuple[str, ...]]:
    """Returns what both runs must have in common, "" if it is not known."""
    problems = [run.problem for run in runs]
    return {
        "task": tuple(problem.task.name for problem in problems),
        "source language": tuple(problem.source_language for problem in problems),
        "target language": tuple(problem.target_language for problem in problems),
    }


def table(result: Comparison) -> str:
    """Returns a comparison as text: the scores, their tests and signatures, and the sentences that differ most."""
    lines = [f"A  {result.name_a}", f"B  {result.name_b}"]
    lines += [size(result), ""]
    lines.append(f"{'':<5}{'A':>7}{'B':>7}{'B - A':>8}  {'95% interval':<18}{'bootstrap':>12}{'randomization':>15}")
    for each in result.differences:
        scores = f"{each.metric:<5}{each.a:7.2f}{each.b:7.2f}{each.difference:+8.2f}  {interval(each):<18}"
        lines.append(f"{scores}{f'p = {each.bootstrap_p:.4f}':>12}{f'p = {each.randomization_p:.4f}':>15}")
    lines += ["", f"{verdicts(result)} (better: p < {SIGNIFICANT} in both tests)", ""]
    lines += [f"{each.metric}  {each.signature}" for each in result.differences]
    for letter, sentences in (("B", result.better_b), ("A", result.better_a)):
        if sentences:
            lines += ["", f"Sentences in which {letter} is better, by {result.ranked_by}"]
        for shown in sentences:
            lines += ["", f"  sentence {shown.number:,}: {shown.a:.1f} by A, {shown.b:.1f} by B"]
            lines += [f"    {name:<11}{text}" for name, text in texts(shown)]
    return "\n".join(lines)


def size(result: Comparison) -> str:
    """Returns `1,000 sentences; the outputs of 812 differ`."""
    return f"{result.sentences:,} sentence{'s' * (result.sentences != 1)}; the outputs of {result.differing:,} differ"


def verdicts(result: Comparison) -> str:
    """Returns the result of the tests by each metric: `BLEU: B is better; chrF: not significant`."""
    return "; ".join(f"{each.metric}: {each.verdict}" for each in result.differences)


def interval(each: Difference) -> str:
    """Returns the 95% interval as text."""
    return f"{each.low:+.2f} to {each.high:+.2f}"


def texts(sentence: Sentence) -> list[tuple[str, str]]:
    """Returns the texts of a sentence with their names: source if it is known, reference, A and B."""
    named = [("source", sentence.source)] if sentence.source else []
    return [*named, ("reference", sentence.reference), ("A", sentence.output_a), ("B", sentence.output_b)]
