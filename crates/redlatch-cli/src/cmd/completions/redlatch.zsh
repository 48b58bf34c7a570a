
# Names and contexts, which only a running program knows.
_redlatch_offered() {
    # The generated functions cut the words of this line down to those of one verb.
    local -a line offered
    line=("${(@Q)${(z)LBUFFER}}")
    [[ "$LBUFFER" == *[[:blank:]] ]] && line+=("")
    local dashes=${line[(I)--]}
    if ((dashes && dashes < $#line)); then
        # Behind the dashes stands a command with its own arguments.
        words=("${(@)line[dashes + 1, -1]}")
        CURRENT=$#words
        _normal
        return
    fi
    offered=("${(@f)$(redlatch __complete -- "${line[@]}" 2>/dev/null)}")
    compadd -- "${offered[@]}"
}

_redlatch_names() {
    _redlatch_offered
}

_redlatch_contexts() {
    _redlatch_offered
}
