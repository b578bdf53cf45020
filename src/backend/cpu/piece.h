/* Divides long work into pieces, between which other work may go on. */
#ifndef TERSE_BACKEND_CPU_PIECE_H
#define TERSE_BACKEND_CPU_PIECE_H

/* A piece has about so many multiplications on each thread, which take some hundredths of a second. */
#define PIECE_MULTIPLICATIONS 0.5e9

#endif
