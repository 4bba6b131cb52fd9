#!/usr/bin/env bash
# Checks ddprun and libddp on a machine with an NVIDIA GPU: what the machine allows, tests, the example, PyTorch,
# compute-sanitizer, benchmarks. It comes with the bundle that `cmake --workflow --preset gpu-bundle` makes, and runs
# what lies beside it:
#
#   tar xf ddprun-*-gpu-bundle.tar.gz
#   ddprun-*-gpu-bundle/check.sh [--out=DIR] [tests|benchmarks]
#
# Results go to DIR (default: gpu_check in the current folder): results.md, results.json, and the log of every step.
# They are there after each step. A second call with the same DIR does not repeat what passed: so `check.sh tests` and
# `check.sh benchmarks`, each in under 8 minutes, are the whole check in two halves.
# Ends with 0; with 1 where a step failed, which does not keep the others from running; with 2 for wrong arguments, and
# where there is no GPU, driver, NCCL or cuBLAS.
set -u

bundle=$(cd "$(dirname "$0")" && pwd)
bin=$bundle/bin
out=$PWD/gpu_check
part=all
bundle_version=$(cat "$bundle/VERSION" 2>/dev/null)
time_limit=${DDP_CHECK_SECONDS:-460} # for all steps of a call

say() { printf '%s\n' "$@"; } # each on a line
give_up() {
  printf 'error: %s\n' "$@" >&2
  exit 2
}

for argument in "$@"; do
  case $argument in
    --out=?*) out=${argument#--out=} ;;
    tests | benchmarks) part=$argument ;;
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" && exit 0 ;;
    *) give_up "there is no argument '$argument'; try --out=DIR, tests, benchmarks or --help" ;;
  esac
done
[ -x "$bin/gpu_info" ] ||
  give_up "$bundle has no bin/gpu_info: this script runs inside the bundle of 'cmake --workflow --preset gpu-bundle'"
mkdir -p "$out/logs" "$out/steps" || give_up "can't make the folder $out"
out=$(cd "$out" && pwd)

# --- What there is ---

# Files in the folders where Python keeps its packages, without importing any: python_files nvidia/nccl/lib/libnccl.so.2
python=$(command -v python3 || true)
python_files() {
  [ -z "$python" ] || "$python" -c 'import glob, sys
for pattern in sys.argv[1:]:
    for folder in sys.path:
        print("\n".join(sorted(glob.glob((folder or ".") + "/" + pattern))))' "$@" 2>/dev/null | grep . || true
}

export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0} # one GPU is what everything here needs
# grep drops the complaint that nvidia-smi prints instead of a version.
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | grep -m 1 -x '[0-9.]*')
[ -n "$driver" ] ||
  driver=$(sed -n 's/^NVRM version:.*  \([0-9][0-9.]*\)  .*/\1/p' /proc/driver/nvidia/version 2>/dev/null)
if ! info=$("$bin/gpu_info" 2>"$out/logs/gpu_info.log") && [ -z "${DDP_NCCL_LIBRARY:-}" ]; then
  for file in $(python_files 'nvidia/nccl/lib/libnccl.so.2'); do
    info=$(DDP_NCCL_LIBRARY=$file "$bin/gpu_info" 2>"$out/logs/gpu_info.log") && export DDP_NCCL_LIBRARY=$file && break
  done
fi
if ! grep -q '^NCCL:' <<<"$info"; then
  give_up "this machine can't be checked: $(tr '\n' ' ' <"$out/logs/gpu_info.log")
       the driver's version: ${driver:-none found}; NCCL is looked for as DDP_NCCL_LIBRARY, as libnccl.so.2
       on the loader's path, and in the nvidia/nccl/lib of ${python:-python3 (not found)}"
fi

# cuBLAS: the loader's, the toolkit's, then that of a wheel. Only the steps that need it get its folder.
blas_folder=
with_blas() {
  local path=$blas_folder${blas_folder:+:}${LD_LIBRARY_PATH:-}
  LD_LIBRARY_PATH=${path%:} "$@"
}
has_blas() { with_blas "$bin/train_mlp_cuda" --help >"$out/logs/cublas.log" 2>&1; }
if ! has_blas; then
  for file in /usr/local/cuda*/lib64/libcublas.so.13 \
    $(python_files 'nvidia/cu13/lib/libcublas.so.13' 'nvidia/cublas/lib/libcublas.so.13'); do
    blas_folder=$(dirname "$file")
    [ -e "$file" ] && has_blas && break
    blas_folder=
  done
  [ -n "$blas_folder" ] || give_up "cuBLAS is not found: $(head -n 1 "$out/logs/cublas.log")
       libcublas.so.13 is looked for on the loader's path, in /usr/local/cuda*/lib64 and in the
       wheels of ${python:-python3 (not found)}"
fi
blas=$(with_blas ldd "$bin/train_mlp_cuda" | sed -n 's/.*libcublas\.so[^ ]* => \([^ ]*\).*/\1/p')

sanitizer=$(command -v compute-sanitizer)
for file in /usr/local/cuda*/bin/compute-sanitizer $(python_files 'nvidia/cu13/bin/compute-sanitizer'); do
  [ -n "$sanitizer" ] || [ ! -x "$file" ] || sanitizer=$file
done
torch=$([ -z "$python" ] ||
  "$python" -c 'import torch; print(torch.__version__ if torch.cuda.is_available() else "")' 2>/dev/null)

facts=$(
  say "date: $(date -u '+%Y-%m-%d %H:%M UTC')"
  say "ddprun: $bundle_version"
  say "$info"
  say "driver: ${driver:-unknown}"
  say "cuBLAS: ${blas:-unknown}"
  say "compute-sanitizer: ${sanitizer:-none found}"
  if [ -n "$torch" ]; then say "PyTorch: $torch of $python"; else say "PyTorch: none that can use the GPU"; fi
  say "processor: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores; kernel $(uname -r)"
)
say "$facts"

# --- Steps ---

failed=()
json_text() { printf '"%s"' "$(tr -d '\000-\037' <<<"$1" | sed 's/\\/\\\\/g; s/"/\\"/g')"; }
facts_json=$(while IFS= read -r fact; do
  printf '%s: %s\n' "$(json_text "${fact%%: *}")" "$(json_text "${fact#*: }")"
done <<<"$facts" | paste -sd,)

# result NAME passed|FAILED|skipped SECONDS NOTE: keeps bundle and result, a row of the table, and one of the JSON.
result() {
  local note=${4//$'\n'/ }
  printf '%s\n%s\n{"name": %s, "bundle": %s, "result": "%s", "seconds": %s, "note": %s}\n' "$bundle_version $2" \
    "| $1 | $2 | $3 | ${note//|//} |" "$(json_text "$1")" "$(json_text "$bundle_version")" "$2" "$3" \
    "$(json_text "$note")" >"$out/steps/$1"
  grep -qxF "$1" "$out/order" 2>/dev/null || say "$1" >>"$out/order"
  [ "$2" != FAILED ] || failed+=("$1")
  printf '%-34s %-8s %4s s  %s\n' "$1" "$2" "$3" "$4"
  write_results
}
# Whether an earlier call, with this bundle, has passed it.
has_passed() {
  [ "$(head -n 1 "$out/steps/$1" 2>/dev/null)" = "$bundle_version passed" ] &&
    printf '%-34s passed by an earlier call\n' "$1"
}
skip() { result "$1" skipped 0 "$2"; }

# What a log says of itself, in a few words.
summary_of() {
  local log=$1 ran skipped broken
  if grep -q '^\[==========\].* ran\.' "$log"; then
    ran=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | head -n 1)
    skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/, \1 skipped/p' "$log" | head -n 1)
    broken=$(sed -n 's/^\[  FAILED  \] \([A-Za-z_]*\.[A-Za-z_0-9]*\)$/; \1 failed/p' "$log" | sort -u | head -n 5)
    say "${ran:-0} tests passed$skipped${broken//$'\n'/}"
  elif grep -q '^| ' "$log"; then
    say 'its figures are below'
  else
    grep -v '^ *$' "$log" | tail -n 1 | cut -c 1-200
  fi
}

# step NAME SECONDS COMMAND...: runs it, with what it prints in a log.
step() {
  local name=$1 limit=$2 log=$out/logs/$1.log left=$((time_limit - SECONDS)) begin=$SECONDS status=0
  shift 2
  ! has_passed "$name" || return 0
  [ "$left" -ge "$limit" ] || limit=$left
  if [ "$limit" -lt 3 ]; then
    result "$name" FAILED 0 "there was no time left for it"
    return 1
  fi
  if [ "$1" = with_blas ]; then
    shift
    with_blas timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1 </dev/null || status=$?
  else
    timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1 </dev/null || status=$?
  fi
  local seconds=$((SECONDS - begin))
  if [ "$status" -eq 124 ] || [ "$seconds" -ge "$limit" ]; then
    result "$name" FAILED "$seconds" "it did not end within $limit s: $(summary_of "$log")"
  elif [ "$status" -ne 0 ]; then
    result "$name" FAILED "$seconds" "exit code $status: $(summary_of "$log")"
  elif grep -q '^\[  PASSED  \] 0 tests' "$log"; then
    result "$name" FAILED "$seconds" "no test ran: $(grep -m 1 -A 1 ': Skipped$' "$log" | tail -n 1)"
  else
    result "$name" passed "$seconds" "$(summary_of "$log")"
    return 0
  fi
  return 1
}

benchmark() { step "$1" "${@:2}" "--json=$out/logs/$1.json"; }

rows_of_steps() { (cd "$out/steps" && xargs sed -s -n "$1p" <"$out/order"); } # their line with this number
write_results() {
  local name
  {
    say "# ddprun on a GPU" ''
    say "- ${facts//$'\n'/$'\n'- }"
    say '' '| step | result | s | |' '| --- | --- | --- | --- |'
    rows_of_steps 2
    say '' '| figure | |' '| --- | --- |'
    for name in $benchmarks; do grep '^| ' "$out/logs/$name.log" 2>/dev/null; done
  } >"$out/results.md"
  {
    printf '{"facts": {%s},\n"steps": [%s],\n"benchmarks": [' "$facts_json" "$(rows_of_steps 3 | paste -sd,)"
    for name in $benchmarks; do
      if [ -s "$out/logs/$name.json" ]; then paste -sd' ' "$out/logs/$name.json"; fi
    done | paste -sd,
    printf ']}\n'
  } >"$out/results.json"
}

export DDP_FLIGHT_RECORDER=/dev/null # tests bring about many failures
cd "$out/logs" || exit 2

# What matters most comes first, should the time not do for all.
run_tests() {
  step probe 20 "$bin/gpu_probe"
  for name in kernels device_mlp; do step "gpu_${name}_test" 60 with_blas "$bin/gpu_${name}_test"; done
  step gpu_gradient_kernels_test 90 "$bin/gpu_gradient_kernels_test"
  step gpu_init_test 60 "$bin/gpu_init_test"
  step gpu_collectives_test 110 "$bin/gpu_collectives_test"
  step gpu_step_test 80 "$bin/gpu_step_test"
  step gpu_capture_test 60 "$bin/gpu_capture_test"
  step gpu_memory_test 30 "$bin/gpu_memory_test"
  step example_ranks_1 30 with_blas "$bin/example.sh" accuracy 1
  if [ -n "$torch" ]; then
    step torch_under_ddprun 90 "$bin/ddprun" --standalone --nproc-per-node=2 --max-restarts=1 --log-dir=/dev/null \
      "$python" "$bin/torch_ranks.py"
  else
    skip torch_under_ddprun "there is no Python with PyTorch that can use the GPU"
  fi
  step gpu_failure_test 80 "$bin/gpu_failure_test"
  step gpu_elastic_test 110 "$bin/gpu_elastic_test" \
    --gtest_filter='*KilledWorkerAgain*:*StoppedRankInACollective*:*FailureWhileTheRanksMeet*:*BudgetUsedUp*'
  for count in 2 4; do
    step "example_ranks_$count" 60 with_blas "$bin/example.sh" accuracy "$count" "--epochs=$((80 / count))"
  done
  step example_same_losses 60 with_blas "$bin/example.sh" same_losses
  if [ -n "$torch" ]; then
    # torchfrtrace of this PyTorch must read what three ranks wrote, of which two waited for the third in vain.
    # shellcheck disable=SC2016  # the inner shell expands them
    step flight_recorder 60 env "DDP_FLIGHT_RECORDER=$out/flight_recorder/flight_recorder_" bash -c '
      "$1" --gtest_filter=Timeout.NamesTheMissingRankAndHowFarAllCame &&
        "$2" -m torch.distributed.flight_recorder.fr_trace "$3" -p flight_recorder_' - \
      "$bin/gpu_failure_test" "$python" "$out/flight_recorder"
  else
    skip flight_recorder "there is no Python with PyTorch that can use the GPU"
  fi
  # The tests that reach each kernel, and each with shared memory. Every test is a process: CUDA takes seconds for that.
  local shared='BatchNormKernels.*:GradientKernels.ManyRanges*'
  local each=$shared':*.AnElement*:*.ScaleUnless*:*.Widening*:*.Narrowing*:*.Hashes*:*.AdamWHas*:*.SgdHas*'
  for tool in memcheck racecheck; do
    if [ -z "$sanitizer" ]; then
      for over in '' _kernels; do skip "compute_sanitizer_$tool$over" "there is no compute-sanitizer"; done
      continue
    fi
    local filter=$each
    [ "$tool" = memcheck ] || filter=$shared # racecheck looks at nothing else
    # NCCL tries calls that may fail, which is no error of the program. The tests fork.
    step "compute_sanitizer_$tool" 90 with_blas "$sanitizer" --tool "$tool" --report-api-errors no \
      --error-exitcode 9 "$bin/train_mlp_cuda" "--data=$bundle/data/breast_cancer.csv" --epochs=1 --batch-size=64
    step "compute_sanitizer_${tool}_kernels" 40 "$sanitizer" --tool "$tool" --report-api-errors no \
      --target-processes all --error-exitcode 9 "$bin/gpu_gradient_kernels_test" \
      "--gtest_filter=$filter"
  done
}
run_benchmarks() {
  benchmark engine_overhead 60 with_blas "$bin/gpu_engine_overhead_benchmark"
  if [ -n "$torch" ]; then
    benchmark torch_ddp 75 "$python" "$bin/torch_ddp.py"
  else
    skip torch_ddp "there is no Python with PyTorch that can use the GPU"
  fi
  benchmark gradient_kernels 45 "$bin/gpu_gradient_kernels_benchmark"
  benchmark latency 60 "$bin/gpu_latency_benchmark"
  benchmark rebuild 45 "$bin/gpu_rebuild_benchmark" --rounds=6
  benchmark recovery 60 "$bin/gpu_recovery_benchmark"
  benchmark overlap 60 with_blas "$bin/gpu_overlap_benchmark"
}
benchmarks='engine_overhead torch_ddp gradient_kernels latency rebuild recovery overlap'
[ "$part" = benchmarks ] || run_tests
[ "$part" = tests ] || run_benchmarks

say "results: $out/results.md, in $SECONDS s"
[ ${#failed[@]} -eq 0 ] && exit 0
say "failed: ${failed[*]}"
exit 1
