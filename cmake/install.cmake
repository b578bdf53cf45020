# make install: the command, the library, its header, a pkg-config file and a CMake package (pages.cmake: man pages and completions).
#
# A shared libterse brings what it is linked with. A static one cannot: whoever links it needs the same libraries, so then the
# pkg-config file and the CMake package name them.
include(CMakePackageConfigHelpers)

# The command finds libterse beside itself, wherever the prefix is moved to.
file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(terse_command PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")

install(TARGETS terse_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS terse EXPORT terseTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        PUBLIC_HEADER DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# ---- pkg-config: paths are relative to the file itself
file(RELATIVE_PATH TERSE_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" TERSE_PC_TO_PREFIX ${TERSE_PC_TO_PREFIX})
if(BUILD_SHARED_LIBS)
  set(TERSE_PC_LINK "Libs: -L\${libdir} -lterse")
else()
  set(TERSE_PC_LINK "Requires: libpcre2-8 libxxhash libcjson\nLibs: -L\${libdir} -lterse -ldnnl -fopenmp -lm")
endif()
configure_file(cmake/terse.pc.in ${PROJECT_BINARY_DIR}/terse.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/terse.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# ---- CMake: find_package(terse), then link terse::terse
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/terse)
configure_package_config_file(cmake/terseConfig.cmake.in ${PROJECT_BINARY_DIR}/terseConfig.cmake INSTALL_DESTINATION ${package_dir}
                              NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/terseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/terseConfig.cmake ${PROJECT_BINARY_DIR}/terseConfigVersion.cmake DESTINATION ${package_dir})
install(EXPORT terseTargets NAMESPACE terse:: DESTINATION ${package_dir})
