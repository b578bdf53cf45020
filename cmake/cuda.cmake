# The backend cuda, libterse-cuda, a plug-in that libterse opens at run time. Built with -DTERSE_CUDA=ON where the CUDA toolkit is; needs of it cudart, linked
# statically, and cuBLASLt.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 90-virtual)
endif()
enable_language(CUDA)
find_package(CUDAToolkit 12.5 REQUIRED)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

file(GLOB_RECURSE TERSE_CUDA_HOST_SOURCES CONFIGURE_DEPENDS src/backend/cuda/*.c)
file(GLOB_RECURSE TERSE_CUDA_KERNEL_SOURCES CONFIGURE_DEPENDS src/backend/cuda/*.cu)

include(cmake/unfused.cmake)
unfused_sources(unfused ${TERSE_CUDA_KERNEL_SOURCES})
set_source_files_properties(${unfused} PROPERTIES COMPILE_OPTIONS "-fmad=false;-DTERSE_UNFUSED")

# The kernels know nothing of the rest (scripts/check-includes), so that they are also a library by themselves, for the tests.
add_library(terse_cuda_kernel_objects OBJECT ${TERSE_CUDA_KERNEL_SOURCES})
target_compile_options(terse_cuda_kernel_objects PRIVATE -Xcompiler=-Wall,-Wextra $<$<BOOL:${TERSE_WERROR}>:-Werror=all-warnings>)
add_library(terse_cuda_objects OBJECT ${TERSE_CUDA_HOST_SOURCES})
set_target_properties(terse_cuda_objects PROPERTIES C_VISIBILITY_PRESET hidden)
target_compile_options(terse_cuda_objects PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unknown-pragmas
                       $<$<BOOL:${TERSE_WERROR}>:-Werror>)
foreach(objects terse_cuda_kernel_objects terse_cuda_objects)
  set_target_properties(${objects} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${objects} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> PRIVATE src)
  target_include_directories(${objects} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS}) # no warnings of theirs
endforeach()

# Products of warpgroups are instructions of 90a alone.
if("${CMAKE_CUDA_ARCHITECTURES}" MATCHES "90a")
  target_compile_definitions(terse_cuda_kernel_objects PRIVATE TERSE_CUDA_WGMMA)
endif()

# It brings its own copies of what backends share, none of which it exports.
set(shared "$<FILTER:$<TARGET_OBJECTS:terse_objects>,INCLUDE,/src/(base|format|gguf|method|kv)/|/src/dist/|/src/model/(not_finite|rope)\\.>")
add_library(terse-cuda MODULE $<TARGET_OBJECTS:terse_cuda_kernel_objects> $<TARGET_OBJECTS:terse_cuda_objects> ${shared})
set_target_properties(terse-cuda PROPERTIES LINKER_LANGUAGE C LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
target_link_options(terse-cuda PRIVATE -Wl,-Bsymbolic -Wl,--no-undefined -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/cuda-plugin.map)
target_link_libraries(terse-cuda PRIVATE CUDA::cudart_static CUDA::cublasLt PkgConfig::XXHASH OpenMP::OpenMP_C stdc++ m)
install(TARGETS terse-cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/terse)

# Tests and benchmarks link the backend itself, but share its kernels, which are most of it: bin/libterse-cuda-kernels.so, which they find in their own
# folder, wherever that is carried. Both then need one runtime of CUDA, a shared one.
if(TERSE_TESTS)
  add_library(terse-cuda-kernels SHARED $<TARGET_OBJECTS:terse_cuda_kernel_objects>)
  set_target_properties(terse-cuda-kernels PROPERTIES LINKER_LANGUAGE C LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  target_link_options(terse-cuda-kernels PRIVATE -Wl,-Bsymbolic -Wl,--no-undefined)
  target_link_libraries(terse-cuda-kernels PRIVATE CUDA::cudart stdc++ m)
  add_library(terse_cuda INTERFACE)
  target_sources(terse_cuda INTERFACE $<TARGET_OBJECTS:terse_cuda_objects>)
  target_link_libraries(terse_cuda INTERFACE terse-cuda-kernels CUDA::cudart CUDA::cublasLt)
  target_include_directories(terse_cuda INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  set(CMAKE_BUILD_RPATH "$ORIGIN") # of what follows
  add_custom_target(cuda_programs) # the tests and benchmarks of the GPU: what is carried to a machine that has one
endif()
