# Read by the scripts beside it: builds the program of the bars and the command, and measures one bar.
#
#   bar NUMBER [--release] [--control]      prints one line; exits with 0 if the bar is met, with 1 if not. With --control it exits
#                                           with 0 only if the control was found to fail. 2: could not be measured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

bar() {
  local number=$1 profile=debug release=() args=()
  shift
  for arg in "$@"; do
    case $arg in
      --release) profile=release release=(--release) ;;
      *) args+=("$arg") ;;
    esac
  done
  # Always both packages, because cargo builds what they share anew for another selection.
  cargo build --quiet ${release[@]+"${release[@]}"} -p redlatch-bars -p redlatch-cli >&2
  local target
  target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
  exec "$target/$profile/redlatch-bars" run "$number" ${args[@]+"${args[@]}"}
}
