
# Names, contexts and commands, which only a running program knows.
_redlatch_all() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" verb="" at
    for ((at = 1; at < COMP_CWORD; at++)); do
        if [[ "${COMP_WORDS[at]}" == "--" ]]; then
            # Behind the dashes stands a command with its own arguments.
            if ((at == COMP_CWORD - 1)); then
                mapfile -t COMPREPLY < <(compgen -c -- "$cur" | sort -u)
            else
                mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            fi
            return
        fi
        if [[ -z "$verb" && "${COMP_WORDS[at]}" != -* ]]; then verb="${COMP_WORDS[at]}"; fi
    done
    if [[ "$prev" == "--context" ]]; then
        mapfile -t COMPREPLY < <(redlatch __complete contexts "$cur" 2>/dev/null)
        return
    fi
    case "$verb" in
    run | lock | unlock | renew | show | force-unlock)
        if [[ "$cur" != -* ]]; then
            mapfile -t COMPREPLY < <(redlatch __complete names "$cur" 2>/dev/null)
            return
        fi
        ;;
    esac
    _redlatch "$@"
}
complete -F _redlatch_all -o nosort -o bashdefault -o default redlatch
