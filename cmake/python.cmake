# The Python package, as it lies in site-packages: `cmake --install BUILD --component python --prefix FOLDER` puts FOLDER/terse. A wheel is made of this
# component (bindings/python/pyproject.toml). The headers are read at run time (_header.py), and the library is one file without links, as wheels have none.
if(NOT BUILD_SHARED_LIBS)
  return()
endif()
set(package terse/_lib)
install(DIRECTORY bindings/python/terse DESTINATION . COMPONENT python EXCLUDE_FROM_ALL PATTERN __pycache__ EXCLUDE PATTERN _lib EXCLUDE)
install(FILES $<TARGET_FILE:terse> RENAME libterse.so DESTINATION ${package} COMPONENT python EXCLUDE_FROM_ALL)
install(FILES LICENSE DESTINATION terse COMPONENT python EXCLUDE_FROM_ALL)
install(FILES include/terse.h include/terse_calibrate.h include/terse_choice.h ${TERSE_DEFAULT_MODEL} ${TERSE_DEFAULT_PROFILE} DESTINATION ${package} COMPONENT python EXCLUDE_FROM_ALL)
