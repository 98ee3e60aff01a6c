"""WMT14 in miniature: the archives of its English-German and English-French, in the form of the real ones.

Names, folders, SGML, `.gz` within `.tar` and the files of other languages are as in the real archives; the text is made
up, and has what the real one has: empty lines, Unicode line separators on one side alone (news-commentary), plain `&`
in SGML, a carriage return within a line.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

from t2t_repro.problem import Pair

Lines = dict[str, list[str]]  # {language: lines}

WORDS = {
    "en": "the house stands on old river bank with two red doors and small windows".split(),
    "de": "das Haus steht am alten Fluss Ufer mit zwei roten Türen und kleinen Fenstern".split(),
    "fr": "la maison est sur une vieille rive avec deux portes rouges et petites fenêtres".split(),
}


def sentences(language: str, name: str, number: int) -> list[str]:
    words = WORDS.get(language, WORDS["en"])
    return [
        f"{name.capitalize()} {n}: " + " ".join(words[(n * step) % len(words)] for step in range(1, 8)) + "."
        for n in range(number)
    ]


def corpus(name: str, languages: tuple[str, str], number: int) -> Lines:
    return {language: sentences(language, name, number) for language in languages}


def text(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def sgml(lines: list[str], kind: str, language: str) -> bytes:
    """As WMT writes its test sets: two documents, the segments of each numbered from 1."""
    head = f'<{kind}set setid="newstest2014" srclang="any"' + (f' trglang="{language}">' if kind == "ref" else ">")
    body = [head]
    for part in (lines[: len(lines) // 2], lines[len(lines) // 2 :]):
        body.append(f'<doc sysid="{kind}" docid="{len(body)}-zeitung.de" genre="news" origlang="{language}">')
        body += [f'<seg id="{number}">{line}</seg>' for number, line in enumerate(part, start=1)]
        body.append("</doc>")
    return text([*body, f"</{kind}set>"])


def archive(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as tar:
        for folder in sorted({os.path.dirname(name) for name in files} - {""}):
            entry = tarfile.TarInfo(folder)
            entry.type = tarfile.DIRTYPE
            tar.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def write_archives(folder: Path, lines: int = 120, more_words: int = 0) -> dict[str, dict[str, list[Pair]]]:
    """Writes the six archives; gives what they hold: {"de" or "fr": {name of the corpus: pairs, English first}}.

    One line of commoncrawl has `more_words` at its end.
    """
    there: dict[str, dict[str, Lines]] = {}
    for language in ("de", "fr"):
        pair = (language, "en")
        names = ["europarl_v7", "commoncrawl", "newscommentary_v9", "newstest2013", "newstest2014"]
        names += ["multiun", "gigafren"] if language == "fr" else []
        there[language] = {name: corpus(name, pair, 9 if name.startswith("newstest") else lines) for name in names}
        there[language]["europarl_v7"]["en"][3] = there[language]["europarl_v7"][language][7] = ""
        there[language]["newscommentary_v9"]["en"][5] += "\u2028\u2028Second part.\u0085"
        there[language]["newscommentary_v9"][language][6] += "\x0bform\x0cfeed\x1c"
        there[language]["commoncrawl"]["en"][2] = "A carriage\rreturn, 100 % & more <b>."
        there[language]["commoncrawl"][language][9] += " und" * more_words
        there[language]["newstest2014"]["en"][1] = 'Standard & Poor\'s  wrote "no".'
    write_training(folder, there)
    dev = {}
    for language in ("de", "fr", "cs"):
        pair = there.get(language, {name: corpus(name, ("cs", "en"), 4) for name in ("newstest2013", "newstest2014")})
        for each in (language, "en"):
            # the English side of newstest2013 is one file for all languages
            dev[f"dev/newstest2013.{each}"] = text(pair["newstest2013"][each] if language != "cs" else ["x"] * 9)
        src, ref = pair["newstest2014"][language], pair["newstest2014"]["en"]
        dev[f"dev/newstest2014-{language}en-src.{language}.sgm"] = sgml(src, "src", language)
        dev[f"dev/newstest2014-{language}en-ref.en.sgm"] = sgml(ref, "ref", "en")
    dev["dev/newstest2013.en"] = text(there["de"]["newstest2013"]["en"])
    archive(folder / "dev.tgz", dev)
    return {
        language: {name: list(zip(sides["en"], sides[language], strict=True)) for name, sides in corpora.items()}
        for language, corpora in there.items()
    }


def write_training(folder: Path, there: dict[str, dict[str, Lines]]) -> None:
    def parallel(form: str, name: str, others: str) -> dict[str, bytes]:
        files = {}
        for language in [*there, *others.split()]:
            sides = there.get(language, {}).get(name) or corpus(name, (language, "en"), 3)
            files |= {form.format(language, side): text(sides[side]) for side in (language, "en")}
        return files

    archive(
        folder / "training-parallel-europarl-v7.tgz",
        parallel("training/europarl-v7.{}-en.{}", "europarl_v7", "cs es"),
    )
    crawl = parallel("commoncrawl.{}-en.{}", "commoncrawl", "cs es ru")
    archive(folder / "training-parallel-commoncrawl.tgz", crawl | {"commoncrawl.de-en.annotation": b"http://\n"})
    news = parallel("training/news-commentary-v9.{}-en.{}", "newscommentary_v9", "cs ru")
    archive(folder / "training-parallel-nc-v9.tgz", news)
    french = {"fr": there["fr"]}
    un = {f"un/undoc.2000.fr-en.{side}": text(french["fr"]["multiun"][side]) for side in ("fr", "en")}
    archive(folder / "training-parallel-un.tgz", un)
    giga = {
        f"giga-fren.release2.fixed.{side}.gz": gzip.compress(text(french["fr"]["gigafren"][side]))
        for side in ("en", "fr")
    }
    archive(folder / "training-giga-fren.tar", giga)


def sums(folder: Path) -> Any:
    """Returns the tables that tensorflow-datasets would have for these archives: for `downloads._sums`."""
    from tensorflow_datasets.core.download.checksums import UrlInfo

    def of(builder: Any) -> dict[str, Any]:
        from t2t_repro.preparation.downloads import _members

        found = {}
        for url in _members(builder):
            path = folder / os.path.basename(url)
            content = path.read_bytes()
            found[url] = UrlInfo(len(content), hashlib.sha256(content).hexdigest(), path.name)
        return found

    return of
