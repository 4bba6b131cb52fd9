#!/usr/bin/env bash
# Plants one mistake at a time in a copy of the committed tree and shows whether the tests that should catch it do.
#   tests/mutation/run.sh            every mistake in this folder
#   tests/mutation/run.sh NAME...    only these, by file name without .patch
# Each patch begins with three lines: `Mistake:` what is wrong, `Build:` targets, `Tests:` a regular expression for
# `ctest -R`. The named tests must pass without the mistake and fail with it. The copy is build/mutation/tree and is
# kept, so that later runs compile only what changed.
# Exit code: 0 all caught, 1 at least one survived, 2 a patch does not apply, does not build, or names no passing test.
set -eu
cd "$(dirname "$0")/../.."
patches=tests/mutation
tree=$PWD/build/mutation/tree
log=$PWD/build/mutation/log.txt
jobs=${DDP_MUTATION_JOBS:-$(nproc)}

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for patch in "$patches"/*.patch; do names+=("$(basename "$patch" .patch)"); done
fi
for name in "${names[@]}"; do
  [ -e "$patches/$name.patch" ] && continue
  echo "error: there is no mistake named $name" >&2
  echo "where: $patches/$name.patch" >&2
  echo "try:   ls $patches" >&2
  exit 2
done

mkdir -p build/mutation
if [ -e "$tree/.git" ]; then
  git -C "$tree" reset -q --hard
  git -C "$tree" checkout -q --detach "$(git rev-parse HEAD)"
else
  git worktree prune
  git worktree add -q --detach "$tree" HEAD
fi
[ -z "$(git status --porcelain --untracked-files=no)" ] || echo "note: uncommitted changes are not part of the copy"
build=$tree/build/release
cmake --preset release -S "$tree" >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 2; }

field() { sed -n "s/^$2: *//p" "$patches/$1.patch" | head -n 1; }

# Builds the targets of a mistake and runs its tests. Returns 0 passed, 1 failed, 2 not built, 3 no test ran.
try() {
  # shellcheck disable=SC2046
  cmake --build "$build" -j "$jobs" --target $(field "$1" Build) >"$log" 2>&1 || return 2
  local status=0
  ctest --test-dir "$build" -R "$(field "$1" Tests)" --no-tests=ignore --timeout 120 --stop-on-failure \
    >"$log" 2>&1 || status=1
  grep -q '^No tests were found' "$log" && return 3
  # A test that skips itself shows nothing.
  [ "$status" = 1 ] || ! grep -q '\*\*\*Skipped' "$log" || return 3
  return "$status"
}

caught=0 survived=0 errors=0
for name in "${names[@]}"; do
  result=caught
  status=0
  try "$name" || status=$?
  case $status in
    1) result="error: its tests fail without it" ;;
    2) result="error: the tree does not build without it"
       ! grep -q "unknown target 'fake_" "$log" || result="error: needs CUDA" ;;
    3) result="error: no test named so ran" ;;
  esac
  if [ "$status" -eq 0 ]; then
    if git -C "$tree" apply "$PWD/$patches/$name.patch" 2>"$log"; then
      try "$name" || status=$?
      case $status in
        0) result=SURVIVED ;;
        2) result="error: does not compile" ;;
        3) result="error: its tests skip themselves with it" ;;
      esac
      # Not `git checkout`, which would give files that no patch touched a new date.
      git -C "$tree" apply --reverse "$PWD/$patches/$name.patch"
    else
      result="error: the patch no longer applies"
    fi
  fi
  case $result in
    caught) caught=$((caught + 1)) ;;
    SURVIVED) survived=$((survived + 1)) ;;
    *) errors=$((errors + 1)) && cp "$log" "build/mutation/$name.log" && result+=" (build/mutation/$name.log)" ;;
  esac
  printf '%-40s %s\n' "$name" "$result"
done
echo "$caught caught, $survived survived, $errors errors"
[ "$errors" -eq 0 ] || exit 2
[ "$survived" -eq 0 ]
