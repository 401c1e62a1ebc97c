# triax_page(TARGET): the page's files (web/manifest.json) become a source of the target.
function(triax_page target)
  find_program(TRIAX_PYTHON python3 REQUIRED)
  set(made ${CMAKE_BINARY_DIR}/page_files.cc)
  add_custom_command(
    OUTPUT ${made}
    COMMAND ${TRIAX_PYTHON} ${CMAKE_SOURCE_DIR}/tools/page_files.py ${made} ${made}.d
    DEPENDS ${CMAKE_SOURCE_DIR}/web/manifest.json ${CMAKE_SOURCE_DIR}/tools/page_files.py
    DEPFILE ${made}.d
    COMMENT "Packing the page")
  target_sources(${target} PRIVATE ${made})
endfunction()
