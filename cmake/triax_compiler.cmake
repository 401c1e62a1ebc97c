# Compiler, warnings, optimisation: one place, the same for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(TRIAX_CCACHE ccache)
if(TRIAX_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TRIAX_CCACHE})
endif()

add_library(triax_flags INTERFACE)
target_compile_options(triax_flags INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Werror
  # Fixed reduction order: the compiler may not reassociate, nor contract behind our back.
  -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # std::stable_sort of libstdc++ 12 calls a function that the same library calls deprecated.
  target_compile_options(triax_flags INTERFACE -Wno-deprecated-declarations)
endif()
if(TRIAX_SANITIZE)
  target_compile_options(triax_flags INTERFACE -fsanitize=${TRIAX_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=all)
  target_link_options(triax_flags INTERFACE -fsanitize=${TRIAX_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Instrumented code makes this warning of g++ 12 guess wrong.
    target_compile_options(triax_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
if(TRIAX_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TRIAX_FUZZERS needs clang (libFuzzer); use the preset fuzz")
  endif()
  target_compile_options(triax_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# File name suffix -> instruction set. A translation unit holds code of one instruction set only.
set(TRIAX_ISA_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(TRIAX_ISA_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c -mbmi2
                     -mprefer-vector-width=512)
# g++ 12 warns of the deliberately undefined registers inside its own AVX-512 intrinsics (GCC bug
# 105593).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND TRIAX_ISA_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
