"""A tiny treebank in the format of the Penn Treebank's Wall Street Journal.

The sentences are made up. Each tree spans many lines, with traces, function tags, indices, and an unlabeled outer
bracket.
"""

from __future__ import annotations

import gzip
import random
from pathlib import Path

NOUNS = "cat dog house garden river market company letter teacher engine window friend".split()
NAMES = "Anna Berta Clara Doris Emil Franz Gustav Hanna".split()
SEEN = "sees likes finds wants meets leaves hears follows".split()
BEEN = "seen liked found wanted met left heard followed".split()

ACTIVE = """( (S
    (NP-SBJ (NNP {name}) )
    (VP (VBZ {seen})
      (NP (DT the) (NN {noun}) ))
    (. .) ))"""
PASSIVE = """( (S
    (NP-SBJ-1
      (NP (DT The) (NN {noun}) )
      (PP-LOC (IN near)
        (NP (NNP {name}) )))
    (VP (VBD was)
      (VP (VBN {been})
        (NP (-NONE- *-1) )
        (ADVP-TMP (RB today) )))
    (. .) ))"""
QUOTED = """( (S (`` ``)
    (S-TPC-2
      (NP-SBJ (DT A) (NN {noun}) (-LRB- -LRB-) (CD {number}) (-RRB- -RRB-) )
      (VP (VBZ {seen})
        (NP=3 (NNP {name}) )))
    (, ,) ('' '')
    (NP-SBJ (NNP {other}) )
    (VP (VBZ says)
      (SBAR (-NONE- 0)
        (S (-NONE- *T*-2) )))
    (. .) ))"""
NOTHING = "( (NP (-NONE- *) ))"  # no words but a trace: omitted


def trees(seed: int, number: int) -> str:
    """Returns `number` trees as the text of a treebank file."""
    rng = random.Random(seed)
    return "\n".join(
        ["", NOTHING]
        + [
            rng.choice((ACTIVE, PASSIVE, QUOTED)).format(
                name=rng.choice(NAMES),
                other=rng.choice(NAMES),
                noun=rng.choice(NOUNS),
                seen=rng.choice(SEEN),
                been=rng.choice(BEEN),
                number=rng.randint(1, 99),
            )
            for _ in range(number)
        ]
    )


def write(folder: Path, sections: range = range(0, 25), number: int = 4) -> str:
    """Writes two articles of `number` trees per section, one of them gzipped: 02/wsj_0200.mrg, 02/wsj_0201.mrg.gz."""
    for section in sections:
        (folder / f"{section:02d}").mkdir(parents=True)
        for article in (0, 1):
            path = folder / f"{section:02d}" / f"wsj_{section:02d}{article:02d}.mrg"
            text = trees(100 * section + article, number).encode()
            path.write_bytes(text) if article == 0 else Path(f"{path}.gz").write_bytes(gzip.compress(text))
    return str(folder)
