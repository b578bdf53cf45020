/* Nothing: what is emulated is of compute capability 8.0. */
