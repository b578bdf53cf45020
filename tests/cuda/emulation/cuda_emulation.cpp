/* Blocks of fibers, one after another. */
#include "cuda_emulation.h"

#include "emulated_capture.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <vector>

#undef min
#undef max

emulated_thread *emulated_now;
dim3 emulated_grid, emulated_block;
alignas(1024) char emulated_shared_memory[EMULATED_SHARED_BYTES];

#define STACK_BYTES ((size_t)256 << 10)
#define EXCHANGE_BYTES 64

struct pending_copy {
    char *to;
    const void *from;
    int bytes;
    bool valid;
    unsigned group;
};

struct fiber : emulated_thread {
    void *stack_pointer; /* where it stopped */
    char *stack;
    unsigned number;
    bool ended, released, vote;
    bool in_barrier;
    unsigned groups; /* of copies, that were committed */
    std::vector<pending_copy> copies;
    char received[2][32 * EXCHANGE_BYTES];
    unsigned exchanges;
};

struct warp {
    uint32_t alive, arrived, released;
    char given[32 * EXCHANGE_BYTES];
};

static std::vector<fiber *> fibers; /* kept for the next blocks */
static std::vector<warp> warps;
static unsigned n_threads, n_alive, n_waiting;
static bool vote_any, vote_all;
static bool progressed;
static const std::function<void()> *work;
static void *scheduler_stack_pointer;

/* ---- Switching: callee-saved registers on the stack, then the other's stack. */

#if !defined(__x86_64__)
#error the emulation of CUDA kernels switches stacks on x86-64 only
#endif
extern "C" void emulated_switch(void **from, void *to);
asm(".text\n.globl emulated_switch\n.type emulated_switch,@function\n"
    "emulated_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n");

static fiber *current() { return static_cast<fiber *>(emulated_now); }
static void yield() { emulated_switch(&current()->stack_pointer, scheduler_stack_pointer); }

static void end_of_thread() {
    fiber *f = current();
    f->ended = true;
    n_alive--;
    warps[f->number / 32].alive &= ~(1u << f->number % 32);
    progressed = true;
    yield();
    abort();
}

static void begin_of_thread() {
    (*work)();
    end_of_thread();
}

static void prepare(fiber *f, unsigned number) {
    if (!f->stack) {
        f->stack = (char *)mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (f->stack == MAP_FAILED) abort();
    }
    void **top = (void **)(f->stack + STACK_BYTES - 16);
    *--top = NULL; /* the stack is as after a call */
    *--top = (void *)begin_of_thread;
    for (int i = 0; i < 6; i++) *--top = NULL;
    f->stack_pointer = top;
    f->number = number;
    f->thread = make_uint3(number % emulated_block.x, number / emulated_block.x % emulated_block.y,
                           number / emulated_block.x / emulated_block.y);
    f->ended = f->released = f->in_barrier = false;
    f->groups = 0;
    f->copies.clear();
}

static void run_block(uint3 block) {
    memset(emulated_shared_memory, 0xff, sizeof emulated_shared_memory);
    for (unsigned i = 0; i < n_threads; i++) {
        prepare(fibers[i], i);
        fibers[i]->block = block;
    }
    for (unsigned w = 0; w < warps.size(); w++) {
        unsigned lanes = n_threads - 32 * w < 32 ? n_threads - 32 * w : 32;
        warps[w].alive = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
        warps[w].arrived = warps[w].released = 0;
    }
    n_alive = n_threads;
    n_waiting = 0;
    vote_any = false;
    vote_all = true;
    while (n_alive) {
        progressed = false;
        for (unsigned i = 0; i < n_threads; i++) {
            if (fibers[i]->ended) continue;
            emulated_now = fibers[i];
            emulated_switch(&scheduler_stack_pointer, fibers[i]->stack_pointer);
        }
        if (!progressed) {
            fprintf(stderr, "emulated kernel: %u threads of block (%u, %u, %u) wait for ever\n", n_alive, block.x, block.y, block.z);
            abort();
        }
    }
}

void emulated_run(dim3 grid, dim3 block, size_t shared, cudaStream_t stream, std::function<void()> body) {
    if (emulated_captures(stream, [=]() { emulated_run(grid, block, shared, stream, body); })) return;
    if (shared > EMULATED_SHARED_BYTES || block.x * block.y * block.z > 1024 || !grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535) {
        emulated_fail(cudaErrorInvalidConfiguration);
        return;
    }
    emulated_grid = grid;
    emulated_block = block;
    n_threads = block.x * block.y * block.z;
    while (fibers.size() < n_threads) fibers.push_back(new fiber());
    warps.assign((n_threads + 31) / 32, warp());
    work = &body;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) run_block(make_uint3(x, y, z));
    emulated_now = NULL;
}

/* ---- Waiting */

void emulated_barrier() {
    fiber *f = current();
    f->in_barrier = true;
    n_waiting++;
    f->released = false;
    while (!f->released) {
        if (n_waiting == n_alive) {
            for (unsigned i = 0; i < n_threads; i++) {
                fiber *other = fibers[i];
                if (!other->in_barrier || other->ended) continue;
                other->in_barrier = false;
                other->released = true;
            }
            n_waiting = 0;
            progressed = true;
        } else {
            yield();
        }
    }
}

bool emulated_vote(bool all, bool value) {
    vote_any |= value;
    vote_all &= value;
    emulated_barrier();
    bool result = all ? vote_all : vote_any;
    emulated_barrier();
    vote_any = false;
    vote_all = true;
    emulated_barrier();
    return result;
}

void emulated_warp_barrier(uint32_t mask) {
    fiber *f = current();
    warp *w = &warps[f->number / 32];
    uint32_t own = 1u << f->number % 32;
    if (!(mask & own)) {
        fprintf(stderr, "emulated kernel: lane %u waits with the mask %#x, which has it not\n", f->number % 32, mask);
        abort();
    }
    w->arrived |= own;
    w->released &= ~own;
    while (!(w->released & own)) {
        uint32_t wanted = mask & w->alive;
        if ((w->arrived & wanted) == wanted) {
            w->arrived &= ~wanted;
            w->released |= wanted;
            progressed = true;
        } else {
            yield();
        }
    }
}

const char *emulated_exchange(uint32_t mask, const void *own, size_t bytes) {
    fiber *f = current();
    warp *w = &warps[f->number / 32];
    if (bytes > EXCHANGE_BYTES) abort();
    memcpy(w->given + f->number % 32 * bytes, own, bytes);
    emulated_warp_barrier(mask);
    char *received = f->received[f->exchanges++ % 2];
    memcpy(received, w->given, 32 * bytes);
    emulated_warp_barrier(mask);
    return received;
}

uint32_t emulated_ballot(uint32_t mask, bool value) {
    char own = value;
    const char *all = emulated_exchange(mask, &own, 1);
    uint32_t ballot = 0;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1 && all[i] == 1) ballot |= 1u << i;
    return ballot;
}

/* ---- Copies */

void emulated_copy_async(char *to, const void *from, int bytes, bool valid) {
    current()->copies.push_back({to, from, bytes, valid, current()->groups});
}

void emulated_commit_copies() { current()->groups++; }

void emulated_wait_copies(int left) {
    fiber *f = current();
    size_t kept = 0;
    for (const pending_copy &copy : f->copies) {
        if (copy.group + (unsigned)left >= f->groups) {
            f->copies[kept++] = copy;
        } else if (copy.valid) {
            memcpy(copy.to, copy.from, (size_t)copy.bytes);
        } else {
            memset(copy.to, 0, (size_t)copy.bytes);
        }
    }
    f->copies.resize(kept);
}
