#!/usr/bin/env bash
# install-dependencies.sh [PACKAGE...]: installs the Debian packages that this system lacks of those named, or, with none named, of
# those that building terse needs. With none lacking it does nothing: no network, no root. docs/dependencies.md says what each one is for.
set -eu

have_header() { echo "#include <$1>" | "${CC:-cc}" -E -x c - >/dev/null 2>&1; }

# Package by package: is what it brings there already, however it came? A Debian package answers without a compiler.
present() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ] && return
    case $1 in
    gcc) command -v "${CC:-cc}" ;;
    libc6-dev) have_header stdio.h ;;
    cmake | pkg-config) command -v "$1" ;;
    libdnnl-dev) have_header dnnl.h ;;
    ocl-icd-opencl-dev) have_header CL/cl.h ;;
    libpcre2-dev) pkg-config --exists libpcre2-8 ;;
    libxxhash-dev) pkg-config --exists libxxhash ;;
    libcjson-dev) pkg-config --exists libcjson ;;
    libmicrohttpd-dev) pkg-config --exists libmicrohttpd ;;
    libedit-dev) pkg-config --exists libedit ;;
    libopenmpi-dev) command -v mpicc ;;
    openmpi-bin) command -v mpirun ;;
    python3) command -v python3 ;;
    python3-pip) python3 -m pip --version ;;
    python3-venv) python3 -c 'import ensurepip' ;;
    libcmocka-dev) pkg-config --exists cmocka ;;
    clang-format-14) command -v clang-format-14 ;;
    gcc-aarch64-linux-gnu) command -v aarch64-linux-gnu-gcc ;;
    libc6-dev-arm64-cross) [ -e /usr/aarch64-linux-gnu/include/stdio.h ] ;;
    qemu-user) command -v qemu-aarch64 ;;
    *) false ;; # of any other, Debian's answer is all there is
    esac >/dev/null 2>&1
}

[ $# -gt 0 ] || set -- gcc libc6-dev cmake pkg-config libdnnl-dev ocl-icd-opencl-dev libpcre2-dev libxxhash-dev libcjson-dev libmicrohttpd-dev libedit-dev libopenmpi-dev openmpi-bin libcmocka-dev python3
missing=()
for package in "$@"; do
    present $package || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

fail() {
    echo "terse: to build, install these packages: ${missing[*]} ($1)" >&2
    exit 1
}

command -v apt-get >/dev/null || fail "no apt-get here; other systems name them a little differently"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "this needs root, and there is no sudo"
    [ -t 0 ] || sudo -n true 2>/dev/null || fail "this needs root, and sudo asks for a password but there is no terminal"
    as_root=(sudo)
fi

echo "terse: installing from Debian's packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1; }
# A failing update (one stale source among several) need not matter: the installation decides.
apt update || true
if ! apt install --no-install-recommends "${missing[@]}"; then
    tail -n 20 "$log" >&2
    fail "apt-get could not; its last lines are above"
fi
