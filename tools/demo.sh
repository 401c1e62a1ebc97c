#!/usr/bin/env bash
# What `make demo` shows: the card of the model that ships, two answers and a follow-up turn.
set -euo pipefail
cd "$(dirname "$0")/.."

triax=build/release/bin/triax
model=models/boot-k3

ask() {
  printf '\n> %s\n' "$1"
  "$triax" generate --model "$model" --chat --temperature 0 --max-tokens 80 --prompt "$1"
}

"$triax" inspect "$model"
ask 'Who are you?'
ask 'What is the Debian package zsh?'
