#!/usr/bin/env bash
# check.sh right|wrong [-DNAME...]: whether spin finds the model with these names to be so, looking at every order of
# steps. Works in a folder of its own.
set -eu
model=$(cd "$(dirname "$0")" && pwd)/arrivals.pml
want=$1
shift
command -v spin >/dev/null || { echo "skipped: spin is not installed (Debian's package spin)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
spin -a "$@" "$model"
optimise=-O1  # -O2 takes longer to compile than it saves
[ "$want" = wrong ] && optimise=-O0  # the search ends at the first error
"${CC:-cc}" "$optimise" -DSAFETY -DMEMLIM=4000 -o pan pan.c
./pan -m100000 >result || true
grep -E "^pan:|errors:|states, stored|elapsed" result
if grep -q "max search depth too small\|out of memory\|^pan: reached" result; then
  echo "error: not every order of steps was looked at" && exit 1
fi
errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' result)
case $want in
  right) [ "$errors" = 0 ] ;;
  wrong) [ "$errors" -gt 0 ] ;;
esac
