#!/usr/bin/env bash
# Runs what needs a GPU, from a folder of built programs: sanitizer, tests, then benchmarks; a short
# table last. The machine needs a driver and nothing else: no compiler, no CUDA.
#   tools/gpu_run.sh [BUILD]         BUILD: build/cuda, or an unpacked package
#   tools/gpu_run.sh --pack BUILD FILE.tar.xz
#                                    the programs, stripped, with the libraries they load and this
#                                    script: to be unpacked and run on another machine
# Environment: TRIAX_BENCH_ARGS (default --quick), TRIAX_SANITIZE_FILTER (tests for the sanitizer),
# TRIAX_SOURCE (the repository, for tests with the model that ships), OUT (folder for all output).
set -uo pipefail

suites=(dense sequence depth width engine)

pack() {
  local build=$1 file=$2 folder program
  folder=$(mktemp -d)
  mkdir -p "$folder/gpu/"{bin,lib,so,gpu_bench}
  for program in "$build"/bin/triax "$build"/gpu_test "$build"/tests/whole_test \
                 "${suites[@]/#/$build/src/}" ; do
    [[ -x $program ]] || program=${program}_test
    strip -o "$folder/gpu/bin/$(basename "$program")" "$program"
  done
  for program in "$build"/gpu_bench/*_gpu_bench; do
    strip -o "$folder/gpu/gpu_bench/$(basename "$program")" "$program"
  done
  strip -o "$folder/gpu/lib/libtriax_cuda.so" "$build/lib/libtriax_cuda.so"
  ldd "$folder"/gpu/bin/* | awk '/=> \// {print $3}' | sort -u |
    grep -E 'fmt|pcre2|edit|bsd|libmd|tinfo' | xargs -I{} cp -L {} "$folder/gpu/so/"
  cp "${BASH_SOURCE[0]}" "$folder/gpu/gpu_run.sh"
  tar -C "$folder" -cJf "$file" gpu
  rm -rf "$folder"
}

if [[ ${1:-} == --pack ]]; then
  [[ $# -eq 3 ]] || { echo "usage: tools/gpu_run.sh --pack BUILD FILE.tar.xz" >&2; exit 2; }
  pack "$2" "$3"
  exit
fi

build=${1:-build/cuda}
export LD_LIBRARY_PATH=$build/lib:$build/so${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export TRIAX_CUDA_LIBRARY=$build/lib/libtriax_cuda.so
OUT=${OUT:-$(mktemp -d)}
mkdir -p "$OUT"
bench_args=${TRIAX_BENCH_ARGS:---quick}
# Small cases of every kernel: the sanitizer slows them down a hundred times.
small='*Small*:EmbedCuda.*:RowsCuda.*:RmsNormCuda.*:GatedActivationCuda.*:RouteCuda.Ties*'
small+=':GroupExpertsCuda.*:SumExpertsCuda.*:ShortConvCuda.Any*:KdaOutputCuda.*:AttnResCuda.Mixes*'
small+=':AttnResGpuEdges.*:KdaDecodeGpuEdges.*:KdaPrefill.NoSlot*:MoeDecodeGpu.Absent*'
small+=':MoeDecodeGpu.Wide*:LinearDecodeGpu.GatedInput:MlaCuda.Is*:ArgmaxCuda.Shows*'
sanitize_filter=${TRIAX_SANITIZE_FILTER:-$small-*LargePool*}
failed=()

find_program() {
  local place
  for place in bin src tests .; do
    [[ -x $build/$place/$1 ]] && { echo "$build/$place/$1"; return; }
  done
  return 1
}

# step NAME COMMAND...: runs it, keeps its output, remembers whether it failed.
step() {
  local name=$1 begin=$SECONDS status=0
  shift
  "$@" >"$OUT/$name.log" 2>&1 || status=$?
  if [[ $status -eq 0 ]]; then
    echo "ok      $name ($((SECONDS - begin)) s)"
  else
    echo "FAILED  $name (status $status); the end of $OUT/$name.log:"
    tail -15 "$OUT/$name.log" | cut -c1-240 | sed 's/^/        /'
    failed+=("$name")
  fi
}

"$(find_program triax)" doctor
if ! "$(find_program triax)" doctor --json | grep -q '"usable": true'; then
  echo "gpu_run: there is no GPU that can be used here"
  exit 77
fi

gpu_test=$(find_program gpu_test) || gpu_test=
if [[ -n $gpu_test ]] && command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck synccheck; do
    step "sanitizer_$tool" compute-sanitizer --tool $tool --error-exitcode 9 \
      "$gpu_test" --gtest_brief=1 --gtest_filter="$sanitize_filter"
  done
fi
[[ -z $gpu_test ]] || step gpu_test "$gpu_test" --gtest_brief=1
for suite in "${suites[@]}" whole; do
  program=$(find_program "${suite}_test") || continue
  step "${suite}_test" "$program" --gtest_brief=1 --gtest_filter='*cuda*:*Gpu*'
done

# Timings count only where everything is right.
if [[ ${#failed[@]} -eq 0 ]]; then
  for bench in "$build"/gpu_bench/*_gpu_bench; do
    # shellcheck disable=SC2086  # several arguments
    [[ -x $bench ]] && step "$(basename "$bench")" "$bench" $bench_args
  done
  cat "$OUT"/*_gpu_bench.log 2>/dev/null | grep '^{' >"$OUT/bench.jsonl"
  echo
  awk -F'"' '{ shape = ""; us = ""; share = ""
               for (i = 2; i < NF; i += 2) {
                 if ($i == "bench") name = $(i + 2)
                 if ($i == "shape") shape = $(i + 2)
                 if ($i == "us") us = $(i + 1)
                 if ($i == "share") share = $(i + 1) }
               gsub(/[:,}]/, "", us); gsub(/[:,}]/, "", share)
               printf "%-24s %-44s %10s us  share %s\n", name, shape, us, share }' "$OUT/bench.jsonl"
fi
echo "gpu_run: ${#failed[@]} failed ${failed[*]:-}; all output in $OUT"
[[ ${#failed[@]} -eq 0 ]]
