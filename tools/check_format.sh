#!/usr/bin/env bash
# Compares the C++ source with what clang-format 14 makes of it; --fix rewrites it.
# Exit code 77: there is no clang-format 14 here (other versions break lines elsewhere).
set -euo pipefail
cd "$(dirname "$0")/.."

formatter=
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then
    formatter=$candidate
    break
  fi
done
if [[ -z $formatter ]]; then
  echo "check_format: skipped: clang-format 14 is not installed (Debian 12: apt-get install clang-format)"
  exit 77
fi

mapfile -t files < <(find src tests fuzz \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) | sort)
if [[ ${1:-} == --fix ]]; then
  exec "$formatter" -i "${files[@]}"
fi
printf '%s\0' "${files[@]}" | xargs -0 -n 20 -P "$(nproc)" "$formatter" --dry-run -Werror || {
  echo "check_format: 'make format' mends this" >&2
  exit 1
}
echo "check_format: ${#files[@]} files"
