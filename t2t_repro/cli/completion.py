"""A script that completes the flags of every program in bash, and the names that some of them take."""

from __future__ import annotations

import importlib
import os
import pkgutil

from t2t_repro.registry import HPARAMS, PROBLEMS

_SCRIPT = r"""# bash completion of the t2t programs: eval "$(t2t-registry --completion=bash)"
_t2t() {
    local program=${COMP_WORDS[0]##*/} word=${COMP_WORDS[COMP_CWORD]} flag="" flags values
    case $program in
%(programs)s
    esac
    # bash makes words of their own of a flag, its "=" and its value
    if [[ $word == "=" ]]; then
        flag=${COMP_WORDS[COMP_CWORD-1]} word=""
    elif (( COMP_CWORD > 1 )) && [[ ${COMP_WORDS[COMP_CWORD-1]} == "=" ]]; then
        flag=${COMP_WORDS[COMP_CWORD-2]}
    fi
    [[ -z $flag && $word == -* ]] && flag=--
    case $flag in
    --) values=$flags ;;
%(values)s
    *) mapfile -t COMPREPLY < <(compgen -f -- "$word"); compopt -o filenames -o default 2>/dev/null; return ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
}
complete -o nospace -F _t2t %(names)s
"""


def bash() -> str:
    """The script: every program with its flags, every flag that takes one of a list with that list."""
    programs: dict[str, list[str]] = {}
    values = {"problem": list(PROBLEMS), "hparams": list(HPARAMS)}
    for module in pkgutil.iter_modules([os.path.dirname(__file__)]):
        if not module.name.startswith("t2t_"):
            continue
        flags = importlib.import_module(f"t2t_repro.bin.{module.name}").FLAGS
        forms = [f"--{name}" if flags[name].boolean else f"--{name}=" for name in flags]
        programs[module.name.replace("_", "-")] = [*forms, "--help", "--version"]
        for name in flags:
            choices = getattr(flags[name].parser, "enum_values", None)
            if choices:  # of every program that has the flag: some take fewer
                values[name] = list(dict.fromkeys([*values.get(name, []), *choices]))
    return _SCRIPT % {
        "programs": "\n".join(f'    {name}) flags="{" ".join(flags)}" ;;' for name, flags in programs.items()),
        "values": "\n".join(f'    --{name}) values="{" ".join(names)}" ;;' for name, names in values.items()),
        "names": " ".join(programs),
    }
