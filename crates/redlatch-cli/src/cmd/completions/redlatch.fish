
# Names and contexts, which only a running program knows.
complete -c redlatch -f -n '__fish_seen_subcommand_from run lock unlock renew show force-unlock' -a '(redlatch __complete names (commandline -ct) 2>/dev/null)'
complete -c redlatch -x -l context -a '(redlatch __complete contexts (commandline -ct) 2>/dev/null)'
