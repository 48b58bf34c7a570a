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

# tell NUMBER TITLE FIGURE MET CONTROL: prints the line of a bar that a script measures by itself, and exits. MET is 0 or 1; CONTROL
# is `true` where the control was run, which has to be missed.
tell() {
  local number=$1 title=$2 figure=$3 met=$4 control=$5
  if $control; then
    if ((met)); then echo "bar $number control  $title: $figure: NOT FOUND to fail"; exit 1; fi
    echo "bar $number control  $title: $figure: found to fail, as it has to"
    exit 0
  fi
  if ((met)); then echo "bar $number  $title: $figure: met"; exit 0; fi
  echo "bar $number  $title: $figure: NOT MET"
  exit 1
}
