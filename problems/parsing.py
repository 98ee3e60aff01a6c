"""English constituency parsing (section 6.3): words in, tree out, scored by labeled brackets.

    We agree .                                   the source: tokens as the treebank has them, -LRB- for a bracket
    ǀS ǀNP We ǁNP ǀVP agree ǁVP . ǁS             the target: (S (NP (PRP We)) (VP (VBP agree)) (. .)), linearized
    (S (NP (XX We)) (VP (XX agree)) (. .))       the output of t2t-decoder

The parser neither reads nor writes parts of speech: bracket F1 does not count them, and Vinyals et al. 2015 gained a
point by leaving them out. EVALB, however, deletes punctuation by its tag. So F1 is computed with the gold tags under
the parser's brackets. Without gold, punctuation is tagged by its character and every word as XX.

Traces, function tags and indices are removed from trees, both in training and in the gold trees (`trees.clean`). In
30,805 available trees, the targets have 73 subwords on average, and one of them exceeds `max_length`.
"""

from __future__ import annotations

from dataclasses import replace

from t2t_repro.problem import Problem, Trees
from t2t_repro.registry import PROBLEMS

MAX_LENGTH = 1_024
EXAMPLE = "The Law will never be perfect , but its application should be just ."

# The usual sections, and their number of trees in the complete treebank.
TRAIN = Trees(sections=tuple(range(2, 22)), number=39_832)
VALIDATION = Trees(sections=(22,), number=1_700)
TEST = Trees(sections=(23,), number=2_416)

PARSE_WSJ = PROBLEMS.register(
    Problem(
        name="parse_wsj",
        description="parsing: Wall Street Journal, sections 02-21, 22 and 23, of your Penn Treebank: `raw_dir`",
        source_language="en",
        example=EXAMPLE,
        train=(TRAIN,),
        validation=(VALIDATION,),
        test=(TEST,),
        vocab_size=16_000,
        max_length=MAX_LENGTH,
        metric="f1",
    )
)

PARSE_WSJ_SEMISUPERVISED = PROBLEMS.register(
    replace(
        PARSE_WSJ,
        name="parse_wsj_semisupervised",
        description="parse_wsj, and training trees from another parser: `raw_dir`, `train_trees`",
        train=(TRAIN, Trees(by_parser=True)),
        vocab_size=32_000,
    )
)

PARSE_FILES = PROBLEMS.register(
    Problem(
        name="parse_files",
        description="parsing: your own treebank, in Penn Treebank bracketing (.gz read too): `train_trees`, ...",
        vocab_size=8_000,
        max_length=MAX_LENGTH,
        metric="f1",
    )
)
