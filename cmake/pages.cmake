# The manual's pages and the shells' completions: the command writes them itself, from its tables of options. One for another processor is
# not run, and is installed without them.
if(NOT CMAKE_CROSSCOMPILING)
  set(pages ${PROJECT_BINARY_DIR}/pages)
  file(MAKE_DIRECTORY ${pages})
  add_custom_command(TARGET terse_command POST_BUILD COMMAND terse_command write-pages ${pages})
  install(DIRECTORY ${pages}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN *.1)
  install(FILES ${pages}/terse.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME terse)
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    set(zsh_functions vendor-completions) # where Debian's zsh looks for those of packages
  else()
    set(zsh_functions site-functions)
  endif()
  install(FILES ${pages}/_terse DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${zsh_functions})
endif()
