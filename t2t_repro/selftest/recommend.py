"""Recommends options for a machine, with reasons, from its measurements and from the trainer's own choice."""

from __future__ import annotations

from typing import Any, NamedTuple

GIB = 2**30
WORTH = 1.1  # minimum speedup for an option that is not the default
SMALL = "tiny"  # its step is not bound by matrix products


class Recommendation(NamedTuple):
    option: str  # of a program, or an environment variable
    value: str | bool | int
    reason: str


def recommendations(
    machine: dict[str, Any],
    products: dict[str, Any],
    speed: list[dict[str, Any]],
    other_onednn: tuple[bool, float] | None = None,
) -> list[Recommendation]:
    """Returns one recommendation per option. `other_onednn` is that of `timing`, if it was measured."""
    measured = {(row["set"], row["precision"], row["xla"]): row for row in speed if "seconds" in row}
    return [
        _precision(machine, products, measured),
        _jit_compile(machine["auto_precision"], measured),
        _int8(machine["auto_precision"], products),
        _threads(machine),
        _micro_batch(machine, measured),
        *([_onednn(*other_onednn)] if other_onednn else []),
    ]


def _precision(machine: dict[str, Any], products: dict[str, Any], measured: dict[Any, Any]) -> Recommendation:
    """Recommends the trainer's choice, unless its products are wrong here or another precision is faster.

    A step of base, or of big, decides if it was measured in both. Otherwise the rates of products decide.
    """
    auto = machine["auto_precision"]
    other = "bfloat16" if auto == "float32" else "float32"
    if products[auto].get("fault"):
        return Recommendation("precision", "float32", f"auto is {auto}, whose products are wrong here")
    gains, rates = (
        _ratios(measured, (other, False), (auto, False)),
        [products[each].get("rate") for each in (other, auto)],
    )
    if gains.keys() - {SMALL}:
        gain, how = min(gains.values()), _times(gains)
    else:
        gain = rates[0] / rates[1] if all(rates) else 0.0
        how = f"products {gain:.2f} times"
    if gain >= WORTH and not products[other].get("fault"):
        return Recommendation("precision", other, f"{how} as fast as in {auto}, the choice of auto")
    ratios = _ratios(measured, (auto, False), (other, False))
    compared = f"; {_times(ratios)} as fast as {other}" if ratios else ""
    return Recommendation("precision", "auto", f"{auto}: {machine['auto_reason']}{compared}")


def _jit_compile(auto: str, measured: dict[Any, Any]) -> Recommendation:
    ratios = _ratios(measured, (auto, True), (auto, False))
    if not ratios:
        return Recommendation("jit_compile", False, "XLA was not measured; it is off by default")
    unmeasured = "" if "base" in ratios else "; base was not measured"
    reason = f"with XLA {_times(ratios)} as fast in {auto}{unmeasured}"
    return Recommendation("jit_compile", min(ratios.values()) >= WORTH, reason)


def _int8(auto: str, products: dict[str, Any]) -> Recommendation:
    int8 = products["int8"]
    if "rate" not in int8 or not products[auto].get("decoding_rate"):
        return Recommendation("int8", False, int8.get("missing") or "its products are wrong here")
    ratio = int8["decoding_rate"] / products[auto]["decoding_rate"]
    reason = f"products of base's decoding {ratio:.1f} times as fast as in {auto}"
    return Recommendation("int8", ratio >= WORTH, reason)


def _threads(machine: dict[str, Any]) -> Recommendation:
    if machine["gpus"]:
        return Recommendation("threads_per_batch", 0, "a GPU computes: one batch at a time")
    several = f"{machine['cores']} batches at a time, one on each core; 0 for single sentences of big models"
    return Recommendation("threads_per_batch", 1, several if machine["cores"] > 1 else "there is one core")


def _micro_batch(machine: dict[str, Any], measured: dict[Any, Any]) -> Recommendation:
    """Reports the micro-batches of base, or of big if it was measured: of the set that needs more memory."""
    auto, reason = machine["auto_precision"], "not measured: the trainer halves micro-batches if memory runs out"
    if rows := [row for (name, precision, _), row in measured.items() if precision == auto and name != SMALL]:
        row = max(rows, key=lambda row: row["peak_bytes"])
        memory = min((gpu["memory_bytes"] for gpu in machine["gpus"]), default=machine["memory_bytes"])
        used = f"take {row['peak_bytes'] / GIB:.1f} of {memory / GIB:.1f} GiB"
        reason = f"{row['micro_batches']} micro-batches per step of {row['set']} {used}"
    return Recommendation("microbatch_tokens", 0, reason)


def _onednn(other: bool, ratio: float) -> Recommendation:
    """`ratio` is the speed with oneDNN in the state `other` over the speed in the present state."""
    reason = f"with oneDNN {'on' if other else 'off'} {SMALL} is {ratio:.2f} times as fast"
    best = other if ratio >= WORTH else not other
    return Recommendation("TF_ENABLE_ONEDNN_OPTS", int(best), reason)


def _ratios(measured: dict[Any, Any], one: tuple[str, bool], other: tuple[str, bool]) -> dict[str, float]:
    """Returns the speed of `one` (precision, XLA) over that of `other`, for each hyperparameter set with both."""
    sets = [name for name, *rest in measured if tuple(rest) == one and (name, *other) in measured]
    return {name: measured[name, *other]["seconds"] / measured[name, *one]["seconds"] for name in sets}


def _times(ratios: dict[str, float]) -> str:
    return " and ".join(f"{name} {ratio:.2f} times" for name, ratio in ratios.items())
