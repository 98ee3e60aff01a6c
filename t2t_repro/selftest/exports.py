"""Tasks that export a run in one process and load the export in another one."""

from __future__ import annotations

import os

from t2t_repro.exporting.exported_model import ExportedModel
from t2t_repro.exporting.exporter import export
from t2t_repro.inference.translator import Translator
from t2t_repro.selftest.training import pairs

TEXTS = [source for source, _ in pairs(290, 310)]
N_BEST = 4
TOLERANCE = 1e-3  # relative, of a score: run and export sum in different orders

Translations = list[list[tuple[str, float]]]  # for each text its translations with their scores


def write(folder: str) -> Translations:
    """Exports the run in `folder`, and returns the translations of the run itself.

    Both compute in float32: in a narrower precision, another order of summation may change a translation.
    """
    output_dir = os.path.join(folder, "run")
    export(output_dir, os.path.join(folder, "export"), precision="float32")
    return Translator.from_run(output_dir, precision="float32").n_best(TEXTS, N_BEST)


def compare(folder: str, expected: Translations) -> dict[str, str]:
    """Returns as "fault" how the export in `folder` differs from the run; "" if strings and scores are the same."""
    found = ExportedModel(os.path.join(folder, "export")).n_best(TEXTS, N_BEST)
    for text, original, exported in zip(TEXTS, expected, found, strict=True):
        if [string for string, _ in original] != [string for string, _ in exported]:
            return {"fault": f"{text!r} is translated as {exported[0][0]!r}, and by the run as {original[0][0]!r}"}
        for (_, score), (_, other) in zip(original, exported, strict=True):
            if not abs(score - other) <= TOLERANCE * max(1, abs(score)):
                return {"fault": f"a score of {text!r} is {other:.4f}, and by the run {score:.4f}"}
    return {"fault": "", "note": f"{len(TEXTS)} sentences, the best {N_BEST} of each"}
