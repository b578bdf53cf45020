# The include law, which check-includes holds includes to and check-calls the calls of functions. Both source this file: LAW is the law, LAW_AWK the
# functions of awk that ask it and that look for circles.
#
# The law. Folders of src/ stand in layers, and a file includes headers of the layers named for its folder below, no others:
#   - Folders are layered in the order base, dist, gguf, text, format, model, method, kv, backend/backend.h, engine; engine reaches a backend through
#     the headers of backend/ itself alone. Nothing of kv and format, which all backends share, knows a backend.
#   - Only src/backend/cpu, tests and bench/micro know the kernels of the CPU, which know base, tensor types and formats.
#   - Only src/backend/cuda, tests and bench/cuda know the backend cuda. In it the caches, kv/, know of the folder above the device alone. Its device
#     code, .cu and .cuh, knows tensor types, formats, what a model is, read lists, and the headers by which C calls kernels: of these last those of its own
#     folder. It does not know caches, executor or how memory is allocated; and C knows no .cuh.
#   - Learning, train/, is built on operations of the CPU backend which know no cache and no step (products, rows, searches for codes), those that are
#     named for it, and no others. Another backend it reaches by the table of backend/learning.h.
#   - Tools, examples and bindings are programs like any other: they include the public headers of include/ and their own.
# A function is called only where the header of its source's name may be included, whichever header declares it.
# And: no circle of files in src/, neither of includes nor of calls.

# FOLDER: what its files may include. The entry for a folder also holds in the folders below it that have none of their own. An entry
# FOLDER.cu is for .cu and .cuh in its place.
#   folder/     any header in or below it
#   folder/x*.h these headers of the folder itself; * stands for any letters but /
#   folder/x.h  this header
# The public headers of include/ are allowed everywhere.
LAW='
include:
src/base: base/
src/dist: base/ dist/
src/gguf: base/ gguf/
src/text: base/ gguf/ text/
src/format: base/ gguf/ format/
src/model: base/ gguf/ text/ format/ model/ backend/backend.h
src/method: base/ gguf/ format/ model/ method/
src/kv: base/ dist/ gguf/ format/ model/ method/ kv/
src/backend: base/ gguf/ text/ format/ model/ method/ kv/ backend/*
src/engine: base/ dist/ gguf/ text/ format/ model/ method/ kv/ backend/* engine/
src/backend/cpu: base/ dist/ gguf/ text/ format/ model/ method/ kv/ backend/* backend/cpu/
src/backend/cpu/kv: base/ dist/ gguf/ format/ model/ method/ kv/ backend/* backend/cpu/gemm.h backend/cpu/cap.h backend/cpu/partial.h backend/cpu/piece.h backend/cpu/codec/ backend/cpu/kernels/ backend/cpu/kv/
src/backend/cpu/codec: base/ gguf/ format/ backend/cpu/codec/ backend/cpu/kernels/
src/backend/cpu/kernels: base/ gguf/ format/ backend/cpu/kernels/
src/backend/cuda: base/ dist/ gguf/ text/ format/ model/ method/ kv/ backend/* backend/cuda/
src/backend/cuda/kv: base/ gguf/ format/ model/ method/ kv/ backend/* backend/cuda/device.h backend/cuda/ranks.h backend/cuda/kv/
src/backend/cuda.cu: gguf/ format/ model/model.h backend/cuda/*.cuh backend/cuda/matrix.h backend/cuda/weights.h backend/cuda/rows.h backend/cuda/expert_kernels.h backend/cuda/top_logits.h backend/cuda/learning_kernels.h
src/backend/cuda/kv.cu: gguf/ format/ model/model.h model/rope.h backend/cuda/*.cuh backend/cuda/kv/*.cuh backend/cuda/kv/view.h backend/cuda/kv/append*.h backend/cuda/kv/attend_*.h backend/cuda/kv/encode*.h backend/cuda/kv/anchor_*.h backend/cuda/kv/rank.h backend/cuda/kv/score_*.h backend/cuda/kv/select.h backend/cuda/kv/victims.h kv/read_list.h
src/train: base/ gguf/ text/ format/ model/ method/ kv/ backend/* backend/cpu/gemm.h backend/cpu/linear.h backend/cpu/rows.h backend/cpu/recurrent.h backend/cpu/experts.h backend/cpu/gelu.h backend/cpu/cap.h backend/cpu/partial.h backend/cpu/vector.h backend/cpu/weight_moments.h backend/cpu/weight_profile.h backend/cpu/codec/nearest.h backend/cpu/codec/normalization.h backend/cpu/codec/binary_code_search.h backend/cpu/codec/commvq_search.h train/
tools: tools/serve/
tools/serve: tools/*
examples:
bindings:
tests/cli:
bench/experiments: base/ gguf/ text/ format/ model/ method/ kv/ backend/* backend/cpu/* backend/cpu/kv/ backend/cpu/codec/ engine/ train/ bench/ tools/ tests/support/
'
export LAW

LAW_AWK='
function folder_of(path) { return path ~ /\// ? substr(path, 1, match(path, /\/[^\/]*$/) - 1) : "" }

# The entry of the law that holds for a file, of its folder or of the nearest folder above; "" when none does.
function law_for(file, folder) {
    folder = folder_of(file)
    if (file ~ /\.cuh?$/)
        for (; folder != ""; folder = folder_of(folder))
            if ((folder ".cu") in allowed) return folder ".cu"
    folder = folder_of(file)
    while (folder != "" && !(folder in allowed)) folder = folder_of(folder)
    return folder
}

function allows(list, header, n, i, entry, parts) {
    n = split(list, parts, " ")
    for (i = 1; i <= n; i++) {
        entry = parts[i]
        if (entry ~ /\/$/ && index(header, entry) == 1) return 1
        gsub(/\./, "[.]", entry)
        gsub(/\*/, "[^/]*", entry)
        if (header ~ ("^" entry "$")) return 1
    }
    return 0
}

# Depth first from `node` along edges[]; an edge back to a node on the path closes a circle of `what`. origin[from, to] says where an edge comes
# from, label[from, to], which may be empty, more about it.
function visit(node, depth, what, n, i, j, next_nodes, to, text) {
    state[node] = 1
    path[depth] = node
    n = split(edges[node], next_nodes, " ")
    for (i = 1; i <= n; i++) {
        to = next_nodes[i]
        if (!(to in state)) {
            visit(to, depth + 1, what)
        } else if (state[to] == 1) {
            for (j = depth; path[j] != to; j--) continue
            for (text = to; j < depth; j++) text = text " -> " path[j + 1] label[path[j], path[j + 1]]
            print origin[node, to] ": a circle of " what ": " text " -> " to label[node, to]
            bad++
        }
    }
    state[node] = 2
}

# Names a circle wherever there are some among nodes[n_nodes].
function find_circles(what, i) {
    for (i = 1; i <= n_nodes; i++)
        if (!(nodes[i] in state)) visit(nodes[i], 1, what)
}

function add_edge(from, to, where, more) {
    if (from == to || (from, to) in origin) return
    origin[from, to] = where
    label[from, to] = more
    edges[from] = edges[from] " " to
    nodes[++n_nodes] = from
}

BEGIN {
    n = split(ENVIRON["LAW"], lines, "\n")
    for (i = 1; i <= n; i++) {
        if (lines[i] !~ /:/) continue
        folder = lines[i]
        sub(/:.*/, "", folder)
        list = lines[i]
        sub(/^[^:]*: */, "", list)
        allowed[folder] = list
    }
}
'
