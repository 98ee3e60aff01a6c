"""Bash completion for the flags of every program and for the names that some flags take."""

from __future__ import annotations

from collections.abc import Mapping

from absl import flags

from t2t_repro.registry import HPARAMS, PROBLEMS

_SCRIPT = r"""# bash completion of the t2t programs: eval "$(t2t-registry --completion=bash)"
_t2t() {
    local program=${COMP_WORDS[0]##*/} word=${COMP_WORDS[COMP_CWORD]} flag="" flags values
    case $program in
%(programs)s
    esac
    # bash splits a flag, its "=" and its value into three words
    if [[ $word == "=" ]]; then
        flag=${COMP_WORDS[COMP_CWORD-1]} word=""
    elif (( COMP_CWORD > 1 )) && [[ ${COMP_WORDS[COMP_CWORD-1]} == "=" ]]; then
        flag=${COMP_WORDS[COMP_CWORD-2]}
    fi
    [[ -z $flag && $word == -* ]] && flag=--
    case "$program $flag" in
    *" --") values=$flags ;;
%(values)s
    *) mapfile -t COMPREPLY < <(compgen -f -- "$word"); compopt -o filenames -o default 2>/dev/null; return ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
}
complete -o nospace -F _t2t %(names)s
"""


def bash(programs: Mapping[str, flags.FlagValues]) -> str:
    """Returns the script: the flags of each program, and the choices of each flag that has a list of them."""
    words: dict[str, list[str]] = {}
    values: dict[str, list[str]] = {}  # by the choices as text: the programs and flags that have them
    names: dict[str, list[str]] = {"problem": list(PROBLEMS), "hparams": list(HPARAMS)}
    for program, defined in programs.items():
        words[program] = [f"--{name}" if defined[name].boolean else f"--{name}=" for name in defined]
        words[program] += ["--help", "--version"]
        for name in defined:
            choices = names.get(name) or getattr(defined[name].parser, "enum_values", None)
            if choices:
                values.setdefault(" ".join(choices), []).append(f'"{program} --{name}"')
    return _SCRIPT % {
        "programs": "\n".join(f'    {name}) flags="{" ".join(each)}" ;;' for name, each in words.items()),
        "values": "\n".join(f'    {"|".join(places)}) values="{each}" ;;' for each, places in values.items()),
        "names": " ".join(words),
    }
