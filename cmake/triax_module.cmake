# triax_module(NAME DEPS ... LIBS ...): the folder src/NAME becomes the target triax_NAME.
# By its name a file says what it is:
#   *_test.cc    goes into the test program NAME_test
#   *_bench.cc   goes into the benchmark program NAME_bench
#   *_avx2.cc, *_avx512.cc   are compiled for that instruction set
#   all others   form the library
# DEPS are lower modules, LIBS are outside libraries.
include(GoogleTest)

function(triax_module name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS;TEST_LIBS" ${ARGN})
  set(folder ${CMAKE_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cc)
  set(tests ${sources})
  set(benches ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.cc$")

  if(NOT sources)
    return()  # a module that a later change fills
  endif()

  list(TRANSFORM ARG_DEPS PREPEND triax_)
  add_library(triax_${name} STATIC ${sources})
  target_include_directories(triax_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(triax_${name} PUBLIC ${ARG_DEPS} fmt::fmt Threads::Threads
                                             ${CMAKE_DL_LIBS}
                                      PRIVATE triax_flags ${ARG_LIBS})
  if(name STREQUAL "testing")
    set(timings_count false)
    if(CMAKE_BUILD_TYPE MATCHES "^Rel" AND NOT TRIAX_SANITIZE)
      set(timings_count true)
    endif()
    target_compile_definitions(triax_testing PUBLIC TRIAX_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                             PRIVATE TRIAX_TIMINGS_COUNT=${timings_count})
  endif()
  foreach(source IN LISTS sources)
    if(source MATCHES "_(avx2|avx512)\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
                                  "${TRIAX_ISA_${CMAKE_MATCH_1}}")
    endif()
  endforeach()

  if(TRIAX_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE triax_flags triax_${name} triax_testing
                                               ${ARG_LIBS} ${ARG_TEST_LIBS} GTest::gtest_main)
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}/" DISCOVERY_TIMEOUT 60
                         PROPERTIES TIMEOUT 600)
  endif()
  if(TRIAX_BENCHMARKS AND benches)
    add_executable(${name}_bench EXCLUDE_FROM_ALL ${benches})
    add_dependencies(benches ${name}_bench)
    target_link_libraries(${name}_bench PRIVATE triax_flags triax_${name} triax_testing
                                                benchmark::benchmark_main)
  endif()
endfunction()
