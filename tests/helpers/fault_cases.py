"""Every tested fault, grouped by the input that it is in: see `fault_injection.py`."""

from __future__ import annotations

import os
from pathlib import Path

from helpers import small_treebank
from helpers.fault_injection import (
    DATASET,
    DECODE,
    EVALUATE,
    INDEX,
    LIST,
    PARSED,
    PREPARE,
    SHARD,
    TEXT,
    TRAIN,
    TREES,
    VOCABULARY,
    WEIGHTS,
    Area,
    Fault,
    at_work,
    both,
    copied,
    cut,
    edited,
    fewer_lines,
    flip,
    folder,
    full_disk,
    gone,
    little_memory,
    locked_up,
    loop,
    text,
    unprivileged,
    zipped,
)

FRESH = (*PREPARE, "--vocab_size=300", *TEXT)  # prepares again
GZIP = (*PREPARE, "--train_source=train.en.gz", "--train_target=train.de")
AGAIN = (*PREPARE, "--vocab_size=300")  # finds prepared data
TSV = (*PREPARE, "--train_tsv=train.tsv")
TMX = (*PREPARE, "--train_tmx=train.tmx", "--source_language=en", "--target_language=de")
UNIT = '<tu><tuv xml:lang="EN-us"><seg>house</seg></tuv><tuv xml:lang="de-DE"><seg>Haus</seg></tuv></tu>\n'
MEMORY = f'<tmx version="1.4"><body>\n{UNIT * 60}</body></tmx>\n'
LAUGHS = (
    '<!DOCTYPE tmx [<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    + f"]>\n{MEMORY.replace('house', '&a9;')}"
)
INCLUDES = '<!DOCTYPE tmx [<!ENTITY secret SYSTEM "train.en">]>\n' + MEMORY.replace("house", "&secret;")
LINES = b"".join(b"%d houses and gardens\n" % number for number in range(60))
REPORT = ("t2t-report", ".")
COMPARE = ("t2t-compare", "a", "b", "--reference=r")
EXPORT = ("t2t-exporter", "--output_dir=RUN", "--export_dir=E")
TERMS = (*DECODE, "--glossary=terms")
LISTED = (*DECODE, "--shortlist=list")
ALIGN = (*DECODE, "--alignments=pharaoh")
AVERAGE = ("t2t-avg-checkpoints", "--output_dir=RUN", "--average_dir=NEW")
NEW_RUN = (*(flag for flag in TRAIN if not flag.startswith("--output_dir")), "--output_dir=NEW")
DEEP = "[" * 100_000


def of_text(what: str, arrange, says: str, command=FRESH, **more) -> Fault:  # type: ignore[no-untyped-def]
    return Fault(what, command, says, arrange, needs="text", **more)


def of_data(what: str, arrange, says: str, command=AGAIN, **more) -> Fault:  # type: ignore[no-untyped-def]
    return Fault(what, command, says, arrange, needs="data", **more)


def of_run(what: str, arrange, says: str, command=DECODE, **more) -> Fault:  # type: ignore[no-untyped-def]
    return Fault(what, command, says, arrange, needs="run", **more)


TEXT_FAULTS = Area(
    "Text to train on",
    [
        of_text("a file that is not there", gone("train.en"), "No such file"),
        of_text("a directory instead of a file", folder("train.en"), "Is a directory"),
        of_text("a symbolic link to itself", both(gone("train.en"), lambda: os.symlink("train.en", "train.en")),
                "Too many levels"),
        of_text("a named pipe", both(gone("train.en"), lambda: os.mkfifo("train.en")), "not a regular file"),
        of_text("a file without permission to read", locked_up("train.en", 0), "denied", around=unprivileged),
        of_text("an empty file", text("train.en", ""), "is empty"),
        of_text("one line fewer on one side", fewer_lines("train.de"), "and train.de has 59"),
        of_text("Latin-1", text("train.en", b"caf\xe9\n" * 60), "not UTF-8"),
        of_text("UTF-16", text("train.en", ("house\n" * 60).encode("utf-16")), "not UTF-8"),
        of_text("a program instead of text", text("train.en", b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 9),
                "not UTF-8"),
        of_text("a line of 4 MB", text("train.en", b"a" * (1 << 22) + b"\n"), "longer than 1,048,576 bytes"),
        of_text("64 MB without a newline, compressed to 64 kB", zipped("train.en.gz", b"a" * (1 << 26)), "longer than",
                GZIP),
        of_text("a file named .gz that is not gzip", text("train.en.gz", LINES), "is not a valid gzip file", GZIP),
        of_text("truncated gzip", zipped("train.en.gz", LINES, cut=-30), "is a truncated", GZIP),
        of_text("gzip with a bit flipped", zipped("train.en.gz", LINES, flipped=-6), "is not a valid gzip file", GZIP),
        of_text("nothing but empty lines", both(text("train.en", "\n" * 60), text("train.de", "\n" * 60)),
                "too small for a validation split"),
        of_text("TSV with a line without a tab", text("train.tsv", "house\tHaus\n" * 9 + "dog Hund\n"),
                "got 1 column", TSV),
        of_text("TSV with three columns", text("train.tsv", "house\tHaus\t0.9\n" * 60), "got 3 columns", TSV),
        of_text("TMX with entities that expand to gigabytes", text("train.tmx", LAUGHS), "&a0; is not allowed", TMX),
        of_text("TMX that includes another file", text("train.tmx", INCLUDES), "&secret; is not allowed", TMX),
        of_text("TMX that ends early", text("train.tmx", MEMORY[:-30]), "not valid XML", TMX),
        of_text("TMX without the language", text("train.tmx", MEMORY), "its languages: de-de, en-us",
                (*TMX, "--source_language=fr")),
        of_text("TMX and no languages", text("train.tmx", MEMORY), "needs --source_language", TMX[:-2]),
        of_text("more weights than corpora", lambda: None, "one weight per training corpus, 1, got 1, 2",
                (*FRESH, "--train_weight=1", "--train_weight=2")),
        of_text("an unknown filter", lambda: None, "did you mean 'duplicate'", (*FRESH, "--filter=duplicates"), code=2),
        of_text("a length ratio below 1", lambda: None, "length_ratio", (*FRESH, "--filter=length_ratio=0.5")),
        of_text("a filter given twice", lambda: None, "is given twice", (*FRESH, *["--filter=duplicate"] * 2)),
        of_text("a filter that drops every pair", lambda: None, "the filters drop all 60",
                (*FRESH, "--filter=too_few_words=900"), leaves=("data/translate_files/(filtered.bin|shuffle.*)",)),
        of_text("too little text to find misaligned pairs", lambda: None, "at least 1,000. Received: 60",
                (*FRESH, "--filter=misaligned"), leaves=("data/translate_files/shuffle.*",)),
        of_text("one side not given", lambda: None, "give both", (*PREPARE, "--train_source=train.en")),
        of_text("more subwords than the text can give", lambda: None, "more than the text can give",
                (*PREPARE, *TEXT, "--vocab_size=9000")),
        of_text("fewer subwords than there are bytes", lambda: None, "must be at least 260",
                (*PREPARE, *TEXT, "--vocab_size=100")),
    ],
)  # fmt: skip

TREE_FAULTS = Area(
    "Trees",
    [
        Fault("a file that ends inside a tree", TREES, "ends inside a tree", text("train.mrg",
                "(S (NP (PRP We))\n" * 3)),
        Fault("a bracket too many", TREES, "unmatched )", text("train.mrg", "(S (X a)))\n")),
        Fault("text instead of trees", TREES, "is outside of all brackets", text("train.mrg", "We agree .\n")),
        Fault("an empty bracket", TREES, "is empty", text("train.mrg", "(S (NP ))\n")),
        Fault("trees with traces and no words", TREES, "no tree with words", text("train.mrg", "(S (-NONE- *))\n" * 9)),
        Fault("a million opening brackets", TREES, "is not closed after", text("train.mrg", "(S\n" * 1_000_000)),
        Fault("a parser's output with a score before each tree", PARSED, "are not trees", both(
                lambda: small_treebank.write(Path("ptb")), text("parsed.mrg", "-3.2\t( (S (X a)) )\n" * 40)),
              leaves=("data/parse_wsj_semisupervised/trees/train-0.tsv",
                      "data/parse_wsj_semisupervised/trees/train-0.tsv.json")),
        Fault("an empty file", TREES, "is empty", text("train.mrg", "")),
        Fault("Latin-1", TREES, "not UTF-8", text("train.mrg", b"(S (X caf\xe9))\n")),
        Fault("gold and test of unequal length", ("t2t-evalb", "gold", "test"), "2 trees",
              both(text("gold", "(S (X a))\n" * 2), text("test", "(S (X a))\n"))),
        Fault("no such file to score", ("t2t-evalb", "gold", "test"), "no file 'test'", text("gold", "(S (X a))\n")),
        Fault("a parameter file with an unknown keyword", ("t2t-evalb", "gold", "gold", "--parameters=p"),
                "unknown keyword",
              both(text("gold", "(S (X a))\n"), text("p", "DELETE_LABLE TOP\n"))),
    ],
)  # fmt: skip

SCORE_FAULTS = Area(
    "Translations to score",
    [
        Fault("files of unequal length", ("t2t-bleu", "a", "b"), "has 2 lines", both(text("a", "x\ny\n"), text("b",
                "x\n"))),
        Fault("an empty file", ("t2t-bleu", "a", "b"), "is empty", both(text("a", ""), text("b", "x\n"))),
        Fault("Latin-1", ("t2t-bleu", "a", "b"), "not UTF-8", both(text("a", b"\xe9\n"), text("b", "x\n"))),
        Fault("a directory", ("t2t-bleu", "a", "b"), "is a directory", both(folder("a"), text("b", "x\n"))),
        Fault("two translations of unequal length", COMPARE, "a has 2 lines and r has 1", both(
                text("a", "x\ny\n"), text("b", "x\n"), text("r", "x\n"))),
        Fault("a source of another length", (*COMPARE, "--source=s"), "s has 2 lines", both(
                text("a", "x\n"), text("b", "x\n"), text("r", "x\n"), text("s", "x\ny\n"))),
        Fault("files to compare without a reference", COMPARE[:3], "give --reference=FILE", both(
                text("a", "x\n"), text("b", "x\n")), code=2),
        Fault("text instead of trees to compare", ("t2t-compare", "a", "b", "--gold=r"), "is outside of all brackets",
              both(text("a", "x\n"), text("b", "x\n"), text("r", "x\n"))),
        Fault("a page in a missing folder", (*COMPARE, "--html=no/page.html"), "no directory 'no'", both(
                text("a", "x\n"), text("b", "x\n"), text("r", "x\n"))),
        of_run("comparing a run with a missing one", lambda: None, "no directory 'NONE'",
               ("t2t-compare", "RUN", "NONE")),
        of_run("comparing runs on a split that the data lacks", lambda: None, "has no test text",
               ("t2t-compare", "RUN", "RUN")),
    ],
)  # fmt: skip

DATA_FAULTS = Area(
    "Prepared data",
    [
        of_data("truncated dataset.json", cut(DATASET, 100), "is damaged: not JSON"),
        of_data("empty dataset.json", cut(DATASET, 0), "is damaged: not JSON"),
        of_data("dataset.json that is not UTF-8", text(DATASET, b"{\xff}"), "is damaged: not JSON"),
        of_data("dataset.json with 100,000 nested brackets", text(DATASET, DEEP), "is damaged: not JSON"),
        of_data("dataset.json of a later version", edited(DATASET, lambda r: r.update(format=9)),
                "this version reads 1"),
        of_data("dataset.json without the number of pairs",
                edited(DATASET, lambda r: r["splits"]["train"].pop("pairs")), "is damaged"),
        of_data("dataset.json that names a file outside the folder",
                edited(DATASET, lambda r: r["splits"]["train"]["shards"][0].update(name="../../passwd")),
                "'../../passwd'"),
        of_data("a missing shard", gone(SHARD), "is missing"),
        of_data("a truncated shard", cut(SHARD, 1000), "is damaged: 1000 bytes"),
        of_data("a shard that is too long", lambda: os.truncate(SHARD, 1 << 20), "is damaged: 1048576 bytes"),
        of_data("a directory instead of a shard", folder(SHARD), "is missing"),
        of_data("a flipped bit in a shard, with --verify", flip(SHARD, 999), "SHA-256 differs", (*AGAIN, "--verify")),
        of_data("a flipped bit in a shard, with --fill", flip(SHARD, 999), "t2t-datagen --verify",
                (*AGAIN, "--fill=512")),
        of_data("a flipped bit in a shard, in training", flip(SHARD, 999), "t2t-datagen --verify", TRAIN, slow=True,
                leaves=("RUN", "RUN/.*")),
        of_data("missing vocabulary", gone(VOCABULARY), "is missing"),
        of_data("a flipped bit in the vocabulary", flip(VOCABULARY, 999), "SHA-256 differs"),
        of_data("empty vocabulary", cut(VOCABULARY, 0), "SHA-256 differs"),
        of_data("data prepared with another vocabulary size", lambda: None, "holds other data",
                (*PREPARE, "--vocab_size=301")),
        of_data("data prepared with other filters", lambda: None, "holds other data", (*AGAIN, "--filter=duplicate")),
        of_data("text that changed after preparation", fewer_lines("train.en"), "holds other data", FRESH),
        of_text("a file instead of the data directory", text("data", ""), "is a file"),
        of_text("a symbolic link to itself instead of the data directory", loop("data"), "data"),
        of_text("a directory name that is not UTF-8", lambda: None, "is not UTF-8",
                (*PREPARE[:2], b"--data_dir=\xff".decode("utf-8", "surrogateescape"), *TEXT)),
        of_text("a folder without permission to write", locked_up("."), "denied", around=unprivileged),
        of_text("a full disk", lambda: None, "File too large", around=full_disk),
    ],
)  # fmt: skip

RUN_FAULTS = Area(
    "Runs",
    [
        of_run("a missing directory", lambda: None, "no directory 'NONE'", ("t2t-decoder", "--output_dir=NONE")),
        of_run("a directory without a run", lambda: None, "not a run directory", ("t2t-decoder", "--output_dir=data")),
        of_run("truncated run.json", cut("RUN/run.json", 300), "is damaged: not JSON"),
        of_run("empty run.json", cut("RUN/run.json", 0), "is damaged: not JSON"),
        of_run("run.json that is not UTF-8", text("RUN/run.json", b'{"format": 1, "\xff": 2}'), "is damaged: not JSON"),
        of_run("run.json with 100,000 nested brackets", text("RUN/run.json", DEEP), "is damaged: not JSON"),
        of_run("run.json of a later version", edited("RUN/run.json", lambda r: r.update(format=2)),
                "this version reads 1"),
        of_run("a field of run.json with a wrong type", edited("RUN/run.json", lambda r: r["hparams"].update(d_k="8")),
                "d_k"),
        of_run("an unknown field in run.json", edited("RUN/run.json", lambda r: r["hparams"].update(d_q=8)), "d_q"),
        of_run("NaN in run.json", edited("RUN/run.json", lambda r: r["hparams"].update(dropout=float("nan"))),
               "dropout"),
        of_run("a list instead of an object in run.json", edited("RUN/run.json", lambda r: r.update(training=[1])),
               "is damaged"),
        of_run("a directory instead of run.json", folder("RUN/run.json"), "is not a run directory"),
        of_run("missing vocabulary", gone("RUN/vocabulary.model"), "is missing"),
        of_run("a flipped bit in the vocabulary", flip("RUN/vocabulary.model", 999), "SHA-256 differs"),
        of_run("the vocabulary of another run", copied("train.en", "RUN/vocabulary.model"), "SHA-256 differs"),
        of_run("scoring on data with another vocabulary", both(copied("train.en", VOCABULARY), edited(
            DATASET, lambda r: r["vocabulary"].update(sha256=_sha256("train.en")))), "another vocabulary", EVALUATE),
        of_run("scoring without the prepared data", gone(DATASET), "holds no prepared data", EVALUATE),
        of_run("scoring on a split that the data lacks", lambda: None, "has no test text", EVALUATE),
        of_run("continuing with another seed", lambda: None, "its seed is 1, not 2", (*TRAIN, "--seed=2")),
        of_run("continuing while another trainer is running", lambda: None, "another t2t-trainer", TRAIN,
                around=at_work),
        of_run("training into a folder without permission to write", locked_up("RUN"), "denied", TRAIN,
                around=unprivileged),
        of_data("starting from a folder without a run", lambda: None, "not a run directory",
                (*TRAIN, "--init_from=data")),
        of_run("starting from a checkpoint that the run does not have", lambda: None, "ckpt-3",
               (*NEW_RUN, "--init_from=RUN/checkpoints/ckpt-3")),
        of_run("starting from weights of another size", lambda: None, "d_ff",
               (*NEW_RUN, "--init_from=RUN", "--override=d_ff=40")),
        of_run("starting from truncated weights", cut(WEIGHTS, 2_000), "it is cut off", (*NEW_RUN, "--init_from=RUN")),
        of_run("another validation set that is not prepared data", lambda: None, "also_validate",
               (*TRAIN, "--also_validate=RUN")),
        of_data("training into a file", text("RUN", ""), "is a file", TRAIN),
        of_data("training on a full disk", lambda: None, "File too large", TRAIN, around=full_disk, slow=True,
                leaves=("RUN", "RUN/.*")),
        of_run("invalid JSON in scores.jsonl", text("RUN/scores.jsonl", '{"a"\n{}\n'), "cannot be read",
                REPORT),
        of_run("a score without its split in scores.jsonl", text("RUN/scores.jsonl", "{}\n"), "cannot be read", REPORT),
        of_run("invalid JSON in metrics.jsonl", text("RUN/metrics.jsonl", "what\n{}\n"), "cannot be read",
               (*REPORT, "--html=page.html"), leaves=("page.html",)),
        of_run("a report on a folder with a damaged run", cut("RUN/run.json", 99), "cannot be read", REPORT),
    ],
)  # fmt: skip

CHECKPOINT_FAULTS = Area(
    "Checkpoints",
    [
        of_run("no checkpoint yet", both(gone(LIST), *(gone(f"RUN/checkpoints/{n}") for n in (
            "ckpt-2.index", "ckpt-2.data-00000-of-00001", "ckpt-4.index", "ckpt-4.data-00000-of-00001"))),
                "no checkpoint yet"),
        of_run("missing list of checkpoints", gone(LIST), "which lists them, is missing"),
        of_run("truncated list of checkpoints", cut(LIST, -30), "is missing or damaged"),
        of_run("empty list of checkpoints", cut(LIST, 0), "is missing or damaged"),
        of_run("list of checkpoints that is not UTF-8", text(LIST, b"\xff\xfe"), "is missing or damaged"),
        of_run("a directory instead of the list of checkpoints", folder(LIST), "is missing or damaged"),
        of_run("missing list of checkpoints, in training", gone(LIST), "which lists them, is missing", TRAIN),
        of_run("newest checkpoint without its weights", gone(WEIGHTS), "a file of it is missing"),
        of_run("newest checkpoint without its index", gone(INDEX), "a file of it is missing"),
        of_run("truncated weights", cut(WEIGHTS, 2_000), "it is cut off"),
        of_run("empty weights", cut(WEIGHTS, 0), "it is cut off"),
        of_run("a flipped bit in the weights", flip(WEIGHTS, 1_000), "a checksum differs"),
        of_run("a flipped bit in the index", flip(INDEX, 100), "a checksum differs"),
        of_run("truncated index", cut(INDEX, 100), "it is cut off"),
        of_run("empty index", cut(INDEX, 0), "it is cut off"),
        of_run("a directory instead of the index", folder(INDEX), "is a directory"),
        of_run("checkpoint of a model of another size", edited("RUN/run.json", lambda r: r["hparams"].update(d_ff=40)),
                "does not fit"),
        of_run("every checkpoint damaged, in training",
               both(*(cut(f"RUN/checkpoints/ckpt-{n}.index", 9) for n in (2, 4))),
               "every checkpoint in", TRAIN),
        of_run("exporting truncated weights", cut(WEIGHTS, 2_000), "it is cut off", EXPORT, leaves=("E",)),
        of_run("averaging with a damaged checkpoint", flip(WEIGHTS, 1_000), "a checksum differs",
               (*AVERAGE, "--average_checkpoints=2")),
        of_run("averaging more checkpoints than the run has", lambda: None, "has 2 checkpoints", (*AVERAGE,
                "--average_checkpoints=3")),
    ],
)  # fmt: skip

INPUT_FAULTS = Area(
    "Text to translate, and where the result goes",
    [
        of_run("not UTF-8", lambda: None, "line 2: not UTF-8", stdin=b"a\n\xff\n"),
        of_run("a line of 4 MB", lambda: None, "longer than 1,048,576 bytes", stdin=b"a" * (1 << 22)),
        of_run("an endless file", lambda: None, "longer than", (*DECODE, "--decode_from_file=/dev/zero"),
               around=little_memory),
        of_run("a missing file", lambda: None, "no file 'none'", (*DECODE, "--decode_from_file=none")),
        of_run("a directory instead of an input file", lambda: None, "is a directory",
               (*DECODE, "--decode_from_file=data")),
        of_run("a directory instead of an output file", lambda: None, "is a directory",
               (*DECODE, "--decode_to_file=data")),
        of_run("a missing output folder", lambda: None, "no directory", (*DECODE, "--decode_to_file=no/out")),
        of_run("an output folder without permission to write", lambda: os.mkdir("shut", 0o555),
               "no permission to write", (*DECODE, "--decode_to_file=shut/out"), around=unprivileged),
        of_run("an export to a file", text("E", ""), "is a file", EXPORT),
        of_run("an export to a folder without permission to write", lambda: os.mkdir("shut", 0o555), "denied",
               ("t2t-exporter", "--output_dir=RUN", "--export_dir=shut/E"), around=unprivileged),
        of_run("a package of Argos Translate from a run without languages", lambda: None, "codes of two languages",
               (*EXPORT, "--format=argos")),
        of_run("an export to a full disk", lambda: None, "File too large", EXPORT, around=full_disk, slow=True,
               leaves=("E",)),
        of_run("an average to a folder that is not empty", both(folder("NEW"), text("NEW/x", "")), "not empty",
                AVERAGE),
        Fault("output into a closed pipe (head)", "t2t-registry | head -n 0; exit ${PIPESTATUS[0]}", "", code=141),
        Fault("output to a full disk", "t2t-registry > /dev/full", "standard output: No space left"),
        Fault("closed output", "t2t-registry >&-", "standard output is closed"),
        of_run("closed input", lambda: None, "standard input is closed", "t2t-decoder --output_dir=RUN <&-"),
        of_run("translation to a full disk", lambda: None, "standard output: No space left",
               "echo 3 houses | t2t-decoder --output_dir=RUN > /dev/full", slow=True),
    ],
)  # fmt: skip

TERM_FAULTS = Area(
    "Glossaries, shortlists, alignments and documents",
    [
        of_run("a missing glossary", lambda: None, "no glossary 'none'", (*DECODE, "--glossary=none")),
        of_run("a directory instead of a glossary", lambda: None, "no glossary 'data'", (*DECODE, "--glossary=data")),
        of_run("an empty glossary", text("terms", "\n"), "has no terms", TERMS),
        of_run("a glossary in Latin-1", text("terms", b"caf\xe9\tKaffee\n"), "line 1: not UTF-8", TERMS),
        of_run("a term without a tab", text("terms", "cat\tKatze\ndog Hund\n"), "line 2: expected a term, a tab",
               TERMS),
        of_run("a term twice", text("terms", "cat\tKatze\ncat\tKater\n"), "is on line 1 too", TERMS),
        of_run("an empty term", text("terms", "\tKatze\n"), "line 1: a term is empty", TERMS),
        of_run("a form of 4 kB", text("terms", "cat\t" + "a" * 4096), "has 4096 characters", TERMS),
        of_run("nine forms of a term", text("terms", "cat\t" + "\t".join("abcdefghi")), "has 9 forms", TERMS),
        of_run("a control character in a form", text("terms", "cat\tKat\x00ze\n"), "U+0000", TERMS),
        of_run("a missing shortlist", lambda: None, "No such file", (*DECODE, "--shortlist=none")),
        of_run("a directory instead of a shortlist", lambda: None, "Is a directory", (*DECODE, "--shortlist=data")),
        of_run("text instead of a shortlist", text("list", "a cat\n"), "line 1 has no tab", LISTED),
        of_run("a shortlist in Latin-1", text("list", b"caf\xe9\ta\n"), "UTF-8", LISTED),
        of_run("a shortlist of another vocabulary", text("list", "\t\nhouse\tHausboot\n"), "line 2: the vocabulary",
               LISTED),
        of_run("an endless shortlist", lambda: None, "is not a regular file", (*DECODE, "--shortlist=/dev/zero"),
               around=little_memory),
        of_run("a damaged record of the head that aligns", text("RUN/alignment.json", "{"), "damaged: not JSON", ALIGN),
        of_run("a list instead of the record of the head that aligns", text("RUN/alignment.json", "[]"),
               "expected a JSON object", ALIGN),
        of_run("a number instead of a head", text("RUN/alignment.json", '{"layer": 9, "head": 9}'),
               "head must be an object", ALIGN),
        of_run("no data to choose the head that aligns on", gone(SHARD.replace("train", "validation")),
               "is missing; remove", ALIGN),
        of_run("sentences of an unknown language", lambda: None, "must be an ISO 639 code",
               (*DECODE, "--documents", "--language=x1")),
    ],
)  # fmt: skip

FLAG_FAULTS = Area(
    "Flags",
    [
        Fault("an unknown problem", ("t2t-datagen", "--problem=translate_file", "--data_dir=data"), "did you mean",
                code=2),
        Fault("an unknown hyperparameter set", ("t2t-registry", "--hparams=bse"), "did you mean 'base'", code=2),
        Fault("a word instead of a number", ("t2t-trainer", "--train_steps=many"), "expected a whole number", code=2),
        Fault("NaN instead of minutes", ("t2t-trainer", "--checkpoint_minutes=nan"), "expected a finite", code=2),
        Fault("a flag without its value", ("t2t-trainer", "--problem"), "needs a value", code=2),
        Fault("a hyperparameter out of range", ("t2t-registry", "--hparams=base", "--override=dropout=2"),
                "dropout must be"),
        Fault("an unknown hyperparameter", ("t2t-registry", "--hparams=base", "--override=droput=0"),
                "did you mean 'dropout'", code=2),
        Fault("a missing folder of your own problems", ("t2t-registry", "--t2t_usr_dir=none"), "is not a directory"),
        of_run("NaN as length penalty", lambda: None, "alpha must be", (*DECODE, "--alpha=nan")),
        of_run("more results than the beam width", lambda: None, "more than --beam_size=4",
                (*DECODE, "--n_best=9", "--beam_size=4"), code=2),
        of_data("a seed that is too large", lambda: None, "seed must be", (*TRAIN, "--seed=9999999")),
        of_data("a batch smaller than the longest sentence", lambda: None, "max_length must be at most",
                (*TRAIN, "--override=batch_tokens=100")),
    ],
)  # fmt: skip


def _sha256(path: str) -> str:
    from t2t_repro.io import sha256

    return sha256(path)


AREAS = (
    TEXT_FAULTS,
    TREE_FAULTS,
    SCORE_FAULTS,
    DATA_FAULTS,
    RUN_FAULTS,
    CHECKPOINT_FAULTS,
    INPUT_FAULTS,
    TERM_FAULTS,
    FLAG_FAULTS,
)
FAULTS = [fault for area in AREAS for fault in area.faults]
