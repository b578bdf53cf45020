# Sourced by the tests of what is installed, which set $source (the repository), $cc (a C compiler) and $flags (for it). Gives them $work, a
# folder that goes away at the end, fail, and check_installed.
set -euo pipefail
export OMP_NUM_THREADS=2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# check_installed PREFIX: all files are there, the command runs, and examples/minimal.c is built against them as another project would, once by
# pkg-config and once by CMake's find_package, and both run.
check_installed() {
    local prefix=$1 config libdir foreign file
    local model=$source/models/lab-27m-q8_0.gguf prompt='It was a dark and stormy'
    config=$(find "$prefix" -name terseConfig.cmake)
    libdir=${config%/cmake/terse/terseConfig.cmake}

    "$prefix/bin/terse" --version | grep -q 'terse 0\.' || fail "the installed command does not say its version"
    for file in man/man1/terse.1 man/man1/terse-run.1 man/man1/terse-compare.1 man/man1/terse-tune.1 bash-completion/completions/terse; do
        [ -s "$prefix/share/$file" ] || fail "share/$file is not installed"
    done
    [ -n "$(find "$prefix/share/zsh" -name _terse -size +0)" ] || fail "share/zsh has no _terse"
    for file in terse terse_calibrate terse_choice terse_gguf; do
        [ -s "$prefix/include/$file.h" ] || fail "include/$file.h is not installed"
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
}
