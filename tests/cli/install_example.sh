#!/usr/bin/env bash
# Installs what was built into a prefix of its own, then builds examples/minimal.c against it as another project would, once by
# pkg-config and once by CMake's find_package, and runs both.
#
#     install_example.sh BUILD_DIR SOURCE_DIR C_COMPILER [C_FLAGS]
set -euo pipefail
build=$1 source=$2 cc=$3 flags=${4:-}
export OMP_NUM_THREADS=2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "install_example: $*" >&2
    exit 1
}

cmake --install "$build" --prefix "$work/prefix" >/dev/null
# The prefix is moved: nothing that was installed may know where it was.
mv "$work/prefix" "$work/moved"
prefix=$work/moved
config=$(find "$prefix" -name terseConfig.cmake)
libdir=${config%/cmake/terse/terseConfig.cmake}
model=$source/models/lab-27m-q8_0.gguf
prompt='It was a dark and stormy'

"$prefix/bin/terse" --version | grep -q 'terse 0\.' || fail "the installed command does not say its version"
for file in man/man1/terse.1 man/man1/terse-run.1 man/man1/terse-compare.1 bash-completion/completions/terse zsh/site-functions/_terse; do
    [ -s "$prefix/share/$file" ] || fail "share/$file is not installed"
done
if [ -e "$libdir/libterse.so" ] && [ -z "$flags" ]; then
    foreign=$(nm -D --defined-only "$libdir/libterse.so" | awk '$3 !~ /^terse_/ {print $3}')
    [ -z "$foreign" ] || fail "libterse.so exports more than terse_*: $foreign"
fi

export PKG_CONFIG_PATH=$libdir/pkgconfig
# Word splitting is meant: these are lists of flags.
# shellcheck disable=SC2046,SC2086
"$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror $flags "$source/examples/minimal.c" $(pkg-config --cflags --libs terse) -o "$work/by-pkg-config"
LD_LIBRARY_PATH=$libdir "$work/by-pkg-config" "$model" "$prompt" >"$work/by-pkg-config.txt"

cmake -S "$source/examples" -B "$work/by-cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" -DCMAKE_C_FLAGS="$flags" >/dev/null
cmake --build "$work/by-cmake" >/dev/null
"$work/by-cmake/minimal" "$model" "$prompt" >"$work/by-cmake.txt"

cat "$work/by-cmake.txt"
cmp "$work/by-pkg-config.txt" "$work/by-cmake.txt" || fail "the two builds print different texts"
grep -q "^$prompt ." "$work/by-cmake.txt" || fail "the model did not go on writing"
grep -q '^KV cache: [1-9][0-9]* tokens, [1-9][0-9]* bytes, [0-9.]* bits per value$' "$work/by-cmake.txt" || fail "no report of the cache"
if "$work/by-cmake/minimal" "$source/README.md" "$prompt" 2>"$work/error.txt"; then fail "README.md was taken for a model"; fi
[ "$(wc -l <"$work/error.txt")" -eq 1 ] || fail "a file that is no model must give one line: $(cat "$work/error.txt")"
