#!/usr/bin/env bash
# carried.sh BIN PROGRAM...: these programs of BIN, with the library of their kernels, are less than 64 MiB, and start in another folder.
set -eu
bin=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for program in "$@" libterse-cuda-kernels.so; do cp "$bin/$program" "$folder/"; done
bytes=$(du -sb "$folder" | cut -f1)
echo "$# programs and their kernels: $bytes bytes"
[ "$bytes" -lt $((64 << 20)) ] || { echo "they are more than 64 MiB" >&2; exit 1; }

# The program that was built would be found by its path, so the kernels have to come from the folder.
loaded=$(LD_TRACE_LOADED_OBJECTS=1 "$folder/test_device")
grep -q "libterse-cuda-kernels.so => $folder/" <<<"$loaded" || { echo "test_device finds its kernels elsewhere: $loaded" >&2; exit 1; }
status=0
"$folder/test_device" || status=$?
[ $status = 0 ] || [ $status = 77 ] || { echo "test_device ends with $status there" >&2; exit 1; }
