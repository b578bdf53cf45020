# libterse-mpi, a plug-in that libterse opens where it was started by mpirun or srun as one of several ranks. Built where MPI is; without it terse lacks
# nothing else.
find_package(MPI COMPONENTS C)
if(NOT MPI_C_FOUND)
  return()
endif()
set(shared "$<FILTER:$<TARGET_OBJECTS:terse_objects>,INCLUDE,/src/base/(status|text)\\.>")
add_library(terse-mpi MODULE src/dist/mpi/mpi.c src/dist/mpi/watch.c ${shared})
set_target_properties(terse-mpi PROPERTIES C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
target_include_directories(terse-mpi PRIVATE include src)
target_link_options(terse-mpi PRIVATE -Wl,-Bsymbolic -Wl,--no-undefined -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/mpi-plugin.map)
target_link_libraries(terse-mpi PRIVATE terse_flags MPI::MPI_C)
install(TARGETS terse-mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/terse)
