#!/usr/bin/env bash
# unfused_sources.sh PROJECT CMAKE CC: every CUDA source that decides bytes of pages (whatever includes encode_common.cuh) is one that cmake/unfused.cmake
# compiles without fusing; and one that is not says so when it is compiled.
set -eu
project=$1 cmake=$2 cc=$3
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0
fail() {
    echo "FAILED: $1"
    failures=$((failures + 1))
}

# selected ROOT: those of ROOT's CUDA sources that are compiled without fusing, by cmake/unfused.cmake.
selected() {
    cat >"$tree/list.cmake" <<'CMAKE'
include(${PROJECT}/cmake/unfused.cmake)
file(GLOB_RECURSE sources ${ROOT}/src/backend/cuda/*.cu)
unfused_sources(unfused ${sources})
foreach(source IN LISTS unfused)
  message(${source})
endforeach()
CMAKE
    "$cmake" -DPROJECT="$project" -DROOT="$1" -P "$tree/list.cmake" 2>&1 | sort
}

# encoding ROOT: those that include encode_common.cuh, by way of other headers too.
encoding() {
    local headers=encode_common.cuh before=
    while [ "$headers" != "$before" ]; do
        before=$headers
        headers=$({ echo "$headers" | tr '|' '\n'; grep -rlE --include='*.cuh' "#include .*/($headers)\"" "$1/src" | xargs -r -n1 basename; } | sort -u | paste -sd'|')
    done
    grep -rlE --include='*.cu' "#include .*/($headers)\"" "$1/src" | sort
}

# left_out ROOT: sources that decide bytes and are compiled with fusing.
left_out() { comm -23 <(encoding "$1") <(selected "$1"); }

[ "$(encoding "$project" | wc -l)" -ge 4 ] || fail "the sources that encode are not found"
missing=$(left_out "$project")
[ -z "$missing" ] || fail "compiled with fusing, but they decide bytes of pages: $missing"

# A file of another name is noticed, whether it includes the header itself or by way of another.
mkdir -p "$tree/src/backend/cuda/kv"
echo '#include "backend/cuda/kv/encode_common.cuh"' | tee "$tree/src/backend/cuda/kv/pack_six.cu" >"$tree/src/backend/cuda/kv/encode_six.cu"
echo '#include "backend/cuda/kv/encode_common.cuh"' >"$tree/src/backend/cuda/kv/six.cuh"
echo '#include "backend/cuda/kv/six.cuh"' >"$tree/src/backend/cuda/kv/write_six.cu"
echo '#include "backend/cuda/ptx.cuh"' >"$tree/src/backend/cuda/kv/attend_six.cu"
[ "$(left_out "$tree" | xargs -n1 basename | paste -sd' ')" = "pack_six.cu write_six.cu" ] || fail "planted sources: $(left_out "$tree")"

# The compiler itself refuses the header without the macro that stands beside -fmad=false.
header=$project/src/backend/cuda/kv/encode_common.cuh
refused() { "$cc" -E -x c -I "$project/src" "$@" "$header" 2>&1 >/dev/null | grep 'error.*-fmad=false' >/dev/null; }
refused || fail "encode_common.cuh is compiled although products and sums are fused"
! refused -DTERSE_UNFUSED || fail "encode_common.cuh is refused although products and sums are not fused"

[ "$failures" = 0 ] && echo "$(selected "$project" | wc -l) CUDA sources are compiled without fusing, as they must"
