
# Names, contexts and commands, which only a running program knows.
function __redlatch_offered
    redlatch __complete -- (commandline -opc) "$(commandline -ct)" 2>/dev/null
end

# Behind the dashes stands a command with its own arguments.
function __redlatch_command
    set -l skip (contains -i -- -- (commandline -opc))
    and __fish_complete_subcommand --fcs-skip=$skip
end

complete -c redlatch -f -n '__redlatch_offered >/dev/null' -a '(__redlatch_offered)'
complete -c redlatch -x -l context -a '(__redlatch_offered)'
complete -c redlatch -n 'contains -- -- (commandline -opc)' -xa '(__redlatch_command)'
