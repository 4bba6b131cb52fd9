#!/usr/bin/env bash
# Builds and runs every test that this machine can run, and names those it skipped, with the reason.
# --interop first installs the real peers (PyTorch and others, 4.7 GB, once; Slurm, mpirun, zsh and fish) for the tests
# that meet them; without it these run where the distribution has them, or where DDP_TEST_PYTHON, or an earlier
# --interop, gives them a Python with PyTorch.
# With a preset (release, dev, tsan) runs that one; default: release. Other arguments go to ctest, e.g. -R sampler.
set -eu
cd "$(dirname "$0")"
interop=no
[ "${1:-}" = --interop ] && interop=yes && shift
preset=release
case "${1:-}" in release | dev | tsan) preset=$1 && shift ;; esac
compiler=()
[ "$preset" = release ] || compiler=(clang libclang-rt-dev lld llvm)
./deploy/install_packages.sh "${compiler[@]}"
peers=
if [ "$interop" = yes ]; then
  ./deploy/install_interop.sh packages
  setsid ./deploy/install_interop.sh python &  # mostly waits for the network, so the build goes on beside it
  peers=$!
  trap 'kill -- "-$peers" 2>/dev/null || true' EXIT  # where the build fails
fi
from=$SECONDS
cmake --preset "$preset" >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
# For another compiler than before CMake forgets what else the preset says.
grep -q 'require your cache to be deleted' build/configure.log && cmake --preset "$preset" >build/configure.log
cmake --build --preset "$preset"
[ -z "$peers" ] || wait "$peers"
trap - EXIT
built=$SECONDS

run=()
# ThreadSanitizer of clang 14 needs addresses where a kernel with much randomisation does not always put them.
[ "$preset" = tsan ] && setarch "$(uname -m)" -R true 2>/dev/null && run=(setarch "$(uname -m)" -R)
report=build/$preset/test_report.xml
rm -f "$report"
status=0
"${run[@]}" ctest --preset "$preset" --parallel "$((3 * $(nproc)))" --output-junit "$PWD/$report" "$@" || status=$?
echo "build $((built - from)) s, tests $((SECONDS - built)) s" | tee "build/$preset/times.txt"

# Among the lines of two thousand tests nobody finds what a failing one printed.
if [ "$status" -ne 0 ] && [ -f "$report" ]; then
  echo "what the failing tests printed at their end:"
  awk '/<testcase / { match($0, /name="[^"]*"/); name = substr($0, RSTART + 6, RLENGTH - 7)
                      is_failing = /status="fail"/; count = 0 }
       is_failing { lines[count++] = $0 }
       /<\/testcase>/ && is_failing {
         print "--- " name
         for (i = count > 60 ? count - 60 : 0; i < count; ++i) print lines[i]
       }' "$report" | sed 's/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&apos;/'"'"'/g; s/&amp;/\&/g'
fi

# A skipped test prints its reason; ctest only counts it. There is no report where ctest could not even list the tests.
if [ -f "$report" ] && grep -q '<skipped' "$report"; then
  echo "skipped on this machine:"
  awk '/<testcase / { match($0, /name="[^"]*"/); name = substr($0, RSTART + 6, RLENGTH - 7) }
       /<skipped/ { skipped = 1 }
       /Skipped/ { getline; if (skipped && why == "") why = $0 }
       /<\/testcase>/ { if (skipped) print "  " name ": " why; skipped = 0; why = "" }' "$report"
fi
exit "$status"
