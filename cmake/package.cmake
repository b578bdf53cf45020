# A Debian package of all that is installed: `make deb`, or cpack in a build folder. dpkg-shlibdeps finds what it depends on; libterse.so.N lies in it.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME terse)
set(CPACK_PACKAGE_CONTACT "The terse developers <terse@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "long-context language models with a compressed KV cache")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "It runs GGUF models and attends over compressed keys and values. The package has the
command terse, with a small model and its profile inside, manual pages and
completions, and the library libterse with headers, a pkg-config file and a
CMake package.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON) # and scripts that call ldconfig
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
include(CPack)
