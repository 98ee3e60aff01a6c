"""English constituency parsing (section 6.3): the words of a sentence in, its tree out, scored by labelled brackets.

    We agree .                                   the source: tokens as the treebank has them, -LRB- for a bracket
    ǀS ǀNP We ǁNP ǀVP agree ǁVP . ǁS             the target: (S (NP (PRP We)) (VP (VBP agree)) (. .)), linearised
    (S (NP (XX We)) (VP (XX agree)) (. .))       what t2t-decoder makes of it

The parser neither sees parts of speech nor writes any: bracket F1 does not count them, and Vinyals et al. 2015 gained
a point by leaving them out. EVALB deletes punctuation by its tag, though, so that F1 is computed with the gold tags set
under the parser's brackets; without gold, a tree has the tags that signs tell by themselves, and XX for words.

Trees are cleaned of traces, function tags and indices, in training and in what they are scored against (`trees.clean`).
The targets of 30,805 trees at hand have 73 pieces on average; hence `max_length`, which one of them exceeds.
"""

from __future__ import annotations

from t2t_repro.problem import Problem, Trees
from t2t_repro.registry import PROBLEMS

MAX_LENGTH = 1_024

# The usual sections, and the number of trees that they have in the complete treebank.
TRAIN = Trees(sections=tuple(range(2, 22)), number=39_832)
VALIDATION = Trees(sections=(22,), number=1_700)
TEST = Trees(sections=(23,), number=2_416)

PARSE_WSJ = PROBLEMS.register(
    Problem(
        name="parse_wsj",
        description="parsing: Wall Street Journal, sections 02-21, 22 and 23, of your Penn Treebank: --raw_dir",
        source_language="en",
        train=(TRAIN,),
        validation=(VALIDATION,),
        test=(TEST,),
        vocab_size=16_000,
        max_length=MAX_LENGTH,
        metric="f1",
    )
)

PARSE_WSJ_SEMISUPERVISED = PROBLEMS.register(
    Problem(
        name="parse_wsj_semisupervised",
        description="the same, and trees that another parser made to train on besides: --raw_dir, --train_trees",
        source_language="en",
        train=(TRAIN, Trees(by_parser=True)),
        validation=(VALIDATION,),
        test=(TEST,),
        vocab_size=32_000,
        max_length=MAX_LENGTH,
        metric="f1",
    )
)

PARSE_FILES = PROBLEMS.register(
    Problem(
        name="parse_files",
        description="parsing: your own treebank, in Penn Treebank bracketing (.gz read too): --train_trees, ...",
        vocab_size=8_000,
        max_length=MAX_LENGTH,
        metric="f1",
    )
)
