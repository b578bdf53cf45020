# unfused_sources(RESULT SOURCE...): which of the CUDA sources decide what bytes a codec's pages have, by their names: kv/encode_*.cu and
# decode_*.cu. They must give the same bytes on every device, so they are compiled such that a product and a sum are fused only where the source
# says so, and with TERSE_UNFUSED defined, without which encode_common.cuh refuses to be compiled: a file of another name cannot be left out unnoticed.
function(unfused_sources result)
  set(sources ${ARGN})
  list(FILTER sources INCLUDE REGEX "/kv/(encode|decode)_[a-z0-9_]+\\.cu$")
  set(${result} ${sources} PARENT_SCOPE)
endfunction()
