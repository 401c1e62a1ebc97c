#!/usr/bin/env bash
# What `make demo` shows: the card of the model that ships, two answers and a follow-up turn.
set -euo pipefail
cd "$(dirname "$0")/.."

triax=build/release/bin/triax
model=models/boot-k3

# The card: size, what stands on each axis, vocabulary.
"$triax" inspect "$model" | sed -n 1,5p

# The last question resumes from the state that the turn before it left.
"$triax" chat --model "$model" --temperature 0 --max-tokens 80 <<'QUESTIONS'
Who are you?
/clear
What is the Debian package zsh?
/clear
My name is Clara.
What is my name?
QUESTIONS

printf '\nTalk to it yourself:  %s chat --model %s\n' "$triax" "$model"
