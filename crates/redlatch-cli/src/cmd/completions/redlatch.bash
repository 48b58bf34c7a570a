
# Names, contexts and commands, which only a running program knows.
_redlatch_all() {
    # Bash takes a word apart at each colon and gives it to us in pieces, so the line itself is read.
    local line="${COMP_LINE:0:COMP_POINT}" words cur offered at word
    read -ra words <<<"$line"
    if [[ "$line" == *[[:blank:]] ]]; then words+=(""); fi
    cur="${words[-1]}"
    for ((at = 1; at < ${#words[@]} - 1; at++)); do
        if [[ "${words[at]}" == "--" ]]; then
            # Behind the dashes stands a command with its own arguments.
            if ((at == ${#words[@]} - 2)); then
                mapfile -t COMPREPLY < <(compgen -c -- "$cur" | sort -u)
            else
                mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            fi
            return
        fi
    done
    if ! offered="$(redlatch __complete -- "${words[@]}" 2>/dev/null)"; then
        _redlatch "$@"
        return
    fi
    COMPREPLY=()
    while IFS= read -r word; do
        if [[ -z "$word" ]]; then continue; fi
        # Other programs choose names. Quoted, a name is one word for the shell and nothing that it runs.
        printf -v word '%q' "$word"
        # Of a word with colons bash replaces the last piece only.
        if [[ "$cur" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then word="${word#"${cur%"${cur##*:}"}"}"; fi
        COMPREPLY+=("$word")
    done <<<"$offered"
}
complete -F _redlatch_all -o nosort -o bashdefault -o default redlatch
