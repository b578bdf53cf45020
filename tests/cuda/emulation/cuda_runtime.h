/* Nothing: cuda_emulation.h, which is included before all else, has what kernels need of it. */
