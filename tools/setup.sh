#!/usr/bin/env bash
# Installs what a build needs on Debian 12. Does nothing when all of it is there.
#   tools/setup.sh         what build and tests need
#   tools/setup.sh fuzz    also clang 19 with its run-time libraries
set -euo pipefail

required=(g++ cmake ninja-build make git pkg-config libfmt-dev nlohmann-json3-dev libcli11-dev
          libpcre2-dev libedit-dev libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev python3)
useful=(ccache clang-format)  # the build does without them
case "${1:-}" in
  "") ;;
  fuzz) required+=(clang-19 libclang-rt-19-dev); useful+=(llvm-19) ;;
  *) echo "usage: tools/setup.sh [fuzz]" >&2; exit 2 ;;
esac

say() { echo "setup: $*" >&2; }

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
  exit 0
fi

mapfile -t wanted_required < <(missing "${required[@]}")
mapfile -t wanted_useful < <(missing "${useful[@]}")
[[ ${#wanted_required[@]} -gt 0 || ${#wanted_useful[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
  elif [[ ${#wanted_required[@]} -eq 0 ]]; then
    exit 0  # what is only useful is not worth a password
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
