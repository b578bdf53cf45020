#!/usr/bin/env bash
# avx2.sh PROGRAM [TEST]: runs a test with AVX2 on a processor that has AVX-512; skipped (77) on others, where the program takes AVX2 by itself.
set -eu
if ! grep -qw avx512f /proc/cpuinfo; then
    echo "skipped: this processor has no AVX-512, so $(basename "$1") runs with the best below it anyway"
    exit 77
fi
TERSE_CPU=avx2 exec "$@"
