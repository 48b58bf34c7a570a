
# Names and contexts, which only a running program knows.
_redlatch_names() {
    local -a names
    names=("${(@f)$(redlatch __complete names "$PREFIX" 2>/dev/null)}")
    compadd -a names
}

_redlatch_contexts() {
    local -a contexts
    contexts=("${(@f)$(redlatch __complete contexts "$PREFIX" 2>/dev/null)}")
    compadd -a contexts
}
