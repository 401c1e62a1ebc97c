#!/usr/bin/env bash
# Installs what a build needs on Debian 12. Does nothing when all of it is there.
#   tools/setup.sh         what build and tests need
#   tools/setup.sh fuzz    also clang 19 with its run-time libraries
#   tools/setup.sh cuda    also CUDA's compiler, from Python packages into ~/.cache/triax, where no
#                          nvcc is; for machines without a GPU, too
set -euo pipefail

required=(g++ cmake ninja-build make git pkg-config libfmt-dev nlohmann-json3-dev libcli11-dev
          libpcre2-dev libedit-dev libxxhash-dev libzstd-dev liburing-dev libhiredis-dev redis-tools
          libboost-dev libjs-marked node-dompurify libjs-highlight.js libjs-katex libjs-chart.js
          libgtest-dev libgmock-dev libbenchmark-dev python3 python3-jsonschema)
useful=(ccache clang-format chromium-headless-shell)  # the build does without them
case "${1:-}" in
  "") ;;
  fuzz) required+=(clang-19 libclang-rt-19-dev); useful+=(llvm-19) ;;
  cuda) ;;
  *) echo "usage: tools/setup.sh [fuzz|cuda]" >&2; exit 2 ;;
esac

say() { echo "setup: $*" >&2; }

cuda_version=13.0
cuda_packages=(nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl
               nvidia-cublas)
cuda_folder=${XDG_CACHE_HOME:-$HOME/.cache}/triax
cuda_toolkit=$cuda_folder/cuda-toolkit

# cmake/triax_cuda.cmake looks in the same places.
has_nvcc() {
  command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc || -x $cuda_toolkit/bin/nvcc ]]
}

# A virtual environment of its own, so that nothing of the system's Python changes; the link is made
# last, so that an interrupted run leaves nothing that looks whole. TRIAX_WHEELS: a folder with the
# packages, for machines without a network.
install_cuda() {
  local from=() package
  [[ -z ${TRIAX_WHEELS:-} ]] || from=(--no-index --find-links "$TRIAX_WHEELS")
  say "fetching CUDA $cuda_version's compiler into $cuda_folder"
  mkdir -p "$cuda_folder"
  rm -rf "$cuda_folder/venv" "$cuda_toolkit"
  python3 -m venv "$cuda_folder/venv" || return 1
  "$cuda_folder/venv/bin/pip" install --quiet --disable-pip-version-check "${from[@]}" \
    "${cuda_packages[@]/%/==$cuda_version.*}" >&2 || return 1
  chmod -R u+x "$cuda_folder"/venv/lib/python3*/site-packages/nvidia/cu13/{bin,nvvm/bin}
  ln -sfn "$(echo "$cuda_folder"/venv/lib/python3*/site-packages/nvidia/cu13)" "$cuda_toolkit"
}

finish() {
  if [[ $wants_cuda == yes ]] && ! has_nvcc; then
    install_cuda || { say "CUDA's compiler could not be fetched"; exit 1; }
  fi
  exit 0
}
wants_cuda=no
if [[ ${1:-} == cuda ]]; then
  wants_cuda=yes
  has_nvcc || required+=(python3-venv)
fi

# Prints those of its arguments that are not installed.
missing() {
  local installed
  installed=" $(dpkg-query -W -f='${db:Status-Status}=${Package} ' "$@" 2>/dev/null || true)"
  for package in "$@"; do
    [[ $installed == *" installed=$package "* ]] || echo "$package"
  done
}

give_up() {
  say "$1"
  say "These Debian packages are needed and missing: ${wanted_required[*]}"
  say "Ask someone who may to run: apt-get update && apt-get install --yes ${wanted_required[*]}"
  exit 1
}

if ! command -v dpkg-query >/dev/null; then
  say "this is not a Debian system: going on with what is here."
  say "On Debian 12 the packages would be: ${required[*]}"
  finish
fi

mapfile -t wanted_required < <(missing "${required[@]}")
mapfile -t wanted_useful < <(missing "${useful[@]}")
[[ ${#wanted_required[@]} -gt 0 || ${#wanted_useful[@]} -gt 0 ]] || finish

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
  elif [[ ${#wanted_required[@]} -eq 0 ]]; then
    finish  # what is only useful is not worth a password
  elif command -v sudo >/dev/null && [[ -t 0 ]]; then
    as_root=(sudo)
  else
    give_up "you are not root, and sudo is absent or asks for a password that nobody can type."
  fi
fi
command -v apt-get >/dev/null || give_up "apt-get is not here."

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq --yes \
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null
}

# Known means: the package lists name an installable version.
known() {
  local package
  for package in "$@"; do
    LC_ALL=C apt-cache policy "$package" | grep -q 'Candidate: [^(]' || return 1
  done
}

install() {
  apt install --no-install-recommends "$@" >&2
}

if [[ ${#wanted_required[@]} -gt 0 ]]; then
  say "installing ${wanted_required[*]} ${wanted_useful[*]}"
  known "${wanted_required[@]}" || apt update >&2 || say "apt-get update failed: trying the old package lists"
  # Lists that are too old name files that are gone: fetch new ones once and try again.
  if ! install "${wanted_required[@]}"; then
    apt update >&2 || true
    install "${wanted_required[@]}" || give_up "apt-get could not install what is missing."
  fi
fi
for package in "${wanted_useful[@]}"; do
  { known "$package" && install "$package"; } || say "$package is not available here; the build does without it"
done
finish
