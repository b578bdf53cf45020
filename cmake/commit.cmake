# Writes the commit of the sources, for `terse --version` and the figures that experiments record. Included, it adds the library terse_commit, whose
# source every build asks for anew; run as a script, it writes that source, and only where it would change.
if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse --show-toplevel OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH ${SOURCE_DIR} here)
  if(top STREQUAL here) # and not that of a repository around an unpacked archive
    execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --exclude * --abbrev=12 OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT commit)
    set(commit unknown)
  endif()
  set(text "#include \"commit.h\"\n\nconst char *build_commit(void) { return \"${commit}\"; }\n")
  if(EXISTS ${OUTPUT})
    file(READ ${OUTPUT} old)
  endif()
  if(NOT "${old}" STREQUAL "${text}")
    file(WRITE ${OUTPUT} "${text}")
  endif()
  return()
endif()

add_custom_target(commit_source COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DOUTPUT=${CMAKE_BINARY_DIR}/commit.c -P ${CMAKE_CURRENT_LIST_FILE}
                  BYPRODUCTS ${CMAKE_BINARY_DIR}/commit.c VERBATIM)
add_library(terse_commit STATIC ${CMAKE_BINARY_DIR}/commit.c)
target_include_directories(terse_commit PUBLIC ${PROJECT_SOURCE_DIR}/tools)
target_link_libraries(terse_commit PRIVATE terse_flags)
add_dependencies(terse_commit commit_source)
