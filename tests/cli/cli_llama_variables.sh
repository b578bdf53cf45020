#!/usr/bin/env bash
# llama.cpp's environment variables are options that the command line leaves out, as docs/llama-cpp-users.md says.
. "$(dirname "$0")/../support/cli.sh"

# with NAME=VALUE... -- CHECK...: the check with these variables.
with() {
    local pairs=()
    while [ "$1" != -- ]; do
        export "${1?}"
        pairs+=("${1%%=*}")
        shift
    done
    shift
    "$@"
    unset "${pairs[@]}"
}

works run -p 'The old man' -n 8 --temp 0 --kv f16
cp "$work/out" "$work/greedy"
with LLAMA_ARG_N_PREDICT=8 LLAMA_ARG_TEMPERATURE=0 LLAMA_ARG_CACHE_TYPE_K=f16 LLAMA_ARG_CACHE_TYPE_V=f16 LLAMA_ARG_CTX_SIZE=64 LLAMA_ARG_THREADS=2 \
    LLAMA_ARG_MODEL=models/lab-27m-q8_0.gguf LLAMA_ARG_NO_MMAP=1 LLAMA_ARG_MLOCK=false -- works run -p 'The old man'
cmp "$work/out" "$work/greedy" || fail "variables are not options: $(cat "$work/out")"
grep -q 'f16' "$work/err" || fail "LLAMA_ARG_CACHE_TYPE_K: $(cat "$work/err")"
with LLAMA_ARG_CTX_SIZE=10 -- works run -p 'The old man' -n 20 --temp 0 --kv f16
grep -q 'stopped: the context is full' "$work/err" || fail "LLAMA_ARG_CTX_SIZE: $(cat "$work/err")"

# The command line wins, by whatever name it says the same; what is empty says nothing.
with LLAMA_ARG_N_PREDICT=2 LLAMA_ARG_TEMPERATURE=3 LLAMA_ARG_CACHE_TYPE_K=q4_0 LLAMA_ARG_CTX_SIZE= LLAMA_ARG_THREADS=x -- \
    works run -p 'The old man' --n-predict=8 --temperature 0 --kv f16 -t 2
cmp "$work/out" "$work/greedy" || fail "variables win over options: $(cat "$work/out")"
with LLAMA_ARG_MODEL=no-such.gguf -- works run models/lab-27m-q8_0.gguf -p 'The old man' -n 8 --temp 0 --kv f16
cmp "$work/out" "$work/greedy" || fail "a model as an argument: $(cat "$work/out")"
with LLAMA_ARG_MODEL=no-such.gguf -- refuses 'no-such.gguf: cannot be read' run -p x

# A bad value names the variable; of options that a command lacks none is read.
with LLAMA_ARG_CTX_SIZE=many -- refuses 'LLAMA_ARG_CTX_SIZE takes a whole number from 0 to 4294967295, not "many"' run -p x
with LLAMA_ARG_PORT=70000 -- refuses 'LLAMA_ARG_PORT takes a whole number from 0 to 65535, not "70000"' serve
with LLAMA_ARG_N_PARALLEL=-1 -- refuses 'LLAMA_ARG_N_PARALLEL takes a whole number from 1' serve
with LLAMA_ARG_TEMPERATURE=hot -- refuses 'LLAMA_ARG_TEMPERATURE takes a number' run -p x
with LLAMA_ARG_NO_MMAP=maybe -- refuses 'LLAMA_ARG_NO_MMAP takes one of 1|true|on|enabled|0|false|off|disabled, not "maybe"' run -p x
with LLAMA_ARG_HOST=nowhere.invalid LLAMA_ARG_PORT=0 -- refuses 'cannot listen at --host "nowhere.invalid"' serve
with LLAMA_ARG_PORT=x LLAMA_ARG_N_PARALLEL=x LLAMA_ARG_HF_REPO=x -- works run -p 'The old man' -n 8 --temp 0 --kv f16
with LLAMA_ARG_MODEL=no-such.gguf LLAMA_ARG_CTX_SIZE=x -- works inspect -c 64

# A chat format is read by chats alone, by llama.cpp's name of it or by terse's.
with LLAMA_ARG_CHAT_TEMPLATE=chatml -- works run -p 'The old man' -n 8 --temp 0 --kv f16
cmp "$work/out" "$work/greedy" || fail "LLAMA_ARG_CHAT_TEMPLATE of no chat: $(cat "$work/out")"
works run --chat --chat-template deepseek-v2 -p 'Hello' -n 8 --temp 0 --kv f16
cp "$work/out" "$work/chat"
with LLAMA_ARG_CHAT_TEMPLATE=deepseek2 -- works run --chat -p 'Hello' -n 8 --temp 0 --kv f16
cmp "$work/out" "$work/chat" || fail "LLAMA_ARG_CHAT_TEMPLATE: $(cat "$work/out")"
works run --chat -p 'Hello' -n 8 --temp 0 --kv f16
cmp -s "$work/out" "$work/chat" && fail "the formats write the same"
with LLAMA_ARG_CHAT_TEMPLATE=chatml -- works run --chat --chat-template deepseek2 -p 'Hello' -n 8 --temp 0 --kv f16
cmp "$work/out" "$work/chat" || fail "LLAMA_ARG_CHAT_TEMPLATE wins over --chat-template: $(cat "$work/out")"
with LLAMA_ARG_CHAT_TEMPLATE=no-such -- refuses 'there is no such chat format' run -cnv -p x
with LLAMA_ARG_CHAT_TEMPLATE=no-such -- refuses 'there is no such chat format' serve

# Every variable stands in the document, with its option, which some command has.
works run --help && cp "$work/out" "$work/help"
works serve --help && cat "$work/out" >>"$work/help"
rows=$(sed -n 's/^    {"\(LLAMA_[A-Z_]*\)", "\(-[^"]*\)", .*/\1 \2/p' tools/llama_flags.c)
[ "$(echo "$rows" | wc -l)" -ge 20 ] || fail "the table of variables: $rows"
while read -r name option; do
    grep -q -- "\`$name\`" docs/llama-cpp-users.md || fail "docs/llama-cpp-users.md does not name $name"
    grep -q -- "\"[^\"]*$option[|\", ]" tools/cmd_run.c tools/cmd_serve.c tools/setup.c || fail "$name: no option $option"
done <<<"$rows"
