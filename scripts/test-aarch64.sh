#!/usr/bin/env bash
# Builds terse for 64-bit ARM and runs under qemu the suites that depend on the processor and do not take minutes there: kernels, codecs,
# whole models. Those that read TERSE_CPU run with NEON; what they do without vectors is the same C everywhere, which NAME_scalar tests of `make
# test` run on the machine itself; of the models of test_reference_models one of each kind of layer. Says nothing about speed. All lies in
# build-aarch64/; after `cmake --build build-aarch64`, ctest runs the other suites there, too.
#
# The cross compiler and qemu are installed as Debian packages. The arm64 libraries are only unpacked, so that the system's own packages
# need not be of the same version, nor apt know a second architecture.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$(realpath -m "${BUILD:-build-aarch64}")
root=$build/root
jobs=${JOBS:-$(nproc)}

# Each tests every instruction set of the processor.
kernels=(test_kernels test_kernels_scaled test_kernels_weights test_kernels_pq test_transform test_nearest test_commvq test_commvq_search
    test_commvq_rotated test_sign test_index test_gather_tokens test_top_k test_rope test_gemm)
# Each runs with the instruction set that TERSE_CPU names, here the best: codecs, linear layers, whole models.
readers=(test_codec test_transform_codec test_gain_shape test_partial test_linear test_reference_models)

scripts/install-dependencies.sh cmake pkg-config gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user

fail() {
    tail -n 20 "$build/apt.log" >&2
    echo "terse: the arm64 libraries could not be downloaded from Debian; apt-get's last lines are above" >&2
    exit 1
}

# The headers and libraries of docs/dependencies.md that the cross compiler does not bring, by an apt with its own state, in which the only
# architecture is arm64 and nothing is installed.
unpack_libraries() {
    local apt=$build/apt
    rm -rf "$root" "$apt"
    mkdir -p "$root" "$apt"/{lists,archives}/partial
    apt() {
        (cd "$apt" && apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root -o "Dir::State=$apt" \
            -o "Dir::State::lists=$apt/lists" -o Dir::State::status=/dev/null -o "Dir::Cache=$apt" "$@") >>"$build/apt.log" 2>&1
    }
    apt update || true # the download decides
    apt download libdnnl2 libdnnl-dev libpcre2-8-0 libpcre2-dev libxxhash0 libxxhash-dev libcjson1 libcjson-dev libmicrohttpd12 libmicrohttpd-dev libcmocka0 libcmocka-dev || fail
    for package in "$apt"/*.deb; do dpkg-deb -x "$package" "$root"; done
    rm -rf "$apt"
    touch "$root/complete"
}
[ -e "$root/complete" ] || unpack_libraries

cmake -S . -B "$build" --toolchain cmake/aarch64-linux-gnu.cmake -DCMAKE_FIND_ROOT_PATH="$root" -DTERSE_WERROR=ON >/dev/null
cmake --build "$build" -j "$jobs" --target "${kernels[@]}" "${readers[@]}"

export OMP_WAIT_POLICY=passive # programs run side by side
all=("${kernels[@]}" "${readers[@]}")
ctest --test-dir "$build" --output-on-failure -j "$jobs" -R "^($(IFS='|' && echo "${all[*]}"))\$"
