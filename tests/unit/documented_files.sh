#!/usr/bin/env bash
# documented_files.sh ROOT: every source that docs/architecture.md names, with its folder or in its drawings, is there, and so is every file that a
# comment of a source names, by its name alone or behind folders.
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

folders='src include tools tests bench scripts docs examples models data cmake bindings'
files=$(for folder in $folders; do [ ! -d "$folder" ] || find "$folder" -type f ! -path '*/.*'; done; find . -maxdepth 1 -type f | sed 's|^\./||')
sources=$(grep -E '\.(c|h|cu|cuh|cpp|py|sh)$' <<<"$files")
# Comments of C begin with /* or //, those of scripts with #. Capitals with an underscore or alone, as NAME.c or scalar_ISA.c, stand for any.
if ! awk -v files="$files" '
BEGIN {
    n = split(files, list, "\n")
    for (i = 1; i <= n; i++)
        for (path = list[i]; path != ""; path = path ~ /\// ? substr(path, index(path, "/") + 1) : "") there[path] = 1
}
function look(text, name) {
    while (match(text, /[A-Za-z0-9_*\/.-]*[A-Za-z0-9_*]\.(c|h|cu|cuh|py|sh|md)([^A-Za-z0-9_.(]|[.]?$|[.] )/)) {
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        match(name, /\.(c|h|cu|cuh|py|sh|md)/)
        sub(/[^A-Za-z0-9_]+$/, "", name)
        sub(/^[.\/]+/, "", name)
        if (name in there || name ~ /[*]|[A-Z][A-Z]/ && name !~ /^[A-Z]+\.md$/ || name ~ /(^|\/)[a-z]\.[ch]$/) continue
        print FILENAME ":" FNR ": a comment names " name ", which is not there"
        bad = 1
    }
}
FNR == 1 { inside = 0; script = FILENAME ~ /\.(py|sh)$/ }
script { if (match($0, /(^|[ \t])# /)) look(substr($0, RSTART)); next }
{
    line = $0
    while (line != "") {
        if (!inside) {
            if (!match(line, /\/[*\/]/)) break
            if (substr(line, RSTART + 1, 1) == "/") { look(substr(line, RSTART + 2)); break }
            inside = 1
            line = substr(line, RSTART + 2)
        }
        if (match(line, /[*]\//)) {
            look(substr(line, 1, RSTART - 1))
            inside = 0
            line = substr(line, RSTART + 2)
        } else {
            look(line)
            break
        }
    }
}
END { exit bad }' $sources; then bad=1; fi
exit $bad
