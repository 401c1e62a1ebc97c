# Each target is a line or two over a preset of CMakePresets.json.
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format debug asan tsan fuzz bench gpu-test clean

help:  ## list what make can do (this)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## install the Debian packages that are missing (demo and test do it themselves)
	@tools/setup.sh

demo: setup  ## build the program and let the model that ships answer
	@cmake --preset release >/dev/null
	@cmake --build --preset release --target triax -j $(JOBS)
	@tools/demo.sh

test: setup  ## build everything and run all tests
	@cmake --preset release
	@cmake --build --preset release -j $(JOBS)
	@ctest --preset release

check: setup  ## check layers, sizes and format of the source, without building it
	@python3 tools/check_layers_selftest.py
	@python3 tools/check_layers.py
	@tools/check_format.sh || [ $$? -eq 77 ]

format:  ## let clang-format rewrite src, tests and fuzz
	@tools/check_format.sh --fix

debug: setup  ## build without optimisation and run all tests
	@cmake --preset debug && cmake --build --preset debug -j $(JOBS) && ctest --preset debug

asan: setup  ## run all tests under the address and undefined-behaviour sanitizers
	@cmake --preset asan && cmake --build --preset asan -j $(JOBS) && ctest --preset asan

tsan: setup  ## run all tests with more than one thread under the thread sanitizer
	@cmake --preset tsan && cmake --build --preset tsan -j $(JOBS) && ctest --preset tsan

fuzz:  ## fuzz each target for FUZZ_SECONDS (60) under the sanitizers, with clang 19
	@tools/setup.sh fuzz
	@cmake --preset fuzz && cmake --build --preset fuzz -j $(JOBS)
	@tools/fuzz.sh build/fuzz $(FUZZ_SECONDS)

bench: setup  ## build and run the benchmarks of all operations (BENCH_ARGS are passed on)
	@cmake --preset release && cmake --build --preset release --target benches -j $(JOBS)
	@set -e; for bench in build/release/src/*_bench; do $$bench $(BENCH_ARGS); done

gpu-test: setup  ## build with CUDA and run on the GPU what needs one: sanitizer, tests, benchmarks
	@tools/setup.sh cuda
	@cmake --preset cuda && cmake --build --preset cuda --target all gpu_benches -j $(JOBS)
	@tools/gpu_run.sh build/cuda

clean:  ## remove all that was built
	@rm -rf build
