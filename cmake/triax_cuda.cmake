# CUDA code: kernels become libtriax_cuda.so, which the program opens at run time and never links.
# nvcc is called directly, not as a CMake language: it may lie in a folder of Python wheels
# (tools/setup.sh cuda), and the architectures of a file follow from its name.
#   *_gpu_test.cu    go into the program gpu_test
#   *_gpu_bench.cu   become a program each
#   *_sm90.cu        are compiled for sm_90a only
#   all other *.cu   are compiled for TRIAX_CUDA_ARCHS and go into the library with *_sm90.cu
set(TRIAX_CUDA AUTO CACHE STRING "build the CUDA library: ON, OFF, or AUTO where nvcc is found")
set(TRIAX_CUDA_ARCHS 90a CACHE STRING "CUDA architectures, e.g. 80;90a;100;120")

set(TRIAX_HAS_CUDA OFF)
if(NOT TRIAX_CUDA STREQUAL "OFF")
  find_program(TRIAX_NVCC nvcc
    HINTS ENV CUDA_HOME ENV CUDA_PATH
    PATHS /usr/local/cuda $ENV{XDG_CACHE_HOME}/triax/cuda-toolkit
          $ENV{HOME}/.cache/triax/cuda-toolkit
    PATH_SUFFIXES bin)
  if(TRIAX_NVCC)
    get_filename_component(nvcc_file ${TRIAX_NVCC} REALPATH)
    get_filename_component(TRIAX_CUDA_ROOT ${nvcc_file} DIRECTORY)
    get_filename_component(TRIAX_CUDA_ROOT ${TRIAX_CUDA_ROOT} DIRECTORY)
    find_library(TRIAX_CUDART libcudart_static.a HINTS ${TRIAX_CUDA_ROOT} NO_DEFAULT_PATH
                 PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
  endif()
  if(TRIAX_NVCC AND TRIAX_CUDART)
    set(TRIAX_HAS_CUDA ON)
    message(STATUS "CUDA: ${TRIAX_NVCC} for ${TRIAX_CUDA_ARCHS}")
  elseif(TRIAX_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA: no nvcc here, so no GPU code (tools/setup.sh cuda fetches it)")
  else()
    message(FATAL_ERROR "TRIAX_CUDA is ${TRIAX_CUDA}, but nvcc or libcudart_static.a is not here; "
                        "tools/setup.sh cuda fetches both")
  endif()
endif()

# triax_cuda_object(OUT SOURCE): the object file of one .cu file.
function(triax_cuda_object out source)
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR}/src ${source})
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  get_filename_component(folder ${object} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  set(archs ${TRIAX_CUDA_ARCHS})
  if(name MATCHES "_sm90\\.cu$")
    set(archs 90a)
  endif()
  set(gencode)
  foreach(arch IN LISTS archs)
    list(APPEND gencode -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${TRIAX_NVCC} -std=c++20 -O3 -DNDEBUG
            -ccbin ${CMAKE_CXX_COMPILER} ${gencode} -Xcompiler=-fPIC -I${CMAKE_SOURCE_DIR}/src
            -MD -MF ${object}.d -c ${source} -o ${object}
    DEPFILE ${object}.d
    DEPENDS ${source}
    COMMENT "CUDA ${name}"
    VERBATIM)
  set(${out} ${object} PARENT_SCOPE)
endfunction()

# triax_cuda_link(TARGET): what a target with CUDA objects links.
function(triax_cuda_link target)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${target} PRIVATE ${TRIAX_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt)
endfunction()

# triax_cuda_targets(): the library, gpu_test and the benches, from all .cu files under src.
function(triax_cuda_targets)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*.cu)
  foreach(source IN LISTS sources)
    if(source MATCHES "_gpu_test\\.cu$")
      set(kind tests)
    elseif(source MATCHES "_gpu_bench\\.cu$")
      set(kind benches)
    else()
      set(kind kernels)
    endif()
    if((kind STREQUAL "tests" AND NOT TRIAX_TESTS) OR
       (kind STREQUAL "benches" AND NOT TRIAX_BENCHMARKS))
      continue()
    endif()
    triax_cuda_object(object ${source})
    list(APPEND ${kind} ${object})
  endforeach()

  add_custom_target(cuda_objects DEPENDS ${kernels} ${tests})
  add_library(triax_cuda SHARED ${kernels})
  triax_cuda_link(triax_cuda)
  target_link_options(triax_cuda PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL
                                         -Wl,-Bsymbolic)
  set_target_properties(triax_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
  add_dependencies(triax_cuda cuda_objects)
  if(tests)
    add_executable(gpu_test ${tests})
    triax_cuda_link(gpu_test)
    target_link_libraries(gpu_test PRIVATE triax_cuda triax_dense GTest::gtest_main)
    add_dependencies(gpu_test cuda_objects)
    add_test(NAME gpu/kernels COMMAND gpu_test --gtest_brief=1)
    set_tests_properties(gpu/kernels PROPERTIES TIMEOUT 1800 SKIP_REGULAR_EXPRESSION "no GPU")
  endif()
  # Not part of `all`: they compile long and no test needs them.
  add_custom_target(gpu_benches)
  foreach(bench IN LISTS benches)
    get_filename_component(name ${bench} NAME)
    string(REPLACE ".cu.o" "" name ${name})
    add_executable(${name} EXCLUDE_FROM_ALL ${bench})
    triax_cuda_link(${name})
    target_link_libraries(${name} PRIVATE triax_cuda)
    add_dependencies(${name} cuda_objects)
    add_dependencies(gpu_benches ${name})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/gpu_bench)
  endforeach()
endfunction()
