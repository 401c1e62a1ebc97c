#!/usr/bin/env bash
# Runs every fuzz target for some seconds: fuzz.sh BUILD_FOLDER SECONDS
# New inputs go to fuzz/corpus-found/ (not committed), failing ones to BUILD_FOLDER/crashes/.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
seconds=$2
mkdir -p "$build/crashes"

shopt -s nullglob
targets=("$build"/fuzz/*_fuzz)
[[ ${#targets[@]} -gt 0 ]] || { echo "fuzz: no targets in $build/fuzz" >&2; exit 1; }
failed=()
for target in "${targets[@]}"; do
  name=$(basename "$target" _fuzz)
  found=fuzz/corpus-found/$name
  mkdir -p "$found"
  options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
           -artifact_prefix="$build/crashes/$name-")
  [[ -f fuzz/$name.dict ]] && options+=(-dict="fuzz/$name.dict")
  echo "fuzz: $name, $seconds s"
  log=$build/crashes/$name.log
  if "$target" "${options[@]}" "$found" "fuzz/corpus/$name" >"$log" 2>&1; then
    grep -E 'number_of_executed_units|new_units_added|peak_rss_mb' "$log" || true
  else
    failed+=("$name")
    tail -n 40 "$log"
  fi
done
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "fuzz: failed: ${failed[*]}; inputs and logs are in $build/crashes/" >&2
  exit 1
fi
echo "fuzz: ${#targets[@]} targets, no failure"
