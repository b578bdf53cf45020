#!/usr/bin/env bash
# documented_files.sh ROOT: every source that docs/architecture.md names, with its folder or in its drawings, is there.
set -eu
cd "$1"
bad=0
# Names of files as the page writes them; NAME, FAMILY and * stand for any.
for name in $(grep -oE '[A-Za-z_*/]+\.(c|h|cu|cuh)\b' docs/architecture.md | sort -u); do
    pattern=${name//NAME/*}
    pattern=${pattern//FAMILY/*}
    pattern=${pattern#/}
    found=0
    for folder in '' src/ src/*/ src/backend/*/ src/backend/*/kv/ src/backend/cpu/kernels/*/ src/backend/cpu/codec/ src/backend/cpu/kernels/ tools/ tools/serve/ tests/*/ include/ bench/*/; do
        compgen -G "$folder$pattern" >/dev/null && found=1 && break
    done
    if [ $found = 0 ]; then
        echo "docs/architecture.md names $name, which is not there"
        bad=1
    fi
done
exit $bad
