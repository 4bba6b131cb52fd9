#!/usr/bin/env bash
# check.sh in a bundle of stand-ins, which only say what the real programs would: what it makes of success, failure and
# absence.
#
#   check_test.sh FOLDER-OF-CHECK.SH
set -eu
source=$1
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
bundle=$work/bundle
mkdir -p "$bundle/bin" "$bundle/data" "$work/tools"

fail() {
  echo "FAILED: $*" >&2
  cat "$work/said" >&2
  exit 1
}
# stand_in FILE LINES-OF-SHELL: a program
stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"; }
# check EXIT-CODE ARGUMENT...
check() {
  local wanted=$1 status=0
  shift
  PATH=$work/tools:$PATH "$bundle/check.sh" "$@" >"$work/said" 2>&1 || status=$?
  [ "$status" -eq "$wanted" ] || fail "exit code $status, not $wanted, for '$*'"
}
says() { grep -qF -- "$1" "$work/said" || fail "it does not say '$1'"; }
writes() { grep -qF -- "$2" "$work/$1" || { cat "$work/$1" >&2; fail "$1 does not say '$2'"; }; }

cp "$source/check.sh" "$bundle"
check 2 --out="$work/none"
says 'has no bin/gpu_info'

tests='kernels device_mlp gradient_kernels init collectives step capture failure memory elastic'
ran='echo "[==========] 3 tests from 1 test suite ran. (5 ms total)"'
for name in $tests; do stand_in "$bundle/bin/gpu_${name}_test" "$ran; echo '[  PASSED  ] 3 tests.'"; done
for name in engine_overhead gradient_kernels latency rebuild recovery overlap; do
  # shellcheck disable=SC2016  # the stand-in expands its own $1
  stand_in "$bundle/bin/gpu_${name}_benchmark" "echo '| time of $name | 1.5 ms |'
echo '{\"benchmark\":\"$name\",\"rows\":[]}' "'> "${1#--json=}"'
done
stand_in "$bundle/bin/train_mlp_cuda" 'exit 0'
stand_in "$bundle/bin/gpu_probe" 'echo "pidfd_open: yes"'
stand_in "$bundle/bin/example.sh" 'echo "accuracy on 100 other samples: 97.0 %"'
stand_in "$work/tools/compute-sanitizer" 'echo "ERROR SUMMARY: 0 errors"'
stand_in "$work/tools/python3" 'exit 1' # without packages

check 2 --color
says "there is no argument '--color'"
check 0 --help

stand_in "$bundle/bin/gpu_info" 'echo "no GPU that CUDA 13.0 can use: there is none" >&2; exit 2'
check 2 --out="$work/none"
says "this machine can't be checked: no GPU that CUDA 13.0 can use: there is none"

stand_in "$bundle/bin/gpu_info" 'echo "GPU: a \"stand-in\""; echo "NCCL: NCCL 2.28.9 at /x/libnccl.so.2"'
check 0 --out="$work/good"
writes good/results.md '- GPU: a "stand-in"'
writes good/results.md '| gpu_step_test | passed | '
writes good/results.md '| 3 tests passed |'
writes good/results.md '| torch_ddp | skipped | 0 | there is no Python with PyTorch that can use the GPU |'
writes good/results.md '| time of rebuild | 1.5 ms |'
/usr/bin/env python3 -m json.tool "$work/good/results.json" >/dev/null || fail 'results.json is no JSON'

check 0 --out="$work/halves" benchmarks
grep -q gpu_step_test "$work/halves/results.md" && fail 'benchmarks runs tests, too'
stand_in "$bundle/bin/gpu_rebuild_benchmark" 'exit 1' # it has passed, and is not run again
check 0 --out="$work/halves"
says 'passed by an earlier call'
writes halves/results.md '| gpu_step_test | passed | '
writes halves/results.md '| time of rebuild | 1.5 ms |'
stand_in "$bundle/bin/gpu_rebuild_benchmark" 'exit 0'

stand_in "$bundle/bin/gpu_init_test" "$ran; echo '[  PASSED  ] 2 tests.'; echo '[  FAILED  ] Init.Fails'; exit 1"
stand_in "$bundle/bin/gpu_memory_test" "$ran; echo '[  PASSED  ] 0 tests.'"
check 1 --out="$work/bad"
says 'failed: gpu_init_test gpu_memory_test'
writes bad/results.md 'exit code 1: 2 tests passed; Init.Fails failed'
grep -qE '^\| gpu_memory_test \| FAILED \| [0-9]+ \| no test ran' "$work/bad/results.md" ||
  { cat "$work/bad/results.md" >&2; fail 'a program that runs no test has not failed'; }
writes bad/results.md '| gpu_elastic_test | passed | ' # it goes on

stand_in "$bundle/bin/train_mlp_cuda" 'echo "libcublas.so.13: cannot open shared object file" >&2; exit 127'
check 2 --out="$work/none"
says 'cuBLAS is not found: libcublas.so.13: cannot open shared object file'
