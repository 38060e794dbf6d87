# shellcheck shell=bash disable=SC2034,SC2207
# Completion for sparkguard, sparkguard-report, sparkguard-sweep and sparkguard-doctor. Options and what they take come
# from each tool's --help, jobs and processes from sparkguard-report: none of them is repeated here.

# "job": the names of all jobs on record; "pid": their processes.
_sparkguard_on_record() {
    sparkguard-report --all --json 2>/dev/null |
        sed -n '/^  "jobs"/,/^  \]/s/^ *"'"$1"'": "\{0,1\}\([^"]*[^",]\)"\{0,1\},$/\1/p' | sort -u
}

# What --help calls the value of option $2: SIZE, DIR, enforce|observe; nothing if it takes none or only behind a "=".
_sparkguard_takes() {
    "$1" --help 2>/dev/null | sed -n -E "s/^ *(-., )?(.*[ ,])?$2=([^ ]+).*/\3/p;s/^ *$2, --[a-z-]+=([^ ]+).*/\1/p" | head -n 1
}

_sparkguard_complete_value() {
    local IFS=$'\n' name
    case $1 in
    *\|*) COMPREPLY=($(compgen -W "${1//|/$'\n'}" -- "$cur")) ;;
    DIR) _filedir -d ;;
    FILE*) _filedir ;;
    NAME)
        while read -r name; do # not through compgen -W, which would run what stands in a name
            [[ $name != "$cur"* ]] || COMPREPLY+=("$(printf '%q' "$name")")
        done < <(_sparkguard_on_record job)
        ;;
    esac
}

# Where among COMP_WORDS the program stands whose options are its own; the word in the making where there is none yet.
_sparkguard_program() {
    local at
    for ((at = 1; at < COMP_CWORD; at++)); do
        case ${COMP_WORDS[at]} in
        --) echo $((at + 1)) && return ;;
        =) ((at++)) ;;
        -*) [[ ${COMP_WORDS[at + 1]} == = || -z $(_sparkguard_takes "$1" "${COMP_WORDS[at]}") ]] || ((at++)) ;;
        *) break ;;
        esac
    done
    echo "$at"
}

_sparkguard() {
    local cur prev words cword split value program
    _init_completion -s || return
    if [[ $1 == *sparkguard || $1 == *-sweep ]]; then
        program=$(_sparkguard_program "$1")
        if ((program < COMP_CWORD)) || [[ ${COMP_WORDS[program - 1]} == -- ]]; then
            _command_offset "$program"
            return
        fi
    fi
    value=$(_sparkguard_takes "$1" "$prev")
    if [[ -n $value || $split == true ]]; then
        _sparkguard_complete_value "$value"
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$(_parse_help "$1")" -- "$cur"))
        [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace
    elif [[ -n ${program-} ]]; then
        _command_offset "$program"
    elif [[ $1 == *-report ]]; then
        COMPREPLY=($(compgen -W "$(_sparkguard_on_record pid)" -- "$cur"))
    fi
} && complete -F _sparkguard sparkguard sparkguard-report sparkguard-sweep sparkguard-doctor
